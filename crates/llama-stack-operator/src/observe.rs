//! What a plan is made from: read from watch caches, never by a live request to the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::core::DynamicObject;
use runway_api::llama_stack_distribution::ProviderInfo;
use runway_api::{LlamaStackDistribution, ModelDeployment};

use crate::kinds::Kind;
use crate::settings::Settings;

/// Everything known about one LlamaStackDistribution at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The LlamaStackDistribution.
    pub llsd: Arc<LlamaStackDistribution>,
    /// What the operator was told.
    pub settings: Arc<Settings>,
    /// Those of its possible children that exist, ours or not.
    pub children: Vec<Child>,
    /// Its pods.
    pub pods: Vec<Arc<Pod>>,
    /// Those of the ConfigMaps it names that exist, by name.
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// Those of the ModelDeployments it names that exist, by name.
    pub model_deployments: BTreeMap<String, Arc<ModelDeployment>>,
    /// What the running server said, since its pods became ready; `None` if it was not asked or has not answered yet.
    pub server: Option<Answer>,
    /// The time.
    pub now: Timestamp,
}

/// An object that exists.
#[derive(Clone, Debug)]
pub struct Child {
    /// Its kind.
    pub kind: Kind,
    /// The object.
    pub object: Arc<DynamicObject>,
}

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

impl Observed {
    /// The child of this kind and name, if it exists.
    pub fn child(&self, kind: Kind, name: &str) -> Option<&DynamicObject> {
        self.children
            .iter()
            .find(|c| c.kind == kind && c.object.metadata.name.as_deref() == Some(name))
            .map(|c| c.object.as_ref())
    }
}

/// The names of the ConfigMaps that a LlamaStackDistribution refers to, in its own namespace.
pub fn config_maps(llsd: &LlamaStackDistribution) -> BTreeSet<String> {
    let server = &llsd.spec.server;
    let user_config = server.user_config.iter().map(|u| &u.config_map_name);
    let ca_bundle = server.tls_config.iter().flat_map(|t| &t.ca_bundle);
    user_config
        .chain(ca_bundle.map(|b| &b.config_map_name))
        .filter(|name| !name.is_empty())
        .cloned()
        .collect()
}

/// The names of the ModelDeployments that its providers refer to.
pub fn model_deployments(llsd: &LlamaStackDistribution) -> BTreeSet<String> {
    llsd.external_providers()
        .into_iter()
        .filter_map(|(_, provider)| {
            provider
                .config
                .as_ref()?
                .get("modelDeploymentRef")?
                .get("name")?
                .as_str()
        })
        .map(str::to_owned)
        .collect()
}
