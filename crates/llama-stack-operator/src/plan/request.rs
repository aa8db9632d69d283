//! A LlamaStackDistribution in narrow types: everything it refers to resolved, so that building objects cannot fail.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use runway_api::llama_stack_distribution::{ApiSection, IngressSettings, PodOverrides, PullPolicy, Server};
use runway_api::{DistributionReason, LlamaStackDistribution};
use runway_operator::json;
use serde_json::{Map, Value};

use super::{bundle, value_from};
use crate::kinds;
use crate::merge::Transport;
use crate::observe::{Observed, USER_CONFIG_KEYS};
use crate::pod::{ConfigTooLarge, CrdConfig};
use crate::validate::{given, validate};

/// Default port, as in the public operator.
const DEFAULT_PORT: i32 = 8321;
/// Default data directory of the server, as in the public operator.
const DEFAULT_MOUNT: &str = "/.llama";
/// Default time in seconds until a server must be healthy. A server that crashes is seen at once; one that loads models, or
/// runs on a busy node, may take many minutes.
const DEFAULT_STARTUP: i32 = 30 * 60;
/// Prefix of the init containers that install providers.
pub(super) const PROVIDER_CONTAINER: &str = "external-provider-";
/// Most bytes of all configurations together: they are part of one Deployment.
const MAX_CONFIGS_BYTES: usize = 512 * 1024;

/// The validated request.
pub(super) struct Request<'a> {
    pub(super) llsd: &'a LlamaStackDistribution,
    pub(super) name: String,
    pub(super) namespace: String,
    /// Name of the distribution; none if an image is given.
    pub(super) distribution: Option<String>,
    pub(super) image: String,
    pub(super) port: i32,
    pub(super) container: String,
    pub(super) mount_path: String,
    pub(super) service_account: String,
    /// Lowest number of replicas.
    pub(super) replicas: i32,
    pub(super) user_config: Option<Mounted>,
    pub(super) transport: Transport,
    pub(super) ca_bundle: Option<bundle::Bundle>,
    pub(super) providers: Vec<Provider>,
    /// The image of `merge-config`; needed only where there are providers.
    pub(super) operator_image: String,
}

/// A ConfigMap that pods mount.
pub(super) struct Mounted {
    pub(super) name: String,
    /// The key with the configuration.
    pub(super) file: &'static str,
    /// Hash of its content.
    pub(super) hash: String,
}

/// An external provider.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Provider {
    pub(super) section: ApiSection,
    pub(super) id: String,
    pub(super) image: String,
    pub(super) pull_policy: PullPolicy,
    pub(super) config: Option<Map<String, Value>>,
    pub(super) container: String,
    /// Input of its init container, once all references are resolved.
    pub(super) crd_config: String,
    /// Environment variables of the server that `config` refers to.
    pub(super) env: Vec<Value>,
}

/// A reason to create or change nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Reason in CamelCase, part of the API.
    pub(super) reason: DistributionReason,
    /// Failure, position and remedy.
    pub(super) message: String,
    /// The provider it is about.
    pub(super) provider: Option<String>,
    /// Whether it resolves without a change by the user.
    pub(super) waits: bool,
}

impl Refusal {
    pub(super) fn new(reason: DistributionReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            provider: None,
            waits: false,
        }
    }

    /// The same, with the provider it is about.
    fn about(self, provider: &Provider) -> Self {
        let (field, id) = (provider.section.field, provider.id.as_str());
        Self {
            message: format!("spec.server.externalProviders.{field} '{id}': {}", self.message),
            provider: Some(id.to_owned()),
            ..self
        }
    }

    fn waiting(reason: DistributionReason, message: impl Into<String>) -> Self {
        Self {
            waits: true,
            ..Self::new(reason, message)
        }
    }
}

