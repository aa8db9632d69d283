//! Settings of an installation: the release of Dynamo in the cluster, images, nodes.

use runway_provider::settings::{Image, Mirror, NodeLabels, PullSecrets};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::runtime::{RuntimeVersion, default_version};
use crate::schema::Shape;

/// Settings of the Dynamo provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DynamoConfig {
    /// Version of Dynamo's runtime images for ModelDeployments without spec.image, and the assumed version of an image whose tag
    /// contains none. Defaults to 0.9.1 if Dynamo's CRD is stored as v1alpha1, and to 1.3.1 with v1beta1.
    pub runtime_version: Option<RuntimeVersion>,
    /// Runtime images by engine, for ModelDeployments without spec.image. They replace Dynamo's.
    pub images: Images,
    /// Registry that replaces nvcr.io in the names of Dynamo's images, such as `registry.example.com/mirror`. Not applied to
    /// `images`.
    pub registry_mirror: Option<Mirror>,
    /// Names of Secrets with credentials for registries, in the namespace of each model. None by default.
    pub image_pull_secrets: PullSecrets,
    /// Labels of the nodes for models, added to the node selector: `gpu` for workers, `cpu` for frontends.
    pub node_labels: NodeLabels,
}

/// Runtime images by engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Images {
    /// Image with Dynamo and vLLM. Defaults to nvcr.io/nvidia/ai-dynamo/vllm-runtime.
    pub vllm: Option<Image>,
    /// Image with Dynamo and SGLang. Defaults to nvcr.io/nvidia/ai-dynamo/sglang-runtime.
    pub sglang: Option<Image>,
    /// Image with Dynamo and TensorRT-LLM. Defaults to nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime.
    pub trtllm: Option<Image>,
}

impl DynamoConfig {
    pub(crate) fn runtime_version(&self, shape: Shape) -> RuntimeVersion {
        self.runtime_version.unwrap_or_else(|| default_version(shape))
    }

    /// The default image of an engine.
    pub(crate) fn image(&self, engine: &str) -> Option<&Image> {
        match engine {
            "vllm" => self.images.vllm.as_ref(),
            "sglang" => self.images.sglang.as_ref(),
            "trtllm" => self.images.trtllm.as_ref(),
            _ => None,
        }
    }
}
