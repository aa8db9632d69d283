//! The console as a server, before a cluster that is played: what it asks for, and what its pages show.

#![allow(clippy::unwrap_used, reason = "a test that cannot run should fail")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, thread};

use runway_api::async_actor::ActorState;
use runway_api::llama_stack_distribution::{DistributionPhase, ProviderPhase};
use runway_api::{Phase, Tone};
use runway_operator::audit::AuditArgs;
use runway_operator::client::ClientArgs;
use runway_web::{Console, Options};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Path at which the API server passes requests on to asya-gateway.
const GATEWAY: &str = "/api/v1/namespaces/kubeairunway-system/services/https:asya-gateway:443/proxy";

/// A cluster that holds lists, knows nothing else, and remembers what it was asked.
struct Cluster {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Cluster {
    /// `lists`: items by the path of their list.
    fn start(lists: BTreeMap<&'static str, Vec<Value>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (seen, lists) = (asked.clone(), Arc::new(lists));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, lists) = (seen.clone(), lists.clone());
                thread::spawn(move || answer(stream, &seen, &lists));
            }
        });
        Self { url, asked }
    }

    /// The requests about objects in a namespace, and all that would change anything.
    fn asked_of_objects(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap().clone();
        let harmless =
            |line: &String| line.contains("selfsubject") || line.starts_with("GET") && !line.contains("/namespaces/");
        asked.into_iter().filter(|line| !harmless(line)).collect()
    }
}

