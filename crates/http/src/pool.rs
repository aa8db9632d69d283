//! Memory that is shared by owners, such as tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Owner of memory, such as the tenant of the caller; in the extensions of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub Arc<str>);

/// Units of memory. One owner has at most half of what the others leave, so that there is always some for one more. Without an
/// owner, all of it may be taken. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: BTreeMap<Owner, usize>,
}

/// Part of a pool, until it is dropped.
#[derive(Debug)]
pub struct Part {
    pool: Pool,
    owner: Option<Owner>,
    units: usize,
}

impl Pool {
    /// A pool of this many units.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            taken: Arc::default(),
        }
    }

    /// A part without units.
    pub fn part(&self, owner: Option<Owner>) -> Part {
        Part {
            pool: self.clone(),
            owner,
            units: 0,
        }
    }
}

impl Part {
    /// Raises this part to a number of units. `false` if there are not enough.
    #[must_use]
    pub fn grow_to(&mut self, units: usize) -> bool {
        let more = units.saturating_sub(self.units);
        if more == 0 {
            return true;
        }
        let mut taken = self.pool.taken.lock();
        let fits = match &self.owner {
            Some(owner) => {
                let own = taken.by.get(owner).copied().unwrap_or_default();
                let left = self.pool.most.saturating_sub(taken.all - own);
                own + more <= left / 2
            }
            None => taken.all + more <= self.pool.most,
        };
        if fits {
            taken.all += more;
            if let Some(owner) = &self.owner {
                *taken.by.entry(owner.clone()).or_default() += more;
            }
            self.units = units;
        }
        fits
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.units == 0 {
            return;
        }
        let mut taken = self.pool.taken.lock();
        taken.all -= self.units;
        let Some(owner) = &self.owner else { return };
        if let Some(own) = taken.by.get_mut(owner) {
            *own -= self.units;
            if *own == 0 {
                taken.by.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> Owner {
        Owner(name.into())
    }

    /// The most units that an owner gets.
    fn most(pool: &Pool, name: &str) -> Part {
        let mut part = pool.part(Some(owner(name)));
        let mut units = 0;
        while part.grow_to(units + 1) {
            units += 1;
        }
        part
    }

    #[test]
    fn each_owner_leaves_half_to_others() {
        let pool = Pool::new(64);
        let parts = ["a", "b", "c", "d"].map(|name| most(&pool, name));
        assert_eq!([32, 16, 8, 4], parts.each_ref().map(|part| part.units));
        drop(parts);
        assert_eq!(most(&pool, "e").units, 32);
    }

    #[test]
    fn parts_of_one_owner_are_counted_together_and_given_back() {
        let pool = Pool::new(64);
        let mut first = pool.part(Some(owner("a")));
        let mut second = pool.part(Some(owner("a")));
        assert!(first.grow_to(20) && !second.grow_to(20) && second.grow_to(12));
        assert!(first.grow_to(10), "a part does not shrink");
        drop(first);
        assert!(second.grow_to(32) && !second.grow_to(33));
        drop(second);
        let taken = pool.taken.lock();
        assert!(taken.all == 0 && taken.by.is_empty());
    }

    #[test]
    fn without_an_owner_all_may_be_taken() {
        let pool = Pool::new(64);
        let mut part = pool.part(None);
        assert!(part.grow_to(64) && !part.grow_to(65));
        assert!(!pool.part(Some(owner("a"))).grow_to(1));
    }
}
