//! Wakes models that are scaled to zero, through the `scale` subresource of their ModelDeployment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use runway_api::{ModelDeployment, labels};
use runway_operator::access::rule;
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::Metrics;
use crate::models::Models;
use crate::rights::{GROUP, RESOURCE};
use crate::table::Key;

/// Replicas of a model that a request wakes.
const REPLICAS: i32 = 1;
/// Attempts, if another client changes the object at the same time, or the API server does not answer.
const ATTEMPTS: u32 = 5;
/// Pause before the second attempt; it doubles with each.
const PAUSE: Duration = Duration::from_millis(100);
/// Time after which a model that still sleeps is scaled again: another client may have scaled it to zero at the same time.
pub(crate) const AGAIN: Duration = Duration::from_secs(30);
/// Longest wait for the API server.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Wakes models. Each is scaled once, however many requests wait for it.
pub struct Scaler {
    client: Client,
    models: Models,
    metrics: Arc<Metrics>,
    /// Models that are being scaled, or have been and are not awake yet.
    woken: Mutex<BTreeMap<Key, Woken>>,
}

/// A model that is not awake yet.
struct Woken {
    since: Instant,
    /// The answer of the API server, if it refused.
    failed: Option<String>,
}

impl Woken {
    fn now(failed: Option<String>) -> Self {
        let since = Instant::now();
        Self { since, failed }
    }
}

/// Result of an attempt.
enum Outcome {
    Done,
    Again(String),
    Failed(String),
}

impl Scaler {
    /// Scales with this client, which needs the permissions of [`access`].
    pub fn new(client: Client, models: Models, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            client,
            models,
            metrics,
            woken: Mutex::default(),
        })
    }

    /// Begins to wake a model, unless that has begun.
    ///
    /// # Errors
    /// The API server refused the last attempt. The next call begins again.
    pub fn wake(self: &Arc<Self>, key: &Key) -> Result<(), String> {
        let mut woken = self.woken.lock();
        if let Some(known) = woken.get(key).filter(|known| known.since.elapsed() < AGAIN) {
            return known.failed.clone().map_or(Ok(()), Err);
        }
        woken.insert(key.clone(), Woken::now(None));
        tokio::spawn(Arc::clone(self).run(key.clone()));
        Ok(())
    }

    /// The model is awake, or gone, or may be tried again.
    pub fn forget(&self, key: &Key) {
        self.woken.lock().remove(key);
    }

    async fn run(self: Arc<Self>, key: Key) {
        let scaled = self.scale_with_retries(&key).await;
        self.metrics.woken(scaled.is_ok());
        match scaled {
            // The watch delivers the change.
            Ok(()) => tracing::info!(namespace = key.0, name = key.1, "scaled from zero for a request"),
            Err(error) => {
                tracing::warn!(namespace = key.0, name = key.1, error, "cannot scale from zero");
                self.woken.lock().insert(key.clone(), Woken::now(Some(error)));
                self.models.wake(&key);
                // Requests that wait now read the error; later ones try again.
                sleep(PAUSE).await;
                self.forget(&key);
            }
        }
    }

    async fn scale_with_retries(&self, key: &Key) -> Result<(), String> {
        let mut pause = PAUSE;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let unanswered = |_| Outcome::Again("the API server does not answer".to_owned());
            match timeout(ANSWERED_WITHIN, self.scale(key))
                .await
                .unwrap_or_else(unanswered)
            {
                Outcome::Done => return Ok(()),
                Outcome::Failed(error) => return Err(error),
                Outcome::Again(error) => last = error,
            }
            sleep(pause).await;
            pause *= 2;
        }
        Err(last)
    }

    /// Raises the replicas from zero. The write is guarded by the resource version, so that a larger number that another client sets
    /// at the same time is kept.
    async fn scale(&self, (namespace, name): &Key) -> Outcome {
        let deployments: Api<ModelDeployment> = Api::namespaced(self.client.clone(), namespace);
        let mut scale: Scale = match deployments.get_scale(name).await {
            Ok(scale) => scale,
            Err(error) => return failed(error),
        };
        let spec = scale.spec.get_or_insert_default();
        if spec.replicas.is_some_and(|replicas| replicas > 0) {
            return Outcome::Done;
        }
        spec.replicas = Some(REPLICAS);
        let params = PostParams {
            field_manager: Some(labels::ROUTER_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let written: Result<Scale, _> = deployments.replace_scale(name, &params, &scale).await;
        match written {
            Ok(_) => Outcome::Done,
            Err(error) => failed(error),
        }
    }
}

fn failed(error: kube::Error) -> Outcome {
    match error {
        kube::Error::Api(status) if matches!(status.code, 409 | 429 | 500..) => Outcome::Again(status.message),
        kube::Error::Api(status) => Outcome::Failed(status.message),
        other => Outcome::Again(other.to_string()),
    }
}

/// Permissions to read models and to wake them.
pub fn access() -> Vec<PolicyRule> {
    let scale = format!("{RESOURCE}/scale");
    vec![
        rule(GROUP, &[RESOURCE], &["list", "watch"]),
        rule(GROUP, &[&scale], &["get", "update"]),
    ]
}
