//! One reconcile of the operator: observe, plan, work on the queue, execute.

use std::path::PathBuf;
use std::sync::Arc;

use kube::runtime::controller::Action;
use runway_api::AsyncActor;
use runway_operator::clock;
use runway_operator::controller::{self, Error};

use crate::observe::{Context, Settings, observe, queue};
use crate::plan;

/// Reconciles one AsyncActor.
pub(crate) async fn reconcile(actor: Arc<AsyncActor>, context: Arc<Context>) -> Result<Action, Error> {
    let mut seen = observe(&context, actor).await.map_err(Error::read)?;
    let mut plan = plan::plan(&seen);
    if let Some(work) = &plan.queue {
        let id = (seen.namespace(), seen.name());
        context.queues.carry_out(&id, work).await;
        seen.queue = queue(&context, &seen.actor);
        seen.now = clock::now();
        plan = plan::plan(&seen);
    }
    let after_failure = |error: &_| plan::after_failure(&seen, error).kube;
    controller::execute(&context.executor, &seen.actor, &plan.kube, after_failure).await
}

/// What a plan needs beside the cluster; the same for the operator and for `render`.
#[derive(Clone, Debug, clap::Args)]
pub struct ActorArgs {
    /// Transports, as JSON or as the path of a file with it. Empty: there are none
    #[arg(
        long,
        env = "ASYA_TRANSPORT_CONFIG",
        value_name = "JSON|FILE",
        default_value = "",
        hide_default_value = true
    )]
    pub transport_config: String,
    /// Image of asya-sidecar where an actor names none
    #[arg(
        long,
        env = "ASYA_SIDECAR_IMAGE",
        value_name = "IMAGE",
        default_value = "asya-sidecar:latest"
    )]
    pub sidecar_image: String,
}

/// How the operator is set up.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What every plan needs.
    #[command(flatten)]
    pub actors: ActorArgs,
    /// URL of the gateway that sidecars tell of progress.
    #[arg(long, env = "ASYA_GATEWAY_URL", value_name = "URL")]
    pub gateway_url: Option<String>,
    /// Leave queues to the sidecars: make and remove none.
    #[arg(long, env = "ASYA_DISABLE_QUEUE_MANAGEMENT", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub disable_queue_management: bool,
    /// Seconds to wait before what another controller took out of a target is put back the first time; it doubles each time.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub conflict_wait: u16,
    /// Folder with the Secrets that transports refer to, mounted as NAME/KEY.
    #[arg(
        long,
        env = "ASYA_SECRETS_DIR",
        value_name = "DIR",
        default_value = "/var/run/secrets/asya"
    )]
    pub secrets_dir: PathBuf,
}

impl Args {
    /// The settings of a plan.
    pub fn settings(&self) -> Settings {
        Settings {
            sidecar_image: self.actors.sidecar_image.clone(),
            gateway_url: self.gateway_url.clone(),
            manages_queues: !self.disable_queue_management,
            conflict_wait: std::time::Duration::from_secs(self.conflict_wait.into()),
            runtime_script: crate::RUNTIME_SCRIPT.to_owned(),
        }
    }
}
