//! Strict validation of upstream objects in tests: by the schema of a CRD, or by a Kubernetes type.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use runway_operator::json::contains;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Fields of every object, which the API server sets or validates without the CRD.
const OF_OBJECTS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The schema of the version in which `object` is written, if the CRD has that version.
pub fn of<'a>(crd: &'a CustomResourceDefinition, object: &Value) -> Option<&'a JSONSchemaProps> {
    let version = object["apiVersion"].as_str()?.rsplit('/').next()?;
    let version = crd.spec.versions.iter().find(|known| known.name == version)?;
    version.schema.as_ref()?.open_api_v3_schema.as_ref()
}

/// Fields of an object that are unknown, missing or of another type than the schema says, or that have a value outside of its
/// enumeration. An API server without strict validation would drop the unknown ones silently.
pub fn problems(schema: &JSONSchemaProps, object: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let mut body = object.clone();
    if let Value::Object(fields) = &mut body {
        fields.retain(|name, _| !OF_OBJECTS.contains(&name.as_str()));
    }
    visit("", &body, schema, &mut problems);
    problems
}

/// Values that the Kubernetes type `T` rejects or does not know, such as in a pod template that a CRD leaves open.
pub fn problems_of_type<T: DeserializeOwned + Serialize>(value: &Value) -> Vec<String> {
    let back = serde_json::from_value::<T>(value.clone()).and_then(|typed| serde_json::to_value(typed));
    match back {
        Err(error) => vec![error.to_string()],
        Ok(back) if contains(&back, value) => Vec::new(),
        Ok(back) => vec![format!("{value} was read as {back}")],
    }
}

fn visit(path: &str, value: &Value, schema: &JSONSchemaProps, problems: &mut Vec<String>) {
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) || schema.x_kubernetes_int_or_string == Some(true) {
        return;
    }
    if let Some(expected) = schema.type_.as_deref().filter(|expected| !is_of_type(value, expected)) {
        problems.push(format!("{path} must be of type {expected}: {value}"));
    }
    for required in schema.required.iter().flatten() {
        if value.get(required).is_none() {
            problems.push(format!("{path}.{required} is required"));
        }
    }
    if let Some(allowed) = &schema.enum_
        && !allowed.iter().any(|allowed| allowed.0 == *value)
    {
        problems.push(format!("{path} must be one of {allowed:?}: {value}"));
    }
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let at = format!("{path}.{name}");
                let property = schema.properties.as_ref().and_then(|all| all.get(name));
                match (property, &schema.additional_properties) {
                    (Some(property), _) => visit(&at, inner, property, problems),
                    (None, Some(JSONSchemaPropsOrBool::Schema(any))) => visit(&at, inner, any, problems),
                    (None, Some(JSONSchemaPropsOrBool::Bool(true))) => {}
                    (None, _) => problems.push(format!("{at} is unknown")),
                }
            }
        }
        Value::Array(entries) => {
            if let Some(JSONSchemaPropsOrArray::Schema(each)) = &schema.items {
                for (index, entry) in entries.iter().enumerate() {
                    visit(&format!("{path}[{index}]"), entry, each, problems);
                }
            }
        }
        _ => {}
    }
}

fn is_of_type(value: &Value, expected: &str) -> bool {
    match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => true,
    }
}
