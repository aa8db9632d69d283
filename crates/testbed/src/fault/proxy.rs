//! The proxy: an HTTP server for one controller, which forwards to the API server with the controller's identity.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use axum::body::{self, Body};
use axum::http::{HeaderName, Method, Request, Response, Uri, header, request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::plan::{Bend, Cut, Plan};
use super::watch;
use crate::control_plane::Cluster;

/// Largest body of a request, in bytes: larger than the API server takes.
const LARGEST: usize = 4 << 20;
/// Resources without a namespace; the others are confined to the controller's.
const CLUSTER_SCOPED: [&str; 7] = [
    "customresourcedefinitions",
    "inferenceproviderconfigs",
    "mutatingwebhookconfigurations",
    "namespaces",
    "nodes",
    "storageclasses",
    "validatingwebhookconfigurations",
];
/// Writes that have no number: how many there are depends on time.
const UNCOUNTED: [&str; 2] = ["events", "leases"];

/// A write of the controller to its namespace.
#[derive(Clone, Debug)]
pub struct Write {
    /// Its number, from 1.
    pub number: u64,
    /// Method and path.
    pub request: String,
    /// Fault, if the plan has one for this number.
    pub cut: Option<Cut>,
}

/// Proxy of one controller. Dropping it ends all connections.
pub struct FaultProxy {
    address: SocketAddr,
    proxy: Arc<Proxy>,
    _accepting: AbortOnDropHandle<()>,
}

struct Proxy {
    server: Client,
    namespace: String,
    plan: Mutex<Plan>,
    writes: Mutex<Vec<Write>>,
    events: Mutex<Events>,
    kill: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Events of all watches.
#[derive(Default)]
struct Events {
    count: u64,
    bends: Vec<(u64, Bend)>,
}

impl FaultProxy {
    /// Listens on a free local port, forwards as `user`, and shows nothing but `namespace`: a request for all namespaces becomes
    /// one for this.
    pub async fn start(cluster: &Cluster, user: &str, namespace: &str) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig(user, &[])?)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // Requests are repeated by the controller, or not at all.
        config.default_retry = false;
        let proxy = Arc::new(Proxy {
            server: Client::try_from(config)?,
            namespace: namespace.to_owned(),
            plan: Mutex::default(),
            writes: Mutex::default(),
            events: Mutex::default(),
            kill: OnceLock::new(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, proxy.clone()));
        Ok(Self {
            address,
            proxy,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// Configuration of a client whose requests go through the proxy.
    pub fn config(&self) -> Result<Config> {
        let mut config = Config::new(format!("http://{}", self.address).parse::<Uri>()?);
        config.default_namespace.clone_from(&self.proxy.namespace);
        Ok(config)
    }

    /// Decides the faults from now on.
    pub fn plan(&self, plan: Plan) {
        *self.proxy.plan.lock() = plan;
    }

    /// Sets what kills the controller. It has to be dead when this returns.
    pub fn on_kill(&self, kill: impl Fn() + Send + Sync + 'static) {
        let _ = self.proxy.kill.set(Box::new(kill));
    }

    /// The writes so far, dry runs included, without Events and Leases.
    pub fn writes(&self) -> Vec<Write> {
        self.proxy.writes.lock().clone()
    }

    /// The faults of events so far, with the numbers of the events, from 1.
    pub fn bends(&self) -> Vec<(u64, Bend)> {
        self.proxy.events.lock().bends.clone()
    }
}

async fn accept(listener: TcpListener, proxy: Arc<Proxy>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let proxy = proxy.clone();
        let service = service_fn(move |request| {
            let proxy = proxy.clone();
            async move { proxy.answer(request).await }
        });
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while connections.try_join_next().is_some() {}
    }
}

impl Proxy {
    /// The server's response, or that of a fault. An error ends the connection without a response.
    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>> {
        let (mut parts, body) = request.into_parts();
        let body = body::to_bytes(Body::new(body), LARGEST).await?;
        parts.uri = confined(&parts.uri, &self.namespace)?;
        let write = self.counted(&parts);
        let cut = write.as_ref().and_then(|write| write.cut);
        let Some(cut) = cut else {
            return self.forward(parts, body).await;
        };
        if cut.commits() {
            self.forward(parts, body).await?;
        }
        if cut.kills() {
            self.kill.get().context("nothing kills the controller")?();
        }
        match cut.refusal() {
            Some((code, reason, message)) => refusal(code, reason, message),
            None => bail!("the connection is cut"),
        }
    }

    /// Numbers a write.
    fn counted(&self, request: &request::Parts) -> Option<Write> {
        let path = request.uri.path();
        let own = format!("/namespaces/{}/", self.namespace);
        let is_write = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(&request.method);
        let (_, resource) = path.split_once(&own)?;
        if !is_write || UNCOUNTED.contains(&resource.split('/').next()?) {
            return None;
        }
        let mut writes = self.writes.lock();
        let number = writes.len() as u64 + 1;
        let write = Write {
            number,
            request: format!("{} {path}", request.method),
            cut: self.plan.lock().cut(number),
        };
        writes.push(write.clone());
        Some(write)
    }

    async fn forward(self: &Arc<Self>, mut parts: request::Parts, body: body::Bytes) -> Result<Response<Body>> {
        let is_watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
        // Those of this connection; the next one has its own.
        for name in [header::HOST, header::CONNECTION, header::CONTENT_LENGTH] {
            parts.headers.remove(name);
        }
        let response = self.server.send(Request::from_parts(parts, body.into())).await?;
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(header::TRANSFER_ENCODING);
        let mut body = Body::new(body);
        if is_watch && parts.status.is_success() {
            let proxy = self.clone();
            body = watch::bent(body, move || {
                let mut events = proxy.events.lock();
                events.count += 1;
                let bend = proxy.plan.lock().bend(events.count)?;
                let number = events.count;
                events.bends.push((number, bend));
                Some(bend)
            });
        }
        Ok(Response::from_parts(parts, body))
    }
}

/// Limits a request for all namespaces to one of them.
fn confined(uri: &Uri, namespace: &str) -> Result<Uri> {
    let path = uri.path();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let (root, resource) = match segments[..] {
        ["api", _, resource] => (2, resource),
        ["apis", _, _, resource] => (3, resource),
        _ => return Ok(uri.clone()),
    };
    if CLUSTER_SCOPED.contains(&resource) {
        return Ok(uri.clone());
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let root = segments[..root].join("/");
    Ok(format!("/{root}/namespaces/{namespace}/{resource}{query}").parse()?)
}

fn refusal(code: u16, reason: &str, message: &str) -> Result<Response<Body>> {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code });
    let mut response = Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json");
    if code == 429 {
        response = response.header(HeaderName::from_static("retry-after"), "1");
    }
    Ok(response.body(status.to_string().into())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_all_namespaces_is_one_for_its_own() {
        let confined = |path: &str| confined(&path.parse().unwrap(), "mine").unwrap().to_string();
        for (all, mine) in [
            ("/api/v1/pods?watch=true", "/api/v1/namespaces/mine/pods?watch=true"),
            ("/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/mine/deployments"),
        ] {
            assert_eq!(confined(all), mine);
        }
        for same in [
            "/api/v1",
            "/apis/apps/v1",
            "/api/v1/nodes?limit=5",
            "/api/v1/namespaces/theirs/pods",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "/version",
        ] {
            assert_eq!(confined(same), same);
        }
    }
}
