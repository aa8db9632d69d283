//! Translates a ModelDeployment into a KubeRay RayService, and its status back. The loop does the rest (`runway-provider`).
//!
//! | request | objects |
//! |---|---|
//! | aggregated | the application `ray.serve.llm:build_openai_app` and one group of workers |
//! | disaggregated | the application `ray.serve.llm:build_pd_openai_app`, with NIXL between its parts, and one group of workers for each |
//! | `scaling.replicas: 0` | the same with `spec.suspend`: no pod runs |
//!
//! The provider owns the RayService, named after the ModelDeployment. It never changes what KubeRay creates from it:
//! RayClusters, pods and Services.
//!
//! Behavior:
//! - KubeRay is never selected automatically: a ModelDeployment must name it in `provider.name`.
//! - Scaling changes the Serve config only. KubeRay does not update the number of workers of a running cluster
//!   (rayservice_controller.go, shouldUpdateCluster), so that Ray's autoscaler is enabled: it creates the worker pods for the
//!   replicas, and removes those that have been idle for a minute. The model is not reloaded, since the number of replicas is
//!   not one of the application's arguments.
//! - A change of `engine`, `model.servedName` or a parallel size reloads the model in the existing cluster. A change of the pods
//!   (image, env, token, resources, pod metadata, node selector, tolerations, overrides) starts a second cluster, and KubeRay
//!   switches to it when it serves: meanwhile twice the GPUs are required.
//! - `scaling.replicas: 0` requires KubeRay 1.7, which can suspend a RayService; a Serve deployment cannot have a fixed number
//!   of zero replicas. With an older KubeRay it is refused. Prefill and decode can be stopped only together.
//! - A worker pod has the GPUs of one replica. A parallel size in `engine.args` may span several pods if it is a multiple.
//! - The head runs no replica (`num-cpus: "0"`), and has no GPU. It gets environment, token, pod metadata, node selector and
//!   tolerations as the workers do: Ray may build the application there, and all pods of a deployment stay on the nodes that the
//!   user selected.
//! - Containers meet Pod Security `restricted` in the default image, whose user is known; in other images if
//!   `podTemplate.spec.securityContext.runAsUser` is set.
//! - `rayVersion` is read from the image's tag if possible; otherwise it is omitted.
//! - The default image is for NVIDIA GPUs; others require `spec.image`.
//! - `engine.args` are passed to vLLM with the types it requires. Values of another type are refused. For an unknown argument
//!   the type is derived from the text: number, bool, list, object, or text.
//! - With `model.source: custom` the model is in `spec.image`, at the path in `model.id` or `engine.args.model`.
//! - A change that does not start while the earlier version serves is reported, but is not a failure of the deployment.
//!
//! Facts about KubeRay and Ray are from their repositories (`ray-project/kuberay`, `ray-project/ray`); each is cited where it is
//! used.

mod arguments;
mod cluster;
mod compatible;
mod head;
mod image;
mod labels;
mod registration;
mod schema;
mod serve;
mod settings;
mod status;
mod versions;
mod yaml;

use std::collections::BTreeMap;

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::Endpoint;
use runway_provider::fields::fields;
use runway_provider::settings::with_image;
use runway_provider::{
    ChildRef, Installed, Object, Provider, Reading, Refusal, Request, Settings, Translation, Upstream,
};
use serde_json::Value;

pub use schema::RAY_SERVICE;
pub use settings::{Images, KubeRaySettings};

use compatible::Accepted;

/// The KubeRay provider.
#[derive(Clone, Debug, Default)]
pub struct KubeRay {
    settings: KubeRaySettings,
}

impl Provider for KubeRay {
    fn name(&self) -> &'static str {
        "kuberay"
    }

    fn title(&self) -> &'static str {
        "KubeRay"
    }

    fn version(&self) -> String {
        concat!("kuberay-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        registration::registration()
    }

    fn settings(&self) -> Option<Settings> {
        Some(Settings::of(|settings: KubeRaySettings| Self { settings }))
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
    }

    /// With the documented name of the release (`helm-chart/kuberay-operator/templates/_helpers.tpl`).
    fn operator_deployments(&self) -> &'static [&'static str] {
        &["kuberay-operator"]
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        vec![ChildRef {
            kind: RAY_SERVICE,
            name: name.to_owned(),
        }]
    }

    fn operator_labels(&self) -> &'static [&'static str] {
        &["kuberay-operator"]
    }

    fn pod_labels(&self) -> Vec<&'static str> {
        vec![runway_api::labels::DEPLOYMENT, labels::WORKER]
    }

    fn component_labels(&self) -> &'static [&'static str] {
        &[labels::CLUSTER, labels::GROUP, labels::NODE_TYPE]
    }

    fn compared_containers(&self) -> &'static [&'static str] {
        &[cluster::HEAD, cluster::WORKER]
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let request = &*with_image(request, self.settings.images.vllm.as_ref());
        let accepted = compatible::accept(request, installed, &self.settings)?;
        let (pod_labels, overruled) = labels::of_pods(request);
        let spec = spec(request, &accepted, &pod_labels, &self.settings);
        let model_name = accepted.model.name.to_owned();
        let components = cluster::components(request, &accepted);
        Ok(Translation {
            objects: vec![Object {
                kind: RAY_SERVICE,
                version: accepted.version,
                name: request.name.clone(),
                annotations: BTreeMap::new(),
                body: fields().with("spec", spec).into(),
                immutable: BTreeMap::new(),
                not_rolled_out: BTreeMap::new(),
                // Kueue suspends a RayService until it admits it.
                reset: if accepted.suspended || request.queued {
                    BTreeMap::new()
                } else {
                    BTreeMap::from([("/spec/suspend", Value::Bool(false))])
                },
            }],
            ignored: accepted.ignored.into_iter().chain(overruled).collect(),
            // KubeRay creates the Service when the model serves (utils/util.go, GenerateServeServiceName).
            scaling_limit: None,
            endpoint: Some(Endpoint {
                service: Some(format!("{}-serve-svc", request.name)),
                port: Some(8000),
            }),
            model_name: Some(model_name),
            components,
            replicas: request.topology.replicas(),
            pod_label: Some(labels::WORKER),
        })
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        status::of(object, request.topology.replicas(), &self.wanted(request))
    }
}

fn spec(
    request: &Request,
    accepted: &Accepted,
    pod_labels: &BTreeMap<String, String>,
    settings: &KubeRaySettings,
) -> Value {
    fields()
        .with("serveConfigV2", yaml::text(&serve::config(request, accepted)))
        .with(
            "rayClusterConfig",
            cluster::config(request, accepted, pod_labels, settings),
        )
        .with("suspend", accepted.suspended.then_some(true))
        .into()
}

impl KubeRay {
    /// Desired spec of a RayService; null if the request is refused.
    fn wanted(&self, request: &Request) -> Value {
        let newest = Installed::newest(&schema::upstreams());
        let wanted = self.translate(request, &newest).ok();
        let spec = wanted.and_then(|wanted| Some(wanted.objects.last()?.body["spec"].clone()));
        spec.unwrap_or_default()
    }
}
