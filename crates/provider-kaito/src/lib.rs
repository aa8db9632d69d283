//! Translates a ModelDeployment into KAITO objects, and their status back. Nothing else: watching, applying, deleting
//! and hand-over are the loop's (`runway-provider`).
//!
//! | what is asked for | what is made |
//! |---|---|
//! | vllm | a Workspace with a preset; engine flags in a ConfigMap |
//! | vllm with `spec.image`, llamacpp | a Workspace with a pod template |
//! | `scaling.replicas` other than 1 | the same as an InferenceSet, and a Service in front of its replicas |
//!
//! It owns those objects, all named after the ModelDeployment. It never touches what KAITO makes from them: the
//! StatefulSets, pods and Services of Workspaces, and the Workspaces of an InferenceSet.
//!
//! Choices a user meets:
//! - A Workspace is one replica; `resource.count` counts nodes of one replica and stays 1. Going from 1 replica to
//!   another number, or back, replaces the object: the model is away until the new one is ready. Between other numbers
//!   the InferenceSet is scaled in place.
//! - KAITO does not let the node selector, the instance type, the preset and its token secret change, reads engine flags
//!   when a server starts, and keeps the replicas of an InferenceSet as they were made. A change to any of these
//!   recreates the object, and the Event says which field it was.
//! - One replica answers at the Service NAME, which KAITO makes; several at NAME-replicas, which is ours, for KAITO makes
//!   none in front of an InferenceSet. `status.endpoint` says which.
//! - The token secret needs the key `HF_TOKEN`: KAITO reads no other for a preset.
//! - A preset has no place for environment, tolerations and other GPUs than NVIDIA's: they are refused, with the way out
//!   of `spec.image`. What only has no effect there (served name, memory, pod labels, …) is told as a warning.
//! - `engine.args` become flags, with three exceptions: `hf-file` names the file to load from a repository of GGUF files
//!   (llamacpp; an id of the form ORG/REPOSITORY/FILE does the same), `model` is refused where `model.id` says it, and
//!   `port` or `address` must be KAITO's port 5000.
//! - vLLM in the user's image is told to use all GPUs of a replica, unless `engine.args` has a parallel size.
//!
//! Facts about KAITO come from its repository (`kaito-project/kaito`); each is cited where it is used.

mod compatible;
mod config;
mod container;
mod flags;
mod labels;
mod objects;
mod preset;
mod registration;
mod schema;
mod status;

use runway_api::InferenceProviderConfigSpec;
use runway_provider::{CONFIG_MAP, ChildRef, Installed, Provider, Reading, Refusal, Request, Translation, Upstream};
use serde_json::Value;

pub use config::{ConfigError, KaitoConfig};
pub use schema::{INFERENCE_SET, SERVICE, WORKSPACE};

use compatible::Workload;

/// The KAITO provider.
#[derive(Clone, Debug, Default)]
pub struct Kaito {
    config: KaitoConfig,
}

impl Kaito {
    /// With settings for what cannot be read from a ModelDeployment.
    pub fn new(config: KaitoConfig) -> Self {
        Self { config }
    }
}

impl Provider for Kaito {
    fn name(&self) -> &'static str {
        "kaito"
    }

    fn version(&self) -> String {
        concat!("kaito-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        registration::registration()
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
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
                name: objects::service_name(name),
            },
            ChildRef {
                kind: CONFIG_MAP,
                name: preset::config_map_name(name),
            },
        ]
    }

    fn pod_labels(&self) -> Vec<&'static str> {
        vec![labels::POD_WORKSPACE, labels::POD_INFERENCE_SET]
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let accepted = compatible::accept(request, installed, &self.config)?;
        let inference = match &accepted.workload {
            Workload::Preset { model } => preset::inference(request, &accepted, model),
            Workload::Container { image } => container::inference(request, &accepted, image),
        };
        Ok(objects::translation(request, &accepted, inference, &self.config))
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        match object["kind"].as_str() {
            Some(kind) if kind == INFERENCE_SET.kind => status::of_inference_set(object, request.topology.replicas()),
            _ => status::of_workspace(object),
        }
    }
}
