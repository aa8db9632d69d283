//! The reconcile loop of the routes controller: observe, plan, apply.

use std::sync::Arc;

use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::controller::{self, Error};

use super::observe::{Context, observe};
use super::plan;

/// Reconciles one ModelDeployment.
pub(super) async fn reconcile(md: Arc<ModelDeployment>, context: Arc<Context>) -> Result<Action, Error> {
    let seen = observe(&context, md);
    let plan = plan::plan(&seen);
    let after_failure = |error: &_| plan::after_failure(&seen, error);
    controller::execute(&context.executor, &seen.md, &plan, after_failure).await
}
