//! Queues at their brokers: creation, checks, and deletion of empty ones. Executes the `queue` of a plan.

mod rabbitmq;
mod sqs;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};

use runway_asya_transport::{management, tenants};

use crate::queue::{QueueState, QueueWork, Queues};
use crate::transports::{NoSecret, Transport, Transports};

/// Timeout for a reply of a broker.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between retries.
const RETRY: Duration = Duration::from_secs(10);
/// Number of retry intervals between checks of all queues, which can be deleted by others.
const LOOK_EVERY: u32 = 6;

/// Namespace and name of an actor.
pub(crate) type Id = (String, String);

/// A broker.
trait Broker: Send + Sync {
    /// Creates queues that do not exist. Returns how existing ones differ from the configuration.
    fn ensure<'a>(&'a self, queues: &'a Queues) -> BoxFuture<'a, Result<Option<String>, Error>>;
    /// Deletes the actor's queues, unless they hold messages or are in use, and with the last actor the user of the namespace.
    fn remove<'a>(&'a self, queues: &'a Queues, is_last: bool) -> BoxFuture<'a, Result<Removal, Error>>;
}

/// Result of the deletion of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Removal {
    /// It does not exist any more.
    Gone,
    /// It holds messages.
    Holds(u64),
    /// It has consumers, or messages that are not acknowledged yet.
    InUse(String),
}

impl Removal {
    /// The result for two queues.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::InUse(by), _) | (_, Self::InUse(by)) => Self::InUse(by),
            (Self::Holds(some), Self::Holds(more)) => Self::Holds(some + more),
            (Self::Holds(count), Self::Gone) | (Self::Gone, Self::Holds(count)) => Self::Holds(count),
            (Self::Gone, Self::Gone) => Self::Gone,
        }
    }
}

impl From<Removal> for QueueState {
    fn from(removal: Removal) -> Self {
        match removal {
            Removal::Gone => Self::Removed { left: None },
            Removal::Holds(count) => Self::Removed { left: Some(count) },
            Removal::InUse(by) => Self::InUse { by },
        }
    }
}

