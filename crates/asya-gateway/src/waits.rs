//! Places for requests that wait, bounded in all and for each user.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use runway_callers::places::{Place, Places};

use crate::metrics::Metrics;

/// Part of all places that one caller may have.
const SHARE_OF_ONE: usize = 8;

/// Requests that wait, bounded in all and by user.
pub struct Waits(Places);

/// A request that waits.
pub struct Wait {
    _place: Place,
    metrics: Arc<Metrics>,
}

impl Waits {
    /// At most so many.
    pub fn new(most: usize) -> Self {
        Self(Places::new(most, (most / SHARE_OF_ONE).max(1)))
    }

    /// A place for a request of this user, if there is one.
    pub fn begin(&self, user: &str, metrics: &Arc<Metrics>) -> Option<Wait> {
        let place = self.0.take(user)?;
        metrics.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Wait {
            _place: place,
            metrics: Arc::clone(metrics),
        })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.metrics.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_has_an_eighth_of_the_places_and_waits_are_counted() {
        let (waits, metrics) = (Waits::new(16), Arc::<Metrics>::default());
        let first = waits.begin("ada", &metrics);
        let second = waits.begin("ada", &metrics);
        assert!(first.is_some() && second.is_some());
        assert!(waits.begin("ada", &metrics).is_none() && waits.begin("bob", &metrics).is_some());
        assert_eq!(metrics.waiting.load(Ordering::Relaxed), 2);
        drop((first, second));
        assert_eq!(metrics.waiting.load(Ordering::Relaxed), 0);
    }
}
