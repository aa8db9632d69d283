//! Comparison of two lists of objects: the paths at which they differ, and how often a value occurs.

use serde_json::{Map, Value, json};

/// Paths at which two lists of objects differ, as `Kind path`.
pub(super) fn differences(before: &[Value], after: &[Value]) -> Vec<String> {
    let kind = |object: &Value| object["kind"].as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for object in after {
        match before.iter().find(|b| kind(b) == kind(object)) {
            Some(earlier) => differ(earlier, object, &kind(object), " ", &mut found),
            None => found.push(kind(object)),
        }
    }
    for object in before {
        if !after.iter().any(|a| kind(a) == kind(object)) {
            found.push(format!("no {}", kind(object)));
        }
    }
    found
}

fn differ(before: &Value, after: &Value, path: &str, dot: &str, found: &mut Vec<String>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in after {
                let path = format!("{path}{dot}{key}");
                differ(before.get(key).unwrap_or(&Value::Null), value, &path, ".", found);
            }
            found.extend(
                before
                    .keys()
                    .filter(|key| !after.contains_key(*key))
                    .map(|key| format!("{path}{dot}{key} (gone)")),
            );
        }
        (Value::Null, Value::Object(after)) if path.ends_with("metadata") || after.values().any(is_nested) => {
            differ(&Value::Object(Map::new()), &json!(after), path, ".", found);
        }
        (Value::Array(before), Value::Array(after)) => differ_in_list(before, after, path, found),
        (Value::Null, Value::Array(after)) if after.iter().any(|item| item.get("name").is_some()) => {
            differ_in_list(&[], after, path, found);
        }
        (Value::String(before), Value::String(after)) if after.len() > 60 => {
            found.push(format!("{path} ({})", changed_words(before, after)));
        }
        _ => found.push(path.to_owned()),
    }
}

fn is_nested(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

/// Items with a name are compared with the one of that name; of plain lists the new items are shown.
fn differ_in_list(before: &[Value], after: &[Value], path: &str, found: &mut Vec<String>) {
    if after.iter().all(|item| !is_nested(item)) {
        let added: Vec<String> = added(before, after).iter().map(|item| word(item)).collect();
        return found.push(match added.as_slice() {
            [] => path.to_owned(),
            words => format!("{path} ({})", words.join(" ")),
        });
    }
    for (index, item) in after.iter().enumerate() {
        let (label, earlier) = match item["name"].as_str() {
            Some(name) => (name.to_owned(), before.iter().find(|b| b["name"] == name)),
            None => (index.to_string(), before.get(index)),
        };
        let path = format!("{path}[{label}]");
        match earlier {
            Some(earlier) => differ(earlier, item, &path, ".", found),
            None => found.push(path),
        }
    }
}

/// The items of `after` that `before` has not, each as often as it is new.
fn added<'a>(before: &[Value], after: &'a [Value]) -> Vec<&'a Value> {
    let mut left: Vec<&Value> = before.iter().collect();
    after
        .iter()
        .filter(|item| match left.iter().position(|b| b == item) {
            Some(index) => {
                left.remove(index);
                false
            }
            None => true,
        })
        .collect()
}

/// The lines, or else the words, of a long text that are new.
fn changed_words(before: &str, after: &str) -> String {
    let by = |pattern: fn(char) -> bool| -> Vec<String> {
        let mut known: Vec<&str> = before.split(pattern).map(str::trim).collect();
        let mut new = Vec::new();
        for part in after.split(pattern).map(str::trim) {
            if !known.contains(&part) {
                known.push(part);
                new.push(part.to_owned());
            }
        }
        new
    };
    let lines = by(|c| c == '\n');
    let parts = if lines.iter().any(|line| line.len() > 80) {
        by(char::is_whitespace)
    } else {
        lines
    };
    parts.join(" ")
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_their_place() {
        let before = json!([{ "kind": "A", "spec": { "list": ["x", "y"], "named": [{ "name": "main", "a": 1 }] } }]);
        let after = json!([{ "kind": "A", "spec": { "list": ["x", "z", "y"], "named": [{ "name": "main", "a": 2 }], "new": 1 } }]);
        let found = differences(before.as_array().unwrap(), after.as_array().unwrap());
        assert_eq!(found, ["A spec.list (z)", "A spec.named[main].a", "A spec.new"]);
    }
}
