//! The story of the core: observe, plan, apply.

use std::sync::Arc;

use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::apply;

use crate::observe::{Context, observe};
use crate::plan;

/// Brings one ModelDeployment a step further.
pub(crate) async fn reconcile(md: Arc<ModelDeployment>, context: Arc<Context>) -> Result<Action, apply::Error> {
    let seen = observe(&context, md);
    let plan = plan::plan(&seen);
    context.executor.execute(&seen.md, &plan).await?;
    Ok(plan.look_again.map_or_else(Action::await_change, Action::requeue))
}
