//! Acknowledgements, as few frames as possible: what has gathered meanwhile goes out together.

use std::collections::BTreeSet;

use lapin::Channel;
use lapin::options::BasicAckOptions;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Acknowledges deliveries of one channel.
#[derive(Debug)]
pub(super) struct Acknowledger {
    work: mpsc::UnboundedSender<Work>,
}

#[derive(Debug)]
enum Work {
    Done(u64),
    Flush(oneshot::Sender<()>),
}

impl Acknowledger {
    pub(super) fn start(channel: Channel, dead: CancellationToken) -> Self {
        let (work, todo) = mpsc::unbounded_channel();
        tokio::spawn(run(channel, todo, dead));
        Self { work }
    }

    /// Soon.
    pub(super) fn acknowledge(&self, tag: u64) {
        // Nobody listens on a dead connection, and the broker has the message.
        let _ = self.work.send(Work::Done(tag));
    }

    /// Waits until everything before it has been written.
    pub(super) async fn flush(&self) {
        let (told, done) = oneshot::channel();
        if self.work.send(Work::Flush(told)).is_ok() {
            let _ = done.await;
        }
    }
}

async fn run(channel: Channel, mut todo: mpsc::UnboundedReceiver<Work>, dead: CancellationToken) {
    let mut tags = Tags::default();
    let mut batch = Vec::new();
    loop {
        let gathered = tokio::select! {
            gathered = todo.recv_many(&mut batch, 1024) => gathered,
            () = dead.cancelled() => return,
        };
        if gathered == 0 {
            return;
        }
        let mut flushes = Vec::new();
        for work in batch.drain(..) {
            match work {
                Work::Done(tag) => tags.add(tag),
                Work::Flush(told) => flushes.push(told),
            }
        }
        for (tag, multiple) in tags.take() {
            if let Err(error) = channel.basic_ack(tag, BasicAckOptions { multiple }).await {
                tracing::debug!(%error, "not acknowledged; the broker delivers it again");
                dead.cancel();
                return;
            }
        }
        for told in flushes {
            let _ = told.send(());
        }
    }
}

/// Which tags to acknowledge, and with which of them all before.
#[derive(Debug, Default)]
struct Tags {
    /// All tags up to here are settled.
    settled: u64,
    /// Settled tags above it.
    above: BTreeSet<u64>,
    /// Those of them that the broker has not been told.
    untold: BTreeSet<u64>,
}

impl Tags {
    fn add(&mut self, tag: u64) {
        self.above.insert(tag);
        self.untold.insert(tag);
    }

    /// What to tell the broker now: one tag for everything up to it, and each that stands alone.
    fn take(&mut self) -> Vec<(u64, bool)> {
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
