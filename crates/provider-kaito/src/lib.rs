//! Translates a ModelDeployment into KAITO objects, and their status back. The loop does the rest (`runway-provider`).
//!
//! | request | objects |
//! |---|---|
//! | vllm | an InferenceSet with a preset, and its Service; engine flags in a ConfigMap |
//! | vllm with `spec.image`, llamacpp | an InferenceSet with a pod template, and its Service |
//! | the same where KAITO has no InferenceSets | a Workspace; `scaling.replicas` must be 1 |
//!
//! The provider owns these objects, all named after the ModelDeployment. It never changes what KAITO creates from them: the
//! Workspaces of an InferenceSet, and the StatefulSets, pods and Services of Workspaces.
//!
//! Behavior:
//! - A Workspace is one replica; `resource.count` is the number of nodes of one replica and stays 1. An InferenceSet creates a
//!   Workspace for each replica, so a change of `scaling.replicas` adds or removes Workspaces and leaves the others alone.
//! - The endpoint is always the Service NAME. For an InferenceSet the provider creates it, since KAITO only creates a Service for
//!   each of its Workspaces; for a Workspace KAITO does.
//! - InferenceSets are used if they are installed in v1beta1, or if the settings say so. A Workspace of an earlier release of the
//!   provider stays until a change replaces it anyway. `ScalingLimited` shows that it cannot be scaled.
//! - KAITO does not allow to change the node selector, the instance type, the preset and its token secret, reads engine flags
//!   only when a server starts, and does not update the replicas of an InferenceSet. A change of any of these recreates the
//!   object, and the Event names the field.
//! - The token secret needs the key `HF_TOKEN`: KAITO reads no other for a preset.
//! - A preset does not support environment, tolerations and GPUs of other vendors than NVIDIA: they are refused, with
//!   `spec.image` as the remedy. Fields that only have no effect (served name, memory, pod labels, …) cause a warning.
//! - `engine.args` become flags, with three exceptions: `hf-file` is the file to load from a repository of GGUF files (llamacpp;
//!   an ID of the form ORG/REPOSITORY/FILE does the same), `model` is refused next to `model.id`, and `port` or `address` must
//!   be KAITO's port 5000.
//! - llamacpp: the arguments are those of the server in the image, LocalAI or llama.cpp's `llama-server`. The name of the image
//!   shows which it is, or the override `imageFamily` says so.
//! - A pod template meets Pod Security `restricted` if `podTemplate.spec.securityContext.runAsUser` is set. A preset has none.
//! - vLLM in the user's image uses all GPUs of a replica, unless `engine.args` has a parallel size.
//!
//! Facts about KAITO are from its repository (`kaito-project/kaito`); each is cited where it is used.

mod compatible;
mod config;
mod container;
mod engine;
mod family;
mod flags;
mod labels;
mod objects;
mod preset;
mod registration;
mod schema;
mod status;

use runway_api::InferenceProviderConfigSpec;
use runway_provider::{
    CONFIG_MAP, ChildRef, Controller, Installed, Provider, Reading, Refusal, ReplicaObjects, Request, Settings,
    Translation, Upstream, settings,
};
use serde_json::Value;

pub use config::{Images, InferenceSets, InstanceTypes, KaitoConfig, NodeProvisioning};
pub use engine::PORT;
pub use schema::{INFERENCE_SET, SERVICE, WORKSPACE};

use compatible::Workload;

/// The KAITO provider.
#[derive(Clone, Debug, Default)]
pub struct Kaito {
    config: KaitoConfig,
}

impl Kaito {
    /// A provider with settings of an installation.
    pub fn new(config: KaitoConfig) -> Self {
        Self { config }
    }
}

impl Provider for Kaito {
    fn name(&self) -> &'static str {
        "kaito"
    }

    fn title(&self) -> &'static str {
        "KAITO"
    }

    fn version(&self) -> String {
        concat!("kaito-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        registration::registration(&self.config)
    }

    fn settings(&self) -> Option<Settings> {
        Some(Settings::of(|config: KaitoConfig| Self { config }))
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
    }

    /// A StatefulSet that has the Workspace's name already is left as it is (KAITO `pkg/workspace/inference/template_inference.go`,
    /// CreateTemplateInference), and its ready replicas make the Workspace ready, with the pods of the old one.
    fn recreates_after_dependents(&self) -> bool {
        true
    }

    /// With the documented name of the release (`charts/kaito/workspace/templates/_helpers.tpl`).
    fn operator_deployments(&self) -> &'static [&'static str] {
        &["kaito-workspace"]
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        vec![
            ChildRef {
                kind: WORKSPACE,
                name: name.to_owned(),
            },
            ChildRef {
                kind: INFERENCE_SET,
                name: name.to_owned(),
            },
            ChildRef {
                kind: SERVICE,
                name: name.to_owned(),
            },
            ChildRef {
                kind: SERVICE,
                name: objects::earlier_service(name),
            },
            ChildRef {
                kind: CONFIG_MAP,
                name: preset::config_map_name(name),
            },
        ]
    }

    fn operator_labels(&self) -> &'static [&'static str] {
        &["workspace", "kaito-workspace", "ai-toolchain-operator"]
    }

    fn pod_labels(&self) -> Vec<&'static str> {
        vec![labels::POD_WORKSPACE, labels::POD_INFERENCE_SET]
    }

    fn component_labels(&self) -> &'static [&'static str] {
        &[labels::POD_INDEX]
    }

    fn compared_containers(&self) -> &'static [&'static str] {
        &[objects::CONTAINER]
    }

    /// KAITO creates a Workspace's StatefulSet anew, and an InferenceSet's Workspace, but changes neither of them (KAITO
    /// `pkg/workspace/inference/template_inference.go`, CreateTemplateInference).
    fn replaceable(&self, controller: &Controller) -> Controller {
        Controller {
            kind: WORKSPACE.kind.into(),
            ..controller.clone()
        }
    }

    /// The status of an InferenceSet only counts the Workspaces that are ready (KAITO
    /// `pkg/inferenceset/inferenceset_controller.go`, addOrUpdateInferenceSet).
    fn replica_objects(&self) -> Option<ReplicaObjects> {
        Some(ReplicaObjects {
            kind: WORKSPACE,
            label: labels::POD_INFERENCE_SET,
        })
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let request = &*settings::with_image(request, self.config.image(&request.engine));
        let accepted = compatible::accept(request, installed, &self.config)?;
        let inference = match &accepted.workload {
            Workload::Preset { model } => preset::inference(request, &accepted, model),
            Workload::Container { image } => container::inference(request, &accepted, image, &self.config),
        };
        Ok(objects::translation(request, &accepted, inference, &self.config))
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        match object["kind"].as_str() {
            Some(kind) if kind == INFERENCE_SET.kind => {
                status::of_inference_set(object, request.topology.replicas(), &[])
            }
            _ => status::of_workspace(object),
        }
    }

    fn read_replicas(&self, request: &Request, object: &Value, replicas: &[Value]) -> Reading {
        match object["kind"].as_str() {
            Some(kind) if kind == INFERENCE_SET.kind => {
                status::of_inference_set(object, request.topology.replicas(), replicas)
            }
            _ => status::of_workspace(object),
        }
    }
}
