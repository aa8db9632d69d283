//! One reconcile of the operator: observe, plan, work on the queue, execute.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::controller::Action;
use runway_api::AsyncActor;
use runway_asya_transport::args::{SecretsArgs, TransportArgs};
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

/// Default of `--conflict-wait`, in seconds.
const CONFLICT_WAIT: u16 = 5;

/// Arguments that change a plan. The operator and `render` share them.
#[derive(Clone, Debug, clap::Args)]
pub struct ActorArgs {
    /// Transports.
    #[command(flatten)]
    pub transports: TransportArgs,
    /// Image of asya-sidecar for actors that set none
    #[arg(
        long,
        env = "ASYA_SIDECAR_IMAGE",
        value_name = "IMAGE",
        default_value = "asya-sidecar:latest"
    )]
    pub sidecar_image: String,
}

/// Arguments of the operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Arguments that change a plan.
    #[command(flatten)]
    pub actors: ActorArgs,
    /// URL of the gateway to which sidecars report progress
    #[arg(long, env = "ASYA_GATEWAY_URL", value_name = "URL")]
    pub gateway_url: Option<String>,
    /// Leave the creation of queues to the sidecars, and delete none
    #[arg(long, env = "ASYA_DISABLE_QUEUE_MANAGEMENT", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub disable_queue_management: bool,
    /// Seconds to wait before containers that another controller removed are restored; doubled with each conflict
    #[arg(long, value_name = "SECONDS", default_value_t = CONFLICT_WAIT)]
    pub conflict_wait: u16,
    /// Secrets of the transports.
    #[command(flatten)]
    pub secrets: SecretsArgs,
}

impl Settings {
    /// The settings of an operator with this image of asya-sidecar and the defaults of all other arguments.
    pub fn with_sidecar(image: &str) -> Self {
        Self {
            sidecar_image: image.to_owned(),
            gateway_url: None,
            manages_queues: true,
            conflict_wait: Duration::from_secs(CONFLICT_WAIT.into()),
            runtime_script: crate::RUNTIME_SCRIPT.to_owned(),
        }
    }
}

impl Args {
    /// The settings of a plan.
    pub fn settings(&self) -> Settings {
        Settings {
            gateway_url: self.gateway_url.clone(),
            manages_queues: !self.disable_queue_management,
            conflict_wait: Duration::from_secs(self.conflict_wait.into()),
            ..Settings::with_sidecar(&self.actors.sidecar_image)
        }
    }
}
