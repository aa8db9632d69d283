//! A router in this process, with a real API server, and an engine of the test's own that shows what it receives.
#![allow(dead_code, unreachable_pub, reason = "each test uses what it needs")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::Router as Routes;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use clap::Parser;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client, CustomResourceExt as _};
use parking_lot::Mutex;
use runway_api::ModelDeployment;
use runway_gateway::engine::Lookup;
use runway_gateway::{Args, run_on};
use runway_http::Limits;
use runway_operator::process::Process;
use runway_testbed::apply::apply;
use runway_testbed::tokens::token;
use runway_testbed::{ControlPlane, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// User of the router, with the permissions that it declares.
pub const ROUTER: &str = "kubeairunway-gateway";
/// Path of chat completions.
pub const CHAT: &str = "/v1/chat/completions";
/// A key that [`World::start`] writes, for all models of namespace `a`.
pub const KEY: &str = "the key of the shop, long";

/// A real API server with models, and what the router needs.
pub struct World {
    pub cluster: ControlPlane,
    pub admin: Client,
    pub keys: tempfile::TempDir,
}

impl World {
    pub async fn start() -> Result<Self> {
        let cluster = ControlPlane::start(Options {
            crds: vec![ModelDeployment::crd()],
            ..Options::default()
        })
        .await?;
        let admin = cluster.client("test-admin", &["system:masters"]).await?;
        let keys = tempfile::tempdir()?;
        let key = json!({ "key": KEY, "models": ["a/*"] });
        std::fs::write(keys.path().join("shop"), key.to_string())?;
        let world = Self { cluster, admin, keys };
        for namespace in ["a", "b"] {
            let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            world.apply(object).await?;
        }
        let rules = serde_json::to_value(runway_gateway::access())?;
        world
            .role(ROUTER, &rules, &json!({ "kind": "User", "name": ROUTER }))
            .await?;
        Ok(world)
    }

    pub async fn apply(&self, object: Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(object)?;
        apply(&self.admin, &object, "test").await?;
        Ok(())
    }

    /// Rules in all namespaces for a subject.
    pub async fn role(&self, name: &str, rules: &Value, subject: &Value) -> Result<()> {
        let group = "rbac.authorization.k8s.io";
        let version = format!("{group}/v1");
        self.apply(json!({
            "apiVersion": version, "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules,
        }))
        .await?;
        self.apply(json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name }, "subjects": [subject],
        }))
        .await
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
        token(&self.admin, "default", name, &[]).await
    }

    pub fn models(&self, namespace: &str) -> Api<ModelDeployment> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    /// A model with this served name and number of replicas. No provider runs: [`World::serves`] plays its part.
    pub async fn model(&self, namespace: &str, name: &str, served: &str, replicas: i32) -> Result<()> {
        self.apply(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "model": { "id": format!("org/{served}") }, "engine": { "type": "llamacpp" },
                "scaling": { "replicas": replicas },
            },
        }))
        .await
    }

    /// Writes the status of a model with a ready replica at this port.
    pub async fn serves(&self, namespace: &str, name: &str, port: u16) -> Result<()> {
        let status = json!({ "endpoint": { "service": name, "port": port }, "replicas": { "ready": 1 } });
        self.status(namespace, name, status).await
    }

    pub async fn status(&self, namespace: &str, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.models(namespace)
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// A router with these arguments.
    pub async fn router(&self, args: &[&str]) -> Result<Router> {
        self.router_as(ROUTER, args).await
    }

    /// A router that is another user at the API server.
    pub async fn router_as(&self, user: &str, args: &[&str]) -> Result<Router> {
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
        let process = Process::alone(self.cluster.client(user, &[]).await?, shutdown.clone());
        let (health, metrics) = (process.health.clone(), process.metrics.clone());
        // Engines run on this machine, each at the port that the status says.
        let lookup: Lookup = Arc::new(|at| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, at.port));
            Box::pin(async move { Ok(vec![address]) })
        });
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
    pub health: runway_operator::admin::Health,
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
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
            let _ = connection.await;
        }));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "router");
        if !token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        Ok(Begun {
            response,
            _connection: connection,
        })
    }
}

/// A response that has begun. Dropping it is a client that goes away.
pub struct Begun {
    pub response: http::Response<hyper::body::Incoming>,
    _connection: tokio_util::task::AbortOnDropHandle<()>,
}

impl Begun {
    pub async fn whole(self) -> Result<Answer> {
        let (parts, body) = self.response.into_parts();
        let text = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            text,
        })
    }
}

/// A whole response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Checks that it is a refusal in OpenAI's form, with this code and these words.
    pub fn refused(&self, status: u16, code: &str, words: &str) -> Result<()> {
        let error = &self.json()["error"];
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(
            self.status == status && error["code"] == code && message.contains(words),
            "not {status} {code} `{words}`: {self:?}"
        );
        Ok(())
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
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