fn answer(mut stream: TcpStream, seen: &Mutex<Vec<String>>, lists: &BTreeMap<&'static str, Vec<Value>>) {
    let (line, headers) = read(&mut stream);
    seen.lock().unwrap().push(line.clone());
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let path = target.split('?').next().unwrap_or_default();
    let (status, body) = match lists.get(path) {
        Some(_) if target.contains("watch=true") => {
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
            // Nothing ever changes: the other side ends it.
            let _ = stream.read(&mut [0]);
            return;
        }
        Some(items) => (
            "200 OK",
            json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": items }),
        ),
        None if path == format!("{GATEWAY}/queues/default/running") => gateway(&headers),
        None if path == format!("{GATEWAY}/queues/default/napping") => {
            let message = "user 'u' cannot get asyncactors/queue of 'napping'";
            ("403 Forbidden", json!({ "error": { "message": message } }))
        }
        None if path.ends_with("/selfsubjectaccessreviews") => {
            ("201 Created", json!({ "spec": {}, "status": { "allowed": true } }))
        }
        None => {
            let status =
                json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": "unknown" });
            ("404 Not Found", status)
        }
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all((head + &body).as_bytes());
}

/// Answers as asya-gateway does, which identifies the user by the token.
fn gateway(headers: &[String]) -> (&'static str, Value) {
    let token = |header: &String| header.eq_ignore_ascii_case("x-forwarded-authorization: Bearer secret");
    if !headers.iter().any(token) {
        let message = "the token is not valid";
        return ("401 Unauthorized", json!({ "error": { "message": message } }));
    }
    let numbers = json!({ "namespace": "default", "actor": "running", "queue": "asya-default_running",
        "waiting": 12, "running": 3, "consumers": 1, "dead": null });
    ("200 OK", numbers)
}

/// The first line of a request or a response, and its headers.
fn read(stream: &mut TcpStream) -> (String, Vec<String>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    (first, lines.take_while(|line| !line.is_empty()).collect())
}

/// A browser at a console of the cluster.
struct Browser {
    address: SocketAddr,
    cookie: String,
    csrf: String,
    end: CancellationToken,
    _runtime: Runtime,
}

impl Browser {
    fn at(cluster: &Cluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": cluster.url } }],
            "users": [{ "name": "u", "user": { "token": "secret" } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        fs::write(&file, kubeconfig.to_string()).unwrap();
        let (runtime, end) = (Runtime::new().unwrap(), CancellationToken::new());
        let options = Options {
            address: "127.0.0.1:0".parse().unwrap(),
            login: None,
            audit: AuditArgs::default(),
        };
        let client = ClientArgs {
            kubeconfig: Some(file),
            context: None,
        };
        let console = runtime.block_on(Console::bind(&options, &client, end.clone())).unwrap();
        let (address, url) = (console.address().unwrap(), console.url.clone());
        runtime.spawn(console.serve());
        let mut browser = Self {
            address,
            cookie: String::new(),
            csrf: String::new(),
            end,
            _runtime: runtime,
        };
        let entry = url.split_once(&address.to_string()).unwrap().1.to_owned();
        let (_, head, _) = browser.send("GET", &entry, "");
        let cookie = head.iter().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        cookie.split(';').next().unwrap().clone_into(&mut browser.cookie);
        let (_, _, page) = browser.send("GET", "/providers", "");
        let csrf = page.split_once("name=\"csrf\" content=\"").unwrap().1;
        csrf.split('"').next().unwrap().clone_into(&mut browser.csrf);
        browser
    }

    /// The status, the headers and the page.
    fn send(&self, method: &str, path: &str, form: &str) -> (u16, Vec<String>, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {0}\r\norigin: http://{0}\r\ncookie: {1}\r\nconnection: close\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {2}\r\n\r\n{form}",
            self.address,
            self.cookie,
            form.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut head = head.lines().map(str::to_owned);
        let status = head.next().unwrap();
        let status = status.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.collect(), body.to_owned())
    }

    fn post(&self, path: &str, form: &str) -> (u16, Vec<String>, String) {
        self.send("POST", path, &format!("csrf={}&{form}", self.csrf))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// As a browser sends texts that would lead to other objects, or to all of them.
fn hostile() -> Vec<String> {
    let texts = [
        "%3F", "%23", "%2F", "%252F", "%2E%2E", "..%2Fx", "a%2Fb", "a%3Fb", "%00", "a%0Ab", "Gemma", "%C3%A4", "%20",
    ];
    texts.map(str::to_owned).into_iter().chain(["a".repeat(254)]).collect()
}

#[test]
fn a_hostile_address_is_refused_and_nothing_is_asked() {
    let cluster = Cluster::start(BTreeMap::new());
    let browser = Browser::at(&cluster);
    for text in hostile() {
        for place in [format!("default/{text}"), format!("{text}/gemma")] {
            for part in ["deployments", "actors", "stacks"] {
                let page = format!("/{part}/{place}");
                for path in [page.clone(), format!("{page}/delete")] {
                    let (status, _, said) = browser.send("GET", &path, "");
                    assert_eq!(status, 400, "GET {path}");
                    assert!(said.contains("invalid name"), "GET {path}: {said}");
                }
                for verb in ["pause", "resume", "delete"] {
                    let (status, ..) = browser.post(&format!("{page}/{verb}"), "uid=1");
                    assert_eq!(status, 400, "POST {page}/{verb}");
                }
            }
            for tab in ["yaml", "diff", "logs", "logs/follow", "chat", "edit"] {
                let (status, ..) = browser.send("GET", &format!("/deployments/{place}/{tab}"), "");
                assert_eq!(status, 400, "GET {place}/{tab}");
            }
            for page in ["", "/show?id=1", "/delete"] {
                let (status, ..) = browser.send("GET", &format!("/actors/{place}/dead-letters{page}"), "");
                assert_eq!(status, 400, "GET {place}/dead-letters{page}");
            }
            for verb in ["redrive", "delete"] {
                let (status, ..) = browser.post(&format!("/actors/{place}/dead-letters/{verb}"), "all=true");
                assert_eq!(status, 400, "POST {place}/dead-letters/{verb}");
            }
            for verb in ["chat", "edit"] {
                let (status, ..) = browser.post(&format!("/deployments/{place}/{verb}"), "message=a&stream=true");
                assert_eq!(status, 400, "POST {place}/{verb}");
            }
            for part in ["actors", "stacks"] {
                let (status, ..) = browser.post(&format!("/{part}/{place}/edit"), "manifest=a");
                assert_eq!(status, 400, "POST {part}/{place}/edit");
            }
        }
        let form = format!("metadata.name=gemma&metadata.namespace={text}&spec.model.id=a&spec.engine.type=vllm");
        let (status, ..) = browser.post("/new", &form);
        assert_eq!(status, 422, "POST /new in {text}");
    }
    // An object that was not looked at is not deleted.
    let (status, ..) = browser.post("/deployments/default/gemma/delete", "uid=");
    assert_eq!(status, 400);
    assert_eq!(cluster.asked_of_objects(), [""; 0]);

    // The cluster does see what is asked of it.
    browser.post("/deployments/default/gemma/delete", "uid=1");
    let asked = cluster.asked_of_objects();
    assert!(
        asked
            .iter()
            .all(|line| line
                .starts_with("DELETE /apis/kubeairunway.ai/v1alpha1/namespaces/default/modeldeployments/gemma")),
        "{asked:?}"
    );
    assert_eq!(asked.len(), 1);
}

/// The class of a pill.
fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Current => "good",
        Tone::InProgress => "open",
        Tone::Failed => "bad",
        Tone::Terminating | Tone::Paused | Tone::Unknown => "none",
    }
}

fn pill(tone: Tone, word: &str) -> String {
    format!(
        "<span class=\"pill {0}\"><span class=\"dot {0}\" aria-hidden=\"true\"></span>{word}</span>",
        class(tone)
    )
}

fn object(kind: &str, api_version: &str, name: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "spec": spec, "status": status,
        "metadata": { "name": name.to_lowercase(), "namespace": "default", "uid": name, "resourceVersion": "1" },
    })
}

