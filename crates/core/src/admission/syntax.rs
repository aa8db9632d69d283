//! The syntax of small texts: label keys, label values, quantities.

use runway_api::name;

/// Every suffix a quantity of memory may have.
pub(super) const MEMORY_SUFFIXES: &[&str] = &[
    "", "m", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "E", "Ei",
];
/// Every suffix a quantity of processors may have.
pub(super) const CPU_SUFFIXES: &[&str] = &["", "m"];

/// What a text says when read as an amount.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Unreadable,
    Zero,
    Positive,
}

/// Reads a quantity as the CRD's pattern does: digits, perhaps a fraction, perhaps a suffix.
pub(super) fn amount(text: &str, suffixes: &[&str]) -> Amount {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());

    if !digits(whole) || !digits(fraction) || !suffixes.contains(&suffix) {
        Amount::Unreadable
    } else if number.bytes().any(|b| matches!(b, b'1'..=b'9')) {
        Amount::Positive
    } else {
        Amount::Zero
    }
}

/// Whether this can be a label's or an annotation's key: a name of at most 63 characters, perhaps after a domain and `/`.
pub fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, key)) => name::is_subdomain(domain) && is_qualified(key),
        None => is_qualified(text),
    }
}

/// Whether this can be a label's value: empty, or a name.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified(text)
}

/// The part of a key after its domain, or a value.
fn is_qualified(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && text.bytes().all(inner) && framed(text, |b| b.is_ascii_alphanumeric())
}

/// Whether the first and the last character are fit to stand at an edge.
fn framed(text: &str, edge: impl Fn(u8) -> bool) -> bool {
    text.bytes().next().is_some_and(&edge) && text.bytes().last().is_some_and(&edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (text, expected) in [
            ("32Gi", Amount::Positive),
            ("+0.5Gi", Amount::Positive),
            ("500m", Amount::Positive),
            ("4", Amount::Positive),
            ("0", Amount::Zero),
            ("0.0Gi", Amount::Zero),
            ("", Amount::Unreadable),
            ("-1Gi", Amount::Unreadable),
            ("1.", Amount::Unreadable),
            (".5", Amount::Unreadable),
            ("1.2.3", Amount::Unreadable),
            ("32GB", Amount::Unreadable),
            ("32 Gi", Amount::Unreadable),
            ("lots", Amount::Unreadable),
            ("1ä", Amount::Unreadable),
        ] {
            assert_eq!(amount(text, MEMORY_SUFFIXES), expected, "{text:?}");
        }
        assert_eq!(amount("4Gi", CPU_SUFFIXES), Amount::Unreadable);
    }

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