impl<'a> Request<'a> {
    pub(super) fn new(seen: &'a Observed) -> Result<Self, Refusal> {
        let llsd = seen.llsd.as_ref();
        let wrong = validate(llsd);
        if !wrong.is_empty() {
            let duplicates = wrong.iter().all(|w| w.starts_with("Duplicate providerId"));
            let reason = if duplicates {
                DistributionReason::DuplicateProviderId
            } else {
                DistributionReason::InvalidSpec
            };
            return Err(Refusal::new(reason, wrong.join("; ")));
        }
        let server = &llsd.spec.server;
        let name = llsd.name_any();
        let (distribution, image) = distribution(seen)?;
        let container = server.container_spec.as_ref();
        let providers = providers(seen)?;
        let overrides = server.pod_overrides.as_ref();
        Ok(Self {
            namespace: llsd.namespace().unwrap_or_default(),
            distribution,
            image,
            port: container
                .and_then(|c| c.port)
                .filter(|p| *p != 0)
                .unwrap_or(DEFAULT_PORT),
            container: given(container.and_then(|c| c.name.as_ref()))
                .unwrap_or("llama-stack")
                .to_owned(),
            mount_path: mount_path(server),
            service_account: given(overrides.and_then(|o| o.service_account_name.as_ref()))
                .map_or_else(|| kinds::service_account(&name), str::to_owned),
            replicas: replicas(llsd),
            user_config: user_config(seen)?,
            transport: seen.transport(),
            ca_bundle: ca_bundle(seen)?,
            operator_image: operator_image(seen, &providers)?,
            providers,
            name,
            llsd,
        })
    }

    pub(super) fn server(&self) -> &'a Server {
        &self.llsd.spec.server
    }

    /// Settings of the pods; all absent if the spec has none.
    pub(super) fn overrides(&self) -> &'a PodOverrides {
        static NONE: LazyLock<PodOverrides> = LazyLock::new(PodOverrides::default);
        self.server().pod_overrides.as_deref().unwrap_or(&NONE)
    }

    /// Settings of the Ingress; all absent if the spec has none.
    pub(super) fn ingress(&self) -> &'a IngressSettings {
        static NONE: LazyLock<IngressSettings> = LazyLock::new(IngressSettings::default);
        let network = self.llsd.spec.network.as_ref();
        network.and_then(|n| n.ingress.as_ref()).unwrap_or(&NONE)
    }

    /// Seconds that a server may take from the start of its container until it is healthy.
    pub(super) fn startup_seconds(&self) -> i32 {
        self.overrides().startup_timeout_seconds.unwrap_or(DEFAULT_STARTUP)
    }

    /// Whether the user's command takes the place of ours.
    pub(super) fn has_own_command(&self) -> bool {
        let container = self.server().container_spec.as_ref();
        container.is_some_and(|c| !c.command.is_empty() || !c.args.is_empty())
    }

    /// URL of the server inside the cluster.
    pub(super) fn service_url(&self, cluster_domain: &str) -> String {
        let (scheme, service) = (self.transport.scheme(), kinds::service(&self.name));
        format!(
            "{scheme}://{service}.{}.svc.{cluster_domain}:{}",
            self.namespace, self.port
        )
    }
}

/// The external providers of a spec, whether or not they can be installed.
pub(super) fn named_providers(llsd: &LlamaStackDistribution) -> Vec<Provider> {
    llsd.external_providers()
        .into_iter()
        .map(|(section, provider)| Provider {
            section,
            id: provider.provider_id.clone(),
            image: provider.image.clone(),
            pull_policy: provider.image_pull_policy,
            config: provider.config.clone(),
            container: format!("{PROVIDER_CONTAINER}{}", provider.provider_id),
            crd_config: String::new(),
            env: Vec::new(),
        })
        .collect()
}

fn distribution(seen: &Observed) -> Result<(Option<String>, String), Refusal> {
    let asked = &seen.llsd.spec.server.distribution;
    if let Some(image) = given(asked.image.as_ref()) {
        return Ok((None, image.to_owned()));
    }
    let name = given(asked.name.as_ref()).unwrap_or_default();
    let known = &seen.settings.distributions;
    known.get(name).map(|image| (Some(name.to_owned()), image.clone())).ok_or_else(|| {
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        Refusal::new(
            DistributionReason::UnknownDistribution,
            format!(
                "spec.server.distribution.name '{name}' is not known: use one of {}, or give spec.server.distribution.image",
                names.join(", ")
            ),
        )
    })
}

fn mount_path(server: &Server) -> String {
    let storage = server.storage.as_ref();
    given(storage.and_then(|s| s.mount_path.as_ref()))
        .unwrap_or(DEFAULT_MOUNT)
        .to_owned()
}

