//! Translates a ModelDeployment into a Deployment and a Service, without an upstream operator, and their status back. Nothing
//! else: watching, applying, deleting and hand-over are the loop's (`runway-provider`).
//!
//! | engine | server | default image | port |
//! |---|---|---|---|
//! | llamacpp | `llama-server` | `ghcr.io/ggml-org/llama.cpp`, for CPUs or NVIDIA GPUs | 8080 |
//! | vllm | `vllm serve` | `vllm/vllm-openai` | 8000 |
//! | sglang | `sglang.launch_server` | `lmsysorg/sglang` | 30000 |
//! | trtllm | `trtllm-serve` | `nvcr.io/nvidia/tensorrt-llm/release` | 8000 |
//!
//! Both objects have the ModelDeployment's name. The model answers at the Service NAME, port 80.
//!
//! Choices a user meets:
//! - It is chosen last: any other provider that fits and is ready wins. In a cluster without operators it serves everything
//!   that is aggregated. Disaggregated serving is refused.
//! - Ready means that the engine's `/health` answers, which it does when the model is loaded. A server may take an hour to
//!   start. Later it is restarted only when it has not answered for minutes.
//! - Without GPUs a change surges: a new pod starts before an old one ends. With GPUs pods are replaced in place, since GPUs
//!   to spare are rare; a single replica is then away until the new one has started. The override `rollout` says otherwise.
//! - Running means that the pods of the latest spec serve, all of them, and no old pod is left.
//! - `resources.memory` is request and limit: a model that needs more is ended and told as OOMKilled. `resources.cpu` is a
//!   request only: a model uses what is idle.
//! - `engine.args` become flags. What the engine does not know it refuses itself, and its last words show in the status.
//!   `host` is 0.0.0.0 unless given (`"::"` where the cluster has IPv6 only), and Service and probes follow `port`.
//! - With source huggingface, an id ORG/REPOSITORY/FILE (llamacpp) names the file too, as `engine.args.hf-file` does; without
//!   one llama-server takes Q4_K_M. Downloads are kept in a volume of the pod, so that a crash does not repeat them.
//! - With source custom, `engine.args.model` names the model's path in the image, and the engine's own command is run; without
//!   it the image's entrypoint runs, with the flags. For llamacpp it always does: it must be `llama-server`, or pass on its
//!   arguments.
//! - `/v1/models` lists the served name: the one given, the last part of the model's id, or the ModelDeployment's name.
//!   trtllm-serve 1.2 takes no name: it lists the id, or the name of the model's folder. Later releases take
//!   `engine.args.served_model_name`.
//! - All GPUs of a pod serve one model, unless `engine.args` has a parallel size. Taints of GPU nodes are the user's to
//!   tolerate.
//! - The token Secret needs the key `HF_TOKEN`.
//! - Pods are admitted under Pod Security `baseline`, not under `restricted`: the engines' images run as root.
//! - A pod that ends has 120 seconds for running requests. There is no pause before: the `sleep` handler came with Kubernetes
//!   1.30, later than the oldest release supported here.
//!
//! Facts about engines come from their repositories; each is cited in its module of `engine`.

mod compatible;
mod engine;
mod flags;
mod objects;
mod overrides;
mod pod;
mod registration;
mod schema;
mod status;

use runway_api::InferenceProviderConfigSpec;
use runway_provider::{ChildRef, Installed, Provider, Reading, Refusal, Request, Translation, Upstream};
use serde_json::Value;

pub use schema::{DEPLOYMENT, SERVICE};

/// The provider's name.
const NAME: &str = "direct";

/// The direct provider.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Provider for Direct {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> String {
        concat!("direct-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        registration::registration()
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        schema::children(name)
    }

    fn translate(&self, request: &Request, _: &Installed) -> Result<Translation, Refusal> {
        let accepted = compatible::accept(request)?;
        let flags = flags::of(request, &accepted);
        Ok(objects::translation(request, &accepted, flags))
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        // Nothing is made for a request that is refused.
        let wanted = self.translate(request, &Installed::default()).ok();
        let spec = wanted.and_then(|wanted| Some(wanted.objects.last()?.body["spec"].clone()));
        status::read(object, request.topology.replicas(), &spec.unwrap_or_default())
    }
}
