//! The built programs under attack by clients without credentials: half-open connections, huge bodies, many large reviews and
//! invented tokens. Counted is memory, the highest that a process has ever had, and questions to the API server. Each process
//! lives, answers an ordinary request at once, and what it refuses names the limit.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use axum::http::Method;
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use runway_api::{ModelDeployment, labels};
use runway_asya_testbed::pipeline::Broker;
use runway_manifests::{self as manifests, gateway, router};
use runway_product_testbed::program::{self, Program};
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Upstream};
use runway_router::AUDIENCE;
use runway_testbed::traffic::client::{Answer, Begun, chat, request};
use runway_testbed::{RabbitMq, RabbitMqOptions, audit, eventually, programs, tokens};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// Connections that are held open without a request.
const HALF_OPEN: usize = 1000;
/// A body far beyond every limit.
const HUGE: usize = 60_000_000;
/// Longest time of an ordinary request during the attacks: less than that of a TLS handshake (5 s) or a header (30 s).
const AT_ONCE: Duration = Duration::from_secs(4);

/// A port, and how it is spoken to.
#[derive(Clone)]
struct Port {
    address: SocketAddr,
    tls: Option<TlsConnector>,
    paths: &'static [&'static str],
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Port {
    fn plain(address: SocketAddr, paths: &'static [&'static str]) -> Self {
        Self {
            address,
            tls: None,
            paths,
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(self.address).await?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from("127.0.0.1")?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }

    /// Sends a request and returns the response, as text.
    async fn send(&self, head: &str, body: &[u8]) -> Result<String> {
        let (mut from, mut to) = tokio::io::split(self.connect().await?);
        let request = [head.as_bytes(), b"connection: close\r\n\r\n", body].concat();
        // A server may answer, and close, before it has read everything. Without the flush, TLS keeps the end of a large body
        // when the socket is full.
        let sending = async {
            if to.write_all(&request).await.is_ok() {
                let _ = to.flush().await;
            }
        };
        let mut answer = Vec::new();
        let receiving = async {
            let _ = from.read_to_end(&mut answer).await;
        };
        timeout(PATIENCE, async { tokio::join!(sending, receiving) })
            .await
            .with_context(|| {
                format!(
                    "no response within {PATIENCE:?}: {}",
                    head.lines().next().unwrap_or_default()
                )
            })?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn get(&self, path: &str) -> Result<String> {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", self.address), b"")
            .await
    }

    async fn post(&self, path: &str, body: &[u8]) -> Result<String> {
        let (host, length) = (self.address, body.len());
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
        );
        self.send(&head, body).await
    }

    /// A huge body on every path is refused, and the refusal names the limit.
    async fn refuses_huge_bodies(&self) -> Result<()> {
        let body = vec![b'0'; HUGE];
        for path in self.paths.iter().chain(&["/nowhere"]) {
            let answer = self.post(path, &body).await?;
            let says = answer.starts_with("HTTP/1.1 413") && answer.contains("too large: at most ");
            ensure!(says, "{path}: {answer}");
        }
        Ok(())
    }

    /// An ordinary request is answered while many connections are half open: silent, or in the middle of a header or of a TLS
    /// handshake.
    async fn answers_among_half_open_connections(&self, path: &str) -> Result<()> {
        let mut held = Vec::new();
        for number in 0..HALF_OPEN {
            let mut stream = TcpStream::connect(self.address).await?;
            let words: &[u8] = match (number % 3, &self.tls) {
                (0, _) => b"",
                (1, Some(_)) => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
                (1, None) => b"GET / HTTP/1.1\r\nhost:",
                _ => &[b'x'; 7000],
            };
            // The server may have closed it already: it was one too many.
            let _ = stream.write_all(words).await;
            held.push(stream);
        }
        let began = Instant::now();
        let answer = self.get(path).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        ensure!(began.elapsed() < AT_ONCE, "answered only after {:?}", began.elapsed());
        drop(held);
        Ok(())
    }
}

