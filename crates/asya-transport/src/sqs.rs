//! Amazon SQS. A received message stays hidden while it is in progress, and is deleted when its results are stored. If the sidecar
//! dies, the message becomes visible again after its visibility timeout.

pub(crate) mod letters;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runway_sqs::{Client, Error};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::queues::Pair;
use crate::{Backoff, Delivery, Message, PublishError, Transport, is_redelivered};

/// Longest visibility timeout of SQS: 12 hours.
pub const LONGEST_VISIBILITY: Duration = Duration::from_hours(12);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Attempts to delete a processed message. If all fail, it is delivered again.
const MOST_DELETIONS: u32 = 6;
/// Most messages that SQS returns at a time.
const MOST_AT_ONCE: usize = 10;
/// Longest retention of SQS: 14 days, in seconds.
const RETENTION: &str = "1209600";

/// Address of SQS, and names on it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Endpoint, region and credentials.
    pub settings: runway_sqs::Settings,
    /// Queue of this actor.
    pub queue: String,
    /// Dead-letter queue of this actor.
    pub dead_letter: String,
    /// Largest number of received messages, including those in progress.
    pub prefetch: u16,
    /// Number of messages that are processed at once. More are received only while SQS redelivers none, so that a redelivered one does
    /// not wait here for others, whose fate it would share.
    pub at_once: u16,
    /// Time of one long poll.
    pub wait: Duration,
    /// Queues of the ends of routes, which are created, too.
    pub ends: Vec<Pair>,
    /// Visibility timeout.
    pub visibility: Duration,
    /// Whether to create the queues if they do not exist.
    pub create_queues: bool,
}

/// The transport.
#[derive(Debug)]
pub struct Sqs {
    queues: Arc<Queues>,
    deliveries: Mutex<mpsc::Receiver<Delivery<Receipt>>>,
    connected: Arc<AtomicBool>,
    /// Whether to receive.
    taking: watch::Sender<bool>,
    stopping: CancellationToken,
    receiving: TaskTracker,
}

/// Data with which a delivery is settled. The message stays hidden while it exists.
#[derive(Debug)]
pub struct Receipt {
    url: Arc<str>,
    handle: String,
    _hidden: DropGuard,
    _slot: OwnedSemaphorePermit,
}

/// Queues by name.
#[derive(Debug)]
struct Queues {
    client: Client,
    urls: Mutex<HashMap<String, Arc<str>>>,
}

impl Queues {
    async fn url(&self, name: &str) -> Result<Option<Arc<str>>, Error> {
        if let Some(url) = self.urls.lock().await.get(name) {
            return Ok(Some(Arc::clone(url)));
        }
        let Some(url) = self.client.queue_url(name).await? else {
            return Ok(None);
        };
        let url: Arc<str> = url.into();
        self.urls.lock().await.insert(name.to_owned(), Arc::clone(&url));
        Ok(Some(url))
    }

    async fn forget(&self, name: &str) {
        self.urls.lock().await.remove(name);
    }

    /// URL of a queue, which is created if it does not exist and the settings allow it.
    async fn ensure(&self, name: &str, config: &Config) -> Result<Option<Arc<str>>, Error> {
        let found = self.url(name).await?;
        if found.is_some() || !config.create_queues {
            return Ok(found);
        }
        let attributes = BTreeMap::from([
            ("VisibilityTimeout", config.visibility.as_secs().to_string()),
            ("MessageRetentionPeriod", RETENTION.to_owned()),
        ]);
        let url = self.client.create_queue(name, &attributes, &BTreeMap::new()).await?;
        Ok(Some(url.into()))
    }
}

