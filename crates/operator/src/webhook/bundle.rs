//! Keeps the CA bundle in webhook configurations, and in a ConfigMap for other clients.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ServiceReference, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::watch::single;

/// Location of the webhooks for the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Service.
    Service {
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        name: String,
        /// Port of the Service.
        port: i32,
    },
    /// A URL without a path, such as https://127.0.0.1:9443, for a controller outside the cluster.
    Url(String),
}

impl Endpoint {
    /// Value of a webhook's `clientConfig`.
    pub fn client_config(&self, path: &str, bundle: Option<&str>) -> WebhookClientConfig {
        let ca_bundle = bundle.map(|pem| ByteString(pem.as_bytes().to_vec()));
        match self.clone() {
            Self::Service { namespace, name, port } => {
                let service = ServiceReference {
                    namespace,
                    name,
                    port: Some(port),
                    path: Some(path.to_owned()),
                };
                WebhookClientConfig {
                    ca_bundle,
                    service: Some(service),
                    url: None,
                }
            }
            Self::Url(base) => WebhookClientConfig {
                ca_bundle,
                service: None,
                url: Some(format!("{}{path}", base.trim_end_matches('/'))),
            },
        }
    }
}

/// Webhooks to keep current.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the configuration.
    pub configuration: String,
    /// Names of its webhooks with their paths.
    pub webhooks: Vec<(String, String)>,
    /// Location of the webhooks.
    pub endpoint: Endpoint,
    /// Field manager of the configuration.
    pub field_manager: String,
}

/// Minimum interval between writes: two writers with different bundles must not overload the API server.
const PACE: Duration = Duration::from_secs(1);
/// Delay after a failed write.
const RETRY: Duration = Duration::from_secs(10);

/// A kind of object with webhooks.
pub trait Configuration:
    Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static
{
    /// Names of the webhooks with their client configurations.
    fn clients(&self) -> impl Iterator<Item = (&str, WebhookClientConfig)>;

    /// Object to apply for these client configurations.
    fn with_clients(clients: Vec<(&str, WebhookClientConfig)>) -> Value {
        let webhooks: Vec<_> = clients
            .into_iter()
            .map(|(name, client)| json!({"name": name, "clientConfig": client}))
            .collect();
        json!({ "webhooks": webhooks })
    }
}

impl Configuration for MutatingWebhookConfiguration {
    fn clients(&self) -> impl Iterator<Item = (&str, WebhookClientConfig)> {
        self.webhooks
            .iter()
            .flatten()
            .map(|webhook| (webhook.name.as_str(), webhook.client_config.clone()))
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn clients(&self) -> impl Iterator<Item = (&str, WebhookClientConfig)> {
        self.webhooks
            .iter()
            .flatten()
            .map(|webhook| (webhook.name.as_str(), webhook.client_config.clone()))
    }
}

/// A CRD has at most one webhook, for conversion.
impl Configuration for CustomResourceDefinition {
    fn clients(&self) -> impl Iterator<Item = (&str, WebhookClientConfig)> {
        let conversion = self
            .spec
            .conversion
            .as_ref()
            .filter(|conversion| conversion.strategy == "Webhook");
        // Two Kubernetes types with the same fields.
        conversion.into_iter().filter_map(|conversion| {
            let client = conversion
                .webhook
                .as_ref()
                .and_then(|webhook| webhook.client_config.clone())
                .unwrap_or_default();
            let client = serde_json::to_value(client).and_then(serde_json::from_value).ok()?;
            Some((CONVERSION, client))
        })
    }

    fn with_clients(clients: Vec<(&str, WebhookClientConfig)>) -> Value {
        let client = clients.into_iter().next().map(|(_, client)| client);
        let webhook = json!({ "clientConfig": client, "conversionReviewVersions": ["v1"] });
        json!({ "spec": { "conversion": { "strategy": "Webhook", "webhook": webhook } } })
    }
}

/// Name of a CRD's webhook in a [`Target`]; it has no name itself.
pub const CONVERSION: &str = "conversion";

/// Keeps the latest bundle in a configuration until shutdown, and restores it after other writes. A missing configuration is
/// waited for, never created.
pub async fn keep_bundle<K: Configuration>(
    client: Client,
    target: Target,
    bundle: watch::Receiver<Option<String>>,
    shutdown: CancellationToken,
) {
    let (name, field_manager) = (target.configuration.clone(), target.field_manager.clone());
    let patch = move |live: &K, bundle: &str| patch(live, &target, bundle);
    shutdown
        .run_until_cancelled(keep(Api::<K>::all(client), &name, &field_manager, patch, bundle))
        .await;
}

/// Key of the bundle in a ConfigMap for clients, as in `kube-root-ca.crt`.
const BUNDLE_KEY: &str = "ca.crt";

/// Keeps the latest bundle in a ConfigMap until shutdown, as [`keep_bundle`] does.
pub async fn publish_bundle(
    config_maps: Api<ConfigMap>,
    name: &str,
    field_manager: &str,
    bundle: watch::Receiver<Option<String>>,
    shutdown: CancellationToken,
) {
    let patch = |live: &ConfigMap, bundle: &str| {
        let published = live.data.as_ref().and_then(|data| data.get(BUNDLE_KEY));
        (published.map(String::as_str) != Some(bundle)).then(|| {
            json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": name, "uid": live.metadata.uid },
                "data": { BUNDLE_KEY: bundle },
            })
        })
    };
    shutdown
        .run_until_cancelled(keep(config_maps, name, field_manager, patch, bundle))
        .await;
}

