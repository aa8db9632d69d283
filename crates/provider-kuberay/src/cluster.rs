//! The Ray cluster: a head and groups of workers (KubeRay `apis/ray/v1/raycluster_types.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use runway_provider::fields::{Fields, fields};
use runway_provider::{Component, Container, Request, pods};
use serde_json::{Value, json};

use crate::compatible::{Accepted, Part, Parts};
use crate::head::Head;
use crate::settings::KubeRaySettings;
use crate::{image, labels};

/// Name of the Ray resource that only prefill workers have.
pub(crate) const PREFILL: &str = "prefill";

/// Name of the Ray resource that only decode workers have.
pub(crate) const DECODE: &str = "decode";

/// Upper limit of workers. It never changes: KubeRay would not update a running cluster.
const MOST_WORKERS: i32 = 1_000_000;

pub(crate) fn config(
    request: &Request,
    accepted: &Accepted,
    pod_labels: &BTreeMap<String, String>,
    settings: &KubeRaySettings,
) -> Value {
    let pods = Pods {
        request,
        settings,
        image: &accepted.image,
        head: &accepted.head,
        labels: pod_labels,
        caches: &accepted.caches,
    };
    let groups = groups(&accepted.parts).into_iter();
    let groups: Vec<Value> = groups
        .map(|(name, part, resource)| pods.workers(name, part, resource))
        .collect();
    fields()
        .with("rayVersion", image::ray_version(&accepted.image))
        // Ray's autoscaler creates and removes the worker pods for its replicas: KubeRay does not update the number in a running
        // cluster.
        .with("enableInTreeAutoscaling", true)
        // KubeRay adds the autoscaler's container to the head, with this context (KubeRay `common/pod.go`,
        // mergeAutoscalerOverrides), and containers that wait for the head to the workers, with the context of the worker.
        .with("autoscalerOptions", fields().with("securityContext", security(request)))
        .with("headGroupSpec", pods.head())
        .with("workerGroupSpecs", groups)
        .into()
}

/// Worker groups: the name, the workers, and the Ray resource that only they have.
fn groups<'a, 'r>(parts: &'a Parts<'r>) -> Vec<(&'static str, &'a Part<'r>, Option<&'static str>)> {
    match parts {
        Parts::Aggregated(part) => vec![("workers", part, None)],
        Parts::Disaggregated { prefill, decode } => vec![
            ("prefill-workers", prefill, Some(PREFILL)),
            ("decode-workers", decode, Some(DECODE)),
        ],
    }
}

/// The head, and the worker groups. A worker is ready before its replica has loaded the model.
pub(crate) fn components(request: &Request, accepted: &Accepted) -> Vec<Component> {
    let container = |name, caches: &[EnvVar]| {
        Some(Container {
            name,
            image: accepted.image.to_string(),
            env: caches.iter().chain(&request.env).cloned().collect(),
            ..Container::default()
        })
    };
    let head = Component {
        name: "the head".to_owned(),
        labels: vec![(labels::NODE_TYPE, "head".to_owned())],
        pods: 1,
        container: container(HEAD, &[]),
        ..Component::default()
    };
    let workers = groups(&accepted.parts).into_iter().map(|(name, part, _)| Component {
        name: name.replace('-', " "),
        labels: vec![(labels::GROUP, name.to_owned())],
        pods: part.pods(),
        replicas: part.worker.replicas,
        serves: true,
        container: container(WORKER, &accepted.caches),
        ..Component::default()
    });
    std::iter::once(head).chain(workers).collect()
}

/// Container of the head.
pub(crate) const HEAD: &str = "ray-head";

/// Container of a worker.
pub(crate) const WORKER: &str = "ray-worker";

/// Common to all pods.
struct Pods<'a> {
    request: &'a Request,
    settings: &'a KubeRaySettings,
    image: &'a str,
    head: &'a Head<'a>,
    labels: &'a BTreeMap<String, String>,
    caches: &'a [EnvVar],
}

