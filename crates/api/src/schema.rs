//! Schema pieces that schemars cannot derive.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::reserved::{self, RESERVED_VARIABLES, RUNTIME_ENV};

/// Maximum length of a variable, a command or an argument of a container.
const MAX_TEXT: usize = 32 * 1024;
/// Maximum length of a text without a limit in its type, such as in Kubernetes' own types.
const MAX_OTHER_TEXT: usize = 4 * 1024;
/// Maximum entries of a list or map without a limit in its type.
const MAX_ENTRIES: usize = 256;

/// Limits every text, list and map that has no limit of its own, since every controller keeps stored objects in memory.
pub(crate) fn bounded(schema: &mut Schema) {
    if let Some(schema) = schema.as_object_mut() {
        bound(schema);
    }
}

fn bound(schema: &mut Map<String, Value>) {
    match schema.get("type").and_then(Value::as_str) {
        Some("string") if !schema.contains_key("enum") && !schema.contains_key("format") => {
            schema.entry("maxLength").or_insert(MAX_OTHER_TEXT.into());
        }
        Some("array") => {
            schema.entry("maxItems").or_insert(MAX_ENTRIES.into());
        }
        Some("object") if schema.contains_key("additionalProperties") => {
            schema.entry("maxProperties").or_insert(MAX_ENTRIES.into());
        }
        _ => {}
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for inner in properties.into_iter().flat_map(Map::values_mut) {
        inner.as_object_mut().into_iter().for_each(bound);
    }
    for place in ["items", "additionalProperties"] {
        schema
            .get_mut(place)
            .and_then(Value::as_object_mut)
            .into_iter()
            .for_each(bound);
    }
}

/// `metav1.Condition` as a list-map, so that writers do not replace each other's entries.
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
    let mut item = generator.subschema_for::<k8s_openapi::api::core::v1::EnvVar>();
    if let Some(value) = item.pointer_mut("/properties/value").and_then(Value::as_object_mut) {
        value.insert("maxLength".to_owned(), MAX_TEXT.into());
    }
    json_schema!({
        "type": "array",
        "items": item,
        "maxItems": 100,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// Environment variables of the container asya-sidecar.
pub(crate) fn sidecar_env(generator: &mut SchemaGenerator) -> Schema {
    unreserved("sidecar.env", env(generator))
}

/// Environment variables of the container asya-runtime.
pub(crate) fn runtime_env(generator: &mut SchemaGenerator) -> Schema {
    unreserved("runtime.env", env(generator))
}

/// Environment variables in this field, without the reserved ones.
fn unreserved(field: &str, mut env: Schema) -> Schema {
    let refusal = reserved::refusal(field, "' + self.name + '");
    if let Some(item) = env.pointer_mut("/items").and_then(Value::as_object_mut) {
        let rule = json!([{"rule": format!("!(self.name in {})", reserved_list()), "messageExpression": format!("'{refusal}'")}]);
        item.insert("x-kubernetes-validations".to_owned(), rule);
    }
    env
}

/// The reserved variables as a list in CEL.
fn reserved_list() -> String {
    format!("{RESERVED_VARIABLES:?}").replace('"', "'")
}

/// Any JSON object.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Any JSON object by a user. Its size is checked where it is used, since a schema cannot.
pub(crate) fn settings(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "maxProperties": 64, "x-kubernetes-preserve-unknown-fields": true })
}

/// A field that may be absent, and is not added to the stored object: an added value would have no owner.
pub(crate) fn without_default(schema: &mut Schema) {
    schema.remove("default");
}

/// Settings with a single owner at a time: an apply replaces them as a whole.
pub(crate) fn owned_settings(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = settings(generator);
    schema.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
    schema
}

/// Arguments of a command line.
pub(crate) fn words(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "maxItems": 100, "items": { "type": "string", "maxLength": MAX_TEXT } })
}

