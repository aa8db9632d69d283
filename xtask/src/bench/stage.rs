//! Where both contenders appear: one control plane, one user who wants models, one upstream simulator, one watcher.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use runway_api::{ModelDeployment, labels};
use runway_cli::manifests::Identity;
use runway_testbed::{ControlPlane, Options, crds, eventually};
use serde_json::json;

use super::watching::Watcher;
use crate::cluster::{self, Programs};
use crate::shell;

/// Where all ModelDeployments of a run are.
pub(super) const NAMESPACE: &str = "bench";
/// What the names of all of them begin with; the pilot's does not.
pub(super) const PREFIX: &str = "model-";
/// Our processes.
pub(super) const CORE: &str = "kubeairunway-controller";
/// Our processes.
pub(super) const KAITO: &str = "kaito-provider";
/// Objects under way at once: as many as each of our controllers reconciles at once.
pub(super) const CONCURRENCY: usize = 32;
/// After the last object, for what is still on its way: Events, and what the simulator does last.
pub(super) const SETTLE: Duration = Duration::from_secs(3);
/// From the upstream simulator's first sight of a Workspace to its Ready.
const READY_AFTER: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_mins(1);

/// Everything that the contenders have in common.
pub(super) struct Stage<'a> {
    pub(super) control_plane: ControlPlane,
    /// Creates and deletes ModelDeployments: neither contender's work.
    pub(super) user: Client,
    /// The bare client.
    pub(super) bare: Client,
    /// Sees when all run, and when all are gone.
    pub(super) watcher: Watcher,
    admin: Client,
    programs: &'a Programs,
    webhook_port: u16,
}

impl<'a> Stage<'a> {
    /// A control plane with our CRDs and roles, and the upstream simulator. Our controllers are not started.
    pub(super) async fn set(programs: &'a Programs) -> Result<Self> {
        let upstream = crds::upstream_crds(&[crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS])?;
        let mut control_plane = ControlPlane::start(Options {
            crds: upstream,
            ..Options::default()
        })
        .await?;
        let admin = control_plane.admin_client().await?;
        cluster::install(&admin, None, Identity::User).await?;
        let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        Api::<Namespace>::all(admin.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        cluster::start_simulator(&mut control_plane, programs, READY_AFTER)?;
        let everything = &["system:masters"];
        Ok(Self {
            user: control_plane.client("bench-user", everything).await?,
            bare: control_plane.client("bare-client", everything).await?,
            watcher: Watcher::start(&control_plane.client("bench-watcher", everything).await?),
            admin,
            control_plane,
            programs,
            webhook_port: cluster::free_port()?,
        })
    }

    /// Our two controllers with their webhooks, as after an installation; returns when the first model could be made.
    pub(super) async fn start_ours(&mut self) -> Result<()> {
        let url = format!("https://127.0.0.1:{}", self.webhook_port);
        cluster::install(&self.admin, Some(&url), Identity::User).await?;
        self.launch_ours()?;
        self.admission_answers().await?;
        self.provider_is_ready().await
    }

    /// Only the processes.
    pub(super) fn launch_ours(&mut self) -> Result<()> {
        cluster::start_core(&mut self.control_plane, self.programs, self.webhook_port)?;
        cluster::start_provider(&mut self.control_plane, self.programs, "kaito")
    }

    /// Ends our two controllers in order, as an upgrade would.
    pub(super) async fn end_ours(&self) -> Result<()> {
        for name in [CORE, KAITO] {
            let pid = self.pid(name).with_context(|| format!("{name} does not run"))?;
            shell::run("sh", &["-c", &format!("kill -TERM {pid}")])?;
        }
        eventually(PATIENCE, async || {
            ensure!(
                self.pid(CORE).is_none() && self.pid(KAITO).is_none(),
                "our controllers do not end"
            );
            Ok(())
        })
        .await
    }

    /// Without our webhooks the API server asks nobody.
    pub(super) async fn remove_webhooks(&self) -> Result<()> {
        let ours = ListParams::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE));
        let params = DeleteParams::default();
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.admin.clone());
        mutating.delete_collection(&params, &ours).await?;
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.admin.clone());
        validating.delete_collection(&params, &ours).await?;
        Ok(())
    }

    /// The id of a process, if it runs.
    pub(super) fn pid(&self, name: &str) -> Option<u32> {
        let file = self.control_plane.dir.join(format!("{name}.pid"));
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// Waits until admission fills in the finalizer.
    pub(super) async fn admission_answers(&self) -> Result<()> {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let trial = model("trial")?;
        eventually(PATIENCE, async || {
            let created = deployments(&self.admin).create(&params, &trial).await?;
            ensure!(!created.finalizers().is_empty(), "admission does not answer");
            Ok(())
        })
        .await
    }

    async fn provider_is_ready(&self) -> Result<()> {
        let configs: Api<runway_api::InferenceProviderConfig> = Api::all(self.admin.clone());
        eventually(PATIENCE, async || {
            let status = configs.get("kaito").await?.status.unwrap_or_default();
            ensure!(status.ready == Some(true), "kaito-provider is not ready");
            Ok(())
        })
        .await
    }

    /// Takes away what a contender has left, and waits for what the garbage collector takes away.
    pub(super) async fn sweep(&self) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), NAMESPACE);
        events
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        let services: Api<Service> = Api::namespaced(self.admin.clone(), NAMESPACE);
        eventually(PATIENCE * 5, async || {
            let left = services.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "the garbage collector has left {left} Services");
            Ok(())
        })
        .await
    }

    /// The end of what our controllers said.
    pub(super) fn show_logs(&self) {
        for name in [CORE, KAITO] {
            let text = std::fs::read_to_string(self.control_plane.dir.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            eprintln!(
                "--- the end of {name}.log\n{}",
                lines[lines.len().saturating_sub(20)..].join("\n")
            );
        }
    }

    /// Ends everything.
    pub(super) async fn clear(self) -> Result<()> {
        self.control_plane.stop().await
    }
}

/// The names of a run.
pub(super) fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|index| format!("{PREFIX}{index:05}"))
}

/// The design's example 2, as the user writes it.
pub(super) fn model(name: &str) -> Result<DynamicObject> {
    let text = std::fs::read_to_string(shell::root().join("deploy/examples/gemma-cpu.yaml"))
        .context("cannot read the example gemma-cpu.yaml")?;
    let mut model: DynamicObject = serde_saphyr::from_str(&text)?;
    model.metadata.name = Some(name.to_owned());
    model.metadata.namespace = None;
    Ok(model)
}

/// Deletes all ModelDeployments of a run, as the user.
pub(super) async fn delete_all(user: &Client, count: usize) -> Result<()> {
    let api = deployments(user);
    stream::iter(names(count).map(Ok))
        .try_for_each_concurrent(CONCURRENCY, |name| {
            let api = api.clone();
            async move {
                api.delete(&name, &DeleteParams::default()).await?;
                Ok(())
            }
        })
        .await
}

/// ModelDeployments as this client sees them.
pub(super) fn deployments(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::erase::<ModelDeployment>(&()))
}

/// Workspaces as this client sees them.
pub(super) fn workspaces(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("kaito.sh", "v1beta1", "Workspace");
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind))
}
