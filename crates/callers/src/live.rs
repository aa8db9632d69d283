//! Values that exist while they are in use.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

/// Values by key, each for as long as it is in use.
#[derive(Debug)]
pub(crate) struct Live<K, T>(Arc<Mutex<HashMap<K, Arc<T>>>>);

/// A value in use.
#[derive(Debug)]
pub(crate) struct InUse<K: Eq + Hash, T> {
    key: K,
    value: Arc<T>,
    all: Arc<Mutex<HashMap<K, Arc<T>>>>,
}

impl<K, T> Default for Live<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash, T> Live<K, T> {
    /// The value of a key, a new one if none is in use.
    pub(crate) fn of(&self, key: K, new: impl FnOnce() -> T) -> InUse<K, T> {
        let value = Arc::clone(self.0.lock().entry(key.clone()).or_insert_with(|| Arc::new(new())));
        InUse {
            key,
            value,
            all: Arc::clone(&self.0),
        }
    }
}

impl<K: Eq + Hash, T> Deref for InUse<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<K: Eq + Hash, T> Drop for InUse<K, T> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        // This one, and that of the map.
        if Arc::strong_count(&self.value) == 2 {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_shared_while_it_is_in_use_and_leaves_nothing_behind() {
        let live = Live::default();
        let first = live.of("a", || 1);
        let second = live.of("a", || 2);
        assert_eq!((*first, *second, *live.of("b", || 3)), (1, 1, 3));
        drop(first);
        assert_eq!(*live.of("a", || 4), 1);
        drop(second);
        assert!(live.0.lock().is_empty());
    }
}
