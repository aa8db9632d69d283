//! The syntax of label keys and label values.

use crate::name;

/// Whether the text is a valid key of a label or annotation: a name of at most 63 characters, optionally after a domain and `/`.
pub fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, key)) => name::is_subdomain(domain) && is_qualified(key),
        None => is_qualified(text),
    }
}

/// Whether the text is a valid label value: empty, or a name.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified(text)
}

/// Whether the text is a valid name in a key, or a valid value.
fn is_qualified(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && text.bytes().all(inner) && framed(text, |b| b.is_ascii_alphanumeric())
}

/// Whether the first and the last character may be at an edge.
fn framed(text: &str, edge: impl Fn(u8) -> bool) -> bool {
    text.bytes().next().is_some_and(&edge) && text.bytes().last().is_some_and(&edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values() {
        for key in ["app", "a.b_c-d", "example.com/app", "a/b", &"k".repeat(63), "X/y"] {
            assert_eq!(is_key(key), key != "X/y", "{key:?}");
        }
        for key in [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "-a",
            "a-",
            "a b",
            "ä",
            &"k".repeat(64),
            "example..com/a",
            "-x.com/a",
        ] {
            assert!(!is_key(key), "{key:?}");
        }
        for (value, good) in [
            ("", true),
            ("a", true),
            ("A.b-C_d", true),
            ("a b", false),
            ("-a", false),
            ("v".repeat(64).as_str(), false),
        ] {
            assert_eq!(is_label_value(value), good, "{value:?}");
        }
    }
}
