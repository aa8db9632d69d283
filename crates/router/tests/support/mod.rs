//! A router in this process, with a real API server, and an engine of the test's own that shows what it receives.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test uses what it needs")]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::Router as Routes;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use clap::Parser;
use futures::StreamExt as _;
use kube::{Api, CustomResourceExt as _};
use parking_lot::Mutex;
use runway_api::ModelDeployment;
use runway_http::Limits;
use runway_operator::health::Health;
use runway_operator::process::Process;
use runway_operator::scope::Namespaces;
use runway_operator::trace::Traces;
use runway_router::addresses::Addresses;
use runway_router::engine::{Lookup, loopback};
use runway_router::{AUDIENCE, Args, run_on};
use runway_testbed::tokens::token;
use runway_testbed::traffic::Bed;
use runway_testbed::traffic::client::request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use runway_testbed::engine::CHAT;
pub use runway_testbed::traffic::{Answer, Begun, KEY, ROUTER};

/// A real API server with models, and what the router needs.
pub struct World(Bed);

impl Deref for World {
    type Target = Bed;

    fn deref(&self) -> &Bed {
        &self.0
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Bed {
        &mut self.0
    }
}

impl World {
    pub async fn start() -> Result<Self> {
        let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
        Ok(Self(bed))
    }

    /// A token of a ServiceAccount that may get these models in all namespaces; all if none is named, and none without a list.
    pub async fn token(&self, name: &str, models: Option<&[&str]>) -> Result<String> {
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
        self.apply(account).await?;
        if let Some(models) = models {
            let mut rule =
                json!({ "apiGroups": ["kubeairunway.ai"], "resources": ["modeldeployments"], "verbs": ["get"] });
            if !models.is_empty() {
                rule["resourceNames"] = json!(models);
            }
            let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": "default" });
            self.role(name, &json!([rule]), &subject).await?;
        }
        token(&self.admin, "default", name, &[AUDIENCE]).await
    }

    pub fn models(&self, namespace: &str) -> Api<ModelDeployment> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    /// A router with these arguments.
    pub async fn router(&self, args: &[&str]) -> Result<Router> {
        self.router_as(ROUTER, args).await
    }

    /// A router that is another user at the API server.
    pub async fn router_as(&self, user: &str, args: &[&str]) -> Result<Router> {
        self.router_with(user, Traces::default(), args, loopback()).await
    }

    /// A router that finds the pods of Services in their EndpointSlices, and not on loopback.
    pub async fn router_of_pods(&self, args: &[&str]) -> Result<Router> {
        let client = self.cluster.client(ROUTER, &[]).await?;
        let (addresses, listed) = (Addresses::default(), Health::default().waits_for("the Services"));
        tokio::spawn(addresses.clone().follow(client, Namespaces::default(), listed));
        self.router_with(ROUTER, Traces::default(), args, addresses.lookup())
            .await
    }

    /// A router that sends traces.
    pub async fn router_traced(&self, traces: Traces) -> Result<Router> {
        self.router_with(ROUTER, traces, &[], loopback()).await
    }