#[test]
fn every_word_of_a_status_is_shown_in_its_tone() {
    let model = |phase: &Phase| {
        let spec = json!({ "model": { "id": "org/a" }, "engine": { "type": "vllm" } });
        object(
            "ModelDeployment",
            "kubeairunway.ai/v1alpha1",
            phase.as_str(),
            &spec,
            &json!({ "phase": phase }),
        )
    };
    let actor = |word: &str| {
        let spec = json!({ "transport": "rabbitmq" });
        let status = json!({ "status": word, "mode": "Binding", "scalingMode": "KEDA", "binding": { "strategy": "ParentSpec" } });
        object("AsyncActor", "asya.sh/v1alpha1", word, &spec, &status)
    };
    let stack = |phase: &DistributionPhase| {
        let spec = json!({ "server": { "distribution": { "name": "starter" } } });
        let providers = ProviderPhase::ALL
            .iter()
            .map(|phase| json!({ "providerId": phase.as_str().to_lowercase(), "image": "a:1", "phase": phase }));
        let status = json!({ "phase": phase, "externalProviders": providers.collect::<Vec<_>>() });
        object(
            "LlamaStackDistribution",
            "llamastack.io/v1alpha1",
            phase.as_str(),
            &spec,
            &status,
        )
    };
    // A word of a newer version is shown as it is.
    let words = ActorState::ALL.iter().map(|state| state.as_str()).chain(["Levitating"]);
    let cluster = Cluster::start(BTreeMap::from([
        (
            "/apis/kubeairunway.ai/v1alpha1/modeldeployments",
            Phase::ALL.iter().map(model).collect(),
        ),
        ("/apis/asya.sh/v1alpha1/asyncactors", words.map(actor).collect()),
        (
            "/apis/llamastack.io/v1alpha1/llamastackdistributions",
            DistributionPhase::ALL.iter().map(stack).collect(),
        ),
    ]));
    let browser = Browser::at(&cluster);
    let (status, _, models) = browser.send("GET", "/deployments", "");
    assert_eq!(status, 200);
    for phase in Phase::ALL {
        assert!(
            models.contains(&pill(phase.tone(), phase.as_str())),
            "{phase}: {models}"
        );
    }
    let (_, _, actors) = browser.send("GET", "/actors", "");
    for state in ActorState::ALL {
        assert!(
            actors.contains(&pill(state.tone(), state.as_str())),
            "{state}: {actors}"
        );
    }
    assert!(actors.contains(&pill(Tone::Unknown, "Levitating")));
    let (_, _, actor) = browser.send("GET", "/actors/default/running", "");
    for shown in ["Binding, by ParentSpec", "<dd>KEDA</dd>"] {
        assert!(actor.contains(shown), "{shown}: {actor}");
    }
    let (_, _, stacks) = browser.send("GET", "/stacks", "");
    for phase in DistributionPhase::ALL {
        assert!(
            stacks.contains(&pill(phase.tone(), phase.as_str())),
            "{phase}: {stacks}"
        );
    }
    let (_, _, stack) = browser.send("GET", "/stacks/default/ready", "");
    for phase in ProviderPhase::ALL {
        assert!(stack.contains(&pill(phase.tone(), phase.as_str())), "{phase}: {stack}");
    }
    // The overview counts the same words in the same tones.
    let (_, _, overview) = browser.send("GET", "/", "");
    for (tone, word) in [
        (Tone::InProgress, "WaitingForTarget"),
        (Tone::InProgress, "Updating"),
        (Tone::InProgress, "Moving"),
        (Tone::Failed, "TransportError"),
        (Tone::Unknown, "Levitating"),
    ] {
        let shown = format!(
            "<span class=\"dot {}\" aria-hidden=\"true\"></span>1 {word}</li>",
            class(tone)
        );
        assert!(overview.contains(&shown), "{word}: {overview}");
    }
}

