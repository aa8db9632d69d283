//! Versions and providers that running servers report. A server is asked once when its pods become ready, and again when
//! they change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use runway_api::llama_stack_distribution::ProviderInfo;
use runway_operator::json;
use serde::Deserialize;

use crate::requests::{Failure, Requests};

/// Attempts for one answer: the Service may route to new pods a moment after they are ready.
const ATTEMPTS: u32 = 6;
/// Wait before the second attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
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
    /// From `/v1/providers`; none if the server requires authentication for it.
    pub providers: Option<Vec<ProviderInfo>>,
}

/// The part of an answer that is kept: a server decides what it says, and there may be thousands of them.
fn kept(version: &str, providers: Option<Vec<ProviderInfo>>) -> ServerInfo {
    let end = version.floor_char_boundary(MAX_TEXT);
    ServerInfo {
        version: version.get(..end).unwrap_or_default().to_owned(),
        providers: providers.map(kept_providers),
    }
}

fn kept_providers(mut providers: Vec<ProviderInfo>) -> Vec<ProviderInfo> {
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
    providers
}

/// The latest answers of running servers.
#[derive(Default)]
pub(crate) struct Servers {
    requests: Requests,
    known: Mutex<HashMap<Key, Known>>,
}

/// The latest question to a server, and its answer.
struct Known {
    /// Fingerprint of the ready pods at the time of the question.
    readiness: String,
    answer: Option<Arc<Answer>>,
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
        let mut known = self.known.lock();
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
        self.known.lock().remove(key);
    }

    fn take_in(&self, key: &Key, readiness: &str, answer: Answer) -> bool {
        match self.known.lock().get_mut(key).filter(|k| k.readiness == readiness) {
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
                Err(error) if attempt == ATTEMPTS => return Answer::Silent(error.to_string()),
                Err(_) => tokio::time::sleep(wait).await,
            }
            attempt += 1;
            wait *= 2;
        }
    }

    async fn info(&self, url: &str) -> Result<ServerInfo, Failure> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        #[derive(Deserialize)]
        struct Providers {
            data: Vec<ProviderInfo>,
        }
        let version: Version = self.requests.get(&format!("{url}/v1/version")).await?;
        // With `server.auth`, health and version stay public (llama-stack 0.7.3: core/server/auth.py).
        let providers = match self.requests.get::<Providers>(&format!("{url}/v1/providers")).await {
            Ok(providers) => Some(providers.data),
            Err(failure) if failure.requires_authentication() => None,
            Err(failure) => return Err(failure),
        };
        Ok(kept(&version.version, providers))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a missing value fails the test")]
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
        let small = kept("0.7.3", Some(vec![provider("a", 10)]));
        assert_eq!(small.version, "0.7.3");
        assert!(small.providers.unwrap()[0].config.is_some());
        let large = kept(
            &"v".repeat(1 << 20),
            Some((0..200).map(|n| provider(&format!("p{n}"), 16 << 10)).collect()),
        );
        assert_eq!(large.version.len(), MAX_TEXT);
        let large = large.providers.unwrap();
        assert_eq!(large[199].provider_id, "p199");
        assert!(json::size(&large) <= MAX_KEPT_BYTES);
        let endless = (0..9000).map(|_| provider(&"é".repeat(9000), 1)).collect();
        let endless = kept("", Some(endless)).providers.unwrap();
        assert_eq!(endless.len(), MAX_PROVIDERS);
        assert!(json::size(&endless) < 4 * MAX_KEPT_BYTES);
    }
}
