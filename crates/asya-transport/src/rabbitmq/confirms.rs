//! Assignment of confirms to published messages, including returned ones.
//!
//! A confirm contains the number of a message in the order of publishing, and can include all before it. A message that no queue
//! accepts is returned before its confirm, with its number.

use std::collections::{BTreeSet, VecDeque};

use tokio::sync::oneshot;

use crate::PublishError;

/// Result of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// A queue has the message.
    Routed,
    /// No queue accepted it.
    Unroutable,
}

/// Result for the publisher.
pub(super) type Answer = Result<Published, PublishError>;

/// Messages without a confirm so far.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// Number of published messages.
    published: u64,
    /// Publishers by number, ascending.
    waiting: VecDeque<(u64, oneshot::Sender<Answer>)>,
    returned: BTreeSet<u64>,
}

impl Confirms {
    /// Number of the next message.
    pub(super) fn next_number(&self) -> u64 {
        self.published + 1
    }

    /// Adds the next message.
    pub(super) fn add(&mut self, answer: oneshot::Sender<Answer>) {
        self.published = self.next_number();
        self.waiting.push_back((self.published, answer));
    }

    /// No queue accepted it.
    pub(super) fn returned(&mut self, number: u64) {
        self.returned.insert(number);
    }

    /// Notifies the publisher of this message, and of all before it if `multiple`, that the broker accepted or rejected it.
    pub(super) fn settle(&mut self, number: u64, multiple: bool, taken: bool) {
        let settled = match self.waiting.binary_search_by_key(&number, |(waiting, _)| *waiting) {
            _ if multiple => 0..self.waiting.partition_point(|(waiting, _)| *waiting <= number),
            Ok(at) => at..at + 1,
            Err(_) => return,
        };
        for (confirmed, answer) in self.waiting.drain(settled) {
            let unroutable = self.returned.remove(&confirmed);
            let reported = match taken {
                true if unroutable => Ok(Published::Unroutable),
                true => Ok(Published::Routed),
                false => Err(PublishError::Refused("the broker rejected the message".to_owned())),
            };
            // The publisher may have given up.
            let _ = answer.send(reported);
        }
    }

    /// Notifies all publishers that the broker closed the channel, for the reason that `why` returns. Numbers begin again on the next
    /// channel.
    pub(super) fn restart(&mut self, why: impl Fn() -> PublishError) {
        for (_, answer) in std::mem::take(self).waiting {
            // The publisher may have given up.
            let _ = answer.send(Err(why()));
        }
    }

    /// Notifies all publishers that the connection is lost.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sent {
        confirms: Confirms,
        reported: Vec<oneshot::Receiver<Answer>>,
    }

    fn sent(count: usize) -> Sent {
        let mut confirms = Confirms::default();
        let reported = (0..count)
            .map(|_| {
                let (answer, reported) = oneshot::channel();
                confirms.add(answer);
                reported
            })
            .collect();
        Sent { confirms, reported }
    }

    /// Results: `+` in a queue, `0` in none, `-` rejected, `.` none yet, `x` lost.
    fn reported(sent: &mut Sent) -> String {
        let word = |reported: &mut oneshot::Receiver<Answer>| match reported.try_recv() {
            Ok(Ok(Published::Routed)) => '+',
            Ok(Ok(Published::Unroutable)) => '0',
            Ok(Err(_)) => '-',
            Err(oneshot::error::TryRecvError::Empty) => '.',
            Err(oneshot::error::TryRecvError::Closed) => 'x',
        };
        sent.reported.iter_mut().map(word).collect()
    }

    #[test]
    fn confirm_covers_one_message_or_all_before_it() {
        let mut sent = sent(6);
        sent.confirms.settle(3, false, true);
        assert_eq!(reported(&mut sent), "..+...");
        sent.confirms.settle(4, true, true);
        assert_eq!(reported(&mut sent), "++x+..", "each is notified once");
        sent.confirms.settle(6, true, false);
        assert_eq!(reported(&mut sent), "xxxx--");
    }

    #[test]
    fn returned_message_is_recognized_in_a_group() {
        let mut sent = sent(4);
        sent.confirms.returned(2);
        sent.confirms.returned(4);
        sent.confirms.settle(3, true, true);
        assert_eq!(reported(&mut sent), "+0+.");
        sent.confirms.settle(4, false, true);
        assert_eq!(reported(&mut sent), "xxx0");
    }

    #[test]
    fn unknown_and_settled_numbers_are_ignored() {
        let mut sent = sent(2);
        sent.confirms.settle(2, false, true);
        sent.confirms.settle(2, false, true);
        assert_eq!(reported(&mut sent), ".+");
        sent.confirms.settle(9, true, true);
        assert_eq!(reported(&mut sent), "+x");
    }

    #[test]
    fn closed_channel_notifies_all_publishers_and_numbers_begin_again() {
        let mut sent = sent(2);
        sent.confirms.returned(2);
        sent.confirms.restart(|| PublishError::Forbidden("closed".to_owned()));
        assert_eq!(reported(&mut sent), "--");
        let (answer, mut reported) = oneshot::channel();
        assert_eq!(sent.confirms.next_number(), 1);
        sent.confirms.add(answer);
        sent.confirms.settle(1, false, true);
        assert!(matches!(reported.try_recv(), Ok(Ok(Published::Routed))));
    }

    #[test]
    fn lost_connection_notifies_all_publishers() {
        let mut sent = sent(2);
        sent.confirms.forget();
        assert_eq!(reported(&mut sent), "xx");
    }
}
