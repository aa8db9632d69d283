//! Dead letters in the web console: the real console, which reaches a real gateway through a real API server, and a real RabbitMQ.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use form_urlencoded::Serializer;
use http::header::{CONTENT_TYPE, COOKIE, LOCATION, ORIGIN, SET_COOKIE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use runway_asya_testbed::pipeline::{Broker, Kind};
use runway_testbed::{PATIENCE, eventually};
use serde_json::json;

mod support;
use support::{AUTHORITY, Gateway, World, may};

const QUEUE: &str = "asya-team_upper";
const DEAD: &str = "asya-team_upper_dlq";
/// Address of the page.
const PAGE: &str = "/actors/team/upper/dead-letters";
/// An ID that means something in addresses and in HTML.
const ODD: &str = "odd/id?&<b>";
/// Largest message that the gateway reads, in bytes.
const LARGEST: usize = 65_536;

/// A console of a user, and a browser that is signed in. Dropping it ends the console.
struct Console {
    child: Child,
    site: String,
    cookie: String,
    csrf: String,
    http: HttpClient<HttpConnector, Full<Bytes>>,
}

impl Console {
    async fn start(program: &Path, kubeconfig: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["ui", "--address", "127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut console = Self {
            child,
            site: String::new(),
            cookie: String::new(),
            csrf: String::new(),
            http: HttpClient::builder(TokioExecutor::new()).build(HttpConnector::new()),
        };
        let lines: Vec<String> = tokio::task::spawn_blocking(move || {
            let mut lines = Vec::new();
            for line in output.lines().map_while(Result::ok) {
                lines.push(line);
                if lines.last().is_some_and(|line| line.starts_with("http://")) {
                    break;
                }
            }
            lines
        })
        .await?;
        let url = lines.last().context("the console has not printed its address")?;
        let (site, entry) = url.split_once("/?").context("no key in the address")?;
        site.clone_into(&mut console.site);
        let (_, headers, _) = console.send(Method::GET, &format!("/?{entry}"), String::new()).await?;
        let cookie = headers.get(SET_COOKIE).context("no cookie")?.to_str()?;
        cookie
            .split(';')
            .next()
            .context("no cookie")?
            .clone_into(&mut console.cookie);
        let page = console.get("/providers").await?;
        let (_, csrf) = page
            .split_once("name=\"csrf\" content=\"")
            .context("no token of forms")?;
        csrf.split('"')
            .next()
            .context("no token of forms")?
            .clone_into(&mut console.csrf);
        Ok(console)
    }

    async fn send(&self, method: Method, path: &str, form: String) -> Result<(StatusCode, HeaderMap, String)> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.site))
            .header(ORIGIN, &self.site)
            .header(COOKIE, &self.cookie)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(form.into()))?;
        let response = self.http.request(request).await?;
        let (parts, body) = response.into_parts();
        let page = body.collect().await?.to_bytes();
        Ok((parts.status, parts.headers, String::from_utf8_lossy(&page).into_owned()))
    }

    async fn get(&self, path: &str) -> Result<String> {
        let (status, _, page) = self.send(Method::GET, path, String::new()).await?;
        ensure!(status == StatusCode::OK, "{path}: {status} {page}");
        Ok(page)
    }

    /// Submits a form.
    async fn post(&self, action: &str, field: (&str, &str)) -> Result<(StatusCode, HeaderMap, String)> {
        let mut form = Serializer::new(String::new());
        form.append_pair("csrf", &self.csrf).append_pair(field.0, field.1);
        self.send(Method::POST, &format!("{PAGE}/{action}"), form.finish())
            .await
    }

    /// Submits a form that leads back to the list.
    async fn done(&self, action: &str, field: (&str, &str)) -> Result<()> {
        let (status, headers, page) = self.post(action, field).await?;
        ensure!(status == StatusCode::SEE_OTHER, "{action} {field:?}: {status} {page}");
        ensure!(headers.get(LOCATION).is_some_and(|to| to == PAGE), "{headers:?}");
        Ok(())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_listed_redriven_and_deleted_in_the_console() -> Result<()> {
    let world = World::start().await?;
    let broker = &world.broker;
    broker.declare_as(QUEUE, Kind::Quorum).await?;
    broker.declare_as(DEAD, Kind::Quorum).await?;
    for id in ["m0", ODD, "m2"] {
        let letter = json!({"id": id, "route": {"actors": ["upper"], "current": 0}, "payload": {"of": id}});
        broker.publish(DEAD, letter.to_string().as_bytes()).await?;
    }
    broker.publish(DEAD, &vec![b'x'; 4 * LARGEST]).await?;
    let store = world.folder.path().join("jobs.redb");
    let largest = format!("--largest-result={LARGEST}");
    let gateway = Gateway::start(&world, &store, &[&largest, &format!("--tls-authority={AUTHORITY}")]).await?;
    let place = "kubeairunway-system";
    world.serve(place, "asya-gateway", gateway.port()).await?;
    let program = runway_testbed::programs::build(false).await?.join("kubeairunway");
    let console = async |name: &str, verbs: &[&str]| {
        let token = world.user_with(name, vec![may(verbs, "dlq")], &[]).await?;
        world.may_use_proxy(place, "https:asya-gateway:443", name).await?;
        Console::start(&program, &world.kubeconfig_with_token(name, &token)?).await
    };
    let ops = console("ops", &["get", "update", "delete"]).await?;
    let guest = console("guest", &["get"]).await?;

    // The role bindings take a moment.
    let page = eventually(PATIENCE, async || {
        let page = ops.get(PAGE).await?;
        ensure!(page.contains("4 of 4 dead letters"), "{page}");
        Ok(page)
    })
    .await?;
    for shown in [
        ">m0</a>",
        ">odd/id?&#38;&#60;b&#62;</a>",
        "larger than asya-gateway reads",
    ] {
        ensure!(page.contains(shown), "{shown}: {page}");
    }
    let odd: String = Serializer::new(String::new()).append_pair("id", ODD).finish();
    let page = ops.get(&format!("{PAGE}/show?{odd}")).await?;
    ensure!(page.contains("of: odd/id?"), "{page}");
    let page = ops.get(&format!("{PAGE}/delete?{odd}")).await?;
    ensure!(page.contains("Delete dead letter odd/id?"), "{page}");

    refusals(&ops, &guest).await?;
    ensure!(broker.ready(DEAD).await? == 4, "a refused request changed the queue");

    ops.done("redrive", ("id", ODD)).await?;
    let counts = |dead, waiting| counted(broker, dead, waiting);
    counts(3, 1).await?;
    let (status, _, page) = ops.post("redrive", ("id", ODD)).await?;
    ensure!(
        status == StatusCode::NOT_FOUND && page.contains("has been redriven or deleted already"),
        "{status} {page}"
    );
    ops.done("delete", ("id", "m0")).await?;
    counts(2, 1).await?;
    // What the gateway does not read stays.
    ops.done("redrive", ("all", "true")).await?;
    counts(1, 2).await?;
    ensure!(ops.get(PAGE).await?.contains("1 of 1 dead letters"));
    Ok(())
}

/// Nothing is changed without permission, without the token of forms, or without a selection.
async fn refusals(ops: &Console, guest: &Console) -> Result<()> {
    eventually(PATIENCE, async || guest.get(PAGE).await.map(drop)).await?;
    for action in ["redrive", "delete"] {
        let (status, _, page) = guest.post(action, ("all", "true")).await?;
        ensure!(
            status == StatusCode::FORBIDDEN && page.contains("asyncactors/dlq"),
            "{action}: {status} {page}"
        );
        let (status, ..) = ops
            .send(Method::POST, &format!("{PAGE}/{action}"), "all=true".to_owned())
            .await?;
        ensure!(status == StatusCode::FORBIDDEN, "{action}: {status}");
        for field in [("all", "false"), ("uid", "m0")] {
            let (status, _, page) = ops.post(action, field).await?;
            ensure!(
                status == StatusCode::BAD_REQUEST && page.contains("Nothing was changed"),
                "{action} {field:?}: {status} {page}"
            );
        }
    }
    Ok(())
}

/// Waits until so many messages are in the two queues.
async fn counted(broker: &Broker, dead: u32, waiting: u32) -> Result<()> {
    eventually(PATIENCE, async || {
        let found = (broker.ready(DEAD).await?, broker.ready(QUEUE).await?);
        ensure!(found == (dead, waiting), "{found:?}");
        Ok(())
    })
    .await
}
