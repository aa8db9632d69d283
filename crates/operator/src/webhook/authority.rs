//! Keeps an authority in a Secret, so that replicas agree, and serves with leaves signed by it.
//!
//! The Secret is watched by its name and no other is ever read. Two replicas that create or rotate at once are told apart
//! by the API server: the loser's write is refused, and the watch shows it what the winner wrote.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum_server::tls_rustls::RustlsConfig;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use rustls::ServerConfig;
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
    pub fn tls(&self) -> Result<RustlsConfig, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.serving.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(RustlsConfig::from_config(Arc::new(config)))
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
        self.serving.0.store(Some(leaf.insert(current).certified.clone()));

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
struct Serving(ArcSwapOption<CertifiedKey>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
