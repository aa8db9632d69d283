//! Pauses receiving while no worker can process messages, so that other replicas get them.

use tokio::sync::Mutex;

use crate::transport::Transport;

/// Counts the workers that cannot process messages.
#[derive(Debug)]
pub struct Gate {
    workers: usize,
    absent: Mutex<usize>,
}

impl Gate {
    /// All of this number of workers can process messages.
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            absent: Mutex::new(0),
        }
    }

    /// A worker cannot process messages. The last one pauses the transport.
    pub async fn leave<T: Transport>(&self, transport: &T) {
        let mut absent = self.absent.lock().await;
        *absent += 1;
        if *absent == self.workers {
            transport.pause().await;
        }
    }

    /// A worker that left can process messages again. The first one resumes the transport.
    pub async fn enter<T: Transport>(&self, transport: &T) {
        let mut absent = self.absent.lock().await;
        if *absent == self.workers {
            transport.resume().await;
        }
        *absent = absent.saturating_sub(1);
    }
}
