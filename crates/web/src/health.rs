//! Health of the connection to the cluster.

use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use runway_operator::clock;
use tokio::sync::watch as latest;

/// Longest wait of a page for the first list.
pub const FIRST_LIST: Duration = Duration::from_secs(5);
/// Interval of requests to a cluster that does not respond.
const PROBE: Duration = Duration::from_secs(1);

/// Health of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Up, as far as is known.
    Up,
    /// Down since then, for this reason.
    Down(Timestamp, String),
}

/// The health of the connection, checked only while it is bad.
pub struct Health {
    client: Client,
    connection: latest::Sender<Connection>,
}

impl Health {
    /// As far as is known, it answers.
    pub fn new(client: Client) -> Arc<Self> {
        let connection = latest::channel(Connection::Up).0;
        Arc::new(Self { client, connection })
    }

    /// Whether it answers, from now on.
    pub fn connection(&self) -> latest::Receiver<Connection> {
        self.connection.subscribe()
    }

    /// It has not answered.
    pub fn lost(self: &Arc<Self>, why: String) {
        let newly = self.connection.send_if_modified(|connection| {
            let newly = *connection == Connection::Up;
            if newly {
                *connection = Connection::Down(clock::now(), why);
            }
            newly
        });
        if newly {
            tokio::spawn(Self::probe(Arc::downgrade(self)));
        }
    }

    /// Records that the cluster has responded.
    pub fn found(&self) {
        self.connection.send_if_modified(|connection| {
            let newly = *connection != Connection::Up;
            *connection = Connection::Up;
            newly
        });
    }

    /// Sends requests until there is a response, or no watch is left.
    async fn probe(health: Weak<Self>) {
        loop {
            tokio::time::sleep(PROBE).await;
            let Some(health) = health.upgrade() else { return };
            let answer = tokio::time::timeout(FIRST_LIST, health.client.apiserver_version()).await;
            // An answer that refuses is an answer.
            if matches!(answer, Ok(Ok(_) | Err(kube::Error::Api(_)))) {
                health.found();
            }
            if *health.connection.borrow() == Connection::Up {
                return;
            }
        }
    }
}
