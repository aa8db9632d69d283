//! References to Secrets and ConfigMaps in a provider's `config`. The value reaches the server as an environment variable of its
//! container, which run.yaml names, so that it is never part of a ConfigMap, an init container or a log.

use serde_json::{Map, Value, json};

/// The key of a reference.
const VALUE_FROM: &str = "valueFrom";
/// Sources of a value, as in the `valueFrom` of a container's environment variable.
const SOURCES: [&str; 2] = ["secretKeyRef", "configMapKeyRef"];

/// Replaces references in the `config` of the provider `id` by `${env.NAME}`, and returns the environment variables.
///
/// # Errors
/// The path of a reference that is incomplete, and the reason.
pub(super) fn replace(id: &str, config: &mut Map<String, Value>) -> Result<Vec<Value>, String> {
    // IDs have no '_', so names of different providers differ.
    let prefix = format!("LLS_CONFIG_{}", id.to_ascii_uppercase().replace('-', "_"));
    let mut variables = Vec::new();
    for (key, value) in config {
        walk(value, &format!("config.{key}"), &prefix, &mut variables)?;
    }
    Ok(variables)
}

/// Whether a `config` contains references.
pub(super) fn is_used(config: &Map<String, Value>) -> bool {
    config.values().any(refers)
}

fn refers(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.contains_key(VALUE_FROM) || map.values().any(refers),
        Value::Array(list) => list.iter().any(refers),
        _ => false,
    }
}

fn walk(value: &mut Value, path: &str, prefix: &str, variables: &mut Vec<Value>) -> Result<(), String> {
    match value {
        Value::Object(map) if map.contains_key(VALUE_FROM) => {
            let name = format!("{prefix}_{}", variables.len() + 1);
            let (source, is_optional) = source(map, path)?;
            // The server does not start without a variable that has no default.
            let default = if is_optional { ":=" } else { "" };
            *value = format!("${{env.{name}{default}}}").into();
            variables.push(json!({ "name": name, VALUE_FROM: source }));
        }
        Value::Object(map) => {
            for (key, value) in map {
                walk(value, &format!("{path}.{key}"), prefix, variables)?;
            }
        }
        Value::Array(list) => {
            for (n, value) in list.iter_mut().enumerate() {
                walk(value, &format!("{path}[{n}]"), prefix, variables)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The source of a reference, and whether it is optional.
fn source(map: &Map<String, Value>, path: &str) -> Result<(Value, bool), String> {
    let wrong = |why: &str| {
        format!(
            "{path}.{VALUE_FROM} {why}: use {VALUE_FROM}: {{secretKeyRef: {{name: NAME, key: KEY}}}}, or configMapKeyRef instead"
        )
    };
    if map.len() > 1 {
        return Err(wrong("has other keys beside it"));
    }
    let given = map.get(VALUE_FROM).and_then(Value::as_object);
    let (Some((kind, reference)), true) = (given.and_then(|m| m.iter().next()), given.is_some_and(|m| m.len() == 1))
    else {
        return Err(wrong("must have one source"));
    };
    if !SOURCES.contains(&kind.as_str()) {
        return Err(wrong(&format!("has the unknown source {kind}")));
    }
    let text = |field: &str| reference[field].as_str().filter(|text| !text.is_empty());
    let (Some(name), Some(key)) = (text("name"), text("key")) else {
        return Err(wrong(&format!("{kind} needs name and key")));
    };
    let mut source = json!({ "name": name, "key": key });
    let optional = match &reference["optional"] {
        Value::Null => false,
        Value::Bool(optional) => *optional,
        _ => return Err(wrong(&format!("{kind}.optional must be true or false"))),
    };
    if optional {
        source["optional"] = true.into();
    }
    Ok((json!({ kind: source }), optional))
}
