//! The product on a real node, installed as a user installs it: its controllers run in pods, from our own images, and a real engine
//! serves a model.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, labels};
use runway_dev_support::step;
use runway_manifests::{NAMESPACE, Release};
use runway_provider::Request;
use runway_testbed::engine::{LlamaServer, MODEL};
use runway_testbed::traffic::load::{Address, Way};
use runway_testbed::{Node, Options, PATIENCE, crds, eventually, node};
use serde_json::{Value, json};

use crate::{self as cluster, Programs, answer};

/// The model, in namespace `default`.
pub const NAME: &str = "hello";

/// A node with the product.
pub struct Installed {
    /// The node, with its control plane.
    pub node: Node,
    /// Programs of the product.
    pub programs: Programs,
    /// Engine of the model.
    pub engine: LlamaServer,
    client: Client,
    admin: PathBuf,
}

impl Installed {
    /// Builds the programs, starts a node with these CRDs of upstream operators, and installs the core and these providers. `what`
    /// is the caller, for messages.
    pub async fn start(what: &'static str, release: bool, upstream: &[&str], providers: &[&str]) -> Result<Self> {
        step("building the programs");
        let programs = Programs::build(release).await?;
        let engine = tokio::task::spawn_blocking(|| LlamaServer::prepare(what)).await??;
        let engine = engine.context("llama-server cannot be had on this machine")?;
        step("starting a control plane and a node");
        let node = Node::start(Options::default()).await?;
        let installed = Self {
            client: node.admin_client().await?,
            admin: node.admin()?,
            node,
            programs,
            engine,
        };
        installed.node.import_image(&installed.engine.image.archive).await?;
        for crd in crds::upstream_crds(upstream)? {
            crds::install_crd(&installed.client, crd).await?;
        }
        let controllers = providers.iter().map(|provider| labels::provider_manager(provider));
        for name in controllers.chain([labels::CORE_MANAGER.to_owned()]) {
            installed.import(&name).await?;
        }
        installed.kubeairunway(&["controller", "install", "--yes"]).await?;
        let install = [&["provider", "install"], providers, &["--yes"]].concat();
        installed.kubeairunway(&install).await?;
        Ok(installed)
    }

    /// Loads the image of a program of ours onto the node.
    pub async fn import(&self, name: &str) -> Result<()> {
        let image = Release::default().image(name);
        self.node.import_program(&image, &self.programs.path(name), &[]).await
    }

    /// Deploys the model, and waits until it serves.
    pub async fn deploy(&self, provider: &str) -> Result<()> {
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": NAME, "namespace": "default" },
            "spec": {
                "provider": { "name": provider },
                "model": { "source": "custom" },
                "engine": {
                    "type": "llamacpp",
                    // Without model.source huggingface, the image decides where it listens on KAITO.
                    "args": { "model": MODEL, "alias": NAME, "threads": "1", "host": "0.0.0.0", "port": "5000" },
                },
                "image": self.engine.image.name,
                "resources": { "memory": "256Mi", "cpu": "10m" },
            },
        });
        let md = serde_json::from_value(md)?;
        // Admission answers from the pods, once kube-proxy knows them.
        eventually(PATIENCE, async || cluster::apply(&self.client, &md).await).await?;
        self.settled().await
    }

    /// Waits until the model is Ready in its current generation, and all of its pods serve, except for those that the kubelet rejected.
    pub async fn settled(&self) -> Result<()> {
        eventually(PATIENCE, async || {
            let md = self.models().get(NAME).await?;
            let status = md.status.clone().unwrap_or_default();
            let ready = status.conditions.when_true(condition::READY);
            ensure!(
                ready.is_some_and(|c| c.observed_generation == md.metadata.generation),
                "not ready: {}",
                status.message.unwrap_or_default()
            );
            let mut pods = self.pods().await?;
            pods.retain(|pod| !has_ended(pod));
            let replicas = Request::try_from(&md)?.topology.replicas();
            let serving = pods.iter().filter(|pod| node::running(pod).is_ok()).count();
            ensure!(
                serving == pods.len() && i32::try_from(serving) == Ok(replicas),
                "{serving} of {} pods serve, {replicas} are desired",
                pods.len()
            );
            Ok(())
        })
        .await
    }

    /// Changes the spec of the model.
    pub async fn patch(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.models().patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Changes the spec of the model, and waits until it serves.
    pub async fn change(&self, spec: Value) -> Result<()> {
        self.patch(spec).await?;
        self.settled().await
    }

    /// Client with the rights of an administrator.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// ModelDeployments of the namespace `default`.
    pub fn models(&self) -> Api<ModelDeployment> {
        Api::default_namespaced(self.client())
    }

    /// Pods of the model.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::default_namespaced(self.client());
        let ours = ListParams::default().labels(&format!("{}={NAME}", labels::DEPLOYMENT));
        Ok(pods.list(&ours).await?.items)
    }

    /// Waits until the kubelet has reported that a pod was restarted and runs. The pod is as it was before.
    pub async fn restarted(&self, before: &Pod) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client(), &before.namespace().unwrap_or_default());
        let name = before.name_any();
        eventually(PATIENCE, async || {
            let now = pods.get(&name).await?;
            ensure!(
                node::restarts(&now) > node::restarts(before),
                "{name} has not been restarted"
            );
            node::running(&now).map(drop)
        })
        .await
    }

    /// The Service of the model, for clients.
    pub fn at_service(&self) -> Way {
        Way {
            name: "Service",
            to: self.service("default", NAME),
            token: String::new(),
            model: NAME.to_owned(),
            headers: Vec::new(),
        }
    }

    /// Port 80 of a Service.
    pub fn service(&self, namespace: &'static str, name: &str) -> Address {
        Address::Service {
            client: self.client(),
            namespace,
            name: name.to_owned(),
            port: 80,
        }
    }

    /// Waits until all pods of these Deployments are of the current template, and ready.
    pub async fn rolled_out(&self, deployments: &[&str]) -> Result<()> {
        for name in deployments {
            self.kubectl(&["rollout", "status", "-n", NAMESPACE, &deployment(name)])
                .await?;
        }
        Ok(())
    }

    /// Runs kubectl as an administrator.
    pub async fn kubectl(&self, args: &[&str]) -> Result<()> {
        cluster::kubectl(&self.node, args).await
    }

    /// Runs the command as an administrator.
    pub async fn kubeairunway(&self, args: &[&str]) -> Result<()> {
        println!("\n$ kubeairunway {}", args.join(" "));
        let done = answer::command(&self.programs, &self.admin, args).status().await?;
        ensure!(done.success(), "kubeairunway {} failed", args.join(" "));
        Ok(())
    }
}

/// Whether the kubelet has rejected or evicted a pod. It stays until the garbage collector of pods deletes it.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Failed")
}

/// A Deployment, for kubectl.
pub fn deployment(name: &str) -> String {
    format!("deployment/{name}")
}
