//! Settings of an installation: how this cluster's KAITO gets its nodes, and images.

use std::collections::BTreeMap;

use runway_provider::settings::{Image, NodeLabels, PullSecrets};
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the KAITO provider. The default is a KAITO that does not provision nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KaitoConfig {
    /// Origin of the nodes. `BYO`: the cluster has them. `Auto`: KAITO provisions them (its feature gate
    /// disableNodeAutoProvisioning is off); it then requires an instance type for every model, and rejects one otherwise.
    /// Defaults to `BYO`.
    pub node_provisioning: NodeProvisioning,
    /// Instance types of the nodes that KAITO provisions, for `nodeProvisioning: Auto`. A change recreates the Workspaces.
    pub instance_types: InstanceTypes,
    /// Labels of the nodes for models, added to the node selector. KAITO rejects a preset if any selected node lacks NVIDIA's
    /// labels, as nodes without GPUs do. A change recreates the Workspaces.
    pub node_labels: NodeLabels,
    /// Use of InferenceSets, which serve any number of replicas. `Auto`: if the CRD serves v1beta1, as since KAITO 0.11, which
    /// runs their controller by default. `Enabled`: also in v1alpha1, for older releases with the feature gate
    /// enableInferenceSetController. `Disabled`: never, for a KAITO with that feature gate off; each model is one Workspace and
    /// one replica, and a change to it recreates the InferenceSets. Defaults to `Auto`.
    pub inference_sets: InferenceSets,
    /// Default images of engines, for ModelDeployments without spec.image.
    pub images: Images,
    /// Names of Secrets with credentials for registries, in the namespace of each model. For models in images; KAITO has its own
    /// settings for presets. None by default.
    pub image_pull_secrets: PullSecrets,
}

/// Origin of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum NodeProvisioning {
    /// KAITO provisions nodes.
    Auto,
    /// The cluster has nodes.
    #[default]
    #[serde(rename = "BYO")]
    Byo,
}

/// Use of InferenceSets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum InferenceSets {
    /// If KAITO runs their controller by default.
    #[default]
    Auto,
    /// If the CRD is installed.
    Enabled,
    /// Never.
    Disabled,
}

/// Instance types by the needs of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InstanceTypes {
    /// Instance type for each kind of GPU, by its resource name, such as `nvidia.com/gpu: Standard_NC24ads_A100_v4`.
    pub gpu: BTreeMap<String, String>,
    /// Instance type for models without GPUs, such as `Standard_D8s_v5`.
    pub cpu: Option<String>,
}

/// Default images of engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Images {
    /// Image of llama.cpp. Without one, spec.image is required: KAITO has none.
    pub llamacpp: Option<Image>,
    /// Image of vLLM, used in place of KAITO's presets. By default, models without spec.image use presets.
    pub vllm: Option<Image>,
}

impl KaitoConfig {
    /// The default image of an engine.
    pub(crate) fn image(&self, engine: &str) -> Option<&Image> {
        match engine {
            "llamacpp" => self.images.llamacpp.as_ref(),
            "vllm" => self.images.vllm.as_ref(),
            _ => None,
        }
    }

    /// The setting that names the instance type for a GPU resource, or for models without GPUs, and its value.
    pub(crate) fn instance_type(&self, gpu: Option<&str>) -> (String, Option<&str>) {
        match gpu {
            Some(resource) => (
                format!("instanceTypes.gpu.{resource}"),
                self.instance_types.gpu.get(resource).map(String::as_str),
            ),
            None => ("instanceTypes.cpu".to_owned(), self.instance_types.cpu.as_deref()),
        }
    }
}
