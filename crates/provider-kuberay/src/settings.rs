//! Settings of an installation: images and nodes.

use runway_provider::settings::{Image, Mirror, NodeLabels, PullSecrets};
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the KubeRay provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeRaySettings {
    /// Default images of engines, for ModelDeployments without spec.image.
    pub images: Images,
    /// Registry that replaces the registry in the name of the default image, such as `registry.example.com/mirror`. Not applied
    /// to `images`.
    pub registry_mirror: Option<Mirror>,
    /// Names of Secrets with credentials for registries, in the namespace of each model. None by default.
    pub image_pull_secrets: PullSecrets,
    /// Labels of the nodes for models, added to the node selector: `gpu` for workers, `cpu` for Ray heads.
    pub node_labels: NodeLabels,
}

/// Default images of engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Images {
    /// Image with Ray Serve LLM and vLLM, of head and workers. The Ray version is read from its tag, such as
    /// `ray-llm:2.56.0-py312-cu130`. Defaults to rayproject/ray-llm.
    pub vllm: Option<Image>,
}
