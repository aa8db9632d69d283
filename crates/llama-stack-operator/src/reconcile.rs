//! One reconcile: observe, plan, execute.

use std::sync::Arc;

use kube::runtime::controller::Action;
use runway_api::LlamaStackDistribution;
use runway_operator::controller::{self, Error};

use crate::observe::{Context, observe};
use crate::plan;

/// Reconciles one LlamaStackDistribution.
pub(crate) async fn reconcile(llsd: Arc<LlamaStackDistribution>, context: Arc<Context>) -> Result<Action, Error> {
    let seen = observe(&context, llsd).await.map_err(Error::read)?;
    let plan = plan::plan(&seen);
    controller::execute(&context.executor, &seen.llsd, &plan, |error| {
        plan::after_failure(&seen, error)
    })
    .await
}
