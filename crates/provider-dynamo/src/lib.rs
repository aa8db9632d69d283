//! Translates a ModelDeployment into a DynamoGraphDeployment, and its status back. The loop does the rest (`runway-provider`).
//!
//! | request | objects |
//! |---|---|
//! | aggregated | `Frontend` and one kind of worker, such as `VllmWorker` |
//! | disaggregated | `Frontend`, and prefill and decode workers, such as `VllmPrefillWorker` and `VllmDecodeWorker` |
//!
//! The object is written as v1beta1, a list of components, or as v1alpha1, a map of services, if the cluster has only that. If an
//! upgrade of Dynamo adds v1beta1, the object is updated in place.
//!
//! The provider owns this object only, named after the ModelDeployment. It never changes what Dynamo creates from it:
//! Deployments or PodCliqueSets, pods, Services.
//!
//! Behavior:
//! - The endpoint is NAME-frontend, port 8000. Replicas are workers, not frontends.
//! - Environment, node selector, tolerations, labels, annotations and the token secret apply to all pods: the frontend downloads
//!   the tokenizer with the token, possibly through a proxy or from a mirror.
//! - Memory is a limit of a worker, CPU is a request. All GPUs of a worker serve one copy of the model by tensor parallelism,
//!   unless `engine.args` has a parallel size.
//! - The flags depend on the version of Dynamo's runtime, which is read from the tag of `spec.image`. If the tag contains no
//!   version, the provider assumes its default, reports a warning, and passes the version to Dynamo in `runtimeVersionOverride`.
//!   The default is the setting `runtimeVersion`, or the release of Dynamo's operator. The tag of a custom image is read as a
//!   version of Dynamo as well.
//! - `engine.args` become flags of all workers, and take precedence. Flags for the model or the role of a worker are refused:
//!   use `model.id` and `serving.mode`. For trtllm, names with underscores are options of TensorRT-LLM and go into
//!   `--override-engine-args`.
//! - `model.source: custom` requires `spec.image`, and the path of the model in `engine.args.model`: Dynamo does not run the command
//!   of an image.
//! - Containers meet Pod Security `restricted` in default images, whose user is known since 0.9; in other images if
//!   `podTemplate.spec.securityContext.runAsUser` is set.
//! - With `routerMode: kv`, workers publish their KV caches.
//!
//! Facts about Dynamo are from its repository (`ai-dynamo/dynamo`); each is cited where it is used.

mod accepted;
mod alpha;
mod beta;
mod compatible;
mod config;
mod engine;
mod flags;
mod graph;
mod overrides;
mod registration;
mod role;
mod runtime;
mod schema;
mod status;
mod versions;

use std::collections::BTreeMap;

use runway_api::InferenceProviderConfigSpec;
use runway_api::labels::DEPLOYMENT;
use runway_api::model_deployment::Endpoint;
use runway_provider::{
    ChildRef, Component, Container, Installed, Object, Provider, Reading, Refusal, Request, Settings, Topology,
    Translation, Upstream, settings,
};
use serde_json::{Value, json};

pub use config::{DynamoConfig, Images};
pub use runtime::{NotAVersion, RuntimeVersion};
pub use schema::DYNAMO_GRAPH_DEPLOYMENT;

use graph::Graph;
use role::Role;
use schema::Shape;

/// Label of every pod of a graph, with its name (`deploy/operator/internal/consts/consts.go`).
const POD_GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";

/// Label of every pod of a graph, with the name of its component (the same file).
const POD_COMPONENT: &str = "nvidia.com/dynamo-component";

/// The Dynamo provider.
#[derive(Clone, Debug, Default)]
pub struct Dynamo {
    config: DynamoConfig,
}

impl Dynamo {
    /// A provider with settings of an installation.
    pub fn new(config: DynamoConfig) -> Self {
        Self { config }
    }
}

