//! Keeps a certificate authority in a Secret, so that replicas share it, and serves with leaves signed by it.
//!
//! The Secret is watched by its name; no other Secret is read. If two replicas create or rotate at the same time, the API server
//! rejects one write, and the watch delivers the other.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use runway_http::Tls;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::certificates::{self, Authorities, Leaf, Lifetimes};
use crate::access::{named, rule};
use crate::apply::NO_VERSION;
use crate::watch::single;

/// Settings of an [`Authority`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// DNS names and IP addresses by which clients connect.
    pub names: Vec<String>,
    /// Field manager of the Secret.
    pub field_manager: String,
    /// Lifetimes of the certificates.
    pub lifetimes: Lifetimes,
    /// Clock.
    pub clock: fn() -> Timestamp,
}

/// Delay after a failed write, and after one that the watch does not deliver.
const RETRY: Duration = Duration::from_secs(10);
/// Interval of checks of the clock: timers stop while a machine is suspended. Sends no request.
const LONGEST_SLEEP: Duration = Duration::from_mins(10);
const SHORTEST_SLEEP: Duration = Duration::from_secs(1);

/// Permissions for the Secret, in its namespace.
pub fn access_in_namespace(secret: &str) -> Vec<PolicyRule> {
    let all = rule("", &["secrets"], &["list", "watch", "create", "patch"]);
    vec![named(all, &[secret])]
}

/// Reason why the authority is not current.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Certificate(#[from] certificates::Error),
    #[error("cannot write Secret {secret}, which requires the verbs list, watch, create and patch on it")]
    Write { secret: String, source: Box<kube::Error> },
}

/// Keeps the authority, a leaf signed by it, and the bundle for clients.
#[derive(Debug)]
pub struct Authority {
    secrets: Api<Secret>,
    settings: Settings,
    serving: Arc<Serving>,
    bundle: watch::Sender<Option<String>>,
}

impl Authority {
    /// Creates an authority; nothing happens before [`run`](Self::run).
    pub fn new(client: Client, settings: Settings) -> Self {
        Self {
            secrets: Api::namespaced(client, &settings.namespace),
            settings,
            serving: Arc::default(),
            bundle: watch::Sender::new(None),
        }
    }

    /// Resolver for the TLS server: always the current leaf. Handshakes fail while there is none.
    ///
    /// # Errors
    ///
    /// The TLS provider is not supported.
    pub fn tls(&self) -> Result<Tls, rustls::Error> {
        Tls::resolved_by(self.serving.clone())
    }

