//! Writes that keep failing with an internal error of the API server, such as `failed to allocate a serviceIP: range is full`, or
//! a webhook of others that cannot be called. The first errors are only logged; after a minute the status reports them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::echo::Key;

/// After this time a failure is reported like a refusal. Most restarts of a webhook take less.
const LASTING: Duration = Duration::from_mins(1);
/// Failures that were not followed by a retry for this time are forgotten. The longest back-off is 5 minutes.
const FORGOTTEN: Duration = Duration::from_mins(15);

/// Writes that have failed, by object, until they succeed.
#[derive(Debug, Default)]
pub(crate) struct Failing(Mutex<HashMap<Key, Failed>>);

#[derive(Debug)]
struct Failed {
    first: Instant,
    last: Instant,
}

impl Failing {
    /// Remembers a failure. Returns whether the writes of this object have failed for a minute.
    pub(crate) fn failed(&self, object: Key, now: Instant) -> bool {
        let mut all = self.0.lock();
        all.retain(|_, failed| now.duration_since(failed.last) < FORGOTTEN);
        let failed = all.entry(object).or_insert(Failed { first: now, last: now });
        failed.last = now;
        now.duration_since(failed.first) >= LASTING
    }

    /// Forgets the failures of an object: a write has succeeded.
    pub(crate) fn succeeded(&self, object: &Key) {
        self.0.lock().remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> Key {
        ("Service".to_owned(), "team-a".to_owned(), name.to_owned())
    }

    #[test]
    fn only_failures_of_a_minute_without_a_success_are_lasting() {
        let (failing, start) = (Failing::default(), Instant::now());
        let fails = |name: &str, seconds| failing.failed(service(name), start + Duration::from_secs(seconds));
        assert!(!fails("m", 0));
        assert!(!fails("m", 31));
        assert!(fails("m", 63));
        assert!(!fails("another", 63));
        failing.succeeded(&service("m"));
        assert!(!fails("m", 64));
        assert!(fails("m", 127));
    }

    #[test]
    fn failure_of_an_unwritten_object_is_forgotten() {
        let (failing, start) = (Failing::default(), Instant::now());
        failing.failed(service("m"), start);
        failing.failed(service("another"), start + FORGOTTEN);
        assert_eq!(failing.0.lock().len(), 1);
    }
}
