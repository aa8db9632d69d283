//! The Serve config as text. KubeRay parses it as YAML 1.1, where many plain scalars are not strings (`no`, `0o7`, `1_000`):
//! every string is quoted, and keys are sorted.

use std::fmt::Write;

use serde_json::Value;

/// A value as a YAML document.
pub(crate) fn text(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0);
    text
}

/// Writes a value at the start of a line, or after a list's dash.
fn block(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if is_block(value) => {
            for (name, inner) in fields {
                let margin = if text.ends_with("- ") { 0 } else { indent };
                // Writing to a String cannot fail.
                let _ = write!(text, "{:margin$}{}:", "", key(name));
                text.push(if is_block(inner) { '\n' } else { ' ' });
                block(text, inner, if inner.is_array() { indent } else { indent + 2 });
            }
        }
        Value::Array(entries) if is_block(value) => {
            for entry in entries {
                let _ = write!(text, "{:indent$}- ", "");
                block(text, entry, indent + 2);
            }
        }
        // JSON is valid YAML.
        _ => {
            let _ = writeln!(text, "{value}");
        }
    }
}

/// Whether a value needs its own lines: maps, and lists of maps.
fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(entries) => !entries.is_empty() && entries.iter().all(Value::is_object),
        _ => false,
    }
}

/// A key that YAML could parse as another type is quoted.
fn key(name: &str) -> String {
    const WORDS: [&str; 11] = [
        "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf",
    ];
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && !WORDS.contains(&name.to_ascii_lowercase().as_str());
    if is_plain {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_is_formatted_for_readers() {
        let value =
            json!({"a": [{"b": "no", "c": {"d": [1, 2], "e": {}}}, {"f": []}], "no": 0.5, "g": {"h": [[{"i": 1}]]}});
        assert_eq!(
            text(&value),
            "a:\n- b: \"no\"\n  c:\n    d: [1,2]\n    e: {}\n- f: []\ng:\n  h: [[{\"i\":1}]]\n\"no\": 0.5\n"
        );
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            (-9_i32..9).prop_map(|n| json!(f64::from(n) / 8.0)),
            "(no|0o7|1_000|a: b|# c|\"|\\\\|[ -~é]{0,6})".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("(no|[a-z_:. -]{1,4}|1)", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_yaml_parses_to_the_same_value(value in any_value()) {
            let read: Value = serde_saphyr::from_str(&text(&value)).unwrap();
            prop_assert_eq!(read, value);
        }
    }
}
