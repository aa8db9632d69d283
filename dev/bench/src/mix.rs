//! Models of a run: one per provider, in turn.

use anyhow::{Context, Result};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use runway_api::ModelDeployment;
use runway_dev_support::shell;

/// Namespace of all ModelDeployments of a run.
pub(super) const NAMESPACE: &str = "bench";
/// Common prefix of their names; the pilot has another.
pub(super) const PREFIX: &str = "model-";

/// A kind of model in a run.
pub(super) struct Line {
    /// Name of the provider.
    pub(super) provider: &'static str,
    /// Its controller's process, and its name to the API server.
    pub(super) controller: &'static str,
    /// The example in `deploy/examples` that it is.
    example: &'static str,
    /// Of its pilot: as long as the names of a run, so that objects have the same size.
    pub(super) pilot: &'static str,
    /// Group, version and kind of its upstream object.
    kind: (&'static str, &'static str, &'static str),
    /// Whether the upstream says that it serves.
    pub(super) is_ready: fn(&DynamicObject) -> bool,
}

/// All of them. A run takes as many of each as of the others.
pub(super) const LINES: [Line; 3] = [
    Line {
        provider: "kaito",
        controller: "kaito-provider",
        example: "gemma-cpu",
        pilot: "pilot-kaito",
        kind: ("kaito.sh", "v1beta1", "InferenceSet"),
        is_ready: |set| set.data["status"]["readyReplicas"] == set.data["spec"]["replicas"],
    },
    Line {
        provider: "dynamo",
        controller: "dynamo-provider",
        example: "phi-4-mini",
        pilot: "pilot-dynam",
        kind: ("nvidia.com", "v1beta1", "DynamoGraphDeployment"),
        is_ready: |graph| graph.data["status"]["state"] == "successful",
    },
    Line {
        provider: "kuberay",
        controller: "kuberay-provider",
        example: "qwen-kuberay",
        pilot: "pilot-kuber",
        kind: ("ray.io", "v1", "RayService"),
        is_ready: |service| {
            let conditions = service.data["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
        },
    },
];

impl Line {
    /// The example, as the user writes it, under a name.
    pub(super) fn model(&self, name: &str) -> Result<DynamicObject> {
        let path = shell::root()
            .join("deploy/examples")
            .join(format!("{}.yaml", self.example));
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut model: DynamicObject = serde_saphyr::from_str(&text)?;
        model.metadata.name = Some(name.to_owned());
        model.metadata.namespace = None;
        Ok(model)
    }

    /// Its upstream objects as this client sees them.
    pub(super) fn upstream(&self, client: &Client) -> Api<DynamicObject> {
        let (group, version, kind) = self.kind;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    }
}

/// Line that an object of a run belongs to.
pub(super) fn of(index: usize) -> &'static Line {
    &LINES[index % LINES.len()]
}

/// The names of a run.
pub(super) fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|index| format!("{PREFIX}{index:05}"))
}

/// ModelDeployments as this client sees them.
pub(super) fn deployments(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::erase::<ModelDeployment>(&()))
}