#[test]
fn an_actor_shows_the_numbers_of_its_messages_or_why_they_are_unknown() {
    let actor = |name: &&str| {
        let spec = json!({ "transport": "rabbitmq" });
        object("AsyncActor", "asya.sh/v1alpha1", name, &spec, &json!({}))
    };
    // The gateway knows the first, refuses the second, and is not there for the third.
    let names = ["running", "napping", "creating"];
    let actors = names.iter().map(actor).collect();
    let cluster = Cluster::start(BTreeMap::from([("/apis/asya.sh/v1alpha1/asyncactors", actors)]));
    let browser = Browser::at(&cluster);
    let shown = [
        "<dd>12 waiting, 3 running, an unknown number failed <a href=\"/actors/default/running/dead-letters\">",
        "asyncactors/queue of",
        "cannot reach asya-gateway at service kubeairunway-system/https:asya-gateway:443: unknown",
    ];
    for (name, shown) in names.iter().zip(shown) {
        let (status, _, page) = browser.send("GET", &format!("/actors/default/{name}"), "");
        assert_eq!(status, 200, "{name}");
        assert!(page.contains(shown), "{name}: {page}");
    }
    // The list asks nothing: that would be a request for each actor.
    let asked = || {
        cluster
            .asked
            .lock()
            .unwrap()
            .iter()
            .filter(|line| line.contains("/proxy/"))
            .count()
    };
    assert_eq!(asked(), 3);
    browser.send("GET", "/actors", "");
    assert_eq!(asked(), 3);
}

/// A model with a status.
fn model(name: &str, status: &Value) -> Value {
    let spec = json!({ "model": { "id": "org/a" }, "engine": { "type": "vllm" } });
    object("ModelDeployment", "kubeairunway.ai/v1alpha1", name, &spec, status)
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-21T10:00:00Z" })
}

/// A provider whose controller has sent its last heartbeat at `beat`.
fn provider(name: &str, ready: bool, beat: &str, upstream: &Value) -> Value {
    let spec = json!({ "capabilities": { "engines": ["vllm"], "servingModes": ["aggregated"], "gpuSupport": true } });
    let status = json!({ "ready": ready, "lastHeartbeat": beat, "conditions": [upstream] });
    object(
        "InferenceProviderConfig",
        "kubeairunway.ai/v1alpha1",
        name,
        &spec,
        &status,
    )
}

fn cluster_of(models: Vec<Value>, providers: Vec<Value>) -> Cluster {
    Cluster::start(BTreeMap::from([
        ("/apis/kubeairunway.ai/v1alpha1/modeldeployments", models),
        ("/apis/kubeairunway.ai/v1alpha1/inferenceproviderconfigs", providers),
    ]))
}

#[test]
fn overview_lists_each_fault_once_and_before_unused_providers() {
    let pull = "ErrImagePull: not found";
    let failed = |name: &str| {
        let conditions = [condition("Stalled", "True", "ImagePullFailed", pull)];
        model(
            name,
            &json!({ "phase": "Failed", "message": pull, "conditions": conditions }),
        )
    };
    let waiting = json!({ "phase": "Running", "provider": { "name": "silent" },
        "conditions": [condition("ProviderUnavailable", "True", "ProviderUnavailable", "Provider 'silent' sends no heartbeat")] });
    let now = runway_operator::clock::now().to_string();
    let missing = condition(
        "UpstreamReady",
        "False",
        "CRDNotInstalled",
        "rayservices.ray.io is not installed",
    );
    let broken = condition("UpstreamReady", "False", "UnknownUpstreamSchema", "an unknown schema");
    let fine = condition("UpstreamReady", "True", "SchemaKnown", "");
    let cluster = cluster_of(
        vec![failed("one"), failed("two"), model("three", &waiting)],
        vec![
            provider("unused", false, &now, &missing),
            provider("odd", false, &now, &broken),
            provider("silent", true, "2026-11-21T10:00:00Z", &fine),
        ],
    );
    let browser = Browser::at(&cluster);
    let (_, _, page) = browser.send("GET", "/", "");
    assert_eq!(page.matches(pull).count(), 1, "{page}");
    assert!(page.contains("default/one</a>, <a"), "{page}");
    assert!(
        page.contains("1 Not used</li>") && !page.contains("rayservices.ray.io"),
        "{page}"
    );
    assert!(
        page.contains("Affects <a href=\"/deployments/default/three\">"),
        "{page}"
    );
    assert_eq!(page.matches("default/three</a>").count(), 1, "{page}");
    let at = |text: &str| page.find(text).unwrap();
    assert!(
        at(pull) < at("an unknown schema"),
        "faults without an affected model come last: {page}"
    );
    let (_, _, page) = browser.send("GET", "/providers", "");
    assert!(page.contains("</span>Not used</span>"), "{page}");
}

