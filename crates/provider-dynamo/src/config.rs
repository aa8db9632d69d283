//! Settings of an installation: the release of Dynamo in the cluster, images, nodes.

use runway_provider::Installed;
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
    /// contains none. Defaults to the release of Dynamo's operator in the cluster, so that an upgrade of the operator rolls out the
    /// new images. If the operator's Deployment shows no release, it is 1.3.1, or 0.9.1 if Dynamo's CRD has only v1alpha1.
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
    /// Version of the runtime: the setting, or the release of the operator, or the default.
    pub(crate) fn runtime_version(&self, shape: Shape, installed: &Installed) -> RuntimeVersion {
        let of_operator = || installed.release()?.to_string().parse().ok();
        self.runtime_version
            .or_else(of_operator)
            .unwrap_or_else(|| default_version(shape))
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
