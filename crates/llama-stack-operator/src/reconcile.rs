//! The story: observe, plan, apply.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use runway_api::LlamaStackDistribution;
use runway_operator::apply::{self, Executor};
use runway_operator::clock;

use crate::caches::Caches;
use crate::kinds;
use crate::observe::{self, Child, Observed};
use crate::plan;
use crate::settings::Settings;

/// What a reconcile works with.
pub(crate) struct Context {
    pub(crate) settings: Arc<Settings>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) executor: Arc<Executor<LlamaStackDistribution>>,
}

/// Brings one LlamaStackDistribution a step further.
pub(crate) async fn reconcile(
    llsd: Arc<LlamaStackDistribution>,
    context: Arc<Context>,
) -> Result<Action, apply::Error> {
    let mut seen = observe(&context, llsd).await;
    let mut plan = plan::plan(&seen);
    let strangers = context.caches.strangers(&seen, &plan).await;
    if !strangers.is_empty() {
        seen.children.extend(strangers);
        plan = plan::plan(&seen);
    }
    let mut outcome = context.executor.execute(&seen.llsd, &plan).await;
    if let Err(error) = &outcome
        && let Some(child) = context.caches.in_the_way(&seen, error).await
    {
        seen.children.push(child);
        plan = plan::plan(&seen);
        outcome = context.executor.execute(&seen.llsd, &plan).await;
    }
    match outcome {
        Ok(()) => Ok(Action::await_change()),
        Err(error) => {
            context
                .executor
                .execute(&seen.llsd, &plan::after_failure(&seen, &error))
                .await?;
            Err(error)
        }
    }
}

/// Reads caches and our own unseen writes; makes no request to the API server, but for a ConfigMap named for the first time,
/// whose watch is waited for.
async fn observe(context: &Context, llsd: Arc<LlamaStackDistribution>) -> Observed {
    let (namespace, name) = (llsd.namespace().unwrap_or_default(), llsd.name_any());
    let caches = &context.caches;
    let llsd = context
        .executor
        .own
        .newest("LlamaStackDistribution", &namespace, &name, Some(llsd.clone()))
        .unwrap_or(llsd);
    let children = kinds::children(&name)
        .into_iter()
        .filter_map(|(kind, child)| {
            let watched = caches.child(kind, &namespace, &child);
            let object = context
                .executor
                .children
                .newest(kind.kind, &namespace, &child, watched)?;
            Some(Child { kind, object })
        })
        .collect();
    let mut seen = Observed {
        settings: context.settings.clone(),
        children,
        pods: caches.pods(&namespace, &name),
        config_maps: caches.config_maps(&namespace, &name, observe::config_maps(&llsd)).await,
        model_deployments: caches.model_deployments(&namespace, &observe::model_deployments(&llsd)),
        server: None,
        now: clock::now(),
        llsd,
    };
    seen.server = caches.answer(&seen);
    seen
}
