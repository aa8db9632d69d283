//! The story of every provider: observe, plan, apply.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use runway_api::ModelDeployment;
use runway_operator::apply::{self, Executor};
use runway_operator::clock;

use crate::answers::Answers;
use crate::caches::Caches;
use crate::contract::Provider;
use crate::observe::{self, Lookup, Observed};
use crate::plan::{self, Decision};

/// What a reconcile works with.
pub(crate) struct Context {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) executor: Arc<Executor<ModelDeployment>>,
    pub(crate) answers: Arc<Answers>,
}

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
        unready: context.caches.unready(&namespace, &name),
        verification: context.answers.of(&namespace, &name),
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
