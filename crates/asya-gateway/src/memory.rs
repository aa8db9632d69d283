//! Memory for results that are sent to clients. Results can be large, so those beyond a few KiB have a share of a budget, and a
//! client that does not read its response loses it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use runway_callers::tenant::Tenant;
use runway_http::Owner;
use runway_http::pool::{Part, Pool};
use tokio::sync::{Notify, mpsc};
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

/// Memory for results that are sent to clients. One tenant has at most half of what the others leave.
#[derive(Clone)]
pub struct Memory {
    pool: Pool,
    freed: Arc<Notify>,
    most: usize,
}

impl Memory {
    /// Memory of this many bytes.
    pub fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).max(2);
        Self {
            pool: Pool::new(units),
            freed: Arc::default(),
            most: units / 2,
        }
    }

    /// Takes memory for a result of this size, which is sent to a tenant. A result that is larger than the share of a tenant takes
    /// the share.
    ///
    /// # Errors
    /// If there is none in time.
    pub async fn take(&self, tenant: &Tenant, bytes: usize) -> Result<Taken, Busy> {
        if bytes <= SMALL {
            return Ok(Taken(None));
        }
        let units = bytes.div_ceil(UNIT).min(self.most);
        let mut part = self.pool.part(Some(Owner(tenant.into())));
        let taken = timeout(PATIENCE, async {
            loop {
                let freed = self.freed.notified();
                if part.grow_to(units) {
                    return;
                }
                freed.await;
            }
        });
        taken.await.map_err(|_| Busy)?;
        Ok(Taken(Some((part, Freed(Arc::clone(&self.freed))))))
    }
}

/// Memory of a result. It is free again when this is dropped.
pub struct Taken(Option<(Part, Freed)>);

/// Wakes those that wait, after the part before it is dropped.
struct Freed(Arc<Notify>);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unread_results_of_one_tenant_leave_memory_to_others() {
        let memory = Memory::new(128 * UNIT);
        let [ada, bob] = ["ada", "bob"].map(Tenant::of_user);
        let first = memory.take(&ada, 40 * UNIT).await.unwrap();
        let waits = timeout(Duration::from_millis(20), memory.take(&ada, 40 * UNIT)).await;
        assert!(waits.is_err());
        assert!(memory.take(&bob, 40 * UNIT).await.is_ok());
        assert!(memory.take(&ada, SMALL).await.is_ok());
        // A result waits until another one was sent, even if it is larger than all memory.
        let (second, ()) = tokio::join!(memory.take(&ada, 1000 * UNIT), async {
            tokio::task::yield_now().await;
            drop(first);
        });
        assert!(second.is_ok());
    }
}
