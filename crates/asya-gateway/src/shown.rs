//! A job as JSON, with its result.

use axum::body::Body;
use bytes::Bytes;
use runway_callers::tenant::Tenant;
use serde_json::value::RawValue;

use crate::gateway::Gateway;
use crate::job::{Item, Job, Received, State, View};
use crate::memory::{Busy, Taken, body};
use crate::store::{self, Outcome};

/// Reason why a job cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Too many large results are being read.
    #[error(transparent)]
    Busy(#[from] Busy),
}

/// A job as JSON.
pub struct Shown {
    /// The JSON.
    pub json: Bytes,
    /// Whether there is nothing to wait for.
    pub is_final: bool,
    /// The payload of the result, or of the error.
    pub outcome: Option<Outcome>,
    taken: Taken,
}

impl Shown {
    /// An item with its result. `None` if there is no such job.
    ///
    /// # Errors
    /// If the store fails, or there is no memory for the result.
    pub async fn of(gateway: &Gateway, item: &Item) -> Result<Option<Self>, Error> {
        let Some(job) = gateway.store.job(item.job)? else {
            return Ok(None);
        };
        // The result and the JSON around it.
        let tenant = Tenant::of_user(&job.user);
        let taken = gateway.memory.take(&tenant, 2 * gateway.store.size(item)?).await?;
        // It may have ended in the meantime.
        let Some(job) = gateway.store.job(item.job)? else {
            return Ok(None);
        };
        let outcome = gateway.store.result(item)?;
        let failure = failure(item, &job, outcome.as_ref());
        let received = received(outcome.as_ref(), failure.as_ref());
        let mut children = Vec::new();
        if job.children > 0 && item.suffix.is_empty() {
            for suffix in gateway.store.children(item.job)? {
                let child = Item { job: item.job, suffix };
                children.push(child.to_string());
            }
        }
        let view = View::new(item, &job, gateway.progress(item.job), received, children);
        let is_final = view.is_final();
        // Cannot fail: keys are strings, and the result is JSON already.
        let json = serde_json::to_vec(&view).unwrap_or_default().into();
        Ok(Some(Self {
            json,
            is_final,
            outcome: failure.or(outcome),
            taken,
        }))
    }

    /// The JSON as the body of a response.
    pub fn into_body(self) -> Body {
        let Self { json, taken, .. } = self;
        body(json, taken)
    }

    /// The payload of the result as the body of a response.
    pub fn into_payload(self) -> Body {
        let Self { outcome, taken, .. } = self;
        body(outcome.map(|outcome| outcome.payload).unwrap_or_default(), taken)
    }
}

/// View of an item. `failure` is the error of the whole job.
fn received<'a>(outcome: Option<&'a Outcome>, failure: Option<&'a Outcome>) -> Option<Received<'a>> {
    let raw = |outcome: &'a Outcome| serde_json::from_slice::<&RawValue>(&outcome.payload).ok();
    let (results, errors): (Vec<_>, Vec<_>) = outcome.into_iter().chain(failure).partition(|outcome| !outcome.failed);
    outcome.or(failure).map(|shown| Received {
        failed: shown.failed,
        is_own: outcome.is_some(),
        result: results.first().and_then(|outcome| raw(outcome)),
        error: errors.first().and_then(|outcome| raw(outcome)),
    })
}

/// Error of a job that failed although it has a result: an item has failed, or has no result.
fn failure(item: &Item, job: &Job, outcome: Option<&Outcome>) -> Option<Outcome> {
    let is_failed = item.suffix.is_empty() && job.state == State::Failed;
    let has_result = outcome.is_some_and(|outcome| !outcome.failed);
    if !is_failed || !has_result {
        return None;
    }
    let Job {
        items,
        children,
        failures,
        ..
    } = job;
    let (code, message) = if *failures > 0 {
        ("items_failed", format!("{failures} of {items} items failed"))
    } else {
        let arrived = children + 1;
        (
            "no_result",
            format!("{arrived} of {items} results arrived by the deadline"),
        )
    };
    let error = serde_json::json!({"error": code, "details": {"message": message}});
    Some(Outcome {
        failed: true,
        payload: error.to_string().into(),
    })
}
