//! What running servers say of themselves. A server is asked once when its pods become ready, and again when they change;
//! never in between.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use runway_api::llama_stack_distribution::ProviderInfo;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A ready server answers at once; a busy one may take its time.
const PATIENCE: Duration = Duration::from_secs(10);
/// The Service may know its pods a moment later than we do.
const ATTEMPTS: u32 = 6;
/// Wait before the second attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest answer that is read.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Namespace and name of a LlamaStackDistribution.
pub(crate) type Key = (String, String);

/// What the running server said.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Its version and providers.
    Said(ServerInfo),
    /// Nothing: why not.
    Silent(String),
}

/// What the running server says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerInfo {
    /// From `/v1/version`.
    pub version: String,
    /// From `/v1/providers`.
    pub providers: Vec<ProviderInfo>,
}

/// What running servers said.
pub(crate) struct Servers {
    client: Client<HttpConnector, String>,
    known: Mutex<HashMap<Key, Known>>,
}

/// What one said, and when it was asked.
struct Known {
    /// Of the pods when it was asked.
    readiness: String,
    answer: Option<Answer>,
}

impl Default for Servers {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(PATIENCE));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            known: Mutex::default(),
        }
    }
}

impl Servers {
    /// What the server said since its pods are as they are. If it was not asked yet, it is asked now, and `wake` is called
    /// when that is over.
    pub(crate) fn answer(
        self: &Arc<Self>,
        key: &Key,
        readiness: &str,
        url: &str,
        wake: impl FnOnce() + Send + 'static,
    ) -> Option<Answer> {
        let mut known = self.lock();
        if let Some(found) = known.get(key).filter(|k| k.readiness == readiness) {
            return found.answer.clone();
        }
        known.insert(
            key.clone(),
            Known {
                readiness: readiness.to_owned(),
                answer: None,
            },
        );
        let (servers, key) = (self.clone(), key.clone());
        let (readiness, url) = (readiness.to_owned(), url.to_owned());
        tokio::spawn(async move {
            let answer = servers.ask(&url).await;
            if servers.take_in(&key, &readiness, answer) {
                wake();
            }
        });
        None
    }

    /// Forgets a server: it is gone, or its pods are not ready.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn take_in(&self, key: &Key, readiness: &str, answer: Answer) -> bool {
        match self.lock().get_mut(key).filter(|k| k.readiness == readiness) {
            Some(known) => {
                known.answer = Some(answer);
                true
            }
            // Its pods have changed meanwhile: somebody else asks.
            None => false,
        }
    }

    async fn ask(&self, url: &str) -> Answer {
        let mut wait = FIRST_WAIT;
        let mut attempt = 1;
        loop {
            match self.info(url).await {
                Ok(info) => return Answer::Said(info),
                Err(error) if attempt == ATTEMPTS => return Answer::Silent(error),
                Err(_) => tokio::time::sleep(wait).await,
            }
            attempt += 1;
            wait *= 2;
        }
    }

    async fn info(&self, url: &str) -> Result<ServerInfo, String> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        #[derive(Deserialize)]
        struct Providers {
            data: Vec<ProviderInfo>,
        }
        let version: Version = self.get(&format!("{url}/v1/version")).await?;
        let providers: Providers = self.get(&format!("{url}/v1/providers")).await?;
        Ok(ServerInfo {
            version: version.version,
            providers: providers.data,
        })
    }

    async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        tokio::time::timeout(PATIENCE, self.get_without_limit(url))
            .await
            .unwrap_or_else(|_| Err(format!("{url} did not answer within {} seconds", PATIENCE.as_secs())))
    }

    async fn get_without_limit<T: DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        let said = |error: &dyn std::error::Error| format!("{url}: {}", runway_operator::telemetry::chain(error));
        let address = url.parse().map_err(|_| format!("{url} is not a URL"))?;
        let response = self.client.get(address).await.map_err(|e| said(&e))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| said(e.as_ref()))?;
        if !status.is_success() {
            return Err(format!("{url} answered {status}"));
        }
        serde_json::from_slice(&body.to_bytes()).map_err(|e| said(&e))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