/// A client that trusts these certificates, in PEM.
fn trusting(pem: &[u8]) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn free_address() -> Result<SocketAddr> {
    Ok((std::net::Ipv4Addr::LOCALHOST, runway_testbed::free_port()?).into())
}

/// Everything but reviews, on an admin port; the program is ready before.
async fn attack_admin(program: &mut Program, admin: &Port, mib: usize) -> Result<()> {
    eventually(PATIENCE, async || {
        let answer = admin.get("/healthz").await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(())
    })
    .await?;
    program.had_at_most(mib, "the start")?;
    admin.answers_among_half_open_connections("/healthz").await?;
    program.had_at_most(mib, "half-open connections to its admin port")?;
    admin.refuses_huge_bodies().await?;
    program.had_at_most(mib, "huge bodies to its admin port")
}

const ADMIN_PATHS: &[&str] = &["/metrics", "/healthz", "/readyz"];

/// A deployment whose overrides are about 3 MB of the smallest values there are.
fn large() -> Value {
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": { "name": "large", "namespace": NAMESPACE },
        "spec": {
            "model": { "id": "org/model" },
            "engine": { "type": "vllm" },
            "resources": { "gpu": { "count": 1 } },
            "provider": { "overrides": { "a": vec![0; 1_450_000] } },
        },
    })
}

fn review(object: &Value) -> Vec<u8> {
    let request = json!({
        "uid": "u-1",
        "kind": { "group": "kubeairunway.ai", "version": "v1alpha1", "kind": "ModelDeployment" },
        "resource": { "group": "kubeairunway.ai", "version": "v1alpha1", "resource": "modeldeployments" },
        "name": "large", "namespace": NAMESPACE, "operation": "CREATE", "object": object,
    });
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
        .to_string()
        .into_bytes()
}

/// Four at a time, directly and through the API server, several times over.
async fn attack_with_reviews(bed: &Bed, core: &mut Program, webhook: &Port) -> Result<()> {
    let object = large();
    let body = review(&object);
    for _ in 0..3 {
        for path in ["/validate", "/mutate"] {
            let answers = try_join_all((0..4).map(|_| webhook.post(path, &body))).await?;
            for answer in answers {
                let refused = answer.contains("at most 256 KiB are accepted") || answer.starts_with("HTTP/1.1 503");
                ensure!(path == "/mutate" || refused, "{path}: {answer}");
            }
        }
        core.had_at_most(CORE, "large reviews to its webhook")?;
    }
    let models: Api<DynamicObject> = Api::namespaced_with(bed.admin.clone(), NAMESPACE, &resource());
    let object: DynamicObject = serde_json::from_value(object)?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut refused = 0;
    for _ in 0..3 {
        // An API server without an answer in five seconds skips admission: on a slow machine, the reconcile rejects the object.
        for result in join_all((0..4).map(|_| models.create(&dry_run, &object))).await {
            if let Err(refusal) = result.map_err(|error| error.to_string()) {
                ensure!(refusal.contains("at most 256 KiB are accepted"), "{refusal}");
                refused += 1;
            }
        }
        core.had_at_most(CORE, "large reviews of the API server")?;
    }
    ensure!(refused > 0, "specs of 3 MB were admitted");
    let answer = webhook.post("/convert", &body).await?;
    ensure!(answer.starts_with("HTTP/1.1 404"), "conversion is served: {answer}");
    Ok(())
}

fn resource() -> kube::core::ApiResource {
    kube::core::ApiResource::erase::<ModelDeployment>(&())
}

