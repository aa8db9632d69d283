//! Environment of AsyncActors, with the real programs: RabbitMQ, KEDA, the operator as installed, our own images; on a [`Node`].

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use runway_testbed::{Cluster, Node, PATIENCE, RabbitMq, RabbitMqOptions, engine, eventually, images, keda, packages};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, task::JoinHandle};

use crate::pipeline::{Broker, Incoming};

/// Namespace of the actors.
pub const NAMESPACE: &str = "default";
/// The ConfigMap and Secret by which an installed operator gets its transports.
const TRANSPORTS: &str = "asya-transports";
/// Program that speaks OpenAI's API and returns the prompt in capitals, after a delay.
const MODEL_SERVER: &str = include_str!("model_server.py");

/// The operator's installation.
pub struct Installation<'a> {
    /// The namespace that it is installed in.
    pub namespace: &'a str,
    /// Everything to apply, the namespace and the CRDs first.
    pub objects: &'a [Value],
    /// Images that it names, and the programs to make them of.
    pub images: &'a [(String, PathBuf)],
    /// Whether operator, sidecars and KEDA reach the broker over TLS.
    pub tls: bool,
}

/// A node with everything on it.
pub struct Stage<'a> {
    /// The node.
    pub node: &'a Node,
    /// The broker, where pods reach it.
    pub rabbit: RabbitMq,
    /// A client of it.
    pub broker: Broker,
    /// asya-runtime, with Python.
    pub runtime: String,
}

impl<'a> Stage<'a> {
    /// Puts everything on a node, and waits until it works.
    pub async fn set(node: &'a Node, installation: &Installation<'_>) -> Result<Self> {
        let options = RabbitMqOptions {
            address: node.network().host().into(),
            management: true,
            tls: installation.tls,
            ..RabbitMqOptions::default()
        };
        let (rabbit, keda, runtime) = tokio::join!(
            RabbitMq::start(options),
            keda::install(node),
            tokio::task::spawn_blocking(images::asya_runtime),
        );
        let (rabbit, runtime) = (rabbit?, runtime??);
        keda.context("KEDA cannot be installed")?;
        node.import_image(&runtime.archive).await?;
        for (image, program) in installation.images {
            node.import_program(image, program, &[]).await?;
        }
        let broker = Broker::connect(&rabbit.url()).await?;
        let stage = Self {
            node,
            rabbit,
            broker,
            runtime: runtime.name,
        };
        stage.install(installation).await?;
        Ok(stage)
    }

    async fn install(&self, installation: &Installation<'_>) -> Result<()> {
        let namespace = installation.namespace;
        apply(self.node, installation.objects).await?;
        let (host, port) = self.rabbit.address();
        let management = self.rabbit.management_port().context("there is no management API")?;
        let mut config = json!({"host": host, "port": port, "managementPort": management, "username": "guest",
            "passwordSecretRef": {"name": TRANSPORTS, "key": "password"}});
        let mut content = json!({"password": "guest"});
        if let Some(port) = self.rabbit.tls_port() {
            config["port"] = json!(port);
            config["tls"] = json!({"caSecretRef": {"name": TRANSPORTS, "key": "ca.crt"}});
            content["ca.crt"] = json!(std::fs::read_to_string(self.rabbit.authority())?);
        }
        let transports = json!({"transports": {"rabbitmq": {"type": "rabbitmq", "config": config}}});
        // The operator has its Secret, and each namespace with actors its own.
        let secret = |namespace: &str| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": TRANSPORTS, "namespace": namespace},
                "stringData": content})
        };
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TRANSPORTS, "namespace": namespace},
            "data": {"transports.json": transports.to_string()}});
        apply(self.node, &[config, secret(namespace), secret(NAMESPACE)]).await?;
        let deployments: Api<Deployment> = Api::namespaced(self.node.test_bed_client().await?, namespace);
        eventually(PATIENCE, async || {
            let status = deployments.get("asya-operator").await?.status.unwrap_or_default();
            ensure!(status.available_replicas == Some(1), "asya-operator: {status:?}");
            Ok(())
        })
        .await
    }

    /// The queue of an actor.
    pub fn queue(actor: &str) -> String {
        format!("asya-{NAMESPACE}_{actor}")
    }

    /// Puts a message for the first of `route` into its queue.
    pub async fn send(&self, id: &str, route: &[&str], payload: Value) -> Result<()> {
        let first = route.first().context("a route leads somewhere")?;
        let envelope = json!({"id": id, "route": {"actors": route, "current": 0}, "payload": payload});
        self.broker
            .publish(&Self::queue(first), envelope.to_string().as_bytes())
            .await
    }

    /// Runs a command that the product prints for RabbitMQ, with broker and credentials filled in. Returns its output.
    pub async fn typed(&self, line: &str) -> Result<String> {
        tokio::task::spawn_blocking(|| packages::ensure(&packages::CURL)).await??;
        let (host, _) = self.rabbit.address();
        let management = self.rabbit.management_port().context("there is no management API")?;
        let line = line
            .replace("USER:PASSWORD", "guest:guest")
            .replace("BROKER:15672", &format!("{host}:{management}"));
        let output = tokio::process::Command::new("sh").args(["-c", &line]).output().await?;
        ensure!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Messages at the end of every route.
    pub async fn answers(&self) -> Result<Incoming> {
        self.broker.consume(&Self::queue("happy-end")).await
    }

    /// A model server of another owner: a Deployment with a Service, which takes `seconds` for an answer.
    pub fn model_server(&self, name: &str, seconds: f32) -> Vec<Value> {
        let container = json!({
            "name": "model", "image": self.runtime, "command": ["python3", "-c", MODEL_SERVER, seconds.to_string()],
            "ports": [{"containerPort": 8000}],
            "readinessProbe": {"httpGet": {"path": "/v1/models", "port": 8000}, "periodSeconds": 1},
        });
        served(name, &container)
    }
}

