//! Amazon SQS. An existing queue is not changed, and one that holds messages is not deleted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use runway_sqs::{Client, Credentials, Settings};

use super::{Broker, Error, PATIENCE, secret};
use crate::plan::Queues;
use crate::transports;

const DAY: u32 = 24 * 60 * 60;
/// Longest retention of SQS, in days.
const LONGEST_RETENTION: u32 = 14;

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
        let credentials = match &self.config.credentials {
            None => Credentials::Found,
            Some(keys) => Credentials::Static {
                id: secret(&self.secrets, &keys.access_key_id_secret_ref)?,
                key: secret(&self.secrets, &keys.secret_access_key_secret_ref)?,
            },
        };
        let settings = Settings {
            region: self.config.region.clone(),
            endpoint: self.config.endpoint.clone(),
            credentials,
        };
        let mut known = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = known.as_ref().filter(|(of, _)| *of == settings) {
            return Ok(client.clone());
        }
        let client = Client::new(&settings).map_err(Error::NoClient)?;
        *known = Some((settings, client.clone()));
        Ok(client)
    }

    async fn make_all(&self, queues: &Queues) -> Result<(), Error> {
        let client = self.client()?;
        for queue in queues.dead_letters.iter().chain(&queues.ends).chain([&queues.name]) {
            let refused = |source| Error::Sqs {
                queue: queue.clone(),
                source,
            };
            if client.queue_url(queue).await.map_err(refused)?.is_some() {
                continue;
            }
            let of_dead_letters = self
                .config
                .queues
                .dlq
                .retention_days
                .filter(|_| Some(queue) == queues.dead_letters.as_ref());
            let days = of_dead_letters.unwrap_or(LONGEST_RETENTION).clamp(1, LONGEST_RETENTION);
            let attributes = BTreeMap::from([
                ("VisibilityTimeout", queues.visibility.to_string()),
                ("MessageRetentionPeriod", (days * DAY).to_string()),
            ]);
            let made = client.create_queue(queue, &attributes, &self.config.tags).await;
            made.map_err(refused)?;
        }
        Ok(())
    }

    async fn remove_all(&self, queues: &Queues) -> Result<Option<u64>, Error> {
        let client = self.client()?;
        let mut left = 0;
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
                count => left += count,
            }
        }
        Ok((left > 0).then_some(left))
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
    fn ensure<'a>(&'a self, queues: &'a Queues) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.in_time(self.make_all(queues)))
    }

    fn remove<'a>(&'a self, queues: &'a Queues) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        Box::pin(self.in_time(self.remove_all(queues)))
    }
}