    async fn router_with(&self, user: &str, traces: Traces, args: &[&str], lookup: Lookup) -> Result<Router> {
        #[derive(Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let keys = format!("--keys-dir={}", self.keys.path().display());
        let usual = ["router", &keys, "--shutdown-delay=1ms"];
        let args = Command::try_parse_from(usual.into_iter().chain(args.iter().copied()))?.args;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shutdown = CancellationToken::new();
        let process = Process {
            traces,
            ..Process::alone(self.cluster.client(user, &[]).await?, shutdown.clone())
        };
        let (health, metrics) = (process.health.clone(), process.metrics.clone());
        let task = tokio::spawn(async move { Ok(run_on(process, args, listener, lookup).await?) });
        Ok(Router {
            address,
            health,
            metrics,
            shutdown,
            task,
        })
    }
}

/// A router that is served. Dropping it kills it.
pub struct Router {
    pub address: SocketAddr,
    pub health: runway_operator::health::Health,
    pub metrics: runway_operator::metrics::Metrics,
    pub shutdown: CancellationToken,
    task: JoinHandle<Result<()>>,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Router {
    /// Waits until it has listed the models.
    pub async fn ready(self) -> Result<Self> {
        runway_testbed::eventually(runway_testbed::PATIENCE, async || {
            let listed = self.get(KEY, "/v1/models").await?;
            ensure!(listed.status == 200, "{listed:?}");
            let missing = self.health.missing();
            ensure!(missing.is_empty(), "{missing:?}");
            Ok(())
        })
        .await?;
        Ok(self)
    }

    /// Waits until it has ended.
    pub async fn ended(mut self) -> Result<()> {
        (&mut self.task).await?
    }

    pub async fn get(&self, token: &str, path: &str) -> Result<Answer> {
        self.send(token, Method::GET, path, Bytes::new()).await?.whole().await
    }

    pub async fn chat(&self, token: &str, model: &str) -> Result<Answer> {
        self.post(token, json!({ "model": model, "messages": [] })).await
    }

    pub async fn post(&self, token: &str, body: Value) -> Result<Answer> {
        self.begin(token, body).await?.whole().await
    }

    /// A chat whose response has begun.
    pub async fn begin(&self, token: &str, body: Value) -> Result<Begun> {
        self.send(token, Method::POST, CHAT, body.to_string().into()).await
    }

    pub async fn send(&self, token: &str, method: Method, path: &str, body: Bytes) -> Result<Begun> {
        Begun::send(self.address, request(method, path, token, body)?).await
    }
}

/// An engine that shows what it receives. It answers with the requested model. A prompt makes it stream.
pub struct Engine {
    pub port: u16,
    pub seen: Arc<Seen>,
    _end: tokio_util::sync::DropGuard,
}

/// Requests that an engine has received, and responses that it has sent.
#[derive(Default)]
pub struct Seen {
    pub headers: Mutex<Vec<HeaderMap>>,
    pub asked: AtomicUsize,
    pub listed: AtomicUsize,
    /// Streams that have not ended.
    pub open: AtomicUsize,
    /// Bytes of all streams.
    pub sent: AtomicUsize,
    name: String,
}

impl Engine {
    /// Knows its model by this name.
    pub async fn start(name: &str) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), name).await
    }

    /// At another address of this machine.
    pub async fn start_at(address: IpAddr, name: &str) -> Result<Self> {
        let listener = TcpListener::bind((address, 0)).await?;
        let port = listener.local_addr()?.port();
        let seen = Arc::new(Seen {
            name: name.to_owned(),
            ..Seen::default()
        });
        let routes = Routes::new()
            .route("/v1/models", get(list))
            .route(CHAT, post(chat))
            .with_state(Arc::clone(&seen));
        let end = CancellationToken::new();
        let limits = Limits {
            connections: 1024,
            request: None,
            body: 32 * 1024 * 1024,
            ..Limits::ADMIN
        };
        tokio::spawn(runway_http::serve(listener, None, routes, limits, end.clone()));
        Ok(Self {
            port,
            seen,
            _end: end.drop_guard(),
        })
    }
}

/// An engine that lists a model, and closes the connection of every other request. Returns its port, and how many it has closed.
pub async fn closing_engine() -> Result<(u16, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (port, closed) = (listener.local_addr()?.port(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&closed);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap_or_default();
            if request[..length].starts_with(b"GET ") {
                let list = r#"{"data":[{"id":"closing"}]}"#;
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            } else {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    Ok((port, closed))
}

/// An engine that lists a model, and responds to every other request at once, without reading its body and without an end.
pub async fn unreading_engine() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let mut responding = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 512];
            let length = stream.read(&mut request).await.unwrap_or_default();
            if request[..length].starts_with(b"GET ") {
                let list = r#"{"data":[{"id":"unreading"}]}"#;
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            } else {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await;
                responding.push(stream);
            }
        }
    });
    Ok(port)
}

async fn list(State(seen): State<Arc<Seen>>) -> axum::Json<Value> {
    seen.listed.fetch_add(1, Ordering::SeqCst);
    axum::Json(json!({ "object": "list", "data": [{ "id": seen.name }] }))
}

async fn chat(State(seen): State<Arc<Seen>>, headers: HeaderMap, body: Bytes) -> Response {
    seen.headers.lock().push(headers);
    seen.asked.fetch_add(1, Ordering::SeqCst);
    let asked: HashMap<String, Value> = serde_json::from_slice(&body).unwrap_or_default();
    let part = |bytes: usize| Bytes::from(vec![b'x'; bytes]);
    match asked.get("prompt").and_then(Value::as_str) {
        Some("endless") => streamed(&seen, part(16 * 1024), usize::MAX, Duration::ZERO),
        Some("drip") => streamed(
            &seen,
            Bytes::from_static(b"data: {}\n\n"),
            usize::MAX,
            Duration::from_millis(50),
        ),
        Some("slow") => streamed(&seen, part(8), 10, Duration::from_millis(50)),
        Some("breaks") => {
            let first = futures::stream::once(async { Ok(Bytes::from_static(b"first")) });
            let rest = futures::stream::once(async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Err(std::io::Error::other("broken"))
            });
            Response::new(Body::from_stream(first.chain(rest)))
        }
        _ => axum::Json(json!({ "model": asked.get("model"), "bytes": body.len() })).into_response(),
    }
}

fn streamed(seen: &Arc<Seen>, part: Bytes, parts: usize, pause: Duration) -> Response {
    struct Open(Arc<Seen>);
    impl Drop for Open {
        fn drop(&mut self) {
            self.0.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
    seen.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(Arc::clone(seen));
    let stream = futures::stream::iter(0..parts).then(move |_| {
        let part = part.clone();
        open.0.sent.fetch_add(part.len(), Ordering::SeqCst);
        async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            Ok::<_, std::io::Error>(part)
        }
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}
