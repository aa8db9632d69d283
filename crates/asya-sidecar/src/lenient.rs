//! Values of a runtime's error, whatever its JSON contains. Python writes a lone surrogate, such as one of a file name that is not UTF-8, as
//! an escape that is not text (RFC 8259, section 8.2).

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::envelope::Object;

/// Members of an object. Any other value is the `message`.
pub fn members(raw: &RawValue) -> Map<String, Value> {
    if let Ok(object) = serde_json::from_str::<Object<'_>>(raw.get()) {
        let members = object.entries().map(|(name, raw)| (name.to_owned(), value(raw)));
        return members.collect();
    }
    let message = match value(raw) {
        Value::Null => return Map::new(),
        Value::Object(members) => return members,
        Value::String(text) => text,
        other => other.to_string(),
    };
    Map::from_iter([("message".to_owned(), Value::String(message))])
}

/// A value. In texts, `\ud800` without its other half becomes the text `\ud800`. What cannot be represented becomes a text.
pub fn value(raw: &RawValue) -> Value {
    let text = raw.get();
    serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&without_lone_surrogates(text)))
        .unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// JSON whose escapes are text.
fn without_lone_surrogates(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 8);
    let mut rest = json;
    while let Some(start) = rest.find('\\') {
        let (before, escape) = rest.split_at(start);
        out.push_str(before);
        let length = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                out.push('\\');
                6
            }
            (Some(_), _) => 6,
            (None, _) => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
        };
        let (escape, after) = escape.split_at(length);
        out.push_str(escape);
        rest = after;
    }
    out.push_str(rest);
    out
}

/// UTF-16 code unit of an escape at the start of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_lone_surrogates_are_replaced() {
        for (json, expected) in [
            (r#""a \n \u00e9 \\ud800""#, r#""a \n \u00e9 \\ud800""#),
            (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (r#""\ud800""#, r#""\\ud800""#),
            (r#""\ud800\ud83d\ude00""#, r#""\\ud800\ud83d\ude00""#),
            (r#""\udc00\n""#, r#""\\udc00\n""#),
            (r#""\\\ud800ä""#, r#""\\\\ud800ä""#),
            ("\\", "\\"),
            ("\\u12", "\\u12"),
            ("\\ä", "\\ä"),
        ] {
            assert_eq!(without_lone_surrogates(json), expected, "{json}");
        }
    }

    proptest! {
        #[test]
        fn valid_json_is_unchanged(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(without_lone_surrogates(&json), json);
        }

        #[test]
        fn any_text_is_accepted(text in r"([\\ud8fc0-9äu]|\\ud8)*") {
            without_lone_surrogates(&text);
        }
    }
}
