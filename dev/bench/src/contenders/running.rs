//! Starts contenders, each in front of engines that run already.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::CustomResourceExt as _;
use runway_api::{ModelDeployment, labels};
use runway_router::AUDIENCE;
use runway_testbed::envoy::{self, Envoy, FULL_DUPLEX, Picker};
use runway_testbed::peers::{self, LITELLM_KEY, Peer, To};
use runway_testbed::process::{self, Process, with_environment};
use runway_testbed::reference_picker::{self, ReferencePicker};
use runway_testbed::tokens::token;
use runway_testbed::traffic::client::{Answer, Connection, chat};
use runway_testbed::traffic::{Bed, NAMESPACE, Router};
use runway_testbed::{PATIENCE, eventually, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::measure::{cpu_of, mebibytes};

/// ServiceAccount of the clients, which may get all models.
const CLIENT: &str = "client";
/// Longest time until a contender that has started answers.
const ANSWERS_WITHIN: Duration = Duration::from_mins(1);
/// Port of the Service of each model.
const PORT: u16 = 8000;

/// A control plane, and what contenders need of it.
pub(super) struct Place {
    bed: Bed,
    folder: PathBuf,
    token: String,
    /// `tls.crt` and `tls.key` of the endpoint picker, and logs.
    scratch: TempDir,
}

impl Place {
    /// Starts the control plane. The programs are in `folder`.
    pub(super) async fn start(folder: PathBuf) -> Result<Self> {
        let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
        bed.apply(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": CLIENT } }))
            .await?;
        let rules = json!([{ "apiGroups": ["kubeairunway.ai"], "resources": ["modeldeployments"], "verbs": ["get"] }]);
        let subject = json!({ "kind": "ServiceAccount", "name": CLIENT, "namespace": "default" });
        bed.role(CLIENT, &rules, &subject).await?;
        let token = token(&bed.admin, "default", CLIENT, &[AUDIENCE]).await?;
        let scratch = tempfile::tempdir()?;
        let made = rcgen::generate_simple_self_signed(["kubeairunway-gateway".to_owned()])?;
        fs::write(scratch.path().join("tls.crt"), made.cert.pem())?;
        fs::write(scratch.path().join("tls.key"), made.signing_key.serialize_pem())?;
        Ok(Self {
            bed,
            folder,
            token,
            scratch,
        })
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.bed.cluster.stop().await
    }

    /// A model whose pods are these engines, in place of those of before.
    pub(super) async fn serve(&self, model: &str, engines: &[SocketAddr]) -> Result<()> {
        self.bed.model(NAMESPACE, model, model, 1).await?;
        self.bed.pods(NAMESPACE, model, labels::DEPLOYMENT, engines).await?;
        self.bed.serves(NAMESPACE, model, PORT).await
    }

    async fn router(&self, args: &[String]) -> Result<Router> {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        Router::start(&self.bed, &self.folder.join("kubeairunway-gateway"), &args).await
    }

    /// A router that is the endpoint picker at this address.
    async fn picker(&self, address: SocketAddr) -> Result<Router> {
        let file = |name: &str| self.scratch.path().join(name).display().to_string();
        self.router(&[
            format!("--endpoint-picker-address={address}"),
            format!("--tls-certificate={}", file("tls.crt")),
            format!("--tls-key={}", file("tls.key")),
        ])
        .await
    }
}

/// A test engine that runs.
pub(super) struct Engine {
    pub(super) address: SocketAddr,
    _process: Process,
}

impl Engine {
    /// Starts it. Its streams have as many parts as requested, one every 10 ms.
    pub(super) async fn start(place: &Place, own: IpAddr) -> Result<Self> {
        let address = SocketAddr::new(own, free_port()?);
        let program = place.folder.join("gateway-test-engine").display().to_string();
        let received = place.scratch.path().join("received").display().to_string();
        let args = [
            program,
            format!("--address={address}"),
            format!("--received={received}"),
            "--pause=10ms".to_owned(),
        ];
        let component = with_environment("test-engine", place.scratch.path(), [].into_iter(), &args);
        let process = component.spawn()?;
        eventually(PATIENCE, async || Ok(TcpStream::connect(address).await?)).await?;
        Ok(Self {
            address,
            _process: process,
        })
    }
}

/// A way of requests to engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    /// The engine alone.
    Engine,
    /// Our router, which reviews the token of the client at the API server.
    Ours,
    /// Envoy, which asks our router for the replica.
    Picker,
    /// Envoy, which asks the reference endpoint picker.
    Reference,
    Peer(peers::Kind),
}

impl Contender {
    pub(super) const ALL: [Self; 7] = [
        Self::Engine,
        Self::Ours,
        Self::Picker,
        Self::Reference,
        Self::Peer(peers::Kind::VllmRouter),
        Self::Peer(peers::Kind::SglangRouter),
        Self::Peer(peers::Kind::LiteLlm),
    ];

    /// Starts it in front of these engines, and waits until it answers.
    pub(super) async fn start(self, place: &Place, to: To<'_>) -> Result<Running> {
        let running = self.begin(place, to).await?;
        let target = &running.target;
        eventually(ANSWERS_WITHIN, async || {
            let mut connection = Connection::open(target.address).await?;
            target.ask(&mut connection, &target.short()).await
        })
        .await?;
        Ok(running)
    }

    async fn begin(self, place: &Place, to: To<'_>) -> Result<Running> {
        let running = |address, token: &str, pids, held| Running {
            target: Target::new(address, token, to.model),
            pids,
            _held: held,
        };
        Ok(match self {
            Self::Engine => {
                let engine = to.engines.first().context("no engine")?;
                running(*engine, "", Vec::new(), Held::Nothing)
            }
            Self::Ours => {
                let router = place.router(&[]).await?;
                running(router.address, &place.token, vec![router.pid()?], Held::Router(router))
            }
            Self::Picker => {
                let picker = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
                let router = place.picker(picker).await?;
                let envoy = Envoy::start(Picker {
                    address: picker,
                    tls: true,
                    request_body_mode: FULL_DUPLEX,
                    response_body_mode: FULL_DUPLEX,
                })
                .await?;
                let pids = vec![envoy.pid, router.pid()?];
                running(envoy.address, "", pids, Held::Envoy(envoy, router))
            }
            Self::Reference => {
                let picker = ReferencePicker::start(&place.bed, NAMESPACE, to.engines).await?;
                let envoy = Envoy::start(picker.picker()).await?;
                let pids = vec![envoy.pid, picker.pid];
                running(envoy.address, "", pids, Held::Reference(envoy, picker))
            }
            Self::Peer(kind) => {
                let peer = Peer::start(kind, to).await?;
                let key = if kind == peers::Kind::LiteLlm { LITELLM_KEY } else { "" };
                running(peer.address, key, vec![peer.pid], Held::Peer(peer))
            }
        })
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine => f.write_str("the engine alone"),
            Self::Ours => f.write_str("kubeairunway-gateway, with a reviewed token"),
            Self::Picker => write!(f, "Envoy {} with our endpoint picker", envoy::version()),
            Self::Reference => write!(
                f,
                "Envoy {} with the reference endpoint picker {}",
                envoy::version(),
                reference_picker::version()
            ),
            Self::Peer(kind @ peers::Kind::LiteLlm) => write!(f, "{kind}, 1 worker, with its key"),
            Self::Peer(kind) => write!(f, "{kind}, cache-aware"),
        }
    }
}

