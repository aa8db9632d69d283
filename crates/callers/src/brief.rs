//! A bounded cache whose entries expire.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A cache of at most some entries, each for some time.
#[derive(Debug)]
pub struct Brief<K, V> {
    entries: Mutex<Entries<K, V>>,
    most: usize,
    time: Duration,
}

#[derive(Debug)]
struct Entries<K, V> {
    by_key: HashMap<K, Entry<V>>,
    /// By age, the oldest first.
    by_age: BTreeMap<u64, K>,
    inserted: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    since: Instant,
    age: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Brief<K, V> {
    /// For at most `most` entries, each for `time`.
    pub fn new(most: usize, time: Duration) -> Self {
        let entries = Entries {
            by_key: HashMap::new(),
            by_age: BTreeMap::new(),
            inserted: 0,
        };
        Self {
            entries: Mutex::new(entries),
            most,
            time,
        }
    }

    /// The value of a key, unless it has expired.
    pub fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        let entry = entries.by_key.get(key)?;
        (entry.since.elapsed() < self.time).then(|| entry.value.clone())
    }

    /// Adds a value, or replaces that of the same key. If there are too many, the oldest is removed.
    pub fn insert(&self, key: K, value: V) {
        let mut entries = self.entries.lock();
        entries.remove(&key);
        if entries.by_key.len() >= self.most
            && let Some((_, oldest)) = entries.by_age.pop_first()
        {
            entries.by_key.remove(&oldest);
        }
        let age = entries.inserted;
        entries.inserted += 1;
        entries.by_age.insert(age, key.clone());
        let since = Instant::now();
        entries.by_key.insert(key, Entry { value, since, age });
    }

    /// Removes a key.
    pub fn remove(&self, key: &K) {
        self.entries.lock().remove(key);
    }
}

impl<K: Eq + Hash, V> Entries<K, V> {
    fn remove(&mut self, key: &K) {
        if let Some(removed) = self.by_key.remove(key) {
            self.by_age.remove(&removed.age);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire() {
        let expired = Brief::new(2, Duration::ZERO);
        expired.insert(1, 1);
        assert_eq!(expired.get(&1), None);
    }

    #[test]
    fn one_entry_too_many_removes_the_oldest_only() {
        let cache = Brief::new(3, Duration::from_hours(1));
        for key in [1, 2, 3, 1] {
            cache.insert(key, key);
        }
        cache.insert(4, 4);
        assert_eq!(
            [1, 2, 3, 4].map(|key| cache.get(&key)),
            [Some(1), None, Some(3), Some(4)]
        );
        cache.remove(&3);
        cache.insert(5, 5);
        assert_eq!(
            [1, 3, 4, 5].map(|key| cache.get(&key)),
            [Some(1), None, Some(4), Some(5)]
        );
        let entries = cache.entries.lock();
        assert_eq!((entries.by_key.len(), entries.by_age.len()), (3, 3));
    }
}
