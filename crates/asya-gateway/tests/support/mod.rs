//! A gateway as a process, with a real RabbitMQ, a real API server, the real sidecar and the real Python runtime.
#![allow(dead_code, unreachable_pub, reason = "each test file uses what it needs")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, Kubeconfig};
use kube::{Api, Client};
use runway_asya_gateway::AUDIENCE;
use runway_asya_sidecar::config::Config;
use runway_asya_testbed::pipeline::Broker;
use runway_operator::listen;
use runway_testbed::tokens::token;
use runway_testbed::{ControlPlane, Options, PATIENCE, RabbitMq, RabbitMqOptions, eventually, free_ports, own_address};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Namespace of the actors.
pub const TEAM: &str = "team";
/// Certificate authority of gateways that serve HTTPS.
pub const AUTHORITY: &str = "asya-gateway-ca";

const HANDLERS: &str = r#"
import time

def upper(payload):
    return {"text": str(payload["text"]).upper()}

def slow(payload):
    time.sleep(payload["seconds"])
    return {"slept": payload["seconds"]}

def fail(payload):
    raise ValueError("no such order")

def fan(payload):
    return [{"n": n} for n in range(payload["n"])]

def picky(payload):
    if payload["n"] % 2:
        raise ValueError("odd")
    return payload

def silent(payload):
    return None

def large(payload):
    return "x" * payload["bytes"]

def same(payload):
    return payload
"#;

/// A broker and an API server with users.
pub struct World {
    pub rabbit: RabbitMq,
    pub broker: Broker,
    pub cluster: ControlPlane,
    pub admin: Client,
    pub folder: TempDir,
}

impl World {
    pub async fn start() -> Result<Self> {
        Self::start_with(RabbitMqOptions::default()).await
    }

    pub async fn start_with(options: RabbitMqOptions) -> Result<Self> {
        let (rabbit, cluster) = tokio::try_join!(RabbitMq::start(options), ControlPlane::start(Options::default()))?;
        let broker = Broker::connect(&rabbit.url()).await?;
        let admin = cluster.client("test-admin", &["system:masters"]).await?;
        let folder = tempfile::Builder::new().prefix("testbed-gateway-").tempdir()?;
        std::fs::write(folder.path().join("handlers.py"), HANDLERS)?;
        let world = Self {
            rabbit,
            broker,
            cluster,
            admin,
            folder,
        };
        world.grant_gateway().await?;
        for namespace in [TEAM, "other"] {
            let metadata = named(namespace);
            let namespace = Namespace {
                metadata,
                ..Namespace::default()
            };
            Api::all(world.admin.clone())
                .create(&PostParams::default(), &namespace)
                .await?;
        }
        Ok(world)
    }

    /// Folder with the Secrets of the transports.
    pub fn secrets(&self) -> std::path::PathBuf {
        self.folder.path().join("secrets")
    }

    /// Transports with the broker.
    pub fn transports(&self) -> Result<Value> {
        let (host, broker) = self.rabbit.address();
        let uri: http::Uri = self.rabbit.url().replace("amqp://", "http://").parse()?;
        let authority = uri.authority().context("no authority")?.as_str();
        let (user, password) = authority
            .rsplit_once('@')
            .and_then(|(user, _)| user.split_once(':'))
            .context("no password")?;
        let secrets = self.secrets();
        std::fs::create_dir_all(secrets.join("broker"))?;
        std::fs::write(secrets.join("broker/password"), password)?;
        let vhost = uri.path().trim_start_matches('/');
        let vhost = if vhost.is_empty() || vhost == "%2f" || vhost == "%2F" {
            "/"
        } else {
            vhost
        };
        Ok(
            json!({"transports": {"rabbitmq": {"type": "rabbitmq", "config": {"host": host.to_string(),
            "port": broker, "username": user, "vhost": vhost, "passwordSecretRef": {"name": "broker", "key": "password"},
            "managementPort": self.rabbit.management_port().unwrap_or_default()}}}}),
        )
    }