/// Keeps the latest bundle in an object. `patch` is the object to apply, if the live one is not as desired.
async fn keep<K>(
    api: Api<K>,
    name: &str,
    field_manager: &str,
    patch: impl Fn(&K, &str) -> Option<Value>,
    mut bundle: watch::Receiver<Option<String>>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut watched = pin!(single(api.clone(), name));
    let mut live: Option<K> = None;
    loop {
        let wanted = bundle.borrow_and_update().clone();
        let patch = live
            .as_ref()
            .zip(wanted)
            .and_then(|(live, bundle)| patch(live, &bundle));
        let failed = if let Some(patch) = patch {
            // With force: this controller owns the bundle, so a change by another field manager is reverted.
            let parameters = PatchParams::apply(field_manager).force();
            match api.patch(name, &parameters, &Patch::Apply(patch)).await {
                Ok(written) => {
                    tracing::info!(kind = %K::kind(&()), name, "wrote the CA bundle");
                    live = Some(written);
                    tokio::time::sleep(PACE).await;
                    false
                }
                Err(error) => {
                    tracing::warn!(%error, kind = %K::kind(&()), name, "cannot write the CA bundle");
                    true
                }
            }
        } else {
            false
        };
        tokio::select! {
            () = tokio::time::sleep(RETRY), if failed => {}
            changed = bundle.changed() => if changed.is_err() { return },
            event = watched.next() => match event {
                Some(seen) => live = seen,
                None => return,
            },
        }
    }
}

/// Object to apply, if one of the webhooks in the configuration is not as desired.
fn patch<K: Configuration>(live: &K, target: &Target, bundle: &str) -> Option<Value> {
    let wanted = |path: &str| target.endpoint.client_config(path, Some(bundle));
    let found = |name: &str| {
        live.clients()
            .find(|(candidate, _)| *candidate == name)
            .map(|(_, client)| client)
    };
    let known: Vec<_> = target
        .webhooks
        .iter()
        .filter_map(|(name, path)| Some((name, found(name)?, wanted(path))))
        .collect();

    known.iter().any(|(_, found, wanted)| found != wanted).then(|| {
        let clients = known
            .iter()
            .map(|(name, _, client)| (name.as_str(), client.clone()))
            .collect();
        let mut patch = K::with_clients(clients);
        patch["apiVersion"] = json!(K::api_version(&()));
        patch["kind"] = json!(K::kind(&()));
        // With the UID, so that a configuration that was just deleted is not created again.
        patch["metadata"] = json!({"name": target.configuration, "uid": live.meta().uid});
        patch
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        let service = Endpoint::Service {
            namespace: "n".to_owned(),
            name: "s".to_owned(),
            port: 443,
        };
        let webhooks = vec![
            ("a.x.io".to_owned(), "/a".to_owned()),
            ("b.x.io".to_owned(), "/b".to_owned()),
        ];
        Target {
            configuration: "c".to_owned(),
            webhooks,
            endpoint: service,
            field_manager: "m".to_owned(),
        }
    }

    fn live(webhooks: &[(&str, WebhookClientConfig)]) -> ValidatingWebhookConfiguration {
        let webhooks: Vec<_> = webhooks
            .iter()
            .map(|(name, client)| json!({"name": name, "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"]}))
            .collect();
        serde_json::from_value(json!({"metadata": {"name": "c", "uid": "u"}, "webhooks": webhooks})).unwrap()
    }

    #[test]
    fn nothing_is_written_when_all_is_as_it_should_be() {
        let right = |path| target().endpoint.client_config(path, Some("pem"));
        assert_eq!(
            patch(
                &live(&[("a.x.io", right("/a")), ("b.x.io", right("/b"))]),
                &target(),
                "pem"
            ),
            None
        );
        assert_eq!(
            patch(
                &live(&[("b.x.io", right("/b")), ("other", WebhookClientConfig::default())]),
                &target(),
                "pem"
            ),
            None
        );
        assert_eq!(patch(&live(&[]), &target(), "pem"), None);
    }

    #[test]
    fn changed_webhook_is_sent_with_all_of_ours_and_no_others() {
        let right = target().endpoint.client_config("/a", Some("pem"));
        let without = target().endpoint.client_config("/b", None);
        let live = live(&[
            ("a.x.io", right),
            ("other", WebhookClientConfig::default()),
            ("b.x.io", without),
        ]);
        let service = |path: &str| json!({"namespace": "n", "name": "s", "port": 443, "path": path});
        assert_eq!(
            patch(&live, &target(), "pem"),
            Some(json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": "c", "uid": "u"},
                "webhooks": [
                    {"name": "a.x.io", "clientConfig": {"caBundle": "cGVt", "service": service("/a")}},
                    {"name": "b.x.io", "clientConfig": {"caBundle": "cGVt", "service": service("/b")}},
                ],
            }))
        );
    }
}
