//! Keeps an authority in a Secret, so that replicas agree, and serves with leaves signed by it.
//!
//! The Secret is watched by its name and no other is ever read. Two replicas that create or rotate at once are told apart
//! by the API server: the loser's write is refused, and the watch shows it what the winner wrote.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use runway_http::Tls;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::certificates::{self, Authorities, Leaf, Lifetimes};

/// What an [`Authority`] needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// What clients call the server: DNS names and IP addresses.
    pub names: Vec<String>,
    /// Who writes the Secret.
    pub field_manager: String,
    /// How long certificates live.
    pub lifetimes: Lifetimes,
    /// The clock.
    pub clock: fn() -> Timestamp,
}

/// After a write that failed, and for one whose echo does not come.
const RETRY: Duration = Duration::from_secs(10);
/// Timers stand still while a machine sleeps, so the clock is read now and then. This asks nobody.
const LONGEST_SLEEP: Duration = Duration::from_mins(10);
const SHORTEST_SLEEP: Duration = Duration::from_secs(1);

/// The authority is not as it should be.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Certificate(#[from] certificates::Error),
    #[error("cannot write Secret {secret}: {source} (needed: create on secrets; list, watch and patch on this one)")]
    Write { secret: String, source: Box<kube::Error> },
}

/// Keeps the authority, a leaf signed by it, and the bundle that clients need.
#[derive(Debug)]
pub struct Authority {
    secrets: Api<Secret>,
    settings: Settings,
    serving: Arc<Serving>,
    bundle: watch::Sender<Option<String>>,
}

impl Authority {
    /// Nothing happens before [`run`](Self::run).
    pub fn new(client: Client, settings: Settings) -> Self {
        Self {
            secrets: Api::namespaced(client, &settings.namespace),
            settings,
            serving: Arc::default(),
            bundle: watch::Sender::new(None),
        }
    }

    /// For the server: always the current leaf. Handshakes fail while there is none.
    pub fn tls(&self) -> Result<Tls, rustls::Error> {
        Tls::resolved_by(self.serving.clone())
    }

    /// Says why the certificate that is served at the moment would be refused, if it would.
    pub fn refused(&self) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let (serving, clock) = (Arc::clone(&self.serving), self.settings.clock);
        move || match serving.0.load_full() {
            Some(leaf) => leaf.refused(clock()),
            None => Some("there is none yet".to_owned()),
        }
    }

    /// The certificates that clients should trust, as PEM; `None` while there is no authority.
    pub fn bundle(&self) -> watch::Receiver<Option<String>> {
        self.bundle.subscribe()
    }

    /// Keeps everything current until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&self) {
        let mut watched = pin!(watch_object(self.secrets.clone(), &self.settings.secret).default_backoff());
        let mut leaf = None;
        // Nothing can be decided before the watch has spoken: the Secret may exist.
        let mut secret = loop {
            match watched.next().await {
                Some(Ok(secret)) => break secret,
                Some(Err(error)) => tracing::warn!(%error, "watch of the webhook's Secret interrupted"),
                None => return,
            }
        };
        loop {
            let pause = self.step(secret.as_ref(), &mut leaf).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "the webhook's certificates are not current");
                RETRY
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                event = watched.next() => match event {
                    Some(Ok(seen)) => secret = seen,
                    Some(Err(error)) => tracing::warn!(%error, "watch of the webhook's Secret interrupted"),
                    None => return,
                },
            }
        }
    }

    /// Does what is due, and says when to look again if the watch shows nothing before.
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
        // First with what there is: the server must go on when the API server cannot be reached.
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

    /// Serves with a current leaf and publishes the bundle; says when the leaf is due.
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

    async fn create(&self, authorities: &Authorities) -> Result<(), Error> {
        let Settings {
            secret, field_manager, ..
        } = &self.settings;
        let data = authorities
            .data()
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect();
        let object = Secret {
            metadata: ObjectMeta {
                name: Some(secret.clone()),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..Secret::default()
        };
        let parameters = PostParams {
            field_manager: Some(field_manager.clone()),
            ..PostParams::default()
        };
        self.settle(self.secrets.create(&parameters, &object).await)
    }

    /// Only if the Secret is still as seen.
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

    /// Whoever was faster is right: the watch will show what they wrote.
    fn settle(&self, written: kube::Result<Secret>) -> Result<(), Error> {
        let Settings { namespace, secret, .. } = &self.settings;
        match written {
            Ok(_) => {
                tracing::info!(namespace, secret, "made an authority for the webhook");
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

    /// The clock of the only test that has one.
    static NOW: AtomicI64 = AtomicI64::new(1_800_000_000);

    fn clock() -> Timestamp {
        Timestamp::from_second(NOW.load(Ordering::Relaxed)).unwrap()
    }

    /// An API server that accepts every write and remembers the last.
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

        // A year ahead.
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