    /// The rights of the gateway are those that it declares, and no others.
    async fn grant_gateway(&self) -> Result<()> {
        let role = ClusterRole {
            metadata: named("asya-gateway"),
            rules: Some([runway_callers::access(), listen::access_in_namespace(AUTHORITY)].concat()),
            ..ClusterRole::default()
        };
        let binding = ClusterRoleBinding {
            metadata: named("asya-gateway"),
            role_ref: role_ref("ClusterRole", "asya-gateway"),
            subjects: Some(vec![Subject {
                kind: "User".to_owned(),
                name: "asya-gateway".to_owned(),
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                namespace: None,
            }]),
        };
        let params = PostParams::default();
        Api::all(self.admin.clone()).create(&params, &role).await?;
        Api::all(self.admin.clone()).create(&params, &binding).await?;
        Ok(())
    }

    /// A ServiceAccount of the namespace of the actors, and its token for the gateway. It may send messages to these actors.
    pub async fn user(&self, name: &str, actors: &[&str]) -> Result<String> {
        let sends = PolicyRule {
            resource_names: Some(actors.iter().map(ToString::to_string).collect()),
            ..may(&["create"], "messages")
        };
        let rules = if actors.is_empty() { vec![] } else { vec![sends] };
        self.user_with(name, rules, &[AUDIENCE]).await
    }

    /// A ServiceAccount of the namespace of the actors with these rights there, and a token of it.
    pub async fn user_with(&self, name: &str, rules: Vec<PolicyRule>, audiences: &[&str]) -> Result<String> {
        let params = PostParams::default();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), TEAM);
        let account = ServiceAccount {
            metadata: named(name),
            ..ServiceAccount::default()
        };
        accounts.create(&params, &account).await?;
        let role = Role {
            metadata: named(name),
            rules: Some(rules),
        };
        let binding = bound(name);
        Api::namespaced(self.admin.clone(), TEAM).create(&params, &role).await?;
        Api::namespaced(self.admin.clone(), TEAM)
            .create(&params, &binding)
            .await?;
        token(&self.admin, TEAM, name, audiences).await
    }

    /// A kubeconfig with a token instead of a certificate.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<std::path::PathBuf> {
        let mut kubeconfig = Kubeconfig::read_from(self.cluster.kubeconfig(name, &[])?)?;
        for user in &mut kubeconfig.auth_infos {
            user.auth_info = Some(AuthInfo {
                token: Some(token.to_owned().into()),
                ..AuthInfo::default()
            });
        }
        let path = self.folder.path().join(format!("{name}.kubeconfig"));
        std::fs::write(&path, serde_json::to_string(&kubeconfig)?)?;
        Ok(path)
    }

    /// A Service in front of a port of this machine.
    pub async fn serve(&self, namespace: &str, name: &str, port: u16) -> Result<()> {
        let params = PostParams::default();
        let address = own_address()?.to_string();
        let object = json!({"metadata": {"name": namespace}});
        let place: Namespace = serde_json::from_value(object)?;
        Api::all(self.admin.clone()).create(&params, &place).await?;
        let object = json!({"metadata": {"name": name}, "spec": {"ports": [
            {"name": "http", "port": 80, "targetPort": port},
            {"name": "https", "port": 443, "targetPort": port},
        ]}});
        let service: Service = serde_json::from_value(object)?;
        Api::namespaced(self.admin.clone(), namespace)
            .create(&params, &service)
            .await?;
        // The API server proxies only to addresses of pods.
        let object = json!({"metadata": {"name": name}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": name, "image": name}]}});
        let pod: Pod = serde_json::from_value(object)?;
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), namespace);
        eventually(PATIENCE, async || {
            // Not before the ServiceAccount of the namespace.
            pods.create(&params, &pod).await?;
            Ok(())
        })
        .await?;
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let patch = Patch::Merge(&status);
        pods.patch_status(name, &PatchParams::default(), &patch).await?;
        let target = json!({"kind": "Pod", "namespace": namespace, "name": name});
        let ports = json!([{"name": "http", "port": port}, {"name": "https", "port": port}]);
        let object = json!({"metadata": {"name": name},
            "subsets": [{"addresses": [{"ip": address, "targetRef": target}], "ports": ports}]});
        let endpoints: Endpoints = serde_json::from_value(object)?;
        Api::namespaced(self.admin.clone(), namespace)
            .create(&params, &endpoints)
            .await?;
        Ok(())
    }

    /// Lets a ServiceAccount of the namespace of the actors use the API server's proxy to a Service.
    pub async fn may_use_proxy(&self, namespace: &str, service: &str, account: &str) -> Result<()> {
        let params = PostParams::default();
        let role = Role {
            metadata: named(account),
            rules: Some(vec![PolicyRule {
                api_groups: Some(vec![String::new()]),
                resources: Some(vec!["services/proxy".to_owned()]),
                resource_names: Some(vec![service.to_owned()]),
                verbs: vec!["get".to_owned(), "create".to_owned()],
                ..PolicyRule::default()
            }]),
        };
        Api::namespaced(self.admin.clone(), namespace)
            .create(&params, &role)
            .await?;
        let binding = bound(account);
        Api::namespaced(self.admin.clone(), namespace)
            .create(&params, &binding)
            .await?;
        Ok(())
    }

    /// Starts an actor: the real sidecar, here, and the real Python runtime with one of [`HANDLERS`].
    pub async fn actor(&self, name: &str, handler: &str, settings: &[&str]) -> Result<Actor> {
        let folder = tempfile::Builder::new().prefix("testbed-actor-").tempdir()?;
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/asya-runtime/src");
        let runtime = Command::new("python3")
            .args(["-m", "asya_runtime"])
            .env("PYTHONPATH", format!("{source}:{}", self.folder.path().display()))
            .env("ASYA_HANDLER", format!("handlers.{handler}"))
            .env("ASYA_SOCKET_DIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let socket = format!("--socket-dir={}", folder.path().display());
        let (name, url) = (
            format!("--actor-name={name}"),
            format!("--rabbitmq-url={}", self.rabbit.url()),
        );
        let namespace = format!("--namespace={TEAM}");
        let line = [
            "asya-sidecar",
            &name,
            &namespace,
            &url,
            &socket,
            "--metrics-enabled=false",
        ];
        let config = Config::read(line.iter().chain(settings).map(Into::into))?;
        let queue = config.queues().of(&config.actor_name);
        let stop = CancellationToken::new();
        let sidecar = tokio::spawn(runway_asya_sidecar::run(config, stop.clone()));
        let actor = Actor {
            runtime,
            stop,
            sidecar: Some(sidecar),
            _folder: folder,
        };
        eventually(PATIENCE, async || {
            self.broker.ready(&queue).await?;
            Ok(())
        })
        .await?;
        Ok(actor)
    }
}

