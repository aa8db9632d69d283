//! The story of every provider: observe, plan, apply.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::apply;

use crate::observe::{Context, observe};
use crate::plan::{self, Decision};

/// Brings one ModelDeployment a step further.
pub(crate) async fn reconcile(md: Arc<ModelDeployment>, context: Arc<Context>) -> Result<Action, apply::Error> {
    let provider = context.provider.as_ref();
    let seen = observe(&context, md);
    let Decision { plan, inquiry } = plan::decide(provider, &seen);
    match context.executor.execute(&seen.md, &plan).await {
        Ok(()) => {
            let (namespace, name) = (seen.md.namespace().unwrap_or_default(), seen.md.name_any());
            context.answers.carry_out(&namespace, &name, inquiry);
            Ok(plan.look_again.map_or_else(Action::await_change, Action::requeue))
        }
        Err(error) => {
            context
                .executor
                .execute(&seen.md, &plan::after_failure(provider, &seen, &error))
                .await?;
            Err(error)
        }
    }
}
