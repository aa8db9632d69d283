//! Containment, size and stable hashes of JSON.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Whether `live` contains everything in `desired`. Maps may have more entries (the server's defaults, other writers' fields),
/// lists must match item by item.
pub fn contains(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired.iter().all(|(key, wanted)| match live.get(key) {
            Some(found) => contains(found, wanted),
            None => wanted.is_null(),
        }),
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len() && live.iter().zip(desired).all(|(found, wanted)| contains(found, wanted))
        }
        (Value::Number(live), Value::Number(desired)) => live == desired || live.as_f64() == desired.as_f64(),
        (live, desired) => live == desired,
    }
}

/// A stable hash: 12 hexadecimal digits of SHA-256 over the JSON text. Object keys are sorted by `serde_json`'s map.
pub fn hash(value: &impl Serialize) -> String {
    let text = serde_json::to_vec(value).unwrap_or_default();
    let digest = Sha256::digest(&text);
    let first = digest.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    format!("{:012x}", first >> 16)
}

/// Size of a value as JSON text, in bytes.
pub fn size(value: &impl Serialize) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // A value that cannot be serialized has no size.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_of_the_server_do_not_count_as_drift() {
        let live = json!({"a": 1, "count": 1, "list": [{"name": "x", "protocol": "TCP"}]});
        assert!(contains(&live, &json!({"a": 1, "list": [{"name": "x"}]})));
        assert!(contains(&live, &json!({"a": 1.0, "gone": null})));
        assert!(!contains(&live, &json!({"a": 2})));
        assert!(!contains(&live, &json!({"b": 1})));
        assert!(!contains(&live, &json!({"list": []})));
    }

    #[test]
    fn the_size_is_that_of_the_text() {
        assert_eq!(size(&json!({"a": [1, "ü"]})), r#"{"a":[1,"ü"]}"#.len());
    }

    #[test]
    fn key_order_does_not_change_the_hash() {
        assert_eq!(hash(&json!({"a": 1, "b": 2})), hash(&json!({"b": 2, "a": 1})));
        assert_ne!(hash(&json!({"a": 1})), hash(&json!({"a": 2})));
    }
}
