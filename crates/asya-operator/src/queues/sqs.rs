//! Amazon SQS. An existing queue is not changed, and one that holds messages is not deleted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use runway_sqs::{Client, Settings};
use serde_json::json;

use super::{Broker, Error, PATIENCE, Removal};
use crate::queue::Queues;
use crate::transports;

const DAY: u32 = 24 * 60 * 60;
/// Longest retention of SQS, in days.
const LONGEST_RETENTION: u32 = 14;
/// Highest `maxReceiveCount` of SQS.
const MOST_RECEIVES: u32 = 1000;
/// Smallest limit of receives of a message. SQS also counts messages that only waited in a sidecar that ended; the sidecar counts
/// attempts (`ASYA_MAX_DELIVERIES`).
const FEWEST_RECEIVES: u32 = 20;

/// Region with a client for the current credentials.
pub(super) struct Sqs {
    config: transports::Sqs,
    secrets: PathBuf,
    client: Mutex<Option<(Settings, Client)>>,
}

impl Sqs {
    pub(super) fn new(config: transports::Sqs, secrets: PathBuf) -> Self {
        Self {
            config,
            secrets,
            client: Mutex::new(None),
        }
    }

    fn client(&self) -> Result<Client, Error> {
        let settings = self.config.place(&self.secrets)?;
        let mut known = self.client.lock();
        if let Some((_, client)) = known.as_ref().filter(|(of, _)| *of == settings) {
            return Ok(client.clone());
        }
        let client = Client::new(&settings).map_err(Error::NoClient)?;
        *known = Some((settings, client.clone()));
        Ok(client)
    }

    async fn make_all(&self, queues: &Queues) -> Result<(), Error> {
        let client = self.client()?;
        let plain = BTreeMap::from([
            ("VisibilityTimeout", queues.visibility.to_string()),
            ("MessageRetentionPeriod", (LONGEST_RETENTION * DAY).to_string()),
        ]);
        if let Some(alias) = &queues.alias {
            self.make(&client, &alias.queue, &plain).await?;
        }
        for (queue, dead_letters) in queues.with_dead_letters() {
            let mut attributes = plain.clone();
            if let Some(dead_letters) = dead_letters {
                let dlq = &self.config.queues.dlq;
                let days = dlq.retention_days.unwrap_or(LONGEST_RETENTION);
                let retention = days.clamp(1, LONGEST_RETENTION) * DAY;
                let of_dead_letters = BTreeMap::from([
                    ("VisibilityTimeout", queues.visibility.to_string()),
                    ("MessageRetentionPeriod", retention.to_string()),
                ]);
                let url = self.make(&client, &dead_letters, &of_dead_letters).await?;
                let refused = |source| Error::Sqs {
                    queue: dead_letters.clone(),
                    source,
                };
                let arn = client.queue_arn(&url).await.map_err(refused)?;
                // The sidecar reports a message that was received once more than allowed.
                let receives = dlq
                    .max_retry_count
                    .saturating_add(1)
                    .clamp(FEWEST_RECEIVES, MOST_RECEIVES);
                let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": receives});
                attributes.insert("RedrivePolicy", policy.to_string());
            }
            self.make(&client, queue, &attributes).await?;
        }
        Ok(())
    }

    /// Creates a queue, unless it exists, and returns its URL.
    async fn make(&self, client: &Client, queue: &str, attributes: &BTreeMap<&str, String>) -> Result<String, Error> {
        let made = async {
            match client.queue_url(queue).await? {
                Some(url) => Ok(url),
                None => client.create_queue(queue, attributes, &self.config.tags).await,
            }
        };
        made.await.map_err(|source| Error::Sqs {
            queue: queue.to_owned(),
            source,
        })
    }

    async fn remove_all(&self, queues: &Queues) -> Result<Removal, Error> {
        let client = self.client()?;
        let mut removal = Removal::Gone;
        for queue in queues.dead_letters.iter().chain([&queues.name]) {
            let refused = |source| Error::Sqs {
                queue: queue.clone(),
                source,
            };
            let Some(url) = client.queue_url(queue).await.map_err(refused)? else {
                continue;
            };
            match client.count(&url).await.map_err(refused)? {
                0 => client.delete_queue(&url).await.map_err(refused)?,
                count => removal = removal.and(Removal::Holds(count)),
            }
        }
        Ok(removal)
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let silent = || Error::Silent {
            place: self
                .config
                .endpoint
                .clone()
                .unwrap_or_else(|| format!("SQS in {}", self.config.region)),
        };
        tokio::time::timeout(PATIENCE, work)
            .await
            .unwrap_or_else(|_| Err(silent()))
    }
}

impl Broker for Sqs {
    fn ensure<'a>(&'a self, queues: &'a Queues) -> BoxFuture<'a, Result<Option<String>, Error>> {
        Box::pin(self.in_time(async { self.make_all(queues).await.map(|()| None) }))
    }

    fn remove<'a>(&'a self, queues: &'a Queues, _is_last: bool) -> BoxFuture<'a, Result<Removal, Error>> {
        Box::pin(self.in_time(self.remove_all(queues)))
    }
}