/// An ordinary object passes both webhooks: defaults are filled in, and mistakes are refused.
async fn reviews_are_answered(bed: &Bed) -> Result<()> {
    let models: Api<DynamicObject> = Api::namespaced_with(bed.admin.clone(), NAMESPACE, &resource());
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut small = large();
    small["spec"]["provider"] = Value::Null;
    let made = models.create(&dry_run, &serde_json::from_value(small.clone())?).await?;
    ensure!(
        made.finalizers().iter().any(|name| name == labels::FINALIZER),
        "no finalizer: {made:?}"
    );
    small["spec"]["engine"] = json!({});
    let refused = models.create(&dry_run, &serde_json::from_value(small)?).await;
    let refusal = refused
        .err()
        .context("an engine without a type was admitted")?
        .to_string();
    ensure!(refusal.contains("engine.type is required"), "{refusal}");
    Ok(())
}

/// MiB that each may ever have.
const CORE: usize = 96;
const PROVIDER: usize = 64;
const CONSOLE: usize = 128;
const SIDECAR: usize = 64;
const ROUTER: usize = 192;
const ASYA_GATEWAY: usize = 96;

async fn attack_core(bed: &Bed, folder: &Path) -> Result<()> {
    let (admin, port) = (free_address()?, bed.webhook_port());
    let args = [
        format!(
            "--kubeconfig={}",
            bed.cluster.kubeconfig(labels::CORE_MANAGER, &[])?.display()
        ),
        format!("--admin-address={admin}"),
        format!("--webhook-address=127.0.0.1:{port}"),
        format!("--webhook-url=https://127.0.0.1:{port}"),
    ];
    let mut core = Program::start(folder, "kubeairunway-controller", &args, &[])?;
    attack_admin(&mut core, &Port::plain(admin, ADMIN_PATHS), CORE).await?;

    let secrets: Api<Secret> = Api::namespaced(bed.admin.clone(), manifests::NAMESPACE);
    let secret = secrets.get(manifests::WEBHOOK_SECRET).await?;
    let authority = secret
        .data
        .and_then(|mut data| data.remove("ca.crt"))
        .context("no authority")?;
    let webhook = Port {
        address: ([127, 0, 0, 1], port).into(),
        tls: Some(trusting(&authority.0)?),
        paths: &["/mutate", "/validate", "/convert"],
    };
    eventually(PATIENCE, async || reviews_are_answered(bed).await).await?;
    attack_with_reviews(bed, &mut core, &webhook).await?;
    reviews_are_answered(bed).await?;
    webhook.refuses_huge_bodies().await?;
    core.had_at_most(CORE, "huge bodies to its webhook")?;
    // There is nothing to GET; whatever is answered is an answer.
    let held = webhook.answers_among_half_open_connections("/validate").await;
    ensure!(held.is_err_and(|error| error.to_string().starts_with("HTTP/1.1 405")));
    reviews_are_answered(bed).await?;
    core.had_at_most(CORE, "half-open connections to its webhook")
}

async fn attack_provider(bed: &Bed, folder: &Path) -> Result<()> {
    let admin = free_address()?;
    let user = labels::provider_manager("kaito");
    let args = [
        format!("--kubeconfig={}", bed.cluster.kubeconfig(&user, &[])?.display()),
        format!("--admin-address={admin}"),
    ];
    let mut provider = Program::start(folder, "kaito-provider", &args, &[])?;
    attack_admin(&mut provider, &Port::plain(admin, ADMIN_PATHS), PROVIDER).await
}

