//! A control plane with our CRDs, roles and webhooks, and the controllers in this very process: each test starts and kills
//! what it wants. Every controller has the client certificate and the role that it would have in a cluster.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_api::{InferenceProviderConfig, ModelDeployment, ModelDeploymentStatus, labels};
use runway_cli::manifests::{self, Identity};
use runway_core::Registry;
use runway_core::serve::WebhookArgs;
use runway_operator::webhook::Endpoint;
use runway_provider::Provider;
use runway_provider_kaito::Kaito;
use runway_testbed::{ControlPlane, Options, Simulator, crds, eventually, simulator};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than anything here should take, on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// The namespace of the tests' objects.
pub const NAMESPACE: &str = "default";

/// A control plane and who is known to it.
pub struct Bed {
    pub cluster: ControlPlane,
    pub admin: Client,
    webhook_port: u16,
}

/// A controller that runs in this process. Dropping it is a kill: nothing is said goodbye to.
pub struct Running {
    task: JoinHandle<()>,
    shutdown: CancellationToken,
}

impl Running {
    fn spawn(shutdown: CancellationToken, body: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            task: tokio::spawn(body),
            shutdown,
        }
    }

    /// An orderly end, as on SIGTERM.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.task.abort();
    }
}

/// What is in the cluster beside our own CRDs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// KAITO's CRDs.
    Kaito,
    /// The CRDs of all built-in providers.
    All,
    /// Nothing.
    None,
}

impl Bed {
    /// Our CRDs, roles and webhooks, and KAITO's CRDs.
    pub async fn start() -> Result<Self> {
        Self::start_with(Upstream::Kaito, true).await
    }

    pub async fn start_with(upstream: Upstream, webhooks: bool) -> Result<Self> {
        let mut all: Vec<_> = manifests::crds().into();
        if upstream != Upstream::None {
            all.extend(crds::upstream_crds(&[
                crds::KAITO_WORKSPACES,
                crds::KAITO_INFERENCE_SETS,
            ])?);
        }
        if upstream == Upstream::All {
            all.extend(crds::upstream_crds(&[crds::DYNAMO_V1BETA1, crds::KUBERAY_SERVICES])?);
        }
        let cluster = ControlPlane::start(Options {
            crds: all,
            ..Options::default()
        })
        .await?;
        let admin = cluster.client("test-admin", &["system:masters"]).await?;
        let webhook_port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let bed = Self {
            cluster,
            admin,
            webhook_port,
        };
        let endpoint = Endpoint::Url(format!("https://127.0.0.1:{webhook_port}"));
        let mut objects = manifests::objects(&endpoint, Identity::User);
        objects.extend(manifests::provider_roles(
            &deployment_provider::DeploymentProvider,
            Identity::User,
        ));
        for object in objects {
            let kind = object.types.as_ref().map(|t| t.kind.clone()).unwrap_or_default();
            if webhooks || !kind.ends_with("WebhookConfiguration") {
                bed.apply(&serde_json::to_value(&object)?).await?;
            }
        }
        Ok(bed)
    }

    /// The core controller with its admission server.
    pub async fn core(&self) -> Result<Running> {
        self.core_with(true).await
    }

    pub async fn core_with(&self, selector_enabled: bool) -> Result<Running> {
        let client = self.cluster.client(labels::CORE_MANAGER, &[]).await?;
        let shutdown = CancellationToken::new();
        let registry = Arc::new(Registry::default());
        let args = WebhookArgs {
            webhook_address: ([127, 0, 0, 1], self.webhook_port).into(),
            webhook_url: Some(format!("https://127.0.0.1:{}", self.webhook_port)),
            webhook_service: "unused".to_owned(),
            webhook_namespace: manifests::NAMESPACE.to_owned(),
            webhook_secret: manifests::WEBHOOK_SECRET.to_owned(),
        };
        // A killed predecessor may hold the port for a moment.
        let admission = eventually(PATIENCE, async || {
            Ok(runway_core::serve::admission(client.clone(), &args, registry.clone(), shutdown.clone()).await?)
        })
        .await?;
        let stop = shutdown.clone();
        Ok(Running::spawn(shutdown, async move {
            runway_core::run(client, registry, selector_enabled, stop).await;
            let _ = admission.await;
        }))
    }

