//! The story: observe, plan, apply.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use runway_api::LlamaStackDistribution;
use runway_operator::apply::{self, Executor};
use runway_operator::{clock, controller};

use crate::caches::Caches;
use crate::config_maps;
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

/// Why a reconcile is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Read(#[from] config_maps::Unknown),
    #[error(transparent)]
    Apply(#[from] apply::Error),
}

impl controller::Failure for Error {
    fn category(&self) -> &'static str {
        match self {
            Self::Read(_) => "connection",
            Self::Apply(error) => error.category(),
        }
    }
}

/// Brings one LlamaStackDistribution a step further.
pub(crate) async fn reconcile(llsd: Arc<LlamaStackDistribution>, context: Arc<Context>) -> Result<Action, Error> {
    let seen = observe(&context, llsd).await?;
    match context.executor.execute(&seen.llsd, &plan::plan(&seen)).await {
        Ok(()) => Ok(Action::await_change()),
        Err(error) => {
            context
                .executor
                .execute(&seen.llsd, &plan::after_failure(&seen, &error))
                .await?;
            Err(error.into())
        }
    }
}

/// Reads caches and our own unseen writes; makes no request to the API server, but for a ConfigMap named for the first time,
/// whose watch is waited for.
async fn observe(context: &Context, llsd: Arc<LlamaStackDistribution>) -> Result<Observed, config_maps::Unknown> {
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
        config_maps: caches
            .config_maps(&namespace, &name, observe::config_maps(&llsd))
            .await?,
        model_deployments: caches.model_deployments(&namespace, &observe::model_deployments(&llsd)),
        server: None,
        now: clock::now(),
        llsd,
    };
    seen.server = caches.answer(&seen);
    Ok(seen)
}
