//! Memory for results that are sent to clients. Results can be large, so those beyond a few KiB have a share of a budget, and a
//! client that does not read its response loses it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

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

    /// Takes memory for a result of this size.
    ///
    /// # Errors
    /// If there is none in time.
    pub async fn take(&self, bytes: usize) -> Result<Taken, Busy> {
        if bytes <= SMALL {
            return Ok(Taken(None));
        }
        let units = u32::try_from(bytes.div_ceil(UNIT).min(self.most)).unwrap_or(u32::MAX);
        let taken = timeout(PATIENCE, Arc::clone(&self.units).acquire_many_owned(units)).await;
        taken
            .ok()
            .and_then(Result::ok)
            .map(|permit| Taken(Some(permit)))
            .ok_or(Busy)
    }
}

/// Memory of a result. It is free again when this is dropped.
pub struct Taken(Option<OwnedSemaphorePermit>);

/// The memory for results is exhausted.
#[derive(Debug, thiserror::Error)]
#[error("too many large results are being read; try again")]
pub struct Busy;

/// A large body is sent in parts, and given up if the client reads none of them in time.
pub fn body(bytes: Bytes, taken: Taken) -> Body {
    if taken.0.is_none() {
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
