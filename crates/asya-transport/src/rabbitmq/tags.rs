//! Acknowledgements in as few frames as possible.

use std::collections::BTreeSet;

/// Settled delivery tags.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// All tags up to here are settled.
    settled: u64,
    /// Settled tags above `settled`.
    above: BTreeSet<u64>,
    /// Settled tags that are not acknowledged yet.
    untold: BTreeSet<u64>,
}

impl Tags {
    /// Marks a delivery as settled.
    pub(super) fn add(&mut self, tag: u64) {
        self.above.insert(tag);
        self.untold.insert(tag);
    }

    /// Marks a delivery as settled that is not acknowledged, because it was returned or rejected.
    pub(super) fn refused(&mut self, tag: u64) {
        self.above.insert(tag);
        self.advance();
    }

    fn advance(&mut self) {
        while self.above.remove(&(self.settled + 1)) {
            self.settled += 1;
        }
    }

    /// Number of settled deliveries that are not acknowledged yet.
    pub(super) fn untold(&self) -> usize {
        self.untold.len()
    }

    /// Acknowledgements to send: one tag for all up to it, and single ones.
    pub(super) fn take(&mut self) -> Vec<(u64, bool)> {
        self.advance();
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

    fn reported(tags: &mut Tags, done: &[u64]) -> Vec<(u64, bool)> {
        for tag in done {
            tags.add(*tag);
        }
        tags.take()
    }

    #[test]
    fn consecutive_tags_are_acknowledged_together() {
        let mut tags = Tags::default();
        assert_eq!(reported(&mut tags, &[1]), [(1, false)]);
        assert_eq!(reported(&mut tags, &[2, 4, 3]), [(4, true)]);
    }

    #[test]
    fn returned_messages_take_no_memory_and_leave_acknowledgements_together() {
        let mut tags = Tags::default();
        assert_eq!(reported(&mut tags, &[1]), [(1, false)]);
        tags.refused(2);
        assert_eq!(reported(&mut tags, &[3, 4]), [(4, true)]);
        tags.refused(6);
        assert_eq!(reported(&mut tags, &[7]), [(7, false)], "5 is in progress");
        assert_eq!(reported(&mut tags, &[5]), [(5, false)]);
        for tag in 8..1000 {
            tags.refused(tag);
        }
        assert_eq!((tags.take(), tags.above.len()), (vec![], 0));
    }

    #[test]
    fn slow_message_does_not_delay_later_acknowledgements() {
        let mut tags = Tags::default();
        assert_eq!(reported(&mut tags, &[2, 3]), [(2, false), (3, false)]);
        assert_eq!(reported(&mut tags, &[4]), [(4, false)]);
        assert_eq!(reported(&mut tags, &[1]), [(1, false)], "2, 3 and 4 are done already");
        assert_eq!(reported(&mut tags, &[5, 6]), [(6, true)]);
    }
}
