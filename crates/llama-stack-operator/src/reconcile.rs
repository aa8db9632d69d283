//! The story: observe, plan, apply.

use std::sync::Arc;

use kube::runtime::controller::Action;
use runway_api::LlamaStackDistribution;
use runway_operator::apply;
use runway_operator::controller;

use crate::config_maps;
use crate::observe::{Context, observe};
use crate::plan;

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
