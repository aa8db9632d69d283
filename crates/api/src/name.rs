//! Names that are safe in a path of the API server.
//!
//! Input (an argument, an address, a file, a field of another object) is parsed once, before it becomes part of a path. The
//! types exclude names that lead elsewhere: `?` and `#` end a path, so that `DELETE …/modeldeployments/?` deletes all of them;
//! `/`, `..` and `%2F` lead to other objects; an empty name means the whole collection.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum length of an RFC 1123 label.
const MAX_LABEL: usize = 63;
/// Maximum length of an RFC 1123 subdomain, and of any object name.
const MAX_SUBDOMAIN: usize = 253;
/// Maximum characters of an invalid name in a message.
const MAX_SHOWN: usize = 60;

/// Error for an invalid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} `{}`: {remedy}", shown(.text))]
pub struct Invalid {
    what: &'static str,
    text: String,
    remedy: String,
}

/// An invalid text for a message: one line of at most 60 characters, without control characters. The precision of a format such as
/// `{text:.60?}` does not limit strings.
pub fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(MAX_SHOWN).map(plain).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Whether a text is an RFC 1123 label: at most 63 lowercase letters, digits and `-`, with a letter or digit at both ends.
pub fn is_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_part(text)
}

/// Whether a text is an RFC 1123 subdomain: labels of any length joined by dots, at most 253 characters in all.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(edge) && bytes.last().is_some_and(edge) && bytes.iter().all(|b| edge(b) || *b == b'-')
}

/// Whether a text is one segment of a path without encoding (RFC 3986: pchar without percent-encoding). Names of roles and of
/// external metrics are not always subdomains.
fn is_segment(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b);
    !matches!(text, "" | "." | "..") && text.len() <= MAX_SUBDOMAIN && text.bytes().all(plain)
}

const LABEL: &str = "use lowercase letters, digits and `-`; start and end with a letter or digit";
const SUBDOMAIN: &str = "use lowercase letters, digits, `-` and `.`; start and end with a letter or digit";
const PARTS: &str = "start and end each part between dots with a letter or digit";
const SEGMENT: &str = "use letters, digits, `-`, `.` and `:`";

/// Remedy for a text that is not a subdomain, apart from its length.
fn subdomain_remedy(text: &str) -> &'static str {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let plain = text.chars().all(|c| edge(c) || c == '-' || c == '.');
    if plain && text.starts_with(edge) && text.ends_with(edge) {
        PARTS
    } else {
        SUBDOMAIN
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $type:ident: $what:literal, at most $max:ident, $is:ident, $remedy:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// The name as a string slice.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                if $is(&text) {
                    return Ok(Self(text));
                }
                let remedy = match text.chars().count() {
                    length if length > $max => format!("it has {length} characters; use at most {}", $max),
                    _ => ($remedy)(&text).to_owned(),
                };
                Err(Invalid { what: $what, text, remedy })
            }
        }

        impl FromStr for $type {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                text.to_owned().try_into()
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> Self {
                name.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }
    )*};
}

names! {
    /// Name of an object: an RFC 1123 subdomain of at most 253 characters.
    Name: "name", at most MAX_SUBDOMAIN, is_subdomain, subdomain_remedy;
    /// Name of a namespace: an RFC 1123 label of at most 63 characters. Defaults to `default`.
    Namespace: "namespace", at most MAX_LABEL, is_label, |_| LABEL;
    /// Name of a container: an RFC 1123 label of at most 63 characters.
    Container: "container name", at most MAX_LABEL, is_label, |_| LABEL;
    /// One segment of a path, for what need not be a subdomain: names of roles such as `system:node`, of metrics, API groups and
    /// versions.
    Segment: "name", at most MAX_SUBDOMAIN, is_segment, |_| SEGMENT;
}

impl Default for Namespace {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that lead elsewhere, or to no object at all.
    const HOSTILE: [&str; 24] = [
        "", "?", "#", "/", "//", ".", "..", "../x", "a/b", "a/../b", "%2F", "%252F", "%2e%2e", "a?b", "a#b", "A",
        "Gemma", "a b", "a\n", "a\0", "ä", "🦙", "-a", "a-",
    ];

    #[test]
    fn names_that_change_a_path_are_rejected() {
        for text in HOSTILE {
            assert!(text.parse::<Name>().is_err(), "{text:?}");
            assert!(text.parse::<Namespace>().is_err(), "{text:?}");
            assert!(text.parse::<Container>().is_err(), "{text:?}");
        }
        for text in [
            "", "?", "#", "/", ".", "..", "a/b", "%2F", "%252F", "a?b", "a b", "a\n", "a\0", "ä",
        ] {
            assert!(text.parse::<Segment>().is_err(), "{text:?}");
        }
        for text in ["a..b", "a.-b", ".a", "a.", "a_b"] {
            assert!(text.parse::<Name>().is_err(), "{text:?}");
        }
        assert!("a.b".parse::<Namespace>().is_err());
    }

    #[test]
    fn valid_kubernetes_names_are_accepted() {
        for text in ["a", "0", "gemma-cpu", "a.b", "kube-root-ca.crt", &"a".repeat(253)] {
            assert_eq!(text.parse::<Name>().unwrap(), text);
        }
        assert_eq!("team-a".parse::<Namespace>().unwrap(), "team-a");
        assert_eq!("a".repeat(63).parse::<Namespace>().unwrap().len(), 63);
        for text in ["system:node", "v1beta1", "s0-rabbitmq-A_b", "apps"] {
            assert_eq!(text.parse::<Segment>().unwrap(), text);
        }
    }

    #[test]
    fn an_error_names_the_allowed_characters() {
        let name = |text: &str| text.parse::<Name>().unwrap_err().to_string();
        assert_eq!(
            name("?"),
            "invalid name `?`: use lowercase letters, digits, `-` and `.`; start and end with a letter or digit"
        );
        assert_eq!(name("a..b"), format!("invalid name `a..b`: {PARTS}"));
        assert_eq!(
            name(&"a".repeat(254)),
            format!(
                "invalid name `{}…`: it has 254 characters; use at most 253",
                "a".repeat(60)
            )
        );
        assert!(name("a\n\u{1b}[31m").starts_with("invalid name `a\u{fffd}\u{fffd}[31m`: "));
        assert_eq!(
            "a.b".parse::<Namespace>().unwrap_err().to_string(),
            "invalid namespace `a.b`: use lowercase letters, digits and `-`; start and end with a letter or digit"
        );
    }

    #[test]
    fn a_document_cannot_hold_a_wrong_name() {
        assert_eq!(serde_json::from_str::<Name>("\"a\"").unwrap(), "a");
        assert!(serde_json::from_str::<Name>("\"a/b\"").is_err());
    }
}
