//! One reconcile of a provider: observe, plan, execute, and send the plan's probe in the background.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::controller::{self, Error};

use crate::observe::{Context, observe};
use crate::plan::{self, Decision};

/// Reconciles one ModelDeployment.
pub(crate) async fn reconcile(md: Arc<ModelDeployment>, context: Arc<Context>) -> Result<Action, Error> {
    let configured = context.caches.configured();
    let provider = configured.provider.as_ref();
    let seen = observe(&context, &configured, md);
    let Decision { plan, probe } = plan::decide(provider, &seen);
    let after_failure = |error: &_| plan::after_failure(provider, &seen, error);
    let action = controller::execute(&context.executor, &seen.md, &plan, after_failure).await?;
    let (namespace, name) = (seen.md.namespace().unwrap_or_default(), seen.md.name_any());
    context.answers.carry_out(&namespace, &name, probe);
    Ok(action)
}