    /// Check of the current certificate: the reason why clients would reject it, or `None`.
    pub fn refused(&self) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let (serving, clock) = (Arc::clone(&self.serving), self.settings.clock);
        move || match serving.0.load_full() {
            Some(leaf) => leaf.refused(clock()),
            None => Some("there is none yet".to_owned()),
        }
    }

    /// CA bundle for clients, as PEM; `None` while there is no authority.
    pub fn bundle(&self) -> watch::Receiver<Option<String>> {
        self.bundle.subscribe()
    }

    /// Keeps everything current until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&self) {
        let mut watched = pin!(single(self.secrets.clone(), &self.settings.secret));
        let mut leaf = None;
        // No decision before the first event of the watch: the Secret may exist.
        let Some(mut secret) = watched.next().await else {
            return;
        };
        loop {
            let pause = self.step(secret.as_ref(), &mut leaf).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "the certificates are not current");
                RETRY
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                event = watched.next() => match event {
                    Some(seen) => secret = seen,
                    None => return,
                },
            }
        }
    }

    /// Does what is due, and returns when to check again without an event of the watch.
    async fn step(&self, secret: Option<&Secret>, leaf: &mut Option<Leaf>) -> Result<Duration, Error> {
        let Settings {
            secret: name,
            lifetimes,
            clock,
            ..
        } = &self.settings;
        let now = clock();
        let Some(secret) = secret else {
            self.create(&Authorities::first(name, now, *lifetimes)?).await?;
            return Ok(RETRY);
        };
        let none = BTreeMap::new();
        let authorities = match Authorities::read(secret.data.as_ref().unwrap_or(&none)) {
            Ok(authorities) => authorities,
            Err(error) => {
                tracing::warn!(%error, secret = name, "making a new authority");
                self.replace(secret, &Authorities::first(name, now, *lifetimes)?)
                    .await?;
                return Ok(RETRY);
            }
        };
        if authorities.is_from_the_future(now) {
            tracing::warn!(
                secret = name,
                "the authority was made by a clock that was ahead, and is not valid yet: making a new one"
            );
            self.replace(secret, &Authorities::first(name, now, *lifetimes)?)
                .await?;
            return Ok(RETRY);
        }
        // First with the existing authority: the server must continue if the API server cannot be reached.
        let renewal = self.install(&authorities, leaf, now)?;
        if authorities.rotation() <= now {
            self.replace(secret, &authorities.next(name, now, *lifetimes)?).await?;
            return Ok(RETRY);
        }
        let due = authorities
            .next_change(now)
            .into_iter()
            .chain([renewal, authorities.rotation()])
            .min();
        let pause = due.and_then(|due| Duration::try_from(due.duration_since(now)).ok());
        Ok(pause.unwrap_or_default().clamp(SHORTEST_SLEEP, LONGEST_SLEEP))
    }

    /// Serves with a current leaf and publishes the bundle; returns when the leaf is due.
    fn install(&self, authorities: &Authorities, leaf: &mut Option<Leaf>, now: Timestamp) -> Result<Timestamp, Error> {
        let signer = authorities.signer(now);
        let current = match leaf.take().filter(|leaf| leaf.is_current(signer, now)) {
            Some(leaf) => leaf,
            None => Leaf::make(signer, &self.settings.names, now, self.settings.lifetimes)?,
        };
        let renewal = current.renewal;
        self.serving.0.store(Some(Arc::new(leaf.insert(current).clone())));

        let bundle = Some(authorities.bundle(now));
        self.bundle.send_if_modified(|published| {
            let changed = *published != bundle;
            *published = bundle;
            changed
        });
        Ok(renewal)
    }

    /// Only if there is none. By an apply, which RBAC can limit to the name of the Secret.
    async fn create(&self, authorities: &Authorities) -> Result<(), Error> {
        let Settings {
            secret, field_manager, ..
        } = &self.settings;
        let data: BTreeMap<_, _> = authorities
            .data()
            .into_iter()
            .filter(|(_, value)| value.is_some())
            .collect();
        let metadata = json!({"name": secret, "resourceVersion": NO_VERSION});
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data});
        let parameters = PatchParams::apply(field_manager);
        self.settle(self.secrets.patch(secret, &parameters, &Patch::Apply(object)).await)
    }

    /// Only if the Secret is still as observed.
    async fn replace(&self, seen: &Secret, authorities: &Authorities) -> Result<(), Error> {
        let Settings {
            secret, field_manager, ..
        } = &self.settings;
        let patch =
            json!({"metadata": {"resourceVersion": seen.metadata.resource_version}, "data": authorities.data()});
        let parameters = PatchParams {
            field_manager: Some(field_manager.clone()),
            ..PatchParams::default()
        };
        self.settle(self.secrets.patch(secret, &parameters, &Patch::Merge(patch)).await)
    }

    /// Another replica was faster: the watch will deliver its write.
    fn settle(&self, written: kube::Result<Secret>) -> Result<(), Error> {
        let Settings { namespace, secret, .. } = &self.settings;
        match written {
            Ok(_) => {
                tracing::info!(namespace, secret, "made a certificate authority");
                Ok(())
            }
            Err(kube::Error::Api(status))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                Ok(())
            }
            Err(source) => Err(Error::Write {
                secret: format!("{namespace}/{secret}"),
                source: Box::new(source),
            }),
        }
    }
}

