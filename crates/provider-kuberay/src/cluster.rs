//! The Ray cluster: a head, and groups of workers (KubeRay `apis/ray/v1/raycluster_types.go`).

use std::collections::BTreeMap;

use runway_provider::Request;
use runway_provider::fields::{Fields, fields};
use serde_json::{Value, json};

use crate::compatible::{Accepted, Part, Parts};
use crate::{head, image, labels};

/// Ray's name for what the prefill workers have, and no other.
pub(crate) const PREFILL: &str = "prefill";

/// Ray's name for what the decode workers have, and no other.
pub(crate) const DECODE: &str = "decode";

/// More workers than anybody asks for. The limit never changes: KubeRay would not tell a running cluster of it.
const MOST_WORKERS: i32 = 1_000_000;

pub(crate) fn config(request: &Request, accepted: &Accepted, pod_labels: &BTreeMap<String, String>) -> Value {
    let pods = Pods {
        request,
        image: accepted.image,
        labels: pod_labels,
    };
    let groups = match &accepted.parts {
        Parts::Aggregated(part) => vec![pods.workers("workers", part, None)],
        Parts::Disaggregated { prefill, decode } => vec![
            pods.workers("prefill-workers", prefill, Some(PREFILL)),
            pods.workers("decode-workers", decode, Some(DECODE)),
        ],
    };
    fields()
        .with("rayVersion", image::ray_version(accepted.image))
        // Ray makes and removes the worker pods that its replicas ask for: KubeRay takes no changed number to a running
        // cluster.
        .with("enableInTreeAutoscaling", true)
        .with("headGroupSpec", pods.head())
        .with("workerGroupSpecs", groups)
        .into()
}

/// What all pods have in common.
struct Pods<'a> {
    request: &'a Request,
    image: &'a str,
    labels: &'a BTreeMap<String, String>,
}

impl Pods<'_> {
    fn head(&self) -> Value {
        let head = head::of(self.request);
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
        let container = self.container("ray-head", resources).with("ports", ports);
        fields()
            .with("rayStartParams", json!(head.ray_start_params))
            .with("template", self.template(self.labels, container))
            .into()
    }

    fn workers(&self, name: &str, part: &Part, resource: Option<&str>) -> Value {
        let mut labels = self.labels.clone();
        labels.insert(labels::WORKER.to_owned(), self.request.name.clone());
        fields()
            .with("groupName", name)
            // Where the cluster starts from; the autoscaler goes on. KubeRay leaves these three out when it compares
            // clusters (rayservice_controller.go, generateHashWithoutReplicasAndWorkersToDelete).
            .with("replicas", part.pods())
            .with("minReplicas", 0)
            .with("maxReplicas", MOST_WORKERS)
            .with("rayStartParams", worker_start_params(part, resource))
            .with(
                "template",
                self.template(&labels, self.container("ray-worker", worker_resources(part))),
            )
            .into()
    }

    fn template(&self, labels: &BTreeMap<String, String>, container: Fields) -> Fields {
        let request = self.request;
        let metadata = fields()
            .with("labels", json!(labels))
            .with("annotations", json!(request.pod_annotations));
        let spec = fields()
            .with("containers", [Value::from(container)])
            .with("nodeSelector", json!(request.node_selector))
            .with("tolerations", json!(request.tolerations));
        fields().with("metadata", metadata).with("spec", spec)
    }

    /// The workers load the model. The application is built in a task without a place of its own, which may run on the
    /// head: it needs environment and token there.
    fn container(&self, name: &str, resources: Value) -> Fields {
        // All keys become variables (design 4.13).
        let token = |secret: &String| json!([{"secretRef": {"name": secret}}]);
        fields()
            .with("name", name)
            .with("image", self.image)
            .with("resources", resources)
            .with("env", json!(self.request.env))
            .with("envFrom", self.request.token_secret.as_ref().map(token))
    }
}

/// Ray's processors are places for its processes, not cores. A replica takes one, and so does each of the few that
/// answer requests: with fewer places than that, the autoscaler would add a pod with GPUs for one of them. The
/// autoscaler wants a number here when `resources.cpu` gives none (Ray `kuberay/autoscaling_config.py`, _get_num_cpus).
const PLACES: &str = "8";

/// What a worker offers to Ray. KubeRay would not take every GPU resource for GPUs (KubeRay `common/pod.go`).
fn worker_start_params(part: &Part, resource: Option<&str>) -> Value {
    let mut params = json!({"num-cpus": PLACES, "num-gpus": part.gpu.count.to_string()});
    if let Some(resource) = resource {
        // Keeps replicas to the workers that are made for them. The value passes through a shell, and Ray's autoscaler
        // reads exactly this form (Ray `kuberay/autoscaling_config.py`, _get_custom_resources).
        params["resources"] = json!(format!(r#""{{\"{resource}\": 1}}""#));
    }
    params
}

/// Memory is a limit too: Ray sizes its object store by it, and Kubernetes its shared memory.
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
