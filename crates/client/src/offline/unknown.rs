//! Fields of a document that its type does not have.

use serde_json::Value;

/// The paths of fields that our type does not know: they are lost when it is written again.
pub(crate) fn unknown_fields(written: &Value, known: &Value, path: &str) -> Vec<String> {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => written
            .iter()
            .filter(|(_, value)| !is_empty(value))
            .flat_map(|(key, value)| {
                let path = format!("{path}.{key}");
                match known.get(key) {
                    Some(known) => unknown_fields(value, known, &path),
                    None => vec![path],
                }
            })
            .collect(),
        (Value::Array(written), Value::Array(known)) => written
            .iter()
            .zip(known)
            .enumerate()
            .flat_map(|(index, (w, k))| unknown_fields(w, k, &format!("{path}[{index}]")))
            .collect(),
        _ => Vec::new(),
    }
}

/// Whether a value is empty. Known fields that are empty are omitted when they are written again.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}
