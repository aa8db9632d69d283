//! The upstream kind, with the fields that are written and read.

use runway_provider::{Installed, Kind, Schema, Upstream};

/// A Serve application and the Ray cluster that runs it (KubeRay `apis/ray/v1/rayservice_types.go`).
pub const RAY_SERVICE: Kind = Kind::new("ray.io", "v1", "RayService", "rayservices");

pub(crate) fn upstreams() -> Vec<Upstream> {
    vec![Upstream {
        kind: RAY_SERVICE,
        schemas: &SCHEMAS,
    }]
}

/// Whether the installed RayService can be suspended. The schemas have the same version, so that the fingerprint distinguishes
/// them.
pub(crate) fn can_suspend(installed: &Installed) -> bool {
    installed.state(RAY_SERVICE) == Installed::newest(&upstreams()).state(RAY_SERVICE)
}

/// RayService can be suspended since KubeRay 1.7 and has conditions since 1.3; v1 exists since 1.0.
const SCHEMAS: [Schema; 3] = [
    Schema {
        version: "v1",
        fields: &FIELDS,
    },
    Schema {
        version: "v1",
        fields: FIELDS.split_at(FIELDS.len() - 1).0,
    },
    Schema {
        version: "v1",
        fields: FIELDS.split_at(FIELDS.len() - 8).0,
    },
];

/// The newest last: earlier schemas are prefixes of this one.
const FIELDS: [(&str, &str); 32] = [
    ("spec.serveConfigV2", "string"),
    ("spec.rayClusterConfig.rayVersion", "string"),
    ("spec.rayClusterConfig.enableInTreeAutoscaling", "boolean"),
    ("spec.rayClusterConfig.autoscalerOptions.securityContext", "object"),
    ("spec.rayClusterConfig.headGroupSpec.rayStartParams{}", "string"),
    ("spec.rayClusterConfig.headGroupSpec.template", "object"),
    ("spec.rayClusterConfig.workerGroupSpecs[].groupName", "string"),
    ("spec.rayClusterConfig.workerGroupSpecs[].replicas", "integer"),
    ("spec.rayClusterConfig.workerGroupSpecs[].minReplicas", "integer"),
    ("spec.rayClusterConfig.workerGroupSpecs[].maxReplicas", "integer"),
    ("spec.rayClusterConfig.workerGroupSpecs[].rayStartParams{}", "string"),
    ("spec.rayClusterConfig.workerGroupSpecs[].template", "object"),
    ("status.serviceStatus", "string"),
    ("status.lastUpdateTime", "string"),
    ("status.activeServiceStatus.rayClusterName", "string"),
    ("status.activeServiceStatus.applicationStatuses{}.status", "string"),
    ("status.activeServiceStatus.applicationStatuses{}.message", "string"),
    (
        "status.activeServiceStatus.applicationStatuses{}.serveDeploymentStatuses{}.status",
        "string",
    ),
    (
        "status.activeServiceStatus.applicationStatuses{}.serveDeploymentStatuses{}.message",
        "string",
    ),
    ("status.pendingServiceStatus.rayClusterName", "string"),
    ("status.pendingServiceStatus.applicationStatuses{}.status", "string"),
    ("status.pendingServiceStatus.applicationStatuses{}.message", "string"),
    (
        "status.pendingServiceStatus.applicationStatuses{}.serveDeploymentStatuses{}.status",
        "string",
    ),
    (
        "status.pendingServiceStatus.applicationStatuses{}.serveDeploymentStatuses{}.message",
        "string",
    ),
    // Since 1.3.
    (
        "status.activeServiceStatus.rayClusterStatus.readyWorkerReplicas",
        "integer",
    ),
    ("status.conditions[].type", "string"),
    ("status.conditions[].status", "string"),
    ("status.conditions[].reason", "string"),
    ("status.conditions[].message", "string"),
    ("status.conditions[].lastTransitionTime", "string"),
    ("status.conditions[].observedGeneration", "integer"),
    // Since 1.7.
    ("spec.suspend", "boolean"),
];
