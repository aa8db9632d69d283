//! Environment of both contenders: one control plane, one user who wants models, one upstream simulator, one watcher.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use runway_api::labels;
use runway_dev_cluster::{self as cluster, Programs};
use runway_manifests::Identity;
use runway_testbed::{ControlPlane, Options, eventually};
use serde_json::json;

use super::mix::{self, LINES, NAMESPACE, deployments, names};
use super::watching::Watcher;

/// Our core's process.
pub(super) const CORE: &str = "kubeairunway-controller";
/// User that creates, changes and deletes ModelDeployments.
pub(super) const USER: &str = "bench-user";
/// Requests of the user, and objects of the bare client, under way at once.
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
        let upstream = cluster::upstream_crds()?;
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
        cluster::start_simulator(&mut control_plane, programs, READY_AFTER, &["--headless"])?;
        let everything = &["system:masters"];
        Ok(Self {
            user: control_plane.client(USER, everything).await?,
            bare: control_plane.client("bare-client", everything).await?,
            watcher: Watcher::start(&control_plane.client("bench-watcher", everything).await?),
            admin,
            control_plane,
            programs,
            webhook_port: runway_testbed::free_port()?,
        })
    }

    /// Our controllers with their webhooks, as after an installation; returns when the first model could be made.
    pub(super) async fn start_ours(&mut self) -> Result<()> {
        let url = format!("https://127.0.0.1:{}", self.webhook_port);
        cluster::install(&self.admin, Some(&url), Identity::User).await?;
        self.launch_ours()?;
        self.admission_answers().await?;
        self.providers_are_ready().await
    }

    /// Only the processes.
    pub(super) fn launch_ours(&mut self) -> Result<()> {
        cluster::start_core(&mut self.control_plane, self.programs, self.webhook_port)?;
        for line in &LINES {
            cluster::start_provider(
                &mut self.control_plane,
                self.programs,
                line.provider,
                &["--verify-endpoints=false"],
            )?;
        }
        Ok(())
    }

    /// Ends our controllers in order, as an upgrade would.
    pub(super) async fn end_ours(&self) -> Result<()> {
        cluster::end(&self.control_plane, &ours()).await
    }

    /// Removes our webhooks, so that the API server calls no admission.
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
        cluster::pid(&self.control_plane, name)
    }

    /// Waits until admission fills in the finalizer.
    pub(super) async fn admission_answers(&self) -> Result<()> {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let trial = mix::of(0).model("trial")?;
        eventually(PATIENCE, async || {
            let created = deployments(&self.admin).create(&params, &trial).await?;
            ensure!(!created.finalizers().is_empty(), "admission does not answer");
            Ok(())
        })
        .await
    }

    async fn providers_are_ready(&self) -> Result<()> {
        let configs: Api<runway_api::InferenceProviderConfig> = Api::all(self.admin.clone());
        eventually(PATIENCE, async || {
            for line in &LINES {
                let status = configs.get(line.provider).await?.status.unwrap_or_default();
                ensure!(status.ready == Some(true), "{} is not ready", line.controller);
            }
            Ok(())
        })
        .await
    }

    /// Takes away what a contender has left, and waits for what the garbage collector takes away.
    pub(super) async fn sweep(&self) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), NAMESPACE);
        // Twenty thousand take longer than one request may.
        eventually(PATIENCE * 15, async || {
            events
                .delete_collection(&DeleteParams::default(), &ListParams::default())
                .await?;
            Ok(())
        })
        .await?;
        let services: Api<Service> = Api::namespaced(self.admin.clone(), NAMESPACE);
        eventually(PATIENCE * 15, async || {
            let left = services.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "the garbage collector has left {left} Services");
            Ok(())
        })
        .await
    }

    /// The end of what our controllers said.
    pub(super) fn show_logs(&self) {
        for name in ours() {
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

/// The providers' processes.
pub(super) fn providers() -> Vec<&'static str> {
    LINES.iter().map(|line| line.controller).collect()
}

/// Our processes, which are also our users.
pub(super) fn ours() -> Vec<&'static str> {
    [CORE].into_iter().chain(providers()).collect()
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