impl Pods<'_> {
    fn head(&self) -> Value {
        let head = self.head;
        let resources = json!({
            "requests": {"cpu": head.cpu, "memory": head.memory},
            "limits": {"memory": head.memory},
        });
        let ports = json!([
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
            {"name": "client", "containerPort": 10001},
            {"name": "serve", "containerPort": 8000},
        ]);
        let container = self.container(HEAD, resources, &[]).with("ports", ports);
        fields()
            .with("rayStartParams", json!(head.ray_start_params))
            .with("template", self.template(self.labels, container, Vec::new(), false))
            .into()
    }

    fn workers(&self, name: &str, part: &Part, resource: Option<&str>) -> Value {
        let mut labels = self.labels.clone();
        labels.insert(labels::WORKER.to_owned(), self.request.name.clone());
        // The workers load the model. KubeRay adds no volume for /dev/shm where one is mounted (KubeRay `common/pod.go`, addEmptyDir).
        let (volumes, mounts) = pods::volumes(self.request, false);
        let container = self
            .container(WORKER, worker_resources(part), self.caches)
            .with("volumeMounts", mounts);
        fields()
            .with("groupName", name)
            // Initial sizes; the autoscaler changes them. KubeRay ignores these three fields when it compares clusters
            // (rayservice_controller.go, generateHashWithoutReplicasAndWorkersToDelete).
            .with("replicas", part.pods())
            .with("minReplicas", 0)
            .with("maxReplicas", MOST_WORKERS)
            .with("rayStartParams", worker_start_params(part, resource))
            .with("template", self.template(&labels, container, volumes, true))
            .into()
    }

    fn template(&self, labels: &BTreeMap<String, String>, container: Fields, volumes: Vec<Value>, gpu: bool) -> Fields {
        let request = self.request;
        let metadata = fields()
            .with("labels", json!(labels))
            .with("annotations", json!(request.pod_annotations));
        let spec = pods::settings(fields(), request, &self.settings.image_pull_secrets)
            .with("containers", [Value::from(container)])
            .with("volumes", volumes)
            .with(
                "nodeSelector",
                json!(self.settings.node_labels.selector(gpu, &request.node_selector)),
            )
            .with("tolerations", json!(request.tolerations));
        fields().with("metadata", metadata).with("spec", spec)
    }

    /// The workers load the model. The application is built in a task without a fixed node, which may run on the head: it needs
    /// environment and token there.
    fn container(&self, name: &str, resources: Value, caches: &[EnvVar]) -> Fields {
        // All keys become variables.
        let token = |secret: &String| json!([{"secretRef": {"name": secret}}]);
        fields()
            .with("name", name)
            .with("image", self.image)
            .with("resources", resources)
            .with("env", json!(caches.iter().chain(&self.request.env).collect::<Vec<_>>()))
            .with("envFrom", self.request.token_secret.as_ref().map(token))
            .with("securityContext", security(self.request))
    }
}

/// Security context of a container. The user of the default image is known.
fn security(request: &Request) -> Fields {
    pods::container_security(request, request.image.is_none().then_some(image::USER))
}

/// Ray's CPUs are slots for its processes, not cores. A replica takes one, and so does each of the few processes that serve
/// requests: with fewer slots, the autoscaler would add a pod with GPUs for one of them. The autoscaler requires a number here
/// even without `resources.cpu` (Ray `kuberay/autoscaling_config.py`, _get_num_cpus).
const PLACES: &str = "8";

/// GPUs that a worker offers to Ray. KubeRay does not recognize every GPU resource (KubeRay `common/pod.go`).
fn worker_start_params(part: &Part, resource: Option<&str>) -> Value {
    let mut params = json!({"num-cpus": PLACES, "num-gpus": part.gpu.count.to_string()});
    if let Some(resource) = resource {
        // Binds replicas to the workers that are created for them. The value passes through a shell, and Ray's autoscaler parses
        // exactly this form (Ray `kuberay/autoscaling_config.py`, _get_custom_resources).
        params["resources"] = json!(format!(r#""{{\"{resource}\": 1}}""#));
    }
    params
}

/// Memory is request and limit: Ray derives the size of its object store from it, and Kubernetes that of the shared memory.
fn worker_resources(part: &Part) -> Value {
    let memory = part.worker.memory.as_deref().unwrap_or("32Gi");
    let mut resources = json!({
        "requests": {"memory": memory},
        "limits": {"memory": memory},
    });
    resources["limits"][&part.gpu.resource] = json!(part.gpu.count.to_string());
    if let Some(cpu) = &part.worker.cpu {
        resources["requests"]["cpu"] = json!(cpu);
    }
    resources
}