#[test]
fn overview_of_an_empty_cluster_lists_the_next_commands() {
    let browser = Browser::at(&Cluster::start(BTreeMap::new()));
    let (_, _, page) = browser.send("GET", "/", "");
    for command in [
        "controller install",
        "provider install direct",
        "deploy google/",
        "chat gemma",
    ] {
        assert!(
            page.contains(&format!("<code>kubeairunway {command}")),
            "{command}: {page}"
        );
    }
    let now = runway_operator::clock::now().to_string();
    let fine = condition("UpstreamReady", "True", "NoUpstream", "");
    let browser = Browser::at(&cluster_of(Vec::new(), vec![provider("direct", true, &now, &fine)]));
    let (_, _, page) = browser.send("GET", "/", "");
    assert_eq!(page.matches("</span>Done</span>").count(), 2, "{page}");
    assert!(
        !page.contains("provider install") && page.contains("<strong>c</strong>"),
        "{page}"
    );
}

#[test]
fn a_page_says_a_message_once_and_folds_a_long_one() {
    let pull = format!(
        "container 'model': ErrImagePull: failed to pull the image: {}",
        "x".repeat(400)
    );
    let conditions = [
        condition("Ready", "False", "ImagePullFailed", &pull),
        condition("Stalled", "True", "ImagePullFailed", &pull),
    ];
    let failed = model(
        "one",
        &json!({ "phase": "Failed", "message": pull, "conditions": conditions }),
    );
    let browser = Browser::at(&cluster_of(vec![failed], Vec::new()));
    let (_, _, page) = browser.send("GET", "/deployments/default/one", "");
    assert_eq!(page.matches("failed to pull the image").count(), 1, "{page}");
    assert!(
        page.contains(&format!("<summary>Details</summary><p>{}", "x".repeat(400))),
        "{page}"
    );
}

#[test]
fn form_derives_name_engine_and_gpus_from_the_address_of_a_model() {
    let now = runway_operator::clock::now().to_string();
    let fine = condition("UpstreamReady", "True", "NoUpstream", "");
    let form = "metadata.namespace=default&then=preview&spec.model.id=https://huggingface.co/Org/7B-chat/tree/main";
    let browser = Browser::at(&cluster_of(Vec::new(), vec![provider("direct", true, &now, &fine)]));
    let (status, _, page) = browser.post("/new", form);
    assert_eq!(status, 200, "{page}");
    for shown in [
        "value=\"Org/7B-chat\"",
        "<dt>Name</dt><dd><strong>model-7b-chat</strong>",
        "<dt>Engine</dt><dd><strong>vllm</strong>",
        "<dt>GPUs per replica</dt><dd><strong>1</strong>",
        "<strong>direct</strong>",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("--gpu") && !page.contains("aria-invalid"), "{page}");

    let browser = Browser::at(&cluster_of(Vec::new(), Vec::new()));
    let (_, _, page) = browser.post("/new", form);
    assert!(
        page.contains("no provider is registered: each registers when"),
        "{page}"
    );
    assert!(!page.contains("does not support engine"), "{page}");
}

