//! Changes of objects, field by field, and their text form. Pure.

use std::fmt::{self, Write as _};

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde::Serialize;
use serde_json::{Map, Value};

/// Most changed fields that are shown per object.
const MOST_LINES: usize = 20;
/// Longer values are cut.
const MOST_CHARS: usize = 100;

/// A planned change of one object.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Object to apply.
    pub object: DynamicObject,
    /// Planned action.
    #[serde(flatten)]
    pub action: Action,
}

/// Planned action for an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "action", content = "fields", rename_all = "camelCase")]
pub enum Action {
    /// The object does not exist.
    Create,
    /// The object differs in these fields.
    Change(Vec<Field>),
    /// The object does not change.
    Unchanged,
}

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Path, such as `spec.template.spec.containers[main].image`.
    pub path: String,
    /// Current value, shortened if it is long.
    pub before: String,
    /// Planned value, shortened if it is long.
    pub after: String,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} → {}", self.path, self.before, self.after)
    }
}

impl Action {
    /// Past participle of the action, such as `created`.
    pub fn done(&self) -> &'static str {
        match self {
            Self::Create => "created",
            Self::Change(_) => "changed",
            Self::Unchanged => "left",
        }
    }

    /// The action between the live object and the result of a dry run.
    pub fn between(live: Option<&DynamicObject>, then: &DynamicObject) -> Self {
        let Some(live) = live else {
            return Self::Create;
        };
        let lines = differences(&plain(live), &plain(then));
        if lines.is_empty() {
            Self::Unchanged
        } else {
            Self::Change(lines)
        }
    }
}

/// The planned changes as text: one line per object, with changed fields below.
pub fn show(changes: &[Change], obsolete: &[DynamicObject]) -> String {
    let mut text = String::new();
    let mut unchanged = 0;
    for change in changes {
        let id = place(&change.object);
        // Writing to a String does not fail.
        let _ = match &change.action {
            Action::Create => writeln!(text, "create  {id}"),
            Action::Unchanged => {
                unchanged += 1;
                Ok(())
            }
            Action::Change(lines) => {
                let _ = writeln!(text, "change  {id}");
                for line in lines.iter().take(MOST_LINES) {
                    let _ = writeln!(text, "          {line}");
                }
                match lines.len().saturating_sub(MOST_LINES) {
                    0 => Ok(()),
                    more => writeln!(text, "          … and {more} more fields"),
                }
            }
        };
    }
    for object in obsolete {
        let _ = writeln!(text, "delete  {}", place(object));
    }
    if unchanged > 0 {
        let _ = writeln!(text, "unchanged: {unchanged} objects");
    }
    text
}

/// The kind of an object.
pub fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

/// Kind and name, such as `Deployment/kaito-provider`.
pub fn id(object: &DynamicObject) -> String {
    format!("{}/{}", kind(object), object.name_any())
}

/// An object with its namespace.
pub fn place(object: &DynamicObject) -> String {
    let id = id(object);
    match object.namespace() {
        Some(namespace) => format!("{id} in {namespace}"),
        None => id,
    }
}

/// An object without what the server keeps in it.
fn plain(object: &DynamicObject) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in [
            "managedFields",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "uid",
        ] {
            metadata.remove(key);
        }
    }
    value
}

fn differences(before: &Value, after: &Value) -> Vec<Field> {
    let mut lines = Vec::new();
    compare("", before, after, &mut lines);
    lines
}

fn compare(path: &str, before: &Value, after: &Value, lines: &mut Vec<Field>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            for key in keys(before, after) {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                compare(
                    &path,
                    before.get(key).unwrap_or(&Value::Null),
                    after.get(key).unwrap_or(&Value::Null),
                    lines,
                );
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                let name = after
                    .get("name")
                    .and_then(Value::as_str)
                    .map_or_else(|| index.to_string(), str::to_owned);
                compare(&format!("{path}[{name}]"), before, after, lines);
            }
        }
        _ => lines.push(Field {
            path: path.to_owned(),
            before: shown(before),
            after: shown(after),
        }),
    }
}

fn keys<'a>(before: &'a Map<String, Value>, after: &'a Map<String, Value>) -> impl Iterator<Item = &'a String> {
    before
        .keys()
        .chain(after.keys().filter(|key| !before.contains_key(*key)))
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "(none)".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let text = crate::diagnostic::one_line(&text);
    if text.chars().count() <= MOST_CHARS {
        return text;
    }
    text.chars().take(MOST_CHARS).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(body: Value) -> DynamicObject {
        serde_json::from_value(body).unwrap()
    }

    fn deployment(image: &str, resource_version: &str) -> DynamicObject {
        object(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "a", "namespace": "n", "resourceVersion": resource_version },
            "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } },
            "status": { "observedGeneration": resource_version },
        }))
    }

    #[test]
    fn fields_of_the_server_are_not_changes() {
        assert_eq!(
            Action::between(Some(&deployment("a:1", "1")), &deployment("a:1", "2")),
            Action::Unchanged
        );
        assert_eq!(Action::between(None, &deployment("a:1", "")), Action::Create);
    }

    #[test]
    fn a_change_names_the_field_before_and_after() {
        let action = Action::between(Some(&deployment("a:1", "1")), &deployment("a:2", "1"));
        let field = Field {
            path: "spec.template.spec.containers[main].image".to_owned(),
            before: "a:1".to_owned(),
            after: "a:2".to_owned(),
        };
        assert_eq!(action, Action::Change(vec![field]));
        let change = Change {
            object: deployment("a:2", "1"),
            action,
        };
        let gone = object(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "old" } }));
        assert_eq!(
            show(&[change], &[gone]),
            "change  Deployment/a in n\n          spec.template.spec.containers[main].image: a:1 → a:2\ndelete  Service/old\n"
        );
    }

    #[test]
    fn many_lines_are_cut() {
        let field = |n: i32| Field {
            path: n.to_string(),
            before: String::new(),
            after: String::new(),
        };
        let lines = (0..30).map(field).collect();
        let change = Change {
            object: deployment("a", ""),
            action: Action::Change(lines),
        };
        assert!(show(&[change], &[]).ends_with("          … and 10 more fields\n"));
    }
}
