//! The story of the operator: observe, plan, apply.

use std::path::PathBuf;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use runway_api::AsyncActor;
use runway_operator::apply::{self, Executor};
use runway_operator::{clock, controller};

use crate::caches::Caches;
use crate::configuration::Configuration;
use crate::observe::{Observed, Settings};
use crate::plan;
use crate::queues::Keeper;

/// What a reconcile works with.
pub(crate) struct Context {
    pub(crate) caches: Arc<Caches>,
    pub(crate) actors: Store<AsyncActor>,
    pub(crate) queues: Arc<Keeper>,
    pub(crate) configuration: Arc<Configuration>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) executor: Executor<AsyncActor>,
}

/// Why a reconcile is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read what the actor looks for")]
    Read(#[from] kube::Error),
    #[error(transparent)]
    Apply(#[from] apply::Error),
}

impl controller::Failure for Error {
    fn category(&self) -> &'static str {
        match self {
            Self::Read(_) => "connection",
            Self::Apply(error) => error.category(),
        }
    }
}

/// Brings one AsyncActor a step further.
pub(crate) async fn reconcile(actor: Arc<AsyncActor>, context: Arc<Context>) -> Result<Action, Error> {
    let mut seen = observe(&context, actor).await?;
    let mut plan = plan::plan(&seen);
    if let Some(work) = &plan.queue {
        let id = (seen.namespace(), seen.name());
        context.queues.carry_out(&id, work).await;
        seen.queue = queue(&context, &seen.actor);
        seen.now = clock::now();
        plan = plan::plan(&seen);
    }
    match context.executor.execute(&seen.actor, &plan.kube).await {
        Ok(()) => Ok(plan.kube.look_again.map_or_else(Action::await_change, Action::requeue)),
        Err(error) => {
            let told = plan::after_failure(&seen, &error);
            context.executor.execute(&seen.actor, &told.kube).await?;
            Err(error.into())
        }
    }
}

/// Reads caches and our own unseen writes, and from the server only what changed since it was read.
async fn observe(context: &Context, actor: Arc<AsyncActor>) -> Result<Observed, Error> {
    let (namespace, name) = (actor.namespace().unwrap_or_default(), actor.name_any());
    let newest = context
        .executor
        .own
        .newest("AsyncActor", &namespace, &name, Some(actor.clone()));
    let actor = newest.unwrap_or(actor);
    let bound_there = |other: &Arc<AsyncActor>| {
        other.namespace().as_deref() == Some(&namespace)
            && other.name_any() != name
            && other.spec.workload_ref.is_some()
    };
    let others = if actor.spec.workload_ref.is_some() {
        context.actors.state().into_iter().filter(bound_there).collect()
    } else {
        Vec::new()
    };
    Ok(Observed {
        objects: context.caches.objects(&actor).await?,
        pods: context.caches.pods(&namespace, &name),
        others,
        queue: queue(context, &actor),
        transports: context.configuration.now(),
        settings: context.settings.clone(),
        now: clock::now(),
        actor,
    })
}

fn queue(context: &Context, actor: &AsyncActor) -> crate::observe::QueueState {
    let id = (actor.namespace().unwrap_or_default(), actor.name_any());
    let wanted = plan::queues_of(actor, &context.configuration.now());
    context.queues.state(&id, wanted.as_ref())
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
