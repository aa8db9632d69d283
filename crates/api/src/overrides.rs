//! Checks `spec.provider.overrides` against a provider's documented keys.
//!
//! Only documented keys reach an upstream object.

use serde_json::{Map, Value};

use crate::provider_config::{OverrideKey, OverrideType};

/// Maximum size of all overrides as JSON, in bytes.
pub const MAX_SIZE: usize = 64 * 1024;

/// A problem with an override.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// An undocumented key: a warning.
    #[error("spec.provider.overrides.{path} is unknown and ignored ({})", known_keys(known))]
    Unknown {
        /// Dotted path.
        path: String,
        /// Documented paths.
        known: Vec<String>,
    },
    /// A documented key with a value of another type: the reconcile fails.
    #[error("spec.provider.overrides.{path} must be {expected}, not {found}")]
    WrongType {
        /// Dotted path.
        path: String,
        /// Documented type.
        expected: &'static str,
        /// Type of the given value.
        found: &'static str,
    },
}

impl Finding {
    /// Whether the overrides cannot be used. Otherwise the finding is a warning.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::WrongType { .. })
    }
}

fn known_keys(known: &[String]) -> String {
    if known.is_empty() {
        "this provider has no overrides".to_owned()
    } else {
        format!("known: {}", known.join(", "))
    }
}

/// All problems of `overrides`, at any depth, in document order.
pub fn check(overrides: &Map<String, Value>, documented: &[OverrideKey]) -> Vec<Finding> {
    let mut findings = Vec::new();
    visit("", overrides, documented, &mut findings);
    findings
}

fn visit(prefix: &str, object: &Map<String, Value>, documented: &[OverrideKey], findings: &mut Vec<Finding>) {
    for (key, value) in object {
        let path = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        if let Some(leaf) = documented.iter().find(|d| d.path == path) {
            check_type(path, leaf.kind, value, findings);
        } else if documented
            .iter()
            .any(|d| d.path.starts_with(&path) && d.path[path.len()..].starts_with('.'))
        {
            match value {
                Value::Object(inner) => visit(&path, inner, documented, findings),
                Value::Null => {}
                other => findings.push(Finding::WrongType {
                    path,
                    expected: "an object",
                    found: type_name(other),
                }),
            }
        } else {
            let known = documented.iter().map(|d| d.path.clone()).collect();
            findings.push(Finding::Unknown { path, known });
        }
    }
}

fn check_type(path: String, expected: OverrideType, value: &Value, findings: &mut Vec<Finding>) {
    let (fits, expected) = match expected {
        OverrideType::String => (value.is_string(), "a string"),
        OverrideType::Integer => (value.is_i64() || value.is_u64(), "a whole number"),
        OverrideType::Boolean => (value.is_boolean(), "true or false"),
        OverrideType::StringMap => {
            if let Value::Object(map) = value {
                for (key, inner) in map.iter().filter(|(_, v)| !v.is_string()) {
                    findings.push(Finding::WrongType {
                        path: format!("{path}.{key}"),
                        expected: "a string",
                        found: type_name(inner),
                    });
                }
            }
            (value.is_object(), "a map of strings")
        }
    };
    if !fits && !value.is_null() {
        findings.push(Finding::WrongType {
            path,
            expected,
            found: type_name(value),
        });
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn documented() -> Vec<OverrideKey> {
        let key = |path: &str, kind| OverrideKey {
            path: path.to_owned(),
            kind,
            description: None,
        };
        vec![
            key("routerMode", OverrideType::String),
            key("frontend.replicas", OverrideType::Integer),
            key("frontend.resources.cpu", OverrideType::String),
            key("head.rayStartParams", OverrideType::StringMap),
        ]
    }

    fn findings(overrides: &Value) -> Vec<String> {
        check(overrides.as_object().unwrap(), &documented())
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn the_documented_example_passes() {
        let overrides = json!({"routerMode": "kv", "frontend": {"replicas": 2, "resources": {"cpu": "4"}}, "head": {"rayStartParams": {"num-cpus": "0"}}});
        assert_eq!(findings(&overrides), Vec::<String>::new());
    }

    #[test]
    fn a_typo_at_any_depth_is_named() {
        let overrides = json!({"frontend": {"replicsa": 2}});
        assert_eq!(
            findings(&overrides),
            [
                "spec.provider.overrides.frontend.replicsa is unknown and ignored (known: routerMode, frontend.replicas, frontend.resources.cpu, head.rayStartParams)"
            ]
        );
    }

    #[test]
    fn a_wrong_type_names_the_path_and_both_types() {
        let overrides =
            json!({"frontend": {"replicas": "two", "resources": 3}, "head": {"rayStartParams": {"num-cpus": 0}}});
        assert_eq!(
            findings(&overrides),
            [
                "spec.provider.overrides.frontend.replicas must be a whole number, not a string",
                "spec.provider.overrides.frontend.resources must be an object, not a number",
                "spec.provider.overrides.head.rayStartParams.num-cpus must be a string, not a number",
            ]
        );
    }
}
