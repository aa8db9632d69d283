//! Translates a ModelDeployment into a DynamoGraphDeployment, and its status back. Nothing else: watching, applying,
//! deleting and hand-over are the loop's (`runway-provider`).
//!
//! | what is asked for | what is made |
//! |---|---|
//! | aggregated | `Frontend` and one kind of worker, as `VllmWorker` |
//! | disaggregated | `Frontend`, and prefill and decode workers, as `VllmPrefillWorker` and `VllmDecodeWorker` |
//!
//! The object is written in the version that the cluster stores: v1beta1 as a list of components, v1alpha1 as a map of
//! services. When an upgrade of Dynamo moves the storage from one to the other, the object is updated in place.
//!
//! It owns that object alone, named after the ModelDeployment. It never touches what Dynamo makes from it: Deployments or
//! PodCliqueSets, pods, Services.
//!
//! Choices a user meets:
//! - The model answers at NAME-frontend, port 8000. Counted are workers, not frontends.
//! - Environment, node selector and tolerations are the workers'; labels and annotations go to all pods, and the token
//!   secret too: the frontend reads the tokenizer with it.
//! - Memory is a limit of a worker, processors are a request. All GPUs of a worker serve one copy of the model, by tensor
//!   parallelism, unless `engine.args` has a parallel size.
//! - The flags follow the version of Dynamo's runtime, which the tag of `spec.image` tells. Of an image whose tag tells
//!   none the provider's default is assumed (`--runtime-version`), told as a warning, and said to Dynamo in
//!   `runtimeVersionOverride`. An image of one's own with a tag of one's own is read as that version of Dynamo.
//! - `engine.args` become flags of all workers, and have the last word. Flags that name the model or a worker's part are
//!   refused: `model.id` and `serving.mode` say that. For trtllm, names with underscores are options of TensorRT-LLM and
//!   go into `--override-engine-args`.
//! - `model.source: custom` needs `spec.image`. Its own command starts the worker, with the flags as arguments; if
//!   `engine.args.model` says where the model is, Dynamo's worker is started.
//! - With `routerMode: kv` the workers are told to publish what they have cached.
//!
//! Facts about Dynamo come from its repository (`ai-dynamo/dynamo`); each is cited where it is used.

mod alpha;
mod beta;
mod compatible;
mod config;
mod flags;
mod graph;
mod overrides;
mod registration;
mod runtime;
mod schema;
mod status;

use std::collections::BTreeMap;

use runway_api::InferenceProviderConfigSpec;
use runway_api::labels::DEPLOYMENT;
use runway_api::model_deployment::Endpoint;
use runway_provider::{
    ChildRef, Installed, Object, Provider, Reading, Refusal, Request, Topology, Translation, Upstream,
};
use serde_json::{Value, json};

pub use config::DynamoConfig;
pub use runtime::{NotAVersion, RuntimeVersion};
pub use schema::DYNAMO_GRAPH_DEPLOYMENT;

use graph::Graph;
use schema::Shape;

/// The Dynamo provider.
#[derive(Clone, Debug, Default)]
pub struct Dynamo {
    config: DynamoConfig,
}

impl Dynamo {
    /// With settings for what cannot be read from a ModelDeployment.
    pub fn new(config: DynamoConfig) -> Self {
        Self { config }
    }
}

impl Provider for Dynamo {
    fn name(&self) -> &'static str {
        "dynamo"
    }

    fn version(&self) -> String {
        concat!("dynamo-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        registration::registration()
    }

    fn upstreams(&self) -> Vec<Upstream> {
        schema::upstreams()
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        vec![ChildRef {
            kind: DYNAMO_GRAPH_DEPLOYMENT,
            name: name.to_owned(),
        }]
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let accepted = compatible::accept(request, installed, &self.config)?;
        let graph = graph::graph(request, &accepted);
        Ok(translation(request, accepted.shape, graph))
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        let workers = compatible::worker_names(request);
        status::read(object, &workers, request.topology.replicas())
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
        }],
        endpoint: Some(Endpoint {
            service: Some(format!("{}-{}", request.name, graph::FRONTEND.to_lowercase())),
            port: Some(8000),
        }),
        model_name: graph.model_name,
        ignored: graph.ignored,
        replicas: request.topology.replicas(),
        // Prefill and decode workers are not to be scaled as one.
        pod_label: match request.topology {
            Topology::Aggregated(_) => Some(DEPLOYMENT),
            Topology::Disaggregated { .. } => None,
        },
    }
}

/// Dynamo forbids to change which components there are, the type of one, and the framework
/// (`dynamographdeployment.go`, validateDynamoGraphDeploymentSpecUpdate). Names of components stand for all of them, and
/// are the same in all schemas, so that another schema is no change.
fn immutable(graph: &Graph) -> BTreeMap<String, Value> {
    let components: Vec<_> = graph.components.iter().map(|component| component.name).collect();
    BTreeMap::from([("Dynamo's components".to_owned(), json!(components.join(", ")))])
}
