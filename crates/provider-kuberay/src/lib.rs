//! Translates a ModelDeployment into a KubeRay RayService, and its status back. Nothing else: watching, applying,
//! deleting and hand-over are the loop's (`runway-provider`).
//!
//! | what is asked for | what is made |
//! |---|---|
//! | aggregated | the application `ray.serve.llm:build_openai_app` and one group of workers |
//! | disaggregated | the application `ray.serve.llm:build_pd_openai_app`, NIXL between its parts, and a group of workers for each |
//! | `scaling.replicas: 0` | the same with `spec.suspend`: no pod runs |
//!
//! It owns the RayService, named after the ModelDeployment. It never touches what KubeRay makes from it: RayClusters,
//! pods and Services.
//!
//! Choices a user meets:
//! - KubeRay is never chosen by itself: a ModelDeployment names it in `provider.name`.
//! - Scaling happens in the Serve config alone. KubeRay does not carry a changed number of workers to a cluster that
//!   runs (rayservice_controller.go, shouldUpdateCluster), so Ray's autoscaler is on: it makes the worker pods that the
//!   replicas ask for, and takes those away that have been idle for a minute. The model is not loaded anew, for the
//!   number of replicas stands beside the arguments of the application, not in them.
//! - A change of `engine`, `model.servedName` or a parallel size loads the model anew in the cluster that is there. A
//!   change of what is in the pods (image, env, token, resources, pod metadata, node selector, tolerations, overrides)
//!   starts a second cluster, and KubeRay switches to it when it serves: meanwhile twice the GPUs are needed.
//! - `scaling.replicas: 0` needs KubeRay 1.7, whose RayService can be suspended; a Serve deployment cannot have a fixed
//!   number of no replicas. With an older KubeRay it is refused. Prefill and decode stop together or not at all.
//! - A worker pod has the GPUs of one replica. A parallel size in `engine.args` may span several pods, if it is a
//!   multiple.
//! - The head takes no replica (`num-cpus: "0"`), and no GPU. It gets environment, token, pod metadata, node selector
//!   and tolerations as the workers do: the application is built in a task that Ray may run there, and all pods of a
//!   deployment stay on the nodes that the user chose.
//! - `rayVersion` is read from the image's tag, where that tells it; otherwise it is left out, for a wrong one is
//!   worse.
//! - The default image runs on NVIDIA's GPUs; others need `spec.image`.
//! - `engine.args` are given to vLLM with the types it wants. What cannot be such a value is refused. What the project
//!   does not know is given as the number, truth value, list or object that it looks like, otherwise as text.
//! - With `model.source: custom` the model lies in `spec.image`, at the path in `model.id` or `engine.args.model`.
//! - A change that KubeRay cannot bring to work while the earlier version serves is told, and is no failure of the
//!   deployment.
//!
//! Facts about KubeRay and Ray come from their repositories (`ray-project/kuberay`, `ray-project/ray`); each is cited
//! where it is used.

mod arguments;
mod cluster;
mod compatible;
mod head;
mod image;
mod labels;
mod registration;
mod schema;
mod serve;
mod status;
mod yaml;

use std::collections::BTreeMap;

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::Endpoint;
use runway_provider::fields::fields;
use runway_provider::{ChildRef, Installed, Object, Provider, Reading, Refusal, Request, Translation, Upstream};
use serde_json::Value;

pub use schema::RAY_SERVICE;

use compatible::Accepted;

/// The KubeRay provider.
#[derive(Clone, Copy, Debug, Default)]
pub struct KubeRay;

impl Provider for KubeRay {
    fn name(&self) -> &'static str {
        "kuberay"
    }

    fn version(&self) -> String {
        concat!("kuberay-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        registration::registration()
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        vec![ChildRef {
            kind: RAY_SERVICE,
            name: name.to_owned(),
        }]
    }

    fn pod_labels(&self) -> Vec<&'static str> {
        vec![runway_api::labels::DEPLOYMENT, labels::WORKER]
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let accepted = compatible::accept(request, installed)?;
        let (pod_labels, overruled) = labels::of_pods(request);
        let spec = spec(request, &accepted, &pod_labels);
        let model_name = accepted.model.name.to_owned();
        Ok(Translation {
            objects: vec![Object {
                kind: RAY_SERVICE,
                version: accepted.version,
                name: request.name.clone(),
                annotations: BTreeMap::new(),
                body: fields().with("spec", spec).into(),
                immutable: BTreeMap::new(),
                not_rolled_out: BTreeMap::new(),
            }],
            ignored: accepted.ignored.into_iter().chain(overruled).collect(),
            // KubeRay makes the Service when the model serves (utils/util.go, GenerateServeServiceName).
            endpoint: Some(Endpoint {
                service: Some(format!("{}-serve-svc", request.name)),
                port: Some(8000),
            }),
            model_name: Some(model_name),
            replicas: request.topology.replicas(),
            pod_label: Some(labels::WORKER),
        })
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        status::of(object, request.topology.replicas(), &wanted(request))
    }
}

fn spec(request: &Request, accepted: &Accepted, pod_labels: &BTreeMap<String, String>) -> Value {
    fields()
        .with("serveConfigV2", yaml::text(&serve::config(request, accepted)))
        .with("rayClusterConfig", cluster::config(request, accepted, pod_labels))
        .with("suspend", accepted.suspended.then_some(true))
        .into()
}

/// The spec that a RayService should have; null if there is none.
fn wanted(request: &Request) -> Value {
    let newest = Installed::newest(&schema::upstreams());
    compatible::accept(request, &newest).map_or(Value::Null, |accepted| {
        spec(request, &accepted, &labels::of_pods(request).0)
    })
}
