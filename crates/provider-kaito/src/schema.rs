//! The upstream kinds, with the fields that are written and read.

use runway_provider::{Kind, Schema, Upstream};

/// One replica of a model (KAITO `api/v1beta1/workspace_types.go`). It has no `spec`: `resource` and `inference` are top-level
/// fields.
pub const WORKSPACE: Kind = Kind::new("kaito.sh", "v1beta1", "Workspace", "workspaces");

/// Replicas of a model, each a Workspace (KAITO `api/v1beta1/inferenceset_types.go`).
pub const INFERENCE_SET: Kind = Kind::new("kaito.sh", "v1beta1", "InferenceSet", "inferencesets");

/// Service for the replicas of an InferenceSet, which KAITO does not create.
pub const SERVICE: Kind = Kind::new("", "v1", "Service", "services");

/// The kinds, the main one first.
pub(crate) fn upstreams() -> Vec<Upstream> {
    vec![
        Upstream {
            kind: WORKSPACE,
            schemas: &WORKSPACES,
        },
        Upstream {
            kind: INFERENCE_SET,
            schemas: &INFERENCE_SETS,
        },
    ]
}

const WORKSPACES: [Schema; 1] = [Schema {
    version: "v1beta1",
    fields: &WORKSPACE_FIELDS,
}];

/// InferenceSet began as v1alpha1 with the same fields.
const INFERENCE_SETS: [Schema; 2] = [
    Schema {
        version: "v1beta1",
        fields: &INFERENCE_SET_FIELDS,
    },
    Schema {
        version: "v1alpha1",
        fields: &INFERENCE_SET_FIELDS,
    },
];

const WORKSPACE_FIELDS: [(&str, &str); 13] = [
    ("resource.count", "integer"),
    ("resource.instanceType", "string"),
    ("resource.labelSelector.matchLabels{}", "string"),
    ("inference.preset.name", "string"),
    ("inference.preset.presetOptions.modelAccessSecret", "string"),
    ("inference.config", "string"),
    ("inference.template", "any"),
    ("status.state", "string"),
    ("status.conditions[].type", "string"),
    ("status.conditions[].status", "string"),
    ("status.conditions[].reason", "string"),
    ("status.conditions[].message", "string"),
    ("status.conditions[].lastTransitionTime", "string"),
];

const INFERENCE_SET_FIELDS: [(&str, &str); 13] = [
    ("spec.replicas", "integer"),
    ("spec.labelSelector.matchLabels{}", "string"),
    ("spec.template.resource.instanceType", "string"),
    ("spec.template.inference.preset.name", "string"),
    (
        "spec.template.inference.preset.presetOptions.modelAccessSecret",
        "string",
    ),
    ("spec.template.inference.config", "string"),
    ("spec.template.inference.template", "any"),
    ("status.readyReplicas", "integer"),
    ("status.conditions[].type", "string"),
    ("status.conditions[].status", "string"),
    ("status.conditions[].reason", "string"),
    ("status.conditions[].message", "string"),
    ("status.conditions[].lastTransitionTime", "string"),
];
