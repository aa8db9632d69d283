//! Server-side apply for statuses and upstream objects: maps by key, `conditions` by type, every other list as a whole.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Fields with their values, by path.
pub type Fields = BTreeMap<Vec<String>, Value>;

/// Fields that each field manager applied last.
#[derive(Clone, Debug, Default, Hash)]
pub struct Applied(BTreeMap<String, Fields>);

impl Applied {
    /// Applies the complete fields of a manager.
    ///
    /// # Errors
    /// Another manager owns a field with another value.
    pub fn apply(&mut self, manager: &str, wanted: &Value) -> Result<(), String> {
        let wanted = fields(wanted);
        for (other, theirs) in self.0.iter().filter(|(name, _)| *name != manager) {
            for (path, value) in &wanted {
                match theirs.get(path) {
                    Some(held) if held != value => {
                        return Err(format!(
                            "{manager} wants {} = {value}, {other} holds {held}",
                            path.join(".")
                        ));
                    }
                    _ => {}
                }
            }
        }
        self.0.insert(manager.to_owned(), wanted);
        Ok(())
    }

    /// The merged fields of all managers.
    pub fn merged(&self) -> Value {
        whole(self.0.values().flatten())
    }

    /// The fields of one manager.
    pub fn of(&self, manager: &str) -> Fields {
        self.0.get(manager).cloned().unwrap_or_default()
    }

    /// Paths with more than one owner.
    pub fn shared(&self) -> Vec<String> {
        let mut holders: BTreeMap<&Vec<String>, usize> = BTreeMap::new();
        for path in self.0.values().flat_map(BTreeMap::keys) {
            *holders.entry(path).or_default() += 1;
        }
        let shared = holders.into_iter().filter(|(_, count)| *count > 1);
        shared.map(|(path, _)| path.join(".")).collect()
    }
}

/// The fields of a value.
///
/// # Panics
/// A condition has no type.
pub fn fields(value: &Value) -> Fields {
    let mut found = Fields::new();
    collect(&mut Vec::new(), value, &mut found);
    found
}

fn collect(path: &mut Vec<String>, value: &Value, found: &mut Fields) {
    let is_conditions = path.last().is_some_and(|step| step == "conditions");
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                path.push(key.clone());
                collect(path, inner, found);
                path.pop();
            }
        }
        Value::Array(list) if is_conditions => {
            for condition in list {
                path.push(condition["type"].as_str().unwrap().to_owned());
                collect(path, condition, found);
                path.pop();
            }
        }
        leaf => {
            found.insert(path.clone(), leaf.clone());
        }
    }
}

/// The value with these fields.
pub fn whole<'a>(fields: impl IntoIterator<Item = (&'a Vec<String>, &'a Value)>) -> Value {
    let mut whole = Value::Object(Map::new());
    for (path, value) in fields {
        let mut at = &mut whole;
        for step in path {
            at = &mut at[step.as_str()];
        }
        at.clone_from(value);
    }
    if let Some(Value::Object(by_type)) = whole.get_mut("conditions").map(Value::take) {
        whole["conditions"] = by_type.into_iter().map(|(_, condition)| condition).collect();
    }
    whole
}

/// A merge patch of RFC 7396.
pub fn patch(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, change) in changes {
        if let (true, Some(fields)) = (change.is_null(), target.as_object_mut()) {
            fields.remove(key);
        } else {
            self::patch(&mut target[key.as_str()], change);
        }
    }
}
