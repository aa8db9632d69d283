//! A job as JSON, with its result. Results can be large, so those that are read for clients have a share of a budget of memory,
//! and a client that does not read its response loses it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::gateway::Gateway;
use crate::job::{Item, View};
use crate::store;

/// Memory is counted in these.
const UNIT: usize = 1024;
/// Results up to this size are not counted.
const SMALL: usize = 16 * UNIT;
/// Parts in which a large response is sent.
const PART: usize = 64 * UNIT;
/// Longest wait for memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time in which a client may read nothing.
pub const UNREAD: Duration = Duration::from_secs(30);

/// Memory for results that are sent to clients.
#[derive(Clone)]
pub struct Memory {
    units: Arc<Semaphore>,
    most: usize,
}

impl Memory {
    /// Memory of this many bytes.
    pub fn new(bytes: usize) -> Self {
        let most = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            units: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    async fn take(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Error> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT).min(self.most)).unwrap_or(u32::MAX);
        let taken = timeout(PATIENCE, Arc::clone(&self.units).acquire_many_owned(units)).await;
        taken.ok().and_then(Result::ok).map(Some).ok_or(Error::Busy)
    }
}

/// Reason why a job cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Too many large results are being read.
    #[error("too many large results are being read; try again")]
    Busy,
}

/// A job as JSON.
pub struct Shown {
    /// The JSON.
    pub json: Bytes,
    /// Whether there is nothing to wait for.
    pub is_final: bool,
    /// The payload of the result, or of the error.
    pub outcome: Option<store::Outcome>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Shown {
    /// An item with its result. `None` if there is no such job.
    ///
    /// # Errors
    /// If the store fails, or there is no memory for the result.
    pub async fn of(gateway: &Gateway, item: &Item) -> Result<Option<Self>, Error> {
        // The result and the JSON around it.
        let taken = gateway.memory.take(2 * gateway.store.size(item)?).await?;
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

/// A large body is sent in parts, and given up if the client reads none of them in time.
fn body(bytes: Bytes, taken: Option<OwnedSemaphorePermit>) -> Body {
    if taken.is_none() {
        return Body::from(bytes);
    }
    let (parts, sent) = mpsc::channel::<Bytes>(1);
    let left = bytes.len();
    tokio::spawn(async move {
        let _taken = taken;
        let mut rest = bytes;
        while !rest.is_empty() {
            let part = rest.split_to(PART.min(rest.len()));
            if !matches!(timeout(UNREAD, parts.send(part)).await, Ok(Ok(()))) {
                return;
            }
        }
    });
    let stream = futures::stream::unfold((sent, left), |(mut sent, left)| async move {
        let part = match sent.recv().await {
            Some(part) => Ok(part),
            None if left == 0 => return None,
            // The connection is closed, so that the client does not take a part for the whole.
            None => Err(std::io::Error::from(std::io::ErrorKind::TimedOut)),
        };
        let left = part.as_ref().map_or(0, |part: &Bytes| left - part.len());
        Some((part, (sent, left)))
    });
    Body::from_stream(stream)
}
