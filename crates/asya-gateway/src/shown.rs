//! A job as JSON, with its result.

use axum::body::Body;
use bytes::Bytes;
use runway_callers::tenant::Tenant;
use serde_json::value::RawValue;

use crate::gateway::Gateway;
use crate::job::{Item, View};
use crate::memory::{Busy, Taken, body};
use crate::store;

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
    pub outcome: Option<store::Outcome>,
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
        let result = outcome.as_ref().and_then(|outcome| {
            Some((
                outcome.failed,
                serde_json::from_slice::<&RawValue>(&outcome.payload).ok()?,
            ))
        });
        let mut children = Vec::new();
        if job.children > 0 && item.suffix.is_empty() {
            for suffix in gateway.store.children(item.job)? {
                let child = Item { job: item.job, suffix };
                children.push(child.to_string());
            }
        }
        let view = View::new(item, &job, gateway.progress(item.job), result, children);
        let is_final = view.is_final();
        // Cannot fail: keys are strings, and the result is JSON already.
        let json = serde_json::to_vec(&view).unwrap_or_default().into();
        Ok(Some(Self {
            json,
            is_final,
            outcome,
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
