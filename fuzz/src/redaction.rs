//! Any text and any object on its way into a support bundle: taking secrets out ends without a panic, and a secret that stands where
//! secrets stand is not there any more, whatever is around it.
//!
//! The input is what stands before a secret, a NUL, and what stands behind it; both as text and, if it is JSON, as an object.

use runway_doctor::bundle::redact;
use serde_json::{Value, json};

const SECRET: &str = "CANARY";

/// Lines of which nothing but the name may be left.
const LINES: [&str; 8] = [
    "password: CANARY",
    "HF_TOKEN=CANARY",
    r#"{"api_key": "CANARY"}"#,
    "Authorization: Bearer CANARY",
    "serve --api-key CANARY --port 80",
    "GET https://user:CANARY@host/path",
    "GET https://host/path?signature=CANARY",
    "token hf_CANARYCANARY is not valid",
];

pub fn run(data: &[u8]) {
    let [before, after] = crate::parts(data);
    let (Some(before), Some(after)) = (crate::text(before), crate::text(after)) else {
        return;
    };
    // A secret that the fuzzer puts somewhere else is not planted.
    if before.contains(SECRET) || after.contains(SECRET) {
        return;
    }
    for line in LINES {
        let left = redacted(&format!("{before}\n{line}\n{after}"));
        assert!(!left.contains(SECRET), "{left}");
    }
    for mut object in [before, after]
        .iter()
        .filter_map(|text| serde_json::from_str::<Value>(text).ok())
    {
        // Of a schema nothing but the metadata is looked at.
        if object["kind"] == "CustomResourceDefinition" {
            continue;
        }
        plant(&mut object);
        redact::all([&mut object], []);
        assert!(!object.to_string().contains(SECRET), "{object}");
    }
}

fn redacted(text: &str) -> String {
    let mut text = text.to_owned();
    redact::all([], [&mut text]);
    text
}

/// Puts a secret into every object and every list, at a place for secrets.
fn plant(at: &mut Value) {
    match at {
        Value::Array(items) => {
            items.iter_mut().for_each(plant);
            items.extend([json!("--api-key"), json!(SECRET)]);
            items.push(json!({"name": "DB_PASSWORD", "value": SECRET}));
        }
        Value::Object(fields) => {
            fields.values_mut().for_each(plant);
            fields.insert("password".to_owned(), json!([SECRET, {"value": SECRET}]));
            fields.insert("url".to_owned(), json!("https://user:CANARY@host/path?key=CANARY"));
        }
        _ => {}
    }
}
