//! Places for requests that wait, bounded in all and for each tenant.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use runway_callers::places::{Place, Places};
use runway_callers::tenant::Tenant;

use crate::metrics::Metrics;

/// Part of all places that one tenant may have.
const SHARE_OF_ONE: usize = 8;

/// Requests that wait, bounded in all and by tenant.
pub struct Waits(Places<Tenant>);

/// A request that waits.
pub struct Wait {
    _place: Place<Tenant>,
    metrics: Arc<Metrics>,
}

impl Waits {
    /// At most so many.
    pub fn new(most: usize) -> Self {
        Self(Places::new(most, (most / SHARE_OF_ONE).max(1)))
    }

    /// A place for a request of this tenant, if there is one.
    pub fn begin(&self, tenant: &Tenant, metrics: &Arc<Metrics>) -> Option<Wait> {
        let place = self.0.take(tenant)?;
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
    fn one_tenant_has_an_eighth_of_the_places_and_waits_are_counted() {
        let (waits, metrics) = (Waits::new(16), Arc::<Metrics>::default());
        let begin = |user: &str| waits.begin(&Tenant::of_user(user), &metrics);
        let first = begin("system:serviceaccount:team-a:one");
        let second = begin("system:serviceaccount:team-a:two");
        assert!(first.is_some() && second.is_some());
        assert!(begin("system:serviceaccount:team-a:three").is_none() && begin("bob").is_some());
        assert_eq!(metrics.waiting.load(Ordering::Relaxed), 2);
        drop((first, second));
        assert_eq!(metrics.waiting.load(Ordering::Relaxed), 0);
    }
}