impl Provider for Dynamo {
    fn name(&self) -> &'static str {
        "dynamo"
    }

    fn title(&self) -> &'static str {
        "Dynamo"
    }

    fn version(&self) -> String {
        concat!("dynamo-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        registration::registration()
    }

    fn settings(&self) -> Option<Settings> {
        Some(Settings::of(|config: DynamoConfig| Self { config }))
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
    }

    /// With the documented name of the release (`deploy/helm/charts/platform/components/operator/templates/deployment.yaml`).
    fn operator_deployments(&self) -> &'static [&'static str] {
        &["dynamo-platform-dynamo-operator-controller-manager"]
    }

    fn operator_labels(&self) -> &'static [&'static str] {
        &["dynamo-operator"]
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        vec![ChildRef {
            kind: DYNAMO_GRAPH_DEPLOYMENT,
            name: name.to_owned(),
        }]
    }

    /// Frontends have no label of ours.
    fn pod_labels(&self) -> Vec<&'static str> {
        vec![DEPLOYMENT, POD_GRAPH]
    }

    fn component_labels(&self) -> &'static [&'static str] {
        &[POD_COMPONENT]
    }

    fn compared_containers(&self) -> &'static [&'static str] {
        &[engine::CONTAINER]
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let request = &*settings::with_image(request, self.config.image(&request.engine));
        let accepted = compatible::accept(request, installed, &self.config)?;
        let graph = graph::graph(request, &accepted, &self.config);
        Ok(translation(request, accepted.shape, graph))
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        let workers = compatible::worker_names(request);
        // No object is created for a request that is refused.
        let wanted = self.translate(request, &Installed::newest(&self.upstreams())).ok();
        let components = wanted.map(|wanted| wanted.components).unwrap_or_default();
        status::read(object, &workers, request.topology.replicas(), &components)
    }
}

fn translation(request: &Request, shape: Shape, graph: Graph) -> Translation {
    let body = match shape {
        Shape::V1Alpha1 => alpha::body(&graph),
        Shape::V1Beta1 => beta::body(&graph),
    };
    Translation {
        objects: vec![Object {
            kind: DYNAMO_GRAPH_DEPLOYMENT,
            version: shape.version().to_owned(),
            name: request.name.clone(),
            annotations: BTreeMap::new(),
            body,
            immutable: immutable(&graph),
            not_rolled_out: BTreeMap::new(),
            reset: BTreeMap::new(),
        }],
        scaling_limit: None,
        endpoint: Some(Endpoint {
            service: Some(format!("{}-{}", request.name, engine::FRONTEND.to_lowercase())),
            port: Some(8000),
        }),
        components: graph.components.iter().map(component).collect(),
        model_name: graph.model_name,
        ignored: graph.ignored,
        replicas: request.topology.replicas(),
        // Prefill and decode workers must not be scaled together.
        pod_label: match request.topology {
            Topology::Aggregated(_) => Some(DEPLOYMENT),
            Topology::Disaggregated { .. } => None,
        },
    }
}

/// Dynamo adds variables and, for some engines, arguments (`deploy/operator/internal/dynamo/graph.go`, GenerateBasePodSpec).
fn component(component: &graph::Component) -> Component {
    let given = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
    let is_frontend = component.role == Role::Frontend;
    Component {
        name: component.name.to_owned(),
        labels: vec![(POD_COMPONENT, component.name.to_owned())],
        pods: component.replicas,
        replicas: if is_frontend { 0 } else { component.replicas },
        serves: is_frontend,
        ready_when_loaded: true,
        container: Some(Container {
            name: engine::CONTAINER,
            image: component.image.to_owned(),
            command: given(component.command.iter().map(|word| (*word).to_owned()).collect()),
            args: given(component.args.clone()),
            args_grow: true,
            env: component.env.clone(),
        }),
    }
}

/// Dynamo does not allow to change the set of components, their types, or the framework (`dynamographdeployment.go`,
/// validateDynamoGraphDeploymentSpecUpdate). The names of components identify all of them, and are the same in all schemas, so
/// that a change of the schema does not recreate the object.
fn immutable(graph: &Graph) -> BTreeMap<String, Value> {
    let components: Vec<_> = graph.components.iter().map(|component| component.name).collect();
    BTreeMap::from([("Dynamo's components".to_owned(), json!(components.join(", ")))])
}