/// An actor. Dropping it ends it.
pub struct Actor {
    runtime: Child,
    stop: CancellationToken,
    sidecar: Option<tokio::task::JoinHandle<Result<(), runway_asya_sidecar::Error>>>,
    _folder: TempDir,
}

impl Actor {
    /// Stops the sidecar as a pod does.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        if let Some(sidecar) = self.sidecar.take() {
            sidecar.await??;
        }
        Ok(())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.runtime.kill();
        let _ = self.runtime.wait();
    }
}

/// A gateway. Dropping it kills it.
pub struct Gateway {
    child: Child,
    port: u16,
    progress: u16,
    command: Vec<String>,
    log: std::path::PathBuf,
    client: HttpClient<HttpConnector, Full<Bytes>>,
}

impl Gateway {
    pub async fn start(world: &World, store: &Path, settings: &[&str]) -> Result<Self> {
        let transports = world.transports()?;
        Self::start_on(world, store, &transports, settings).await
    }

    /// A gateway with these transports.
    pub async fn start_on(world: &World, store: &Path, transports: &Value, settings: &[&str]) -> Result<Self> {
        let [port, progress, admin] = free_ports()?;
        let kubeconfig = world.cluster.kubeconfig("asya-gateway", &[])?;
        let mut command = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--address=0.0.0.0:{port}"),
            format!("--progress-address=127.0.0.1:{progress}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--transport-config={transports}"),
            format!("--secrets-dir={}", world.secrets().display()),
            format!("--store={}", store.display()),
        ];
        command.extend(settings.iter().map(ToString::to_string));
        let log = store.with_extension("log");
        let gateway = Self {
            child: spawn(&command, &log)?,
            port,
            progress,
            command,
            log,
            client: HttpClient::builder(TokioExecutor::new()).build(HttpConnector::new()),
        };
        gateway.ready().await?;
        Ok(gateway)
    }

    /// kill -9, and a new one with the same store.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = spawn(&self.command, &self.log)?;
        self.ready().await
    }

    pub async fn exit_code(&mut self) -> Result<Option<i32>> {
        for _ in 0..300 {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("the gateway does not end: {}", self.log())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn progress_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.progress)
    }

    /// CPU time so far.
    pub fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .context("no fields")?
            .split_whitespace()
            .collect();
        // utime and stime, in hundredths of a second.
        let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(Duration::from_millis(ticks * 10))
    }

    pub fn resident_kib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .context("no VmRSS")?;
        Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
    }

    /// Ready: it answers, and it is connected to the broker.
    async fn ready(&self) -> Result<()> {
        eventually(PATIENCE, async || {
            let log = self.log();
            let asked = self.ask(Method::GET, "/jobs/x", "", &[], "").await;
            // With a certificate, plain HTTP is refused.
            let serves = |status| [StatusCode::UNAUTHORIZED, StatusCode::BAD_REQUEST].contains(&status);
            ensure!(asked.is_ok_and(|answer| serves(answer.0)), "{log}");
            ensure!(log.lines().rev().any(|line| line.contains("consuming")), "{log}");
            Ok(())
        })
        .await
    }

    /// A request of the user with this token.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<(StatusCode, HeaderMap, Value)> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://127.0.0.1:{}{path}", self.port));
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Full::new(body.into()))?).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        let json = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into());
        Ok((parts.status, parts.headers, json))
    }

    pub async fn post(
        &self,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        payload: &Value,
    ) -> Result<(StatusCode, Value)> {
        let (status, _, body) = self
            .ask(Method::POST, path, token, headers, payload.to_string())
            .await?;
        Ok((status, body))
    }

    pub async fn get(&self, path: &str, token: &str, headers: &[(&str, &str)]) -> Result<(StatusCode, Value)> {
        let (status, _, body) = self.ask(Method::GET, path, token, headers, "").await?;
        Ok((status, body))
    }

    /// Submits a job, and returns its id.
    pub async fn submit(&self, actor: &str, token: &str, payload: &Value) -> Result<String> {
        let (status, body) = self.post(&format!("/v1/{TEAM}/{actor}"), token, &[], payload).await?;
        is_accepted(status, &body)?;
        Ok(body["id"].as_str().context("no id")?.to_owned())
    }

    /// Submits a job with its payload as the idempotency key, and returns its id.
    pub async fn submit_once(&self, actor: &str, token: &str, payload: &Value) -> Result<String> {
        let (path, key) = (format!("/v1/{TEAM}/{actor}"), payload.to_string());
        let (status, body) = self.post(&path, token, &[("idempotency-key", &key)], payload).await?;
        is_accepted(status, &body)?;
        Ok(body["id"].as_str().context("no id")?.to_owned())
    }

    /// Waits for the end of a job.
    pub async fn ended(&self, id: &str, token: &str) -> Result<Value> {
        eventually(PATIENCE, async || {
            let (status, body) = self
                .get(&format!("/jobs/{id}"), token, &[("prefer", "wait=10")])
                .await?;
            ensure!(
                status == StatusCode::OK && body.get("finished").is_some(),
                "{status} {body}"
            );
            Ok(body)
        })
        .await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &[String], log: &Path) -> Result<Child> {
    let log = std::fs::File::create(log)?;
    let child = Command::new(env!("CARGO_BIN_EXE_asya-gateway"))
        .args(command)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    Ok(child)
}

/// Permission for verbs on a subresource of AsyncActors.
pub fn may(verbs: &[&str], subresource: &str) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec!["asya.sh".to_owned()]),
        resources: Some(vec![format!("asyncactors/{subresource}")]),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    }
}

/// Binding of a role to the ServiceAccount of its name, which is in the namespace of the actors.
fn bound(name: &str) -> RoleBinding {
    RoleBinding {
        metadata: named(name),
        role_ref: role_ref("Role", name),
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(TEAM.to_owned()),
            api_group: None,
        }]),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

/// A submission is accepted with 202, or with 200 if the job has ended before the response.
pub fn is_accepted(status: StatusCode, body: &Value) -> Result<()> {
    let has_ended = !["pending", "running"].contains(&body["status"].as_str().unwrap_or_default());
    let expected = if has_ended {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    ensure!(status == expected, "{status} {body}");
    Ok(())
}
