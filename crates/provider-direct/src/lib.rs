//! Translates a ModelDeployment into a Deployment and a Service, without an upstream operator, and their status back. The loop
//! does the rest (`runway-provider`).
//!
//! Servers, default images and ports are those of `runway_provider::engine`, whose modules cite the engines' repositories.
//!
//! Both objects have the name of the ModelDeployment. The endpoint is port 80 of the Service with that name.
//!
//! Behavior:
//! - The provider is selected last: any other eligible provider that is ready wins. In a cluster without upstream operators it
//!   serves every aggregated model. Disaggregated serving is refused.
//! - Ready means that the engine's `/health` succeeds, which it does when the model is loaded. A server may take an hour to
//!   start. Later it is restarted only if it has not responded for minutes.
//! - Without GPUs a rollout surges: a new pod starts before an old one terminates. With GPUs pods are replaced in place, since
//!   spare GPUs are rare; a single replica is unavailable until the new one has started. The override `rollout` changes this.
//! - Running means that all pods of the latest spec serve, and no old pod is left.
//! - `resources.memory` is request and limit: a model that needs more is killed and reported as OOMKilled. `resources.cpu` is a
//!   request only: a model may use idle CPUs.
//! - `engine.args` become flags. The engine rejects unknown flags itself, and its last log lines are reported in the status.
//!   `host` defaults to 0.0.0.0 (set `"::"` in clusters with IPv6 only), and Service and probes follow `port`.
//! - With source huggingface, an ID ORG/REPOSITORY/FILE (llamacpp) contains the file name, like `engine.args.hf-file`. Without
//!   one, llama-server loads Q4_K_M. Downloads are kept in a volume of the pod, so that a crash does not repeat them.
//! - With source custom, `engine.args.model` is the path of the model in the image, and the engine's own command is run. Without
//!   it the image's entrypoint runs with the flags. For llamacpp the entrypoint always runs: it must be `llama-server`, or pass
//!   on its arguments.
//! - `/v1/models` lists the served name: the given one, the last part of the model's ID, or the name of the ModelDeployment.
//!   trtllm-serve 1.2 does not support a name: it lists the ID, or the name of the model's directory. Later releases support
//!   `engine.args.served_model_name`.
//! - All GPUs of a pod serve one model, unless `engine.args` has a parallel size. The user must add tolerations for taints of
//!   GPU nodes.
//! - The token Secret needs the key `HF_TOKEN`.
//! - Pods are admitted under Pod Security `baseline`, and under `restricted` if `podTemplate.spec.securityContext.runAsUser` is a
//!   user other than root: the engines' images run as root by default.
//! - A terminating pod has 120 seconds for running requests. There is no delay before: the `sleep` handler requires Kubernetes
//!   1.30, later than the oldest supported release.

mod compatible;
mod flags;
mod objects;
mod overrides;
mod pod;
mod registration;
mod schema;
mod settings;
mod status;

use runway_api::InferenceProviderConfigSpec;
use runway_api::labels::PROVIDER;
use runway_provider::settings::with_image;
use runway_provider::{ChildRef, Installed, Provider, Reading, Refusal, Request, Settings, Translation, Upstream};
use serde_json::Value;

pub use pod::PORT_NAME;
pub use schema::{DEPLOYMENT, SERVICE};
pub use settings::{DirectSettings, Images};

/// Name of the provider.
const NAME: &str = "direct";

/// The direct provider.
#[derive(Clone, Debug, Default)]
pub struct Direct {
    settings: DirectSettings,
}

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

    fn settings(&self) -> Option<Settings> {
        Some(Settings::of(|settings: DirectSettings| Self { settings }))
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        schema::children(name)
    }

    fn component_labels(&self) -> &'static [&'static str] {
        &[PROVIDER]
    }

    fn translate(&self, request: &Request, _: &Installed) -> Result<Translation, Refusal> {
        let request = &*with_image(request, self.settings.image(request));
        let accepted = compatible::accept(request, &self.settings)?;
        let flags = flags::of(request, &accepted);
        Ok(objects::translation(request, &accepted, &self.settings, flags))
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        // No object is created for a request that is refused.
        let wanted = self.translate(request, &Installed::default()).ok();
        let spec = wanted.and_then(|wanted| Some(wanted.objects.last()?.body["spec"].clone()));
        status::read(object, request.topology.replicas(), &spec.unwrap_or_default())
    }
}
