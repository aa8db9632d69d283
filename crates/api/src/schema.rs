//! Schema pieces that schemars cannot derive.

use schemars::{Schema, SchemaGenerator, json_schema};

/// `metav1.Condition` as a list-map: two writers must never replace each other's entries.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>();
    json_schema!({
        "type": "array",
        "items": item,
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// Environment variables, unique by name as in a pod.
pub(crate) fn env(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<k8s_openapi::api::core::v1::EnvVar>();
    json_schema!({
        "type": "array",
        "items": item,
        "maxItems": 100,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// Any JSON object.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of whole Kubernetes objects.
pub(crate) fn objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "atomic",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// A pod template of which the checks see the names of containers; everything else is Kubernetes' to judge.
pub(crate) fn actor_pod_template(_: &mut SchemaGenerator) -> Schema {
    let container = json_schema!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 63 },
            "command": { "type": "array", "maxItems": 1024, "items": { "type": "string" } },
        },
        "x-kubernetes-preserve-unknown-fields": true,
    });
    json_schema!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "metadata": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            "spec": {
                "type": "object",
                "required": ["containers"],
                "properties": {
                    "containers": {
                        "type": "array", "items": container, "minItems": 1, "maxItems": 32,
                        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    },
                    "initContainers": {
                        "type": "array", "items": container, "maxItems": 32,
                        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    },
                },
                "x-kubernetes-preserve-unknown-fields": true,
            },
        },
    })
}