    /// The KAITO provider.
    pub async fn kaito(&self) -> Result<Running> {
        self.provider(Kaito::default()).await
    }

    /// Any provider.
    pub async fn provider(&self, provider: impl Provider) -> Result<Running> {
        let client = self
            .cluster
            .client(&labels::provider_manager(provider.name()), &[])
            .await?;
        let shutdown = CancellationToken::new();
        let name = provider.name();
        let running = Running::spawn(shutdown.clone(), runway_provider::run(provider, client, shutdown));
        let configs: Api<InferenceProviderConfig> = Api::all(self.admin.clone());
        eventually(PATIENCE, async || {
            let status = configs.get(name).await?.status.unwrap_or_default();
            if status.last_heartbeat.is_none() {
                bail!("{name} has not registered");
            }
            Ok(())
        })
        .await?;
        Ok(running)
    }

    /// The upstream simulator that plays KAITO's operator.
    pub async fn simulator(&self) -> Result<Simulator> {
        let client = self
            .cluster
            .client("kaito-upstream-simulator", &["system:masters"])
            .await?;
        Ok(Simulator::start(
            client,
            simulator::Config {
                ready_after: Duration::from_millis(300),
                ..simulator::Config::default()
            },
        ))
    }

    /// Waits until admission answers: a spec without an engine is refused.
    pub async fn admission_is_up(&self) -> Result<()> {
        let broken = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "probe", "namespace": NAMESPACE}, "spec": {"model": {"id": "a/b"}}});
        eventually(PATIENCE, async || match self.create_dry(&broken).await {
            Err(error) if format!("{error:#}").contains("engine.type is required") => Ok(()),
            other => bail!("admission does not answer yet: {other:?}"),
        })
        .await
    }

    async fn create_dry(&self, object: &Value) -> Result<()> {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        self.deployments()
            .create(&params, &serde_json::from_value(object.clone())?)
            .await?;
        Ok(())
    }

    pub fn deployments(&self) -> Api<ModelDeployment> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub fn configs(&self) -> Api<InferenceProviderConfig> {
        Api::all(self.admin.clone())
    }

    /// Creates a ModelDeployment as a user would.
    pub async fn create(&self, object: Value) -> Result<ModelDeployment> {
        let md: DynamicObject = serde_json::from_value(object)?;
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.admin.clone(),
            NAMESPACE,
            &ApiResource::erase::<ModelDeployment>(&()),
        );
        let created = api.create(&PostParams::default(), &md).await?;
        Ok(serde_json::from_value(serde_json::to_value(created)?)?)
    }

    /// Changes a ModelDeployment as `kubectl patch --type merge` would.
    pub async fn patch(&self, name: &str, patch: Value) -> Result<ModelDeployment> {
        Ok(self
            .deployments()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?)
    }

    pub async fn delete(&self, name: &str) -> Result<()> {
        self.deployments().delete(name, &DeleteParams::background()).await?;
        Ok(())
    }

    /// Waits until the status is as wanted; shows it when it is not.
    pub async fn status(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&ModelDeploymentStatus) -> bool,
    ) -> Result<ModelDeployment> {
        eventually(PATIENCE, async || {
            let md = self.deployments().get(name).await?;
            match &md.status {
                Some(status) if wanted(status) => Ok(md),
                status => bail!("{name} is not {what}: {}", serde_json::to_string_pretty(status)?),
            }
        })
        .await
    }

    /// Waits until it serves.
    pub async fn running(&self, name: &str) -> Result<ModelDeployment> {
        self.status(name, "Running", |s| {
            s.phase == Some(Phase::Running) && s.conditions.is_true(condition::READY)
        })
        .await
    }

    /// Waits until it is gone.
    pub async fn gone(&self, name: &str) -> Result<()> {
        eventually(PATIENCE, async || match self.deployments().get_opt(name).await? {
            None => Ok(()),
            Some(md) => bail!("{name} is still there: {}", serde_json::to_string_pretty(&md)?),
        })
        .await
    }

    /// Upstream objects of one kind.
    pub fn upstream(&self, kind: runway_provider::Kind, version: &str) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.admin.clone(),
            NAMESPACE,
            &runway_provider::upstream::api_resource(kind, version),
        )
    }

    pub fn workspaces(&self) -> Api<DynamicObject> {
        self.upstream(runway_provider_kaito::WORKSPACE, "v1beta1")
    }

    /// Waits until there is no Workspace of this name.
    pub async fn workspace_gone(&self, name: &str) -> Result<()> {
        eventually(PATIENCE, async || match self.workspaces().get_opt(name).await? {
            None => Ok(()),
            Some(_) => bail!("Workspace {name} is still there"),
        })
        .await
    }

    /// Reasons of the Events about an object, sorted.
    pub async fn event_reasons(&self, name: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let about = |e: &Event| e.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name));
        let mut reasons: Vec<String> = events
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .filter(about)
            .filter_map(|e| e.reason)
            .collect();
        reasons.sort();
        Ok(reasons)
    }

    /// Waits for an Event, and returns its note.
    pub async fn event(&self, name: &str, reason: &str) -> Result<String> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), NAMESPACE);
        eventually(PATIENCE, async || {
            let all = events.list(&ListParams::default()).await?.items;
            let found = all.into_iter().find(|e| {
                e.reason.as_deref() == Some(reason)
                    && e.regarding.as_ref().is_some_and(|r| r.name.as_deref() == Some(name))
            });
            found
                .and_then(|e| e.note)
                .with_context(|| format!("no Event {reason} about {name}"))
        })
        .await
    }

    /// Applies any object by force.
    pub async fn apply(&self, object: &Value) -> Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let types = object.types.clone().context("an object without kind")?;
        let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
        let (resource, capabilities) =
            kube::discovery::pinned_kind(&self.admin, &GroupVersionKind::gvk(group, version, &types.kind)).await?;
        let api: Api<DynamicObject> = match (capabilities.scope, object.namespace()) {
            (kube::discovery::Scope::Namespaced, namespace) => {
                Api::namespaced_with(self.admin.clone(), namespace.as_deref().unwrap_or(NAMESPACE), &resource)
            }
            _ => Api::all_with(self.admin.clone(), &resource),
        };
        Ok(api
            .patch(
                &object.name_any(),
                &PatchParams::apply("test").force(),
                &Patch::Apply(&object),
            )
            .await?)
    }
}

