//! Versions and providers that running servers report. A server is asked once when its pods become ready, and again when
//! they change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use runway_api::llama_stack_distribution::ProviderInfo;
use runway_operator::json;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Timeout of a request. A busy server may take some seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Attempts for one answer: the Service may route to new pods a moment after they are ready.
const ATTEMPTS: u32 = 6;
/// Wait before the second attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest answer that is read, in bytes. It is not kept.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Most providers that are kept of an answer: more than a distribution and all external providers have together.
const MAX_PROVIDERS: usize = 1024;
/// Most bytes of an answer that are kept, as JSON: those of the status. Beyond, configurations and details are dropped.
const MAX_KEPT_BYTES: usize = 128 * 1024;
/// Longest text of an answer that is kept, in bytes.
const MAX_TEXT: usize = 128;

/// Namespace and name of a LlamaStackDistribution.
pub(crate) type Key = (String, String);

/// Answer of a running server.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Its version and providers.
    Said(ServerInfo),
    /// No answer, with the cause.
    Silent(String),
}

/// A server's version and providers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerInfo {
    /// From `/v1/version`.
    pub version: String,
    /// From `/v1/providers`.
    pub providers: Vec<ProviderInfo>,
}

/// The part of an answer that is kept: a server decides what it says, and there may be thousands of them.
fn kept(version: &str, mut providers: Vec<ProviderInfo>) -> ServerInfo {
    providers.truncate(MAX_PROVIDERS);
    if json::size(&providers) > MAX_KEPT_BYTES {
        for provider in &mut providers {
            provider.config = None;
            provider.health = None;
            for text in [
                &mut provider.api,
                &mut provider.provider_id,
                &mut provider.provider_type,
            ] {
                text.truncate(text.floor_char_boundary(MAX_TEXT));
            }
        }
    }
    providers.shrink_to_fit();
    let end = version.floor_char_boundary(MAX_TEXT);
    ServerInfo {
        version: version.get(..end).unwrap_or_default().to_owned(),
        providers,
    }
}

/// The latest answers of running servers.
pub(crate) struct Servers {
    client: Client<HttpConnector, String>,
    known: Mutex<HashMap<Key, Known>>,
}

/// The latest question to a server, and its answer.
struct Known {
    /// Fingerprint of the ready pods at the time of the question.
    readiness: String,
    answer: Option<Arc<Answer>>,
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
    /// The answer of the server since its ready pods last changed. Without one, asks in the background and calls `wake`
    /// when the server has answered.
    pub(crate) fn answer(
        self: &Arc<Self>,
        key: &Key,
        readiness: &str,
        url: &str,
        wake: impl FnOnce() + Send + 'static,
    ) -> Option<Arc<Answer>> {
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
                known.answer = Some(Arc::new(answer));
                true
            }
            // The pods have changed meanwhile, and another request is under way for the new ones.
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
        Ok(kept(&version.version, providers.data))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(id: &str, config: usize) -> ProviderInfo {
        ProviderInfo {
            api: "inference".to_owned(),
            provider_id: id.to_owned(),
            config: serde_json::json!({ "text": "x".repeat(config) }).as_object().cloned(),
            ..ProviderInfo::default()
        }
    }

    #[test]
    fn an_answer_of_any_size_is_kept_in_little_and_with_the_ids_of_its_providers() {
        let small = kept("0.7.3", vec![provider("a", 10)]);
        assert_eq!(small.version, "0.7.3");
        assert!(small.providers[0].config.is_some());
        let large = kept(
            &"v".repeat(1 << 20),
            (0..200).map(|n| provider(&format!("p{n}"), 16 << 10)).collect(),
        );
        assert_eq!(large.version.len(), MAX_TEXT);
        assert_eq!(large.providers[199].provider_id, "p199");
        assert!(json::size(&large.providers) <= MAX_KEPT_BYTES);
        let endless = kept("", (0..9000).map(|_| provider(&"é".repeat(9000), 1)).collect());
        assert_eq!(endless.providers.len(), MAX_PROVIDERS);
        assert!(json::size(&endless.providers) < 4 * MAX_KEPT_BYTES);
    }
}