impl Sqs {
    /// Receives messages in the background until [`Transport::stop`].
    ///
    /// # Errors
    /// The client cannot be built from the settings.
    pub fn start(config: Config) -> Result<Self, Error> {
        let queues = Arc::new(Queues {
            client: Client::new(&config.settings)?,
            urls: Mutex::default(),
        });
        let (deliveries_in, deliveries) = mpsc::channel(usize::from(config.prefetch.max(1)));
        let taking = watch::Sender::new(true);
        let receiver = Receiver {
            taking: taking.subscribe(),
            queues: Arc::clone(&queues),
            slots: Arc::new(Semaphore::new(usize::from(config.prefetch.max(1)))),
            config,
            deliveries: deliveries_in,
            connected: Arc::default(),
            stopping: CancellationToken::new(),
        };
        let (connected, stopping) = (Arc::clone(&receiver.connected), receiver.stopping.clone());
        let receiving = TaskTracker::new();
        receiving.spawn(receiver.run());
        receiving.close();
        Ok(Self {
            queues,
            deliveries: Mutex::new(deliveries),
            connected,
            taking,
            stopping,
            receiving,
        })
    }
}

struct Receiver {
    queues: Arc<Queues>,
    slots: Arc<Semaphore>,
    config: Config,
    deliveries: mpsc::Sender<Delivery<Receipt>>,
    connected: Arc<AtomicBool>,
    taking: watch::Receiver<bool>,
    stopping: CancellationToken,
}

impl Receiver {
    async fn run(self) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        while !self.stopping.is_cancelled() {
            match self.take().await {
                Ok(()) => backoff.reset(),
                Err(why) => {
                    self.connected.store(false, Ordering::Relaxed);
                    self.queues.forget(&self.config.queue).await;
                    tracing::warn!(queue = self.config.queue, why, "cannot receive messages from SQS");
                    tokio::select! {
                        () = tokio::time::sleep(backoff.pause()) => {}
                        () = self.stopping.cancelled() => {}
                    }
                }
            }
        }
    }

    /// Receives messages until an error or the stop.
    async fn take(&self) -> Result<(), String> {
        let missing = || format!("queue {} does not exist", self.config.queue);
        let reported = |error: Error| error.to_string();
        let ends = self.config.ends.iter().flat_map(|end| [&end.dead_letter, &end.queue]);
        for name in std::iter::once(&self.config.dead_letter).chain(ends) {
            self.queues.ensure(name, &self.config).await.map_err(reported)?;
        }
        let url = self
            .queues
            .ensure(&self.config.queue, &self.config)
            .await
            .map_err(reported)?;
        let url = url.ok_or_else(missing)?;
        tracing::info!(queue = self.config.queue, "consuming");
        self.connected.store(true, Ordering::Relaxed);
        let mut looks_ahead = false;
        loop {
            let Some(mut slots) = self.free_slots(looks_ahead).await else {
                return Ok(());
            };
            let most = u8::try_from(slots.len()).unwrap_or(u8::MAX);
            // Not cancelled at the stop, because its messages would stay hidden.
            let client = &self.queues.client;
            let messages = client.receive(&url, most, self.config.wait, self.config.visibility);
            let messages = messages.await.map_err(reported)?;
            if !messages.is_empty() {
                looks_ahead = !messages.iter().any(|message| is_redelivered(message.deliveries()));
            }
            for message in messages {
                let Some(slot) = slots.pop() else { break };
                let delivery = self.delivery(&url, message, slot);
                if self.stopping.is_cancelled() || !*self.taking.borrow() {
                    give_back(client, delivery.receipt).await;
                } else if self.deliveries.send(delivery).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// Number of messages to receive, at least one, while receiving is not paused. `None` after the stop.
    async fn free_slots(&self, looks_ahead: bool) -> Option<Vec<OwnedSemaphorePermit>> {
        let mut taking = self.taking.clone();
        let ahead = self.config.prefetch.saturating_sub(self.config.at_once.max(1));
        let reserved = if looks_ahead { 0 } else { ahead };
        let mut reserve = None;
        let first = async {
            reserve = Some(self.slots.acquire_many(reserved.into()).await.ok()?);
            let first = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            taking.wait_for(|taking| *taking).await.ok()?;
            Some(first)
        };
        let first = tokio::select! {
            first = first => first?,
            () = self.stopping.cancelled() => return None,
        };
        let further = std::iter::from_fn(|| Arc::clone(&self.slots).try_acquire_owned().ok());
        let slots = std::iter::once(first).chain(further.take(MOST_AT_ONCE - 1)).collect();
        drop(reserve);
        Some(slots)
    }

    fn delivery(&self, url: &Arc<str>, message: runway_sqs::Message, slot: OwnedSemaphorePermit) -> Delivery<Receipt> {
        let mut headers = message.headers();
        headers.retain(|(name, _)| !name.starts_with("x-"));
        let released = CancellationToken::new();
        tokio::spawn(keep_hidden(
            self.queues.client.clone(),
            Arc::clone(url),
            message.receipt_handle.clone(),
            self.config.visibility,
            released.clone(),
        ));
        Delivery {
            user: None,
            deliveries: message.deliveries(),
            headers,
            unreadable: None,
            body: message.body.into_bytes().into(),
            receipt: Receipt {
                url: Arc::clone(url),
                handle: message.receipt_handle,
                _hidden: released.drop_guard(),
                _slot: slot,
            },
        }
    }
}

/// Renews the visibility timeout, because waiting and processing can take longer.
async fn keep_hidden(client: Client, url: Arc<str>, handle: String, visibility: Duration, released: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(visibility / 3) => {}
            () = released.cancelled() => return,
        }
        if let Err(error) = client.hide(&url, &handle, visibility).await {
            tracing::warn!(%error, "cannot renew the visibility timeout; the message may be delivered twice");
            if error.is_stale_receipt() {
                return;
            }
        }
    }
}

