//! Places for requests that wait, bounded in all and for each caller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use runway_callers::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gateway::Gateway;
use crate::metrics::Metrics;

/// Part of all places that one caller may have.
const SHARE_OF_ONE: usize = 8;

/// Requests that wait, bounded in all and by user.
pub struct Waits {
    all: Arc<Semaphore>,
    of_one: usize,
    users: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// A request that waits.
pub struct Wait {
    _permit: OwnedSemaphorePermit,
    user: String,
    users: Arc<Mutex<BTreeMap<String, usize>>>,
    metrics: Arc<Metrics>,
}

impl Waits {
    /// At most so many.
    pub fn new(most: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(most)),
            of_one: (most / SHARE_OF_ONE).max(1),
            users: Arc::default(),
        }
    }

    /// A place for a request of this caller, if there is one.
    pub fn begin(&self, caller: &Caller, gateway: &Gateway) -> Option<Wait> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let mut users = self.users.lock();
        let of_user = users.entry(caller.user.clone()).or_default();
        if *of_user >= self.of_one {
            return None;
        }
        *of_user += 1;
        gateway.metrics.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Wait {
            _permit: permit,
            user: caller.user.clone(),
            users: Arc::clone(&self.users),
            metrics: Arc::clone(&gateway.metrics),
        })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        if let Some(count) = users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.user);
            }
        }
        self.metrics.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
