//! A bounded cache whose entries expire.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A cache of at most some entries, each for some time.
#[derive(Debug)]
pub struct Brief<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
    most: usize,
    time: Duration,
}

impl<K: Eq + Hash, V: Clone> Brief<K, V> {
    /// For at most `most` entries, each for `time`.
    pub fn new(most: usize, time: Duration) -> Self {
        Self {
            entries: Mutex::default(),
            most,
            time,
        }
    }

    /// The value of a key, unless it has expired.
    pub fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        let (value, since) = entries.get(key)?;
        (since.elapsed() < self.time).then(|| value.clone())
    }

    /// Adds a value. If there are too many, those that have expired are removed, or else all: they are only answers that can be
    /// asked for again.
    pub fn insert(&self, key: K, value: V) {
        let mut entries = self.entries.lock();
        if entries.len() >= self.most {
            entries.retain(|_, (_, since)| since.elapsed() < self.time);
        }
        if entries.len() >= self.most {
            entries.clear();
        }
        entries.insert(key, (value, Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_and_are_bounded() {
        let cache = Brief::new(2, Duration::from_hours(1));
        for key in 0..10 {
            cache.insert(key, key);
            assert_eq!(cache.get(&key), Some(key));
            assert!(cache.entries.lock().len() <= 2);
        }
        let expired = Brief::new(2, Duration::ZERO);
        expired.insert(1, 1);
        assert_eq!(expired.get(&1), None);
    }
}