async fn attack_console(bed: &Bed, folder: &Path) -> Result<()> {
    let files = tempfile::tempdir()?;
    let (certificate, key) = (files.path().join("tls.crt"), files.path().join("tls.key"));
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let (admin, address) = (free_address()?, free_address()?);
    let args = [
        "ui".to_owned(),
        "--login".to_owned(),
        format!("--kubeconfig={}", bed.cluster.admin()?.display()),
        format!("--address={address}"),
        format!("--admin-address={admin}"),
        format!("--public-url=https://{address}"),
        format!("--tls-cert={}", certificate.display()),
        format!("--tls-key={}", key.display()),
    ];
    let mut console = Program::start(folder, "kubeairunway", &args, &[])?;
    attack_admin(&mut console, &Port::plain(admin, ADMIN_PATHS), CONSOLE).await?;
    let pages = Port {
        address,
        tls: Some(trusting(made.cert.pem().as_bytes())?),
        paths: &["/", "/login", "/deployments", "/new", "/live", "/healthz"],
    };
    pages.answers_among_half_open_connections("/login").await?;
    console.had_at_most(CONSOLE, "half-open connections")?;
    pages.refuses_huge_bodies().await?;
    console.had_at_most(CONSOLE, "huge bodies")?;
    ensure!(pages.get("/login").await?.starts_with("HTTP/1.1 200"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_and_the_console_stay_small_and_go_on_answering() -> Result<()> {
    let folder = programs::build(false).await?;
    let bed = Bed::start_with(Upstream::Kaito, true).await?;
    attack_core(&bed, &folder).await?;
    attack_provider(&bed, &folder).await?;
    attack_console(&bed, &folder).await
}

/// Without a broker and a runtime: its admin port is open before it finds them.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_stays_small_and_keeps_answering() -> Result<()> {
    let folder = programs::build(false).await?;
    let (admin, sockets) = (free_address()?, tempfile::tempdir()?);
    let variables = [
        ("ASYA_ACTOR_NAME", "under-attack".to_owned()),
        ("ASYA_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:1/".to_owned()),
        ("ASYA_SOCKET_DIR", sockets.path().display().to_string()),
        ("ASYA_METRICS_ADDR", admin.to_string()),
    ];
    let mut sidecar = Program::start(&folder, "asya-sidecar", &[], &variables)?;
    let paths = &["/metrics", "/healthz", "/health", "/readyz"];
    attack_admin(&mut sidecar, &Port::plain(admin, paths), SIDECAR).await
}

/// Connections of clients without credentials at once.
const HOSTILE: usize = 3000;
/// Longer than an answer about a token is used again.
const ATTACK: Duration = Duration::from_secs(15);
/// Questions about tokens in a second; those about valid tokens, of which there are few, are beside it.
const REVIEWS: usize = 51;
/// Callers at once.
const CALLERS: usize = 4;
/// Pause of a client of either kind before its next request.
const PAUSE: Duration = Duration::from_millis(20);
/// Requests of callers that are answered in a minute during an attack, at least: one of each caller in [`ATTACK`]. Hostile clients on the
/// same machine take processors of callers and programs, too, so times depend on the machine; `runway_http` compares the costs of an
/// admission.
const RATE: usize = 16;

/// Keeps this many connections to an address, in turn half open, with a request and an invented token, with a header and with a
/// body that are too large; from two addresses that callers do not have. Dropping it ends them.
fn hostile_connections(to: SocketAddr, path: &'static str) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for number in 0..HOSTILE {
        clients.spawn(async move {
            for round in 0.. {
                // The server may refuse or close it: it was one too many.
                let _ = timeout(ATTACK, hostile_connection(to, path, number, round)).await;
                sleep(50 * PAUSE).await;
            }
        });
    }
    clients
}

async fn hostile_connection(to: SocketAddr, path: &str, number: usize, round: usize) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    let from = Ipv4Addr::new(127, 0, 0, 2 + u8::from(number.is_multiple_of(2)));
    socket.bind(SocketAddr::from((from, 0)))?;
    let mut stream = socket.connect(to).await?;
    let begun = format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n");
    let request = match number % 6 {
        0 => return std::future::pending().await,
        1 | 2 => begun,
        3 => format!("{begun}authorization: Bearer invented-{number}-{round}\r\ncontent-length: 2\r\n\r\n{{}}"),
        4 => format!("{begun}x-large: {}\r\n\r\n", "x".repeat(1_000_000)),
        _ => format!("{begun}content-length: {HUGE}\r\n\r\n{}", "x".repeat(1_000_000)),
    };
    stream.write_all(request.as_bytes()).await?;
    let mut response = [0; 4096];
    while stream.read(&mut response).await? > 0 {}
    Ok(())
}