/// The real engine as a model server of another owner: a Deployment with a Service.
pub fn real_model_server(name: &str, image: &str) -> Vec<Value> {
    let args = [
        "-m",
        engine::MODEL,
        "--alias",
        name,
        "--host",
        "0.0.0.0",
        "--port",
        "8000",
        "--threads",
        "1",
    ];
    let container = json!({
        "name": "model", "image": image, "args": args, "ports": [{"containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
    });
    served(name, &container)
}

/// A Deployment of this container, and a Service in front of its port 8000.
fn served(name: &str, container: &Value) -> Vec<Value> {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [container]},
        }},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    });
    vec![deployment, service]
}

/// Field manager of the *reverting controller*.
const REVERTING: &str = "reverting-controller";

/// The *reverting controller*: like KServe's, it watches a Deployment without a predicate, and reverts each difference in its
/// template. It leaves replicas to other controllers. Aborting the task ends it.
pub fn reverting_controller(client: Client, wanted: Deployment) -> JoinHandle<()> {
    tokio::spawn(async move {
        let name = wanted.name_any();
        let api: Api<Deployment> = Api::namespaced(client, &wanted.namespace().unwrap_or_default());
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = watcher(api.clone(), only).default_backoff().applied_objects().boxed();
        while let Some(event) = events.next().await {
            let Ok(live) = event else { continue };
            let template = |deployment: &Deployment| deployment.spec.as_ref().map(|s| s.template.clone());
            let marked = live.annotations().keys().any(|key| key.starts_with("asya.sh/"));
            if template(&live) == template(&wanted) && !marked {
                continue;
            }
            let mut back = wanted.clone();
            back.metadata.resource_version = live.resource_version();
            back.metadata.managed_fields = None;
            // A field of its own, by which managed fields name it: who only takes away owns nothing.
            let mark = ("app.kubernetes.io/managed-by".to_owned(), REVERTING.to_owned());
            back.labels_mut().extend([mark]);
            back.status = None;
            if let (Some(back), Some(live)) = (&mut back.spec, &live.spec) {
                back.replicas = live.replicas;
            }
            let params = PostParams {
                field_manager: Some(REVERTING.to_owned()),
                ..PostParams::default()
            };
            // Who was faster is seen with the next event.
            let _ = api.replace(&name, &params, &back).await;
        }
    })
}

/// Applies objects as a person would.
pub async fn apply(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let mut kubectl = cluster.kubectl()?;
    kubectl.args(["apply", "--server-side", "--force-conflicts", "-f", "-"]);
    let mut child = kubectl
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run kubectl")?;
    let mut input = child.stdin.take().context("kubectl takes no input")?;
    input.write_all(list.as_bytes()).await?;
    drop(input);
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        bail!("cannot apply: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
