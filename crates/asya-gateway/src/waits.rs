//! Places for requests that wait, bounded in all and for each user.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

    /// A place for a request of this user, if there is one.
    pub fn begin(&self, user: &str, metrics: &Arc<Metrics>) -> Option<Wait> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let mut users = self.users.lock();
        let of_user = users.entry(user.to_owned()).or_default();
        if *of_user >= self.of_one {
            return None;
        }
        *of_user += 1;
        metrics.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Wait {
            _permit: permit,
            user: user.to_owned(),
            users: Arc::clone(&self.users),
            metrics: Arc::clone(metrics),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_does_not_get_all_places() {
        let (waits, metrics) = (Waits::new(16), Arc::default());
        let first = waits.begin("ada", &metrics);
        let second = waits.begin("ada", &metrics);
        assert!(first.is_some() && second.is_some());
        assert!(waits.begin("ada", &metrics).is_none(), "an eighth of all");
        assert!(waits.begin("bob", &metrics).is_some());
        drop(second);
        assert!(waits.begin("ada", &metrics).is_some());
        drop(first);
        assert!(waits.users.lock().is_empty());
        assert_eq!(
            (waits.all.available_permits(), metrics.waiting.load(Ordering::Relaxed)),
            (16, 0)
        );
    }
}