/// Requests of callers that were answered.
struct Answered {
    /// Requests per minute.
    rate: usize,
    /// Time that 99 % took at most.
    p99: Duration,
}

/// Callers send requests one after the other for some time. Each is answered.
async fn answered(during: Duration, ask: &impl AsyncFn() -> Result<()>) -> Result<Answered> {
    let begun = Instant::now();
    let caller = async || {
        let mut times = Vec::new();
        while begun.elapsed() < during {
            let asked = Instant::now();
            ask().await?;
            times.push(asked.elapsed());
            sleep(PAUSE).await;
        }
        anyhow::Ok(times)
    };
    let mut times = try_join_all((0..CALLERS).map(|_| caller())).await?.concat();
    times.sort_unstable();
    let p99 = *times.get(times.len() * 99 / 100).context("no request")?;
    let rate = times.len() * 60 / usize::try_from(during.as_secs())?;
    println!("{} requests were answered, 99 % within {p99:?}", times.len());
    Ok(Answered { rate, p99 })
}

/// Callers of a program are answered while it is attacked, its memory is bounded, and so are its questions about tokens.
async fn attack_with_tokens(
    bed: &Bed,
    (program, name, mib): (&mut Program, &str, usize),
    (to, path): (SocketAddr, &'static str),
    ask: &impl AsyncFn() -> Result<()>,
) -> Result<()> {
    program.had_at_most(mib, "the start")?;
    let before = answered(ATTACK / 3, ask).await?;
    let log = bed.cluster.audit().await?;
    let (mark, begun) = (log.mark().await?, Instant::now());
    let attack = hostile_connections(to, path);
    let during = answered(ATTACK, ask).await?;
    ensure!(attack.len() == HOSTILE);
    drop(attack);
    let seconds = usize::try_from(begun.elapsed().as_secs() + 1)?;
    let requests = log.since(mark).await?;
    let reviews = audit::of_user(&requests, name)
        .iter()
        .filter(|request| request.resource == "tokenreviews")
        .count();
    println!(
        "{name}: p99 {:?} with {HOSTILE} hostile connections, {:?} without; {reviews} TokenReviews in {seconds} seconds",
        during.p99, before.p99
    );
    let rate = during.rate;
    ensure!(rate >= RATE, "{rate} requests per minute among hostile connections");
    ensure!(
        (1..=REVIEWS * seconds).contains(&reviews),
        "{reviews} in {seconds} seconds"
    );
    program.had_at_most(mib, "hostile connections")
}

/// A ServiceAccount of a new namespace with the right to do this there, and a token of it.
async fn caller(bed: &Bed, namespace: &str, rule: Value, audiences: &[&str]) -> Result<String> {
    let name = json!({ "name": "caller", "namespace": namespace });
    let rbac = "rbac.authorization.k8s.io";
    for object in [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": name }),
        json!({ "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": name, "rules": [rule] }),
        json!({ "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": name,
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": "caller" },
            "subjects": [{ "kind": "ServiceAccount", "name": "caller", "namespace": namespace }] }),
    ] {
        bed.apply(&object).await?;
    }
    tokens::token(&bed.admin, namespace, "caller", audiences).await
}

/// A model whose engine answers at once, and one that never serves; of different teams.
async fn models(bed: &Bed, folder: &Path, files: &Path) -> Result<Program> {
    let address = free_address()?;
    let args = [
        format!("--address={address}"),
        format!("--received={}", files.join("received").display()),
    ];
    let engine = Program::start(folder, "gateway-test-engine", &args, &[])?;
    for (namespace, status) in [
        ("team-a", json!({ "phase": "Pending" })),
        (
            "team-b",
            json!({ "endpoint": { "service": "model", "port": address.port() }, "replicas": { "ready": 1 } }),
        ),
    ] {
        let mut model = large();
        model["metadata"] = json!({ "name": "model", "namespace": namespace });
        model["spec"]["provider"] = Value::Null;
        bed.apply(&model).await?;
        let models: Api<ModelDeployment> = Api::namespaced(bed.admin.clone(), namespace);
        let status = Patch::Merge(json!({ "status": status }));
        models.patch_status("model", &PatchParams::default(), &status).await?;
    }
    Ok(engine)
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_the_router_are_answered_among_hostile_connections_and_greedy_tenants() -> Result<()> {
    let folder = programs::build(false).await?;
    let bed = Bed::start_with(Upstream::None, false).await?;
    bed.grant(&router::router()).await?;
    let may = json!({ "apiGroups": ["kubeairunway.ai"], "resources": ["modeldeployments"], "verbs": ["get"] });
    let greedy = caller(&bed, "team-a", may.clone(), &[AUDIENCE]).await?;
    let other = caller(&bed, "team-b", may, &[AUDIENCE]).await?;
    let files = tempfile::tempdir()?;
    let _engine = models(&bed, &folder, files.path()).await?;
    let (admin, address) = (free_address()?, free_address()?);
    let args = [
        format!("--kubeconfig={}", bed.cluster.kubeconfig(router::NAME, &[])?.display()),
        format!("--admin-address={admin}"),
        format!("--address={address}"),
    ];
    let mut router = Program::start(&folder, "gateway-on-loopback", &args, &[])?;
    program::ready(admin.port()).await?;
    let ask = async |token: &str, model: &str| {
        let request = chat(token, &json!({ "model": model, "messages": [] }))?;
        Begun::send(address, request).await?.whole().await
    };
    let is_answered = async || {
        let answer = ask(&other, "team-b/model").await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    eventually(PATIENCE, is_answered).await?;
    let attacked = (&mut router, router::NAME, ROUTER);
    attack_with_tokens(&bed, attacked, (address, "/v1/chat/completions"), &is_answered).await?;

    // A tenant has as many requests in flight as it may, and sends more. They wait for its model.
    let before = answered(ATTACK / 3, &is_answered).await?;
    let refused = Cell::new(0);
    let mut held = JoinSet::new();
    for _ in 0..GREEDY {
        let request = chat(&greedy, &json!({ "model": "team-a/model", "messages": [] }))?;
        held.spawn(async move { Begun::send(address, request).await?.whole().await });
    }
    let more = async {
        loop {
            let answer = ask(&greedy, "team-a/model").await?;
            answer.refused(429, "too_many_requests", "your tenant has too many requests in flight")?;
            refused.set(refused.get() + 1);
        }
    };
    let full = held.join_next().await.context("none was refused")???;
    full.refused(429, "too_many_requests", "your tenant has too many requests in flight")?;
    let during = tokio::select! {
        during = answered(ATTACK / 3, &is_answered) => during?,
        failed = more => return failed,
    };
    unimpaired(router::NAME, &during, &before)?;
    ensure!(refused.get() > 0 && held.len() >= GREEDY / 2);
    router.had_at_most(ROUTER, "a tenant at its limits")
}

/// Requests of a tenant at once, more than its places at the router or asya-gateway.
const GREEDY: usize = 1200;
/// Waits of a tenant at asya-gateway: an eighth of all.
const WAITS: usize = 128;

/// A tenant at its limits takes next to nothing from another.
fn unimpaired(name: &str, during: &Answered, before: &Answered) -> Result<()> {
    println!(
        "{name}: p99 {:?} with a tenant at its limits, {:?} without",
        during.p99, before.p99
    );
    let rate = during.rate;
    ensure!(rate >= RATE, "{rate} requests per minute beside a tenant at its limits");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_asya_gateway_are_answered_among_hostile_connections_and_greedy_tenants() -> Result<()> {
    let folder = programs::build(false).await?;
    let (bed, rabbit) = tokio::try_join!(
        Bed::start_with(Upstream::None, false),
        RabbitMq::start(RabbitMqOptions::default())
    )?;
    bed.grant(&gateway::gateway()).await?;
    let broker = Broker::connect(&rabbit.url()).await?;
    let may = json!({ "apiGroups": ["asya.sh"], "resources": ["asyncactors/messages"], "verbs": ["create"] });
    let mut callers = Vec::new();
    for namespace in ["team-a", "team-b"] {
        broker.declare(&format!("asya-{namespace}_actor")).await?;
        callers.push((namespace, caller(&bed, namespace, may.clone(), &[gateway::NAME]).await?));
    }
    let files = tempfile::tempdir()?;
    std::fs::create_dir(files.path().join("broker"))?;
    std::fs::write(files.path().join("broker/password"), "guest")?;
    let (host, port) = rabbit.address();
    let transports = json!({ "transports": { "rabbitmq": { "type": "rabbitmq", "config": {
        "host": host, "port": port, "username": "guest", "passwordSecretRef": { "name": "broker", "key": "password" } } } } });
    let (admin, address) = (free_address()?, free_address()?);
    let args = [
        format!("--kubeconfig={}", bed.cluster.kubeconfig(gateway::NAME, &[])?.display()),
        format!("--admin-address={admin}"),
        format!("--address={address}"),
        format!("--progress-address={}", free_address()?),
        format!("--transport-config={transports}"),
        format!("--secrets-dir={}", files.path().display()),
        format!("--store={}", files.path().join("jobs.redb").display()),
    ];
    let mut asya = Program::start(&folder, "asya-gateway", &args, &[])?;
    program::ready(admin.port()).await?;
    let asked = |(namespace, token): &(&str, String), prefer: &'static str| {
        let mut request = request(Method::POST, &format!("/v1/{namespace}/actor"), token, "{}")?;
        request.headers_mut().insert("prefer", prefer.parse()?);
        anyhow::Ok(request)
    };
    let ask = async |caller, prefer| Begun::send(address, asked(caller, prefer)?).await;
    let is_answered = async || {
        let answer = ask(&callers[1], "respond-async").await?.whole().await?;
        ensure!(answer.status == 202, "{answer:?}");
        Ok(())
    };
    eventually(PATIENCE, is_answered).await?;
    let attacked = (&mut asya, gateway::NAME, ASYA_GATEWAY);
    attack_with_tokens(&bed, attacked, (address, "/v1/team-a/actor"), &is_answered).await?;

    // A tenant waits for as many results as it may; the jobs of more requests are accepted without a wait.
    let before = answered(ATTACK / 3, &is_answered).await?;
    let mut held = JoinSet::new();
    let send = |held: &mut JoinSet<_>| {
        let request = asked(&callers[0], "wait=300")?;
        held.spawn(async move { Begun::send(address, request).await?.whole().await });
        anyhow::Ok(())
    };
    for _ in 0..GREEDY {
        send(&mut held)?;
    }
    // While its token is checked, which takes long on a busy machine, some are rejected: the tenant sends these again.
    let is_accepted = |answer: &Answer| match answer.status.as_u16() {
        202 => Ok(true),
        503 => Ok(false),
        _ => Err(anyhow!("{answer:?}")),
    };
    while held.len() > WAITS {
        let answer = held.join_next().await.context("none waits")???;
        if !is_accepted(&answer)? {
            send(&mut held)?;
        }
    }
    let more = async {
        loop {
            is_accepted(&ask(&callers[0], "wait=300").await?.whole().await?)?;
        }
    };
    let during = tokio::select! {
        during = answered(ATTACK / 3, &is_answered) => during?,
        failed = more => return failed,
    };
    unimpaired(gateway::NAME, &during, &before)?;
    ensure!(
        held.len() == WAITS && held.try_join_next().is_none(),
        "a wait has ended"
    );
    asya.had_at_most(ASYA_GATEWAY, "a tenant at its limits")
}