/// The leaf in use.
#[derive(Debug, Default)]
struct Serving(ArcSwapOption<Leaf>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().as_ref().map(|leaf| Arc::clone(&leaf.certified))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use kube::client::Body;
    use serde_json::Value;
    use tower::service_fn;

    /// Clock for tests.
    static NOW: AtomicI64 = AtomicI64::new(1_800_000_000);

    fn clock() -> Timestamp {
        Timestamp::from_second(NOW.load(Ordering::Relaxed)).unwrap()
    }

    /// An API server that accepts every write and keeps the last.
    fn api_server(last: Arc<Mutex<Option<Secret>>>) -> Client {
        let service = service_fn(move |request: http::Request<Body>| {
            let last = Arc::clone(&last);
            async move {
                let sent: Value = serde_json::from_slice(&request.into_body().collect_bytes().await?)?;
                let secret: Secret = serde_json::from_value(json!({
                    "metadata": {"name": "ca", "namespace": "ns", "resourceVersion": "2"},
                    "data": sent["data"].as_object().map(|data| data.iter().filter(|(_, value)| !value.is_null()).collect::<BTreeMap<_, _>>()),
                }))?;
                let answer = serde_json::to_vec(&secret)?;
                *last.lock().unwrap() = Some(secret);
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(http::Response::new(Body::from(answer)))
            }
        });
        Client::new(service, "ns")
    }

    #[tokio::test]
    async fn first_authority_does_not_replace_that_of_another_replica() {
        let settings = Settings {
            namespace: "ns".to_owned(),
            secret: "ca".to_owned(),
            names: Vec::new(),
            field_manager: "test".to_owned(),
            lifetimes: Lifetimes::default(),
            clock,
        };
        // The API server compares the version with that of an object in the way.
        let service = service_fn(async |request: http::Request<Body>| {
            let sent: Value = serde_json::from_slice(&request.into_body().collect_bytes().await?)?;
            assert_eq!(sent["metadata"], json!({"name": "ca", "resourceVersion": NO_VERSION}));
            let answer = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409});
            let answer = http::Response::builder()
                .status(409)
                .body(Body::from(serde_json::to_vec(&answer)?))?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer)
        });
        let authority = Authority::new(Client::new(service, "ns"), settings);
        assert_eq!(authority.step(None, &mut None).await.unwrap(), RETRY);
    }

    #[tokio::test]
    async fn an_authority_made_by_a_clock_that_was_ahead_is_replaced_and_readiness_says_so_until_then() {
        let written = Arc::new(Mutex::new(None));
        let settings = Settings {
            namespace: "ns".to_owned(),
            secret: "ca".to_owned(),
            names: vec!["hook.ns.svc".to_owned()],
            field_manager: "test".to_owned(),
            lifetimes: Lifetimes::default(),
            clock,
        };
        let authority = Authority::new(api_server(Arc::clone(&written)), settings);
        let (refused, mut leaf) = (authority.refused(), None);
        assert_eq!(refused().as_deref(), Some("there is none yet"));

        // One year ahead.
        let right = NOW.fetch_add(365 * 86_400, Ordering::Relaxed);
        authority.step(None, &mut leaf).await.unwrap();
        let ahead = written.lock().unwrap().take().unwrap();
        authority.step(Some(&ahead), &mut leaf).await.unwrap();
        assert_eq!(refused(), None);
        assert!(written.lock().unwrap().is_none());

        NOW.store(right, Ordering::Relaxed);
        assert!(refused().unwrap().starts_with("it is valid only from 2028-"));
        authority.step(Some(&ahead), &mut leaf).await.unwrap();
        let replaced = written.lock().unwrap().take().expect("a new authority is written");
        assert!(refused().is_some(), "the bundle has not been published yet");
        authority.step(Some(&replaced), &mut leaf).await.unwrap();
        assert_eq!(refused(), None);
        assert!(written.lock().unwrap().is_none(), "once is enough");
    }
}