/// The design's example 2, under another name.
pub fn gemma(name: &str) -> Value {
    json!({
        "apiVersion": ModelDeployment::api_version(&()),
        "kind": ModelDeployment::kind(&()),
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "model": { "id": "google/gemma-3-1b-it-qat-q8_0-gguf", "source": "huggingface" },
            "engine": { "type": "llamacpp" },
            "serving": { "mode": "aggregated" },
            "scaling": { "replicas": 1 },
            "resources": { "gpu": { "count": 0 }, "memory": "16Gi", "cpu": "8" },
            "image": "ghcr.io/sozercan/llama-cpp-runner:latest",
        }
    })
}

/// The same, with labels that the upstream simulator obeys.
pub fn gemma_simulated(name: &str, behaviour: &str) -> Value {
    let mut object = gemma(name);
    object["metadata"]["labels"] = json!({ simulator::LABEL: behaviour });
    object
}

/// vLLM on one GPU, served by the provider named.
pub fn vllm(name: &str, provider: &str) -> Value {
    let mut object = gemma(name);
    object["spec"]["engine"] = json!({ "type": "vllm" });
    object["spec"]["model"] = json!({ "id": "Qwen/Qwen3-8B" });
    object["spec"]["resources"] = json!({ "gpu": { "count": 1 } });
    object["spec"]["provider"] = json!({ "name": provider });
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("image");
    }
    object
}
