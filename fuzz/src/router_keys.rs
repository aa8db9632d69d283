//! Any text as the file of a key: it is refused without a word of the key, or the key opens what the file names.
//!
//! The input is two parts with a NUL between: the name of the caller, and the file.

use jiff::Timestamp;
use runway_router::keys::Keys;
use serde_json::Value;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

pub fn run(data: &[u8]) {
    let [name, file] = crate::parts(data);
    let (Some(name), Some(file)) = (crate::text(name), crate::text(file)) else {
        return;
    };
    let key = serde_json::from_str(file).map_or(Value::Null, |file: Value| file["key"].clone());
    let key = key.as_str().unwrap_or_default();
    let mut keys = Keys::default();
    match keys.add(name, file) {
        Ok(()) => {
            if !key.is_empty() {
                assert_eq!(keys.holder(key, NOW).expect("it was added").name, name);
            }
            assert!(keys.holder(&format!("{key} "), NOW).is_none());
            keys.add("other", file).expect_err("each caller has a key of its own");
        }
        Err(error) => {
            // Shorter ones may be words of the message. A model is named, and may contain the key.
            let models = file.matches(key).count() > 1;
            assert!(key.len() < 20 || models || !error.to_string().contains(key), "{error}");
        }
    }
}
