//! The story of every provider: observe, plan, apply.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::apply::{self, Executor};
use runway_operator::clock;

use crate::caches::Caches;
use crate::contract::Provider;
use crate::observe::{self, Lookup, Observed};
use crate::plan;

/// What a reconcile works with.
pub(crate) struct Context {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) executor: Arc<Executor<ModelDeployment>>,
}

/// Brings one ModelDeployment a step further.
pub(crate) async fn reconcile(md: Arc<ModelDeployment>, context: Arc<Context>) -> Result<Action, apply::Error> {
    let provider = context.provider.as_ref();
    let seen = observe(&context, md);
    let plan = plan::plan(provider, &seen);
    match context.executor.execute(&seen.md, &plan).await {
        Ok(()) => Ok(plan.look_again.map_or_else(Action::await_change, Action::requeue)),
        Err(error) => {
            context
                .executor
                .execute(&seen.md, &plan::after_failure(provider, &seen, &error))
                .await?;
            Err(error)
        }
    }
}

/// Reads caches and our own unseen writes; makes no request.
fn observe(context: &Context, md: Arc<ModelDeployment>) -> Observed {
    let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
    let md = context
        .executor
        .own
        .newest("ModelDeployment", &namespace, &name, Some(md.clone()))
        .unwrap_or(md);
    let lookup = WithEcho {
        caches: &context.caches,
        executor: &context.executor,
    };
    Observed {
        installed: context.caches.installed(),
        children: observe::children(&lookup, &namespace, context.provider.children(&name)),
        waiting: context.caches.waiting(&namespace, &name),
        now: clock::now(),
        md,
    }
}

/// The caches, and what we wrote that they have not seen.
struct WithEcho<'a> {
    caches: &'a Caches,
    executor: &'a Executor<ModelDeployment>,
}

impl Lookup for WithEcho<'_> {
    fn find(&self, kind: crate::Kind, namespace: &str, name: &str) -> Option<Arc<kube::core::DynamicObject>> {
        let watched = self.caches.find(kind, namespace, name);
        self.executor.children.newest(kind.kind, namespace, name, watched)
    }
}
