//! The core's reconcile loop: observe, plan, apply.

use std::sync::Arc;

use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::controller::{self, Error};
use runway_operator::plan::Plan;

use crate::observe::{Context, observe};
use crate::plan;

/// Reconciles one ModelDeployment.
pub(crate) async fn reconcile(md: Arc<ModelDeployment>, context: Arc<Context>) -> Result<Action, Error> {
    let seen = observe(&context, md);
    let plan = plan::plan(&seen);
    controller::execute(&context.executor, &seen.md, &plan, |_| Plan::default()).await
}