/// A contender that runs. Dropping it ends its processes.
pub(super) struct Running {
    pub(super) target: Target,
    /// Its processes, without those that they have started.
    pids: Vec<u32>,
    _held: Held,
}

/// Processes of a contender, for their drop.
#[expect(dead_code, reason = "they are dropped")]
enum Held {
    Nothing,
    Router(Router),
    Envoy(Envoy, Router),
    Reference(Envoy, ReferencePicker),
    Peer(Peer),
}

impl Running {
    fn processes(&self) -> Vec<u32> {
        self.pids.iter().flat_map(|pid| process::tree(*pid)).collect()
    }

    /// CPU time of its processes, in seconds. `None` without processes.
    pub(super) fn cpu(&self) -> Result<Option<f64>> {
        let times = self.processes().into_iter().map(cpu_of);
        times.reduce(|one, other| Ok(one? + other?)).transpose()
    }

    /// Largest memory of its processes, each at its own peak, in MiB. `None` without processes.
    pub(super) fn peak(&self) -> Result<Option<f64>> {
        let peaks = self.processes().into_iter().map(|pid| {
            let memory = runway_testbed::memory(pid)?;
            anyhow::Ok(mebibytes(memory.peak))
        });
        peaks.reduce(|one, other| Ok(one? + other?)).transpose()
    }
}

/// Destination of requests.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// Bearer token; none if empty.
    pub(super) token: String,
    pub(super) model: String,
}

impl Target {
    pub(super) fn new(address: SocketAddr, token: &str, model: &str) -> Self {
        Self {
            address,
            token: token.to_owned(),
            model: model.to_owned(),
        }
    }

    /// A request for one token.
    pub(super) fn short(&self) -> Value {
        let messages = json!([{ "role": "user", "content": "Hello" }]);
        json!({ "model": self.model, "messages": messages, "max_tokens": 1 })
    }

    /// Sends a chat, and receives the whole answer. An error if it is not a success.
    pub(super) async fn ask(&self, connection: &mut Connection, body: &Value) -> Result<Answer> {
        let answer = Answer::of(connection.send(chat(&self.token, body)?).await?).await?;
        ensure!(answer.status.is_success(), "{}: {answer:?}", self.address);
        Ok(answer)
    }
}
