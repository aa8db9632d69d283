//! Labels of pods.

use std::collections::BTreeMap;

use runway_api::labels::DEPLOYMENT;
use runway_provider::{Request, pods};

/// Name of the ModelDeployment on the pods that serve it: all except the head. Autoscalers count these.
pub(crate) const WORKER: &str = "kubeairunway.ai/worker";

/// Name of the RayCluster on its pods. The Service selects those of the active cluster.
pub(crate) const CLUSTER: &str = "ray.io/cluster";

/// Name of the worker group on its pods.
pub(crate) const GROUP: &str = "ray.io/group";

/// `head` or `worker`, on every pod.
pub(crate) const NODE_TYPE: &str = "ray.io/node-type";

/// Labels by which KubeRay selects its pods (KubeRay `utils/constant.go`).
const KUBERAYS: [&str; 6] = [
    CLUSTER,
    GROUP,
    "ray.io/identifier",
    "ray.io/is-ray-node",
    NODE_TYPE,
    "ray.io/serve",
];

/// The user's labels overridden by ours, and a message about each overridden label.
pub(crate) fn of_pods(request: &Request) -> (BTreeMap<String, String>, Option<String>) {
    let is_taken = |key: &str| key == DEPLOYMENT || key == WORKER || KUBERAYS.contains(&key);
    let (mut labels, ignored) = pods::labels(request, is_taken, "the provider and KubeRay set");
    labels.insert(DEPLOYMENT.to_owned(), request.name.clone());
    (labels, ignored)
}
