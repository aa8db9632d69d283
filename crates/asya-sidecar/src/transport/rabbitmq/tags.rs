//! Acknowledgements, as few frames as possible: what has gathered meanwhile goes out together.

use std::collections::BTreeSet;

/// Which tags to acknowledge, and with which of them all before.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// All tags up to here are settled.
    settled: u64,
    /// Settled tags above it.
    above: BTreeSet<u64>,
    /// Those of them that the broker has not been told.
    untold: BTreeSet<u64>,
}

impl Tags {
    /// This delivery is done with.
    pub(super) fn add(&mut self, tag: u64) {
        self.above.insert(tag);
        self.untold.insert(tag);
    }

    /// How many deliveries the broker has not been told about.
    pub(super) fn untold(&self) -> usize {
        self.untold.len()
    }

    /// What to tell the broker now: one tag for everything up to it, and each that stands alone.
    pub(super) fn take(&mut self) -> Vec<(u64, bool)> {
        while self.above.remove(&(self.settled + 1)) {
            self.settled += 1;
        }
        let alone = self.untold.split_off(&(self.settled + 1));
        let together = std::mem::take(&mut self.untold);
        let mut acks = Vec::new();
        if let Some(last) = together.last() {
            acks.push((*last, together.len() > 1));
        }
        acks.extend(alone.into_iter().map(|tag| (tag, false)));
        acks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(tags: &mut Tags, done: &[u64]) -> Vec<(u64, bool)> {
        for tag in done {
            tags.add(*tag);
        }
        tags.take()
    }

    #[test]
    fn a_run_is_one_acknowledgement() {
        let mut tags = Tags::default();
        assert_eq!(told(&mut tags, &[1]), [(1, false)]);
        assert_eq!(told(&mut tags, &[2, 4, 3]), [(4, true)]);
    }

    #[test]
    fn a_slow_message_does_not_hold_up_those_behind_it() {
        let mut tags = Tags::default();
        assert_eq!(told(&mut tags, &[2, 3]), [(2, false), (3, false)]);
        assert_eq!(told(&mut tags, &[4]), [(4, false)]);
        assert_eq!(told(&mut tags, &[1]), [(1, false)], "2, 3 and 4 are told already");
        assert_eq!(told(&mut tags, &[5, 6]), [(6, true)]);
    }
}
