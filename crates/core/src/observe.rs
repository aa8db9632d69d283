//! The input of a plan, read from watch caches and never by a live request.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::ModelDeployment;
use runway_operator::apply::Executor;
use runway_operator::clock;

use crate::autoscalers::Autoscalers;
use crate::caches::Caches;
use crate::providers::Providers;
use crate::registry::Registry;

/// Inputs of every reconcile, and the executor of its plan, which remembers the controller's own writes.
pub(crate) struct Context {
    pub(crate) registry: Arc<Registry>,
    pub(crate) selector_enabled: bool,
    pub(crate) caches: Arc<Caches>,
    pub(crate) executor: Executor<ModelDeployment>,
}

/// Everything known about one ModelDeployment at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The ModelDeployment.
    pub md: Arc<ModelDeployment>,
    /// The registered providers.
    pub providers: Arc<Providers>,
    /// Whether providers are chosen here, or by a selector of the user's own.
    pub selector_enabled: bool,
    /// The autoscalers that concern it.
    pub autoscalers: Autoscalers,
    /// The time.
    pub now: Timestamp,
}

/// Observes a ModelDeployment: the watch caches, and our own writes that the watch has not delivered yet.
pub(crate) fn observe(context: &Context, md: Arc<ModelDeployment>) -> Observed {
    let namespace = md.namespace().unwrap_or_default();
    let md = context.executor.newest(md);
    Observed {
        autoscalers: context.caches.autoscalers(&namespace, &md),
        md,
        providers: context.registry.current(),
        selector_enabled: context.selector_enabled,
        now: clock::now(),
    }
}
