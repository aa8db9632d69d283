//! The deployment independent of its schema: a frontend and workers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Toleration};
use runway_api::labels::DEPLOYMENT;
use runway_provider::request::Gpu;
use runway_provider::settings::PullSecrets;
use runway_provider::volumes::Volume;
use runway_provider::{Request, pods};

use crate::accepted::{Accepted, GpuWorker};
use crate::config::DynamoConfig;
use crate::engine::FRONTEND;
use crate::flags;
use crate::role::Role;
use crate::runtime::{ReportedBy, RuntimeVersion};

/// Environment variable of the frontend that selects how it chooses a worker.
const ROUTER_MODE: &str = "DYN_ROUTER_MODE";

/// A frontend, and workers behind it.
pub(crate) struct Graph<'a> {
    pub(crate) framework: &'static str,
    pub(crate) components: Vec<Component<'a>>,
    /// Name of the model in client requests, if known.
    pub(crate) model_name: Option<String>,
    pub(crate) ignored: Vec<String>,
}

/// Pods with the same template.
pub(crate) struct Component<'a> {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) replicas: i32,
    pub(crate) image: &'a str,
    /// Empty for that of Dynamo's frontend.
    pub(crate) command: Vec<&'static str>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) token_secret: Option<&'a str>,
    pub(crate) cpu_request: Option<&'a str>,
    pub(crate) memory_request: Option<&'a str>,
    pub(crate) memory_limit: Option<&'a str>,
    pub(crate) gpu: Option<&'a Gpu>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: &'a BTreeMap<String, String>,
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Pull secrets of the installation.
    pub(crate) pull_secrets: &'a PullSecrets,
    pub(crate) tolerations: &'a [Toleration],
    /// Request with the settings of the pods.
    pub(crate) request: &'a Request,
    /// Volumes of the model.
    pub(crate) volumes: &'a [Volume],
    /// Size of /dev/shm, if set.
    pub(crate) shared_memory: Option<&'a str>,
    /// User of the image, if it is known.
    pub(crate) image_user: Option<i64>,
    /// Version for Dynamo, if Dynamo cannot read it from the image.
    pub(crate) runtime_version: Option<RuntimeVersion>,
}

pub(crate) fn graph<'a>(request: &'a Request, accepted: &'a Accepted, config: &'a DynamoConfig) -> Graph<'a> {
    let mut ignored = Vec::new();
    let mut model_name = None;
    let mut components = vec![frontend(request, accepted, config)];
    for worker in &accepted.workers {
        let arguments = flags::of(request, accepted, worker);
        components.push(worker_component(request, accepted, config, worker, arguments.list));
        // Common to all workers.
        ignored = arguments.ignored;
        model_name = arguments.model_name;
    }
    ignored.extend(pod_labels(request).1);
    ignored.extend(overruled_router_mode(request, accepted));
    ignored.extend(assumed_version(request, accepted));
    Graph {
        framework: accepted.engine.dialect.name,
        components,
        model_name,
        ignored,
    }
}

/// The command is Dynamo's. The frontend downloads the tokenizer: it needs the token, and variables such as `HF_ENDPOINT` or
/// `HTTPS_PROXY`.
fn frontend<'a>(request: &'a Request, accepted: &'a Accepted, config: &'a DynamoConfig) -> Component<'a> {
    let frontend = &accepted.frontend;
    let mut env = request.env.clone();
    if let Some(mode) = frontend.router.environment() {
        env.retain(|variable| variable.name != ROUTER_MODE);
        env.push(EnvVar {
            name: ROUTER_MODE.to_owned(),
            value: Some(mode.to_owned()),
            value_from: None,
        });
    }
    Component {
        name: FRONTEND,
        role: Role::Frontend,
        replicas: frontend.replicas,
        env,
        cpu_request: Some(&frontend.cpu),
        memory_request: Some(&frontend.memory),
        ..bare(request, accepted, config)
    }
}

/// Memory is a limit, as in the design's example. CPU is a request: a worker may use more.
fn worker_component<'a>(
    request: &'a Request,
    accepted: &'a Accepted,
    config: &'a DynamoConfig,
    worker: &GpuWorker<'a>,
    args: Vec<String>,
) -> Component<'a> {
    let (mut labels, _) = pod_labels(request);
    labels.insert(DEPLOYMENT.to_owned(), request.name.clone());
    Component {
        name: accepted.engine.component(worker.role),
        role: worker.role,
        replicas: worker.worker.replicas,
        command: vec!["python3", "-m", accepted.engine.module],
        args,
        cpu_request: worker.worker.cpu.as_deref(),
        memory_limit: worker.worker.memory.as_deref(),
        gpu: Some(worker.gpu),
        labels,
        env: accepted.caches.iter().chain(&request.env).cloned().collect(),
        volumes: &request.volumes,
        shared_memory: request.pods.shm_size.as_deref(),
        node_selector: config.node_labels.selector(true, &request.node_selector),
        ..bare(request, accepted, config)
    }
}

/// Common to all components.
fn bare<'a>(request: &'a Request, accepted: &'a Accepted, config: &'a DynamoConfig) -> Component<'a> {
    Component {
        name: FRONTEND,
        role: Role::Frontend,
        replicas: 1,
        image: &accepted.runtime.image,
        command: Vec::new(),
        args: Vec::new(),
        env: request.env.clone(),
        token_secret: request.token_secret.as_deref(),
        cpu_request: None,
        memory_request: None,
        memory_limit: None,
        gpu: None,
        labels: pod_labels(request).0,
        annotations: &request.pod_annotations,
        node_selector: config.node_labels.selector(false, &request.node_selector),
        pull_secrets: &config.image_pull_secrets,
        tolerations: &request.tolerations,
        request,
        volumes: &[],
        shared_memory: None,
        image_user: accepted.runtime.user,
        runtime_version: match accepted.runtime.reported_by {
            ReportedBy::Tag => None,
            ReportedBy::TagInOurReading | ReportedBy::Assumption => Some(accepted.runtime.version),
        },
    }
}

/// The user's labels, except those that select pods: ours, and Dynamo's (`deploy/operator/internal/consts/consts.go`); and a message
/// about these.
fn pod_labels(request: &Request) -> (BTreeMap<String, String>, Option<String>) {
    let is_reserved =
        |key: &str| key == DEPLOYMENT || key == "nvidia.com/selector" || key.starts_with("nvidia.com/dynamo-");
    pods::labels(request, is_reserved, "the provider and Dynamo set")
}

/// Two variables of one name are invalid, and the workers' flags depend on the mode.
fn overruled_router_mode(request: &Request, accepted: &Accepted) -> Option<String> {
    let mode = accepted.frontend.router.environment()?;
    request.env.iter().any(|variable| variable.name == ROUTER_MODE).then(|| {
        format!(
            "spec.env: {ROUTER_MODE} is ignored on the frontend, where the provider sets it to {mode}: set provider.overrides.routerMode"
        )
    })
}

fn assumed_version(request: &Request, accepted: &Accepted) -> Option<String> {
    let image = request.image.as_ref()?;
    (accepted.runtime.reported_by == ReportedBy::Assumption).then(|| {
        format!(
            "spec.image: the tag of {image} names no version of Dynamo, so the flags are those of {}; \
             if the image holds another release, give it a tag that begins with its version",
            accepted.runtime.version
        )
    })
}