/// Lowest number of replicas, also with autoscaling.
fn replicas(llsd: &LlamaStackDistribution) -> i32 {
    let asked = llsd.spec.replicas.unwrap_or(1);
    match &llsd.spec.server.autoscaling {
        Some(autoscaling) => asked
            .max(autoscaling.min_replicas.unwrap_or(1))
            .clamp(1, autoscaling.max_replicas.max(1)),
        None => asked,
    }
}

fn user_config(seen: &Observed) -> Result<Option<Mounted>, Refusal> {
    let Some(asked) = &seen.llsd.spec.server.user_config else {
        return Ok(None);
    };
    own_namespace(seen, "userConfig", asked.config_map_namespace.as_ref())?;
    let field = "spec.server.userConfig.configMapName";
    let config_map = config_map(seen, field, &asked.config_map_name)?;
    let keys = keys(config_map);
    let Some(file) = USER_CONFIG_KEYS.into_iter().find(|f| keys.iter().any(|k| k == f)) else {
        return Err(Refusal::waiting(
            DistributionReason::UserConfigInvalid,
            format!(
                "{field}: ConfigMap '{}' has no key config.yaml or run.yaml (it has: {})",
                asked.config_map_name,
                listed(&keys)
            ),
        ));
    };
    if seen.transport().is_tls() && seen.llsd.spec.server.workers.is_some() {
        return Err(Refusal::waiting(
            DistributionReason::UserConfigInvalid,
            format!(
                "{field}: ConfigMap '{}' turns TLS on, which spec.server.workers does not support: leave workers out, and set server.workers in {file}",
                asked.config_map_name
            ),
        ));
    }
    Ok(Some(Mounted {
        name: asked.config_map_name.clone(),
        file,
        hash: content_hash(config_map),
    }))
}

fn ca_bundle(seen: &Observed) -> Result<Option<bundle::Bundle>, Refusal> {
    let asked = seen
        .llsd
        .spec
        .server
        .tls_config
        .as_ref()
        .and_then(|t| t.ca_bundle.as_ref());
    let Some(asked) = asked else { return Ok(None) };
    own_namespace(seen, "tlsConfig.caBundle", asked.config_map_namespace.as_ref())?;
    let config_map = config_map(
        seen,
        "spec.server.tlsConfig.caBundle.configMapName",
        &asked.config_map_name,
    )?;
    bundle::collect(config_map, &asked.config_map_keys)
        .map(Some)
        .map_err(|error| {
            Refusal::waiting(
                DistributionReason::CaBundleInvalid,
                format!(
                    "spec.server.tlsConfig.caBundle: ConfigMap '{}': {error}",
                    asked.config_map_name
                ),
            )
        })
}

fn own_namespace(seen: &Observed, field: &str, namespace: Option<&String>) -> Result<(), Refusal> {
    let own = seen.llsd.namespace().unwrap_or_default();
    match given(namespace) {
        Some(other) if other != own => Err(Refusal::new(
            DistributionReason::ForeignNamespace,
            format!(
                "spec.server.{field}.configMapNamespace is '{other}', but pods see only ConfigMaps of their own namespace '{own}': copy the ConfigMap there and leave the field out"
            ),
        )),
        _ => Ok(()),
    }
}

fn config_map<'a>(seen: &'a Observed, field: &str, name: &str) -> Result<&'a ConfigMap, Refusal> {
    seen.config_maps.get(name).map(AsRef::as_ref).ok_or_else(|| {
        Refusal::waiting(
            DistributionReason::ConfigMapNotFound,
            format!(
                "{field}: ConfigMap '{name}' does not exist in namespace '{}'. Create it; it is noticed at once",
                seen.llsd.namespace().unwrap_or_default()
            ),
        )
    })
}

fn keys(config_map: &ConfigMap) -> Vec<String> {
    let text = config_map.data.iter().flatten().map(|(key, _)| key.clone());
    let binary = config_map.binary_data.iter().flatten().map(|(key, _)| key.clone());
    text.chain(binary).collect()
}

fn listed(keys: &[String]) -> String {
    match keys {
        [] => "nothing".to_owned(),
        keys => keys.join(", "),
    }
}

