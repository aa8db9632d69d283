//! Pauses receiving while no worker can process messages, or their results cannot be sent, so that other replicas get them.

use tokio::sync::Mutex;

use crate::transport::Transport;

/// Counts the workers that cannot process messages, and the results that cannot be sent.
#[derive(Debug)]
pub struct Gate {
    workers: usize,
    obstacles: Mutex<Obstacles>,
}

/// Reasons against receiving.
#[derive(Clone, Copy, Debug, Default)]
struct Obstacles {
    /// Workers that cannot process messages.
    absent: usize,
    /// Messages whose results the user may not send.
    unsent: usize,
}

impl Obstacles {
    fn stop(self, workers: usize) -> bool {
        self.absent >= workers || self.unsent > 0
    }
}

impl Gate {
    /// All of this number of workers can process messages.
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            obstacles: Mutex::default(),
        }
    }

    /// A worker cannot process messages. The last one pauses the transport.
    pub async fn leave<T: Transport>(&self, transport: &T) {
        self.change(transport, |obstacles| obstacles.absent += 1).await;
    }

    /// A worker that left can process messages again. The first one resumes the transport.
    pub async fn enter<T: Transport>(&self, transport: &T) {
        let change = |obstacles: &mut Obstacles| obstacles.absent = obstacles.absent.saturating_sub(1);
        self.change(transport, change).await;
    }

    /// The results of a message cannot be sent for now, and those of others could not be either.
    pub async fn block<T: Transport>(&self, transport: &T) {
        self.change(transport, |obstacles| obstacles.unsent += 1).await;
    }

    /// The results of a message for which [`Gate::block`] was called do not wait any more.
    pub async fn unblock<T: Transport>(&self, transport: &T) {
        let change = |obstacles: &mut Obstacles| obstacles.unsent = obstacles.unsent.saturating_sub(1);
        self.change(transport, change).await;
    }

    async fn change<T: Transport>(&self, transport: &T, change: impl FnOnce(&mut Obstacles)) {
        let mut obstacles = self.obstacles.lock().await;
        let was_stopped = obstacles.stop(self.workers);
        change(&mut obstacles);
        match (was_stopped, obstacles.stop(self.workers)) {
            (false, true) => transport.pause().await,
            (true, false) => transport.resume().await,
            _ => {}
        }
    }
}