/// A list of complete Kubernetes objects.
pub(crate) fn objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "atomic",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// A pod template in which only the names of containers are checked; Kubernetes validates the rest.
pub(crate) fn actor_pod_template(_: &mut SchemaGenerator) -> Schema {
    let container = json_schema!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 63 },
            "command": { "type": "array", "maxItems": 1024, "items": { "type": "string", "maxLength": MAX_TEXT } },
            "env": {
                "type": "array", "maxItems": 512,
                "items": {
                    "type": "object", "required": ["name"],
                    "properties": { "name": { "type": "string", "minLength": 1, "maxLength": 1024 } },
                    "x-kubernetes-preserve-unknown-fields": true,
                },
            },
        },
        "x-kubernetes-preserve-unknown-fields": true,
    });
    let reserved = reserved_list();
    let name = format!("' + {reserved}.filter(n, self.env.exists(e, e.name == n))[0] + '");
    let mut own = container.clone();
    own.insert("x-kubernetes-validations".to_owned(), json!([{
        "rule": format!("self.name != 'asya-runtime' || !has(self.env) || !self.env.exists(e, e.name in {reserved})"),
        "messageExpression": format!("'{}'", reserved::refusal(RUNTIME_ENV, &name)),
    }]));
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
                        "type": "array", "items": own, "minItems": 1, "maxItems": 32,
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

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use serde_json::json;

    use super::*;
    use crate::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment};

    /// Fields that Kubernetes validates, or whose size a controller checks.
    const MEASURED_ELSEWHERE: [&str; 7] = [
        "spec.provider.overrides",
        "spec.server.externalProviders.",
        "spec.settings",
        "spec.workload.template.metadata",
        "spec.workload.template.spec",
        "spec.workload.template.spec.containers[]",
        "spec.workload.template.spec.initContainers[]",
    ];

    /// Every path below `schema` without a limit.
    fn unbounded(schema: &Value, path: &str, found: &mut Vec<String>) {
        let has = |key: &str| schema.get(key).is_some();
        let is_open = match schema["type"].as_str() {
            Some("string") => !has("maxLength") && !has("enum") && !has("format"),
            Some("array") => !has("maxItems"),
            Some("object") => has("additionalProperties") && !has("maxProperties"),
            _ => false,
        };
        if is_open {
            found.push(path.to_owned());
        }
        if has("x-kubernetes-preserve-unknown-fields")
            && !MEASURED_ELSEWHERE.iter().any(|known| path.starts_with(known))
        {
            found.push(path.to_owned());
        }
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            unbounded(inner, &format!("{path}.{name}"), found);
        }
        for (place, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
            if let Some(inner) = schema.get(place) {
                unbounded(inner, &format!("{path}{mark}"), found);
            }
        }
    }

    #[test]
    fn every_field_of_a_crd_has_a_limit() {
        let crds = [
            ModelDeployment::crd(),
            InferenceProviderConfig::crd(),
            LlamaStackDistribution::crd(),
            AsyncActor::crd(),
        ];
        for crd in crds {
            for version in crd.spec.versions {
                let schema = serde_json::to_value(version.schema).unwrap();
                let mut found = Vec::new();
                unbounded(&schema["openAPIV3Schema"]["properties"]["spec"], "spec", &mut found);
                assert_eq!(found, Vec::<String>::new(), "{}", crd.spec.names.kind);
            }
        }
    }

    #[test]
    fn a_default_limit_is_added_only_where_a_type_has_none() {
        let mut schema = json_schema!({
            "type": "object",
            "properties": {
                "own": { "type": "string", "maxLength": 9 },
                "text": { "type": "string" },
                "choice": { "type": "string", "enum": ["a"] },
                "amount": { "x-kubernetes-int-or-string": true },
                "map": { "type": "object", "additionalProperties": { "type": "array", "items": { "type": "string" } } },
            },
        });
        bounded(&mut schema);
        let text = json!({ "type": "string", "maxLength": 4096 });
        let list = json!({ "type": "array", "maxItems": 256, "items": text });
        assert_eq!(
            schema.as_value()["properties"],
            json!({
                "own": { "type": "string", "maxLength": 9 },
                "text": text,
                "choice": { "type": "string", "enum": ["a"] },
                "amount": { "x-kubernetes-int-or-string": true },
                "map": { "type": "object", "maxProperties": 256, "additionalProperties": list },
            })
        );
    }
}
