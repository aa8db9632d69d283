//! Places for requests, bounded in all and for each caller.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Places {
    all: Arc<Semaphore>,
    of_one: usize,
    callers: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// Place of a request, until it is dropped.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
    caller: String,
    callers: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Places {
    /// At most `all` places, and at most `of_one` for each caller.
    pub fn new(all: usize, of_one: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            of_one,
            callers: Arc::default(),
        }
    }

    /// A place for a request of this caller, if there is one.
    pub fn take(&self, caller: &str) -> Option<Place> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let mut callers = self.callers.lock();
        let taken = callers.get(caller).copied().unwrap_or_default();
        if taken >= self.of_one {
            return None;
        }
        callers.insert(caller.to_owned(), taken + 1);
        Some(Place {
            _permit: permit,
            caller: caller.to_owned(),
            callers: Arc::clone(&self.callers),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut callers = self.callers.lock();
        if let Some(taken) = callers.get_mut(&self.caller) {
            *taken -= 1;
            if *taken == 0 {
                callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_does_not_get_all_places() {
        let places = Places::new(3, 2);
        let mut of_ada: Vec<Place> = (0..2).filter_map(|_| places.take("ada")).collect();
        assert_eq!(of_ada.len(), 2);
        assert!(places.take("ada").is_none());
        let of_bob = places.take("bob");
        assert!(of_bob.is_some() && places.take("carol").is_none(), "three in all");
        of_ada.pop();
        assert!(places.take("ada").is_some());
        drop((of_ada, of_bob));
        assert!(places.callers.lock().is_empty());
        assert_eq!(places.all.available_permits(), 3);
    }
}