/// Hash of the data only, so that a new label does not restart pods.
fn content_hash(config_map: &ConfigMap) -> String {
    json::hash(&(&config_map.data, &config_map.binary_data))
}

fn operator_image(seen: &Observed, providers: &[Provider]) -> Result<String, Refusal> {
    match &seen.settings.operator_image {
        Some(image) => Ok(image.clone()),
        None if providers.is_empty() => Ok(String::new()),
        None => Err(Refusal::new(
            DistributionReason::OperatorImageUnknown,
            "External providers need the operator's own image, and it is not known: run the operator with POD_NAME, POD_NAMESPACE and CONTAINER_NAME in its environment, or with --operator-image",
        )),
    }
}

fn providers(seen: &Observed) -> Result<Vec<Provider>, Refusal> {
    let mut providers = named_providers(&seen.llsd);
    for (order, provider) in (0..).zip(&mut providers) {
        if let Some(mut config) = provider.config.take() {
            resolve_model(seen, &mut config).map_err(|refusal| refusal.about(provider))?;
            provider.env = value_from::replace(&provider.id, &mut config)
                .map_err(|why| Refusal::new(DistributionReason::InvalidValueFrom, why).about(provider))?;
            provider.config = Some(config);
        }
        provider.crd_config = crd_config(provider, order)
            .map_err(|error| Refusal::new(DistributionReason::ConfigTooLarge, error.to_string()).about(provider))?;
    }
    let all: usize = providers.iter().map(|p| p.crd_config.len()).sum();
    if all > MAX_CONFIGS_BYTES {
        return Err(Refusal::new(
            DistributionReason::ConfigTooLarge,
            format!(
                "spec.server.externalProviders: the configurations come to {all} bytes in base64, and {MAX_CONFIGS_BYTES} fit into a Deployment: mount large data with spec.server.podOverrides.volumes instead"
            ),
        ));
    }
    Ok(providers)
}

/// `modelDeploymentRef` becomes the URL of that ModelDeployment.
fn resolve_model(seen: &Observed, config: &mut Map<String, Value>) -> Result<(), Refusal> {
    let Some(reference) = config.remove("modelDeploymentRef") else {
        return Ok(());
    };
    let text = |key: &str| reference.get(key).and_then(Value::as_str);
    let Some(name) = text("name").filter(|n| !n.is_empty()) else {
        return Err(Refusal::new(
            DistributionReason::InvalidModelDeploymentRef,
            "config.modelDeploymentRef needs a name, as in modelDeploymentRef: {name: gemma}",
        ));
    };
    let (key, path) = (text("key").unwrap_or("url"), text("path").unwrap_or("/v1"));
    if config.contains_key(key) {
        return Err(Refusal::new(
            DistributionReason::InvalidModelDeploymentRef,
            format!("config has both {key} and modelDeploymentRef, which would set it: leave one out"),
        ));
    }
    let namespace = seen.llsd.namespace().unwrap_or_default();
    let Some(endpoint) = seen.model_deployments.get(name) else {
        return Err(Refusal::waiting(
            DistributionReason::ModelDeploymentNotFound,
            format!(
                "config.modelDeploymentRef: ModelDeployment '{name}' does not exist in namespace '{namespace}'. Create it; it is noticed at once"
            ),
        ));
    };
    let Some((service, port)) = endpoint.as_ref().and_then(|e| Some((e.service.as_ref()?, e.port?))) else {
        return Err(Refusal::waiting(
            DistributionReason::ModelDeploymentNotReady,
            format!("config.modelDeploymentRef: ModelDeployment '{name}' has no endpoint yet"),
        ));
    };
    let url = format!(
        "http://{service}.{namespace}.svc.{}:{port}{path}",
        seen.settings.cluster_domain
    );
    config.insert(key.to_owned(), url.into());
    Ok(())
}

/// Encodes an external provider for its init container.
fn crd_config(provider: &Provider, order: u64) -> Result<String, ConfigTooLarge> {
    CrdConfig {
        provider_id: provider.id.clone(),
        api: provider.section.api.to_owned(),
        image: provider.image.clone(),
        init_container_name: provider.container.clone(),
        order,
        config: provider.config.clone().map(Value::Object),
    }
    .encoded()
}
