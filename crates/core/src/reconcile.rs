//! The core's reconcile loop: observe, plan, apply.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::apply::{self, Executor};
use runway_operator::clock;

use crate::observe::Observed;
use crate::plan;
use crate::registry::Registry;

/// Shared state of all reconciles.
pub(crate) struct Context {
    pub(crate) registry: Arc<Registry>,
    pub(crate) selector_enabled: bool,
    pub(crate) executor: Executor<ModelDeployment>,
}

/// Reconciles one ModelDeployment.
pub(crate) async fn reconcile(md: Arc<ModelDeployment>, context: Arc<Context>) -> Result<Action, apply::Error> {
    let seen = observe(&context, md);
    let plan = plan::plan(&seen);
    context.executor.execute(&seen.md, &plan).await?;
    Ok(plan.look_again.map_or_else(Action::await_change, Action::requeue))
}

/// Reads the caches and our own newest writes; sends no request.
fn observe(context: &Context, md: Arc<ModelDeployment>) -> Observed {
    let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
    Observed {
        md: context
            .executor
            .own
            .newest("ModelDeployment", &namespace, &name, Some(md.clone()))
            .unwrap_or(md),
        providers: context.registry.current(),
        selector_enabled: context.selector_enabled,
        now: clock::now(),
    }
}
