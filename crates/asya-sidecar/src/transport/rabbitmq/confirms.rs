//! Which published message a confirm is about, and whether it had come back before.
//!
//! A confirm names a message by the order of publishing, and may cover all before it. A message that no queue takes comes
//! back before its confirm, with the number that it carries.

use std::collections::{BTreeSet, VecDeque};

use tokio::sync::oneshot;

use crate::transport::PublishError;

/// What the broker made of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// It is in a queue.
    Routed,
    /// No queue took it.
    Unroutable,
}

/// What whoever publishes is told.
pub(super) type Answer = Result<Published, PublishError>;

/// The messages that wait for their confirm.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// How many have been published.
    published: u64,
    /// By number, rising.
    waiting: VecDeque<(u64, oneshot::Sender<Answer>)>,
    returned: BTreeSet<u64>,
}

impl Confirms {
    /// One more is published; this is its number.
    pub(super) fn add(&mut self, answer: oneshot::Sender<Answer>) -> u64 {
        self.published += 1;
        self.waiting.push_back((self.published, answer));
        self.published
    }

    /// No queue took it.
    pub(super) fn returned(&mut self, number: u64) {
        self.returned.insert(number);
    }

    /// The broker has taken, or refused, this one, and all before it if it is `multiple`. Those who wait are told.
    pub(super) fn settle(&mut self, number: u64, multiple: bool, taken: bool) {
        let settled = match self.waiting.binary_search_by_key(&number, |(waiting, _)| *waiting) {
            _ if multiple => 0..self.waiting.partition_point(|(waiting, _)| *waiting <= number),
            Ok(at) => at..at + 1,
            Err(_) => return,
        };
        for (confirmed, answer) in self.waiting.drain(settled) {
            let unroutable = self.returned.remove(&confirmed);
            let told = match taken {
                true if unroutable => Ok(Published::Unroutable),
                true => Ok(Published::Routed),
                false => Err(PublishError::Refused("the broker refused the message".to_owned())),
            };
            // Whoever gave up no longer listens.
            let _ = answer.send(told);
        }
    }

    /// Whoever waits learns that the connection is lost.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sent {
        confirms: Confirms,
        told: Vec<oneshot::Receiver<Answer>>,
    }

    fn sent(count: usize) -> Sent {
        let mut confirms = Confirms::default();
        let told = (0..count)
            .map(|_| {
                let (answer, told) = oneshot::channel();
                confirms.add(answer);
                told
            })
            .collect();
        Sent { confirms, told }
    }

    /// `+` in a queue, `0` in none, `-` refused, `.` not told yet, `x` lost.
    fn told(sent: &mut Sent) -> String {
        let word = |told: &mut oneshot::Receiver<Answer>| match told.try_recv() {
            Ok(Ok(Published::Routed)) => '+',
            Ok(Ok(Published::Unroutable)) => '0',
            Ok(Err(_)) => '-',
            Err(oneshot::error::TryRecvError::Empty) => '.',
            Err(oneshot::error::TryRecvError::Closed) => 'x',
        };
        sent.told.iter_mut().map(word).collect()
    }

    #[test]
    fn one_alone_or_all_before_it() {
        let mut sent = sent(6);
        sent.confirms.settle(3, false, true);
        assert_eq!(told(&mut sent), "..+...");
        sent.confirms.settle(4, true, true);
        assert_eq!(told(&mut sent), "++x+..", "each is told once");
        sent.confirms.settle(6, true, false);
        assert_eq!(told(&mut sent), "xxxx--");
    }

    #[test]
    fn one_that_came_back_is_told_apart_in_a_group() {
        let mut sent = sent(4);
        sent.confirms.returned(2);
        sent.confirms.returned(4);
        sent.confirms.settle(3, true, true);
        assert_eq!(told(&mut sent), "+0+.");
        sent.confirms.settle(4, false, true);
        assert_eq!(told(&mut sent), "xxx0");
    }

    #[test]
    fn what_was_never_sent_or_is_settled_changes_nothing() {
        let mut sent = sent(2);
        sent.confirms.settle(2, false, true);
        sent.confirms.settle(2, false, true);
        assert_eq!(told(&mut sent), ".+");
        sent.confirms.settle(9, true, true);
        assert_eq!(told(&mut sent), "+x");
    }

    #[test]
    fn a_lost_connection_is_told() {
        let mut sent = sent(2);
        sent.confirms.forget();
        assert_eq!(told(&mut sent), "xx");
    }
}