/// Failed work at a broker.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the broker at {place} does not answer: {source}")]
    Unreachable { place: String, source: lapin::Error },
    #[error("the broker at {place} does not answer within {PATIENCE:?}")]
    Silent { place: String },
    #[error("queue '{queue}': {source}")]
    Refused { queue: String, source: lapin::Error },
    #[error("queue '{queue}': {source}")]
    Sqs { queue: String, source: runway_sqs::Error },
    #[error("{0}")]
    NoClient(#[source] runway_sqs::Error),
    #[error("{0}")]
    NoSecret(#[from] NoSecret),
    #[error("{0}")]
    Tenants(#[from] tenants::Error),
    #[error("{0}")]
    Management(#[from] management::Error),
}

/// State of the queues of all actors, and connections to their brokers.
pub(crate) struct Keeper {
    secrets: PathBuf,
    brokers: RwLock<BTreeMap<String, Arc<dyn Broker>>>,
    known: Mutex<HashMap<Id, Known>>,
}

/// The queues of an actor, as the last work left them.
struct Known {
    queues: Queues,
    state: QueueState,
    /// Whether the work was a deletion, which only the next plan repeats.
    removing: bool,
}

impl Keeper {
    /// Creates a client for each transport. `secrets` is the folder with mounted Secrets.
    pub(crate) fn new(transports: &Transports, secrets: &Path) -> Self {
        Self {
            secrets: secrets.to_owned(),
            brokers: RwLock::new(brokers(transports, secrets)),
            known: Mutex::default(),
        }
    }

    /// Folder with mounted Secrets.
    pub(crate) fn secrets(&self) -> &Path {
        &self.secrets
    }

    /// Replaces the transports, and forgets the state of all queues.
    pub(crate) fn configure(&self, transports: &Transports) {
        let brokers = brokers(transports, &self.secrets);
        *self.brokers.write() = brokers;
        self.known.lock().clear();
    }

    /// State of an actor's queues; unknown if the last work was for other queues.
    pub(crate) fn state(&self, id: &Id, wanted: Option<&Queues>) -> QueueState {
        match self.known.lock().get(id) {
            Some(known) if wanted == Some(&known.queues) => known.state.clone(),
            _ => QueueState::Unknown,
        }
    }

    /// Carries out the work of a plan, and stores the result.
    pub(crate) async fn carry_out(&self, id: &Id, work: &QueueWork) {
        let (queues, state) = match work {
            QueueWork::Ensure(queues) => (queues, self.ensure(queues).await),
            QueueWork::Remove { queues, is_last } => {
                let state = match self.broker(queues) {
                    None => QueueState::Removed { left: None },
                    Some(broker) => match broker.remove(queues, *is_last).await {
                        Ok(removal) => removal.into(),
                        Err(error) => failed(&error),
                    },
                };
                (queues, state)
            }
        };
        let known = Known {
            queues: queues.clone(),
            state,
            removing: matches!(work, QueueWork::Remove { .. }),
        };
        self.known.lock().insert(id.clone(), known);
    }

    async fn ensure(&self, queues: &Queues) -> QueueState {
        let Some(broker) = self.broker(queues) else {
            return QueueState::Unknown;
        };
        match broker.ensure(queues).await {
            Ok(drift) => QueueState::Ready { drift },
            Err(error) => failed(&error),
        }
    }

    fn broker(&self, queues: &Queues) -> Option<Arc<dyn Broker>> {
        let brokers = self.brokers.read();
        brokers.get(&queues.transport).cloned()
    }

    /// Forgets the queues of an actor.
    pub(crate) fn forget(&self, id: &Id) {
        self.known.lock().remove(id);
    }

    /// Retries failed work, checks all queues from time to time, and calls `wake` for each actor whose state changed. Sends no request
    /// to the API server.
    pub(crate) async fn watch(self: Arc<Self>, wake: impl Fn(&Id)) {
        for round in 1_u32.. {
            tokio::time::sleep(RETRY).await;
            let look = round.is_multiple_of(LOOK_EVERY);
            let due: Vec<(Id, Queues, QueueState)> = self
                .known
                .lock()
                .iter()
                .filter(|(_, known)| match known.state {
                    _ if known.removing => false,
                    QueueState::Failed { .. } => true,
                    QueueState::Ready { .. } => look,
                    QueueState::Unknown | QueueState::InUse { .. } | QueueState::Removed { .. } => false,
                })
                .map(|(id, known)| (id.clone(), known.queues.clone(), known.state.clone()))
                .collect();
            for (id, queues, before) in due {
                let now = self.ensure(&queues).await;
                let mut known = self.known.lock();
                // Forgotten or replaced in the meantime.
                let same = |entry: &&mut Known| !entry.removing && entry.queues == queues && entry.state == before;
                let Some(entry) = known.get_mut(&id).filter(same) else {
                    continue;
                };
                if now != before {
                    entry.state = now;
                    drop(known);
                    wake(&id);
                }
            }
        }
    }
}

fn brokers(transports: &Transports, secrets: &Path) -> BTreeMap<String, Arc<dyn Broker>> {
    let brokers = transports.iter().map(|(name, transport)| {
        let broker: Arc<dyn Broker> = match transport {
            Transport::RabbitMq(rabbit) => Arc::new(rabbitmq::Rabbit::new(rabbit.clone(), secrets.to_owned())),
            Transport::Sqs(sqs) => Arc::new(sqs::Sqs::new(sqs.clone(), secrets.to_owned())),
        };
        (name.to_owned(), broker)
    });
    brokers.collect()
}

fn failed(error: &Error) -> QueueState {
    QueueState::Failed {
        message: error.to_string(),
    }
}
