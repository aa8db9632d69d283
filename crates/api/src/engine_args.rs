//! Values of the flags in `spec.engine.args`: a text, or several as a JSON list.

use serde_json::Value;

/// Flags of vLLM whose one value is a JSON list (vLLM 0.32.0 `vllm/entrypoints/openai/cli_args.py`).
const LISTS: [&str; 3] = ["allowed-headers", "allowed-methods", "allowed-origins"];

/// Reason why a JSON list is not the values of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotValues {
    /// The list has no items.
    #[error("an empty list")]
    Empty,
    /// An item is neither a text nor a number.
    #[error("a list with an item that is neither a text nor a number")]
    Item,
}

/// Arguments that follow a flag: the items of a JSON list, or the text itself; none if it is empty. A value that is itself a list
/// is written as the only item of one: `["[1, 2]"]`.
///
/// ```
/// use runway_api::engine_args::values;
///
/// assert_eq!(values("lora-modules", r#"["a=org/a", "b=org/b"]"#)?, ["a=org/a", "b=org/b"]);
/// assert_eq!(values("lora-modules", "a=org/a")?, ["a=org/a"]);
/// assert_eq!(values("of-a-list", r#"["[1, 2]"]"#)?, ["[1, 2]"]);
/// # Ok::<(), runway_api::engine_args::NotValues>(())
/// ```
///
/// # Errors
/// The text is a JSON list that is empty, or has other items than texts and numbers.
pub fn values(flag: &str, text: &str) -> Result<Vec<String>, NotValues> {
    let items = match serde_json::from_str(text) {
        Ok(Value::Array(items)) if !LISTS.contains(&flag.replace('_', "-").as_str()) => items,
        _ if text.is_empty() => return Ok(Vec::new()),
        _ => return Ok(vec![text.to_owned()]),
    };
    if items.is_empty() {
        return Err(NotValues::Empty);
    }
    let values = items.into_iter().map(|item| match item {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(NotValues::Item),
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_items_of_a_list_or_the_text() {
        for (flag, text, expected) in [
            (
                "lora-modules",
                r#" ["a=org/a","b=org/b"] "#,
                Ok(vec!["a=org/a", "b=org/b"]),
            ),
            ("lora-modules", "a=org/a b=org/b", Ok(vec!["a=org/a b=org/b"])),
            ("cudagraph-capture-sizes", "[1, 2.5]", Ok(vec!["1", "2.5"])),
            ("enforce-eager", "", Ok(vec![])),
            ("any", r#"[""]"#, Ok(vec![""])),
            ("any", r#"["[\"a\"]"]"#, Ok(vec![r#"["a"]"#])),
            ("any", "[a-z]", Ok(vec!["[a-z]"])),
            ("any", r#"{"a": [1]}"#, Ok(vec![r#"{"a": [1]}"#])),
            ("allowed-origins", r#"["*"]"#, Ok(vec![r#"["*"]"#])),
            ("allowed_methods", "[]", Ok(vec!["[]"])),
            ("any", "[]", Err(NotValues::Empty)),
            ("any", "[[1]]", Err(NotValues::Item)),
            ("any", r#"["a", null]"#, Err(NotValues::Item)),
            ("any", r#"[{"name": "a"}]"#, Err(NotValues::Item)),
        ] {
            let found = values(flag, text);
            assert_eq!(
                found,
                expected.map(|texts| texts.into_iter().map(str::to_owned).collect()),
                "{text}"
            );
        }
    }
}
