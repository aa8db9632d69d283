//! Places for requests, bounded in all and for each tenant, model or address.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for requests by their holder, such as a [`Tenant`](crate::tenant::Tenant). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Places<K> {
    all: Arc<Semaphore>,
    of_one: usize,
    taken: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// Place of a request, until it is dropped.
#[derive(Debug)]
pub struct Place<K: Ord> {
    _permit: OwnedSemaphorePermit,
    holder: K,
    taken: Arc<Mutex<BTreeMap<K, usize>>>,
}

impl<K: Clone + Ord> Places<K> {
    /// At most `all` places, and at most `of_one` for each holder.
    pub fn new(all: usize, of_one: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            of_one,
            taken: Arc::default(),
        }
    }

    /// A place for a request of this holder, if there is one.
    pub fn take(&self, holder: &K) -> Option<Place<K>> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let mut all = self.taken.lock();
        let taken = all.get(holder).copied().unwrap_or_default();
        if taken >= self.of_one {
            return None;
        }
        all.insert(holder.clone(), taken + 1);
        Some(Place {
            _permit: permit,
            holder: holder.clone(),
            taken: Arc::clone(&self.taken),
        })
    }
}

impl<K: Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut all = self.taken.lock();
        if let Some(taken) = all.get_mut(&self.holder) {
            *taken -= 1;
            if *taken == 0 {
                all.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::Tenant;

    #[test]
    fn one_tenant_does_not_get_all_places() {
        let places = Places::new(3, 2);
        let account = |name: &str| Tenant::of_user(&format!("system:serviceaccount:{name}"));
        let accounts = (0..12).map(|number| account(&format!("team-a:{number}")));
        let mut of_a: Vec<Place<Tenant>> = accounts.filter_map(|account| places.take(&account)).collect();
        assert_eq!(of_a.len(), 2);
        let of_b = places.take(&account("team-b:one"));
        assert!(of_b.is_some());
        assert!(places.take(&account("team-c:one")).is_none(), "three in all");
        of_a.pop();
        assert!(places.take(&account("team-a:one")).is_some());
        drop((of_a, of_b));
        assert!(places.taken.lock().is_empty());
        assert_eq!(places.all.available_permits(), 3);
    }
}