async fn give_back(client: &Client, receipt: Receipt) {
    if let Err(error) = client.hide(&receipt.url, &receipt.handle, Duration::ZERO).await {
        tracing::warn!(%error, "cannot return a message; it becomes visible after its visibility timeout");
    }
}

impl Transport for Sqs {
    type Receipt = Receipt;

    async fn receive(&self) -> Option<Delivery<Receipt>> {
        loop {
            let delivery = self.deliveries.lock().await.recv().await?;
            if !self.stopping.is_cancelled() {
                return Some(delivery);
            }
            self.give_back(delivery.receipt).await;
        }
    }

    async fn publish(&self, _: Option<&Receipt>, message: &Message<'_>) -> Result<(), PublishError> {
        let queue = message.queue;
        let refused = |error: &Error| {
            if error.is_permanent() {
                PublishError::NoQueue(format!("cannot send to queue {queue}: {error}"))
            } else {
                PublishError::Refused(error.to_string())
            }
        };
        let no_queue = || PublishError::NoQueue(format!("queue {queue} does not exist"));
        let url = self.queues.url(queue).await.map_err(|error| refused(&error))?;
        let url = url.ok_or_else(no_queue)?;
        // Messages from SQS are text.
        let body = String::from_utf8_lossy(&message.body);
        match self.queues.client.send(&url, &body, message.headers).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_no_queue() => {
                self.queues.forget(queue).await;
                Err(no_queue())
            }
            Err(error) if error.is_unfit_message() => Err(PublishError::TooLarge(error.to_string())),
            Err(error) => Err(refused(&error)),
        }
    }

    async fn acknowledge(&self, receipt: Receipt) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for _ in 0..MOST_DELETIONS {
            match self.queues.client.delete(&receipt.url, &receipt.handle).await {
                Ok(()) => return,
                Err(error) if error.is_stale_receipt() => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot delete a processed message; retrying");
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
        tracing::error!("cannot delete a processed message; it will be delivered again");
    }

    /// SQS does not report it.
    fn is_lost(&self, _: &Receipt) -> bool {
        false
    }

    async fn lost(&self, _: &Receipt) {
        std::future::pending::<()>().await;
    }

    async fn give_back(&self, receipt: Receipt) {
        give_back(&self.queues.client, receipt).await;
    }

    async fn pause(&self) {
        self.taking.send_replace(false);
        // A caller that waits for a delivery has it, and then there is none to return.
        let Ok(mut deliveries) = self.deliveries.try_lock() else {
            return;
        };
        while let Ok(delivery) = deliveries.try_recv() {
            self.give_back(delivery.receipt).await;
        }
    }

    async fn resume(&self) {
        self.taking.send_replace(true);
    }

    async fn stop(&self) {
        self.stopping.cancel();
    }

    async fn close(&self) {
        // The last long poll ends by itself, and its messages are returned.
        self.receiving.wait().await;
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}