#[test]
fn manifest_with_an_error_is_shown_with_its_line_and_nothing_is_sent() {
    let cluster = Cluster::start(BTreeMap::new());
    let browser = Browser::at(&cluster);
    let (status, _, page) = browser.send("GET", "/new/actors", "");
    assert!(status == 200 && page.contains("kind: AsyncActor"), "{page}");
    let actor = "apiVersion: asya.sh/v1alpha1\nkind: AsyncActor\nmetadata:\n  name: a\nspec:\n  transport: rabbitmq\n";
    for (part, manifest, shown) in [
        ("actors", format!("{actor}  scalling: 1\n"), "line 7"),
        ("actors", "a: [".to_owned(), "line 1"),
        ("actors", String::new(), "has 0 objects"),
        ("actors", format!("{actor}---\n{actor}"), "has 2 objects"),
        ("stacks", actor.to_owned(), "this page is about LlamaStackDistribution"),
        (
            "actors",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n".to_owned(),
            "this page is about AsyncActor",
        ),
    ] {
        let sent: String = form_urlencoded::byte_serialize(manifest.as_bytes()).collect();
        let (status, _, page) = browser.post(&format!("/new/{part}"), &format!("manifest={sent}"));
        assert_eq!(status, 422, "{page}");
        assert!(
            page.contains(shown) && page.contains("Nothing was changed"),
            "{shown}: {page}"
        );
    }
    let (status, ..) = browser.send("GET", "/new/deployments", "");
    assert_eq!(status, 404, "models have a form of their own");
    assert_eq!(cluster.asked_of_objects(), [""; 0]);
}

#[test]
fn lists_of_actors_and_servers_are_searched() {
    let actor = |name: &str, state: &str| {
        object(
            "AsyncActor",
            "asya.sh/v1alpha1",
            name,
            &json!({ "transport": "rabbitmq" }),
            &json!({ "status": state, "message": format!("about {name}") }),
        )
    };
    let actors = vec![actor("embed", "Running"), actor("resize", "Error")];
    let browser = Browser::at(&Cluster::start(BTreeMap::from([(
        "/apis/asya.sh/v1alpha1/asyncactors",
        actors,
    )])));
    let rows = |query: &str| {
        let (status, _, page) = browser.send("GET", &format!("/actors?{query}"), "");
        assert_eq!(status, 200, "{page}");
        ["embed", "resize"].map(|name| page.contains(&format!("id=\"actor-default-{name}\"")))
    };
    assert_eq!(rows(""), [true, true]);
    assert_eq!(rows("q=about+EMBED"), [true, false]);
    assert_eq!(rows("phase=Error"), [false, true]);
    assert_eq!(rows("namespace=other"), [false, false]);
}

#[test]
fn objects_are_boxes_and_events_of_a_deleted_predecessor_are_omitted() {
    let event = |kind: &str, uid: &str, message: &str| {
        json!({ "metadata": { "name": message, "namespace": "default" }, "reason": "R", "message": message, "type": "Normal",
            "involvedObject": { "kind": kind, "name": "one", "uid": uid }, "lastTimestamp": "2026-11-21T10:00:00Z" })
    };
    let pod = json!({ "metadata": { "name": "one-0", "namespace": "default", "uid": "p" },
        "spec": { "containers": [{ "name": "model" }] }, "status": { "phase": "Running" } });
    let cluster = Cluster::start(BTreeMap::from([
        (
            "/apis/kubeairunway.ai/v1alpha1/modeldeployments",
            vec![model("one", &json!({ "phase": "Running", "message": "ready" }))],
        ),
        (
            "/api/v1/namespaces/default/events",
            vec![
                event("ModelDeployment", "one", "of this object"),
                event("ModelDeployment", "old", "of its predecessor"),
            ],
        ),
        ("/api/v1/namespaces/default/pods", vec![pod]),
    ]));
    let browser = Browser::at(&cluster);
    let (status, _, page) = browser.send("GET", "/deployments/default/one", "");
    assert_eq!(status, 200, "{page}");
    assert!(
        page.contains("of this object") && !page.contains("of its predecessor"),
        "{page}"
    );
    assert!(page.contains("<div class=\"box "), "{page}");
    // Only a pod of the object is read.
    let (_, _, page) = browser.send("GET", "/deployments/default/one?pod=another", "");
    assert!(!page.contains("id=\"pod\""), "{page}");
    let asked = cluster.asked.lock().unwrap().clone();
    assert!(!asked.iter().any(|line| line.contains("pods/another")), "{asked:?}");
}
