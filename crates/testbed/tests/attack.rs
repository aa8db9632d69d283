//! The built programs under attack by clients without credentials: half-open connections, huge bodies and many large reviews.
//! Counted is memory, the highest that a process has ever had. Each process lives, answers an ordinary request at once, and
//! what it refuses names the limit.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use runway_api::{ModelDeployment, labels};
use runway_client::manifests;
use runway_testbed::{eventually, programs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use support::program::Program;
use support::{Bed, NAMESPACE, PATIENCE, Upstream};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
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
async fn the_sidecar_stays_small_and_goes_on_answering() -> Result<()> {
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
