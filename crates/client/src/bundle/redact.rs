//! What must not leave a cluster is taken out: pure. Rather too much than too little.

use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// What stands in its place.
pub const REDACTED: &str = "(redacted)";

/// Parts of names behind which secrets are kept.
const SECRETIVE: &str = r"pass(?:w(?:or)?d|phrase)|secret|token|api[-_.]?key|access[-_.]?key|private[-_.]?key|client[-_.]?key|key[-_.]?data|certificate[-_.]?data|credential|authorization|bearer|cookie|session[-_.]?id|signature|connection[-_.]?string|kubeconfig|\bdsn\b|_dsn\b|\bauth\b|\bpwd\b|_key\b|\bsalt\b";

/// Fields of Kubernetes and ours that sound like secrets and only name one, or say nothing of it.
const NAMES_ONLY: [&str; 12] = [
    "secretName",
    "secretKeyRef",
    "secretRef",
    "imagePullSecrets",
    "imagePullSecret",
    "automountServiceAccountToken",
    "serviceAccountToken",
    "expirationSeconds",
    "modelAccessSecret",
    "authenticationRef",
    "nodePublishSecretRef",
    "secretTargetRef",
];

/// Annotations that repeat a whole object.
const COPIES: [&str; 1] = ["kubectl.kubernetes.io/last-applied-configuration"];

static NAME: LazyLock<Option<Regex>> = LazyLock::new(|| regex(&format!("(?i){SECRETIVE}")));
/// A flag that is followed by its value.
static FLAG: LazyLock<Option<Regex>> = LazyLock::new(|| regex(&format!(r"(?i)^--?[\w.-]*(?:{SECRETIVE})[\w.-]*$")));
static TEXT: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        // Keys, whole.
        r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)".to_owned(),
        // Who logs in is before the host of a URL, and what is asked behind its path.
        r"(?i)(?P<keep>[a-z][a-z0-9+.-]*://)[^/\s@]+@".to_owned(),
        r#"(?i)(?P<keep>[a-z][a-z0-9+.-]*://[^\s?"'<>]*\?)[^\s"'<>]+"#.to_owned(),
        r"(?i)(?P<keep>\b(?:bearer|basic)\s+)[\w.~+/=-]+".to_owned(),
        // NAME=VALUE, "name": "value", --name value.
        format!(r#"(?i)(?P<keep>[\w.-]*(?:{SECRETIVE})[\w.-]*\\?["']?\s*[=:]\s*)(?:\\?"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"',;}}\]]+)"#),
        format!(r"(?i)(?P<keep>--?[\w.-]*(?:{SECRETIVE})[\w.-]*\s+)[^\s-][^\s]*"),
        // Tokens that are known by their shape.
        r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?".to_owned(),
        r"\b(?:hf_|sk-|sk_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abpr]-|nvapi-|AKIA|ASIA|AIza|ya29\.|npm_|pypi-)[\w.-]{6,}".to_owned(),
    ];
    patterns.iter().filter_map(|pattern| regex(pattern)).collect()
});

/// A pattern of ours; a test sees that each is one.
fn regex(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

/// Whether a name promises a secret.
fn is_secretive(name: &str) -> bool {
    !NAMES_ONLY.contains(&name) && NAME.as_ref().is_none_or(|pattern| pattern.is_match(name))
}

/// A text without what looks like a secret.
pub fn text(text: &str) -> String {
    let mut text = text.to_owned();
    for pattern in TEXT.iter() {
        let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
            let keep = found.name("keep").map_or("", |part| part.as_str());
            let at = if found[0].ends_with('@') { "@" } else { "" };
            format!("{keep}{REDACTED}{at}")
        });
        text = replaced.into_owned();
    }
    text
}

/// An object without what looks like a secret. Of a Secret nothing is left but its name.
pub fn object(object: &mut Value) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
        if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| !COPIES.contains(&name.as_str()));
        }
    }
    if ["Secret", "ConfigMap"].contains(&kind.as_str())
        && let Some(fields) = object.as_object_mut()
    {
        fields.retain(|name, _| ["apiVersion", "kind", "metadata"].contains(&name.as_str()));
    }
    // A schema tells of fields, not of what is in them.
    if kind == "CustomResourceDefinition" {
        if let Some(meta) = object.get_mut("metadata") {
            value(meta);
        }
    } else {
        value(object);
    }
}

fn value(at: &mut Value) {
    match at {
        Value::String(said) => *said = inner(said),
        Value::Array(items) => list(items),
        Value::Object(fields) => {
            let is_env = fields.get("name").and_then(Value::as_str).is_some_and(is_secretive);
            for (name, field) in fields.iter_mut() {
                match (name.as_str(), &*field) {
                    ("value", Value::String(_)) if is_env => *field = REDACTED.into(),
                    (name, _) if is_secretive(name) => blacken(field),
                    _ => value(field),
                }
            }
        }
        _ => {}
    }
}

/// Arguments: the one behind a flag is its value.
fn list(items: &mut [Value]) {
    let mut behind = false;
    for item in items {
        let flag = item
            .as_str()
            .is_some_and(|said| FLAG.as_ref().is_none_or(|pattern| pattern.is_match(said)));
        if behind && item.is_string() && !flag {
            *item = REDACTED.into();
        } else {
            value(item);
        }
        behind = flag;
    }
}

/// A text; one that is an object itself is treated as one.
fn inner(said: &str) -> String {
    if said.starts_with(['{', '['])
        && let Ok(mut parsed) = serde_json::from_str::<Value>(said)
    {
        object_or_list(&mut parsed);
        return parsed.to_string();
    }
    text(said)
}

fn object_or_list(parsed: &mut Value) {
    if parsed.is_object() {
        object(parsed);
    } else {
        value(parsed);
    }
}

/// Every text below.
fn blacken(at: &mut Value) {
    match at {
        Value::String(_) | Value::Number(_) => *at = REDACTED.into(),
        Value::Array(items) => items.iter_mut().for_each(blacken),
        Value::Object(fields) => fields.values_mut().for_each(blacken),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_pattern_is_one() {
        assert!(NAME.is_some() && FLAG.is_some());
        assert_eq!(TEXT.len(), 8);
    }

    #[test]
    fn what_is_secret_goes_and_the_rest_stays() {
        let cases = [
            (
                "GET https://u:CANARY@host/p?sig=CANARY done",
                "GET https://(redacted)@host/p?(redacted) done",
            ),
            ("Authorization: Bearer CANARY", ""),
            ("--hf-token CANARY --port 80", "--hf-token (redacted) --port 80"),
            ("--hf-token=CANARY --port=80", "--hf-token=(redacted) --port=80"),
            (r#"{"password": "CANARY x", "port": 5"#, ""),
            ("PASSWORD='CANARY y' PORT=1", "PASSWORD=(redacted) PORT=1"),
            ("client-key-data: CANARY", "client-key-data: (redacted)"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----\nnext",
                "(redacted)\nnext",
            ),
            ("token hf_CANARYCANARY is not valid", ""),
            ("jwt eyJhbGciOiJIUzI1NiJ9.CANARY.CANARY", ""),
            ("amqp://guest:CANARY@rabbit:5672/", "amqp://(redacted)@rabbit:5672/"),
            ("secret \"hf\" not found", "secret \"hf\" not found"),
            (
                "model org/name:latest is 3/4 ready",
                "model org/name:latest is 3/4 ready",
            ),
        ];
        for (said, wanted) in cases {
            let left = text(said);
            assert!(!left.contains("CANARY"), "{said} → {left}");
            if !wanted.is_empty() {
                assert_eq!(left, wanted);
            }
        }
    }

    #[test]
    fn objects_keep_their_shape_and_lose_their_secrets() {
        let applied = json!({ "spec": { "env": [{ "name": "HF_TOKEN", "value": "CANARY" }] } }).to_string();
        let mut pod = json!({
            "kind": "Pod",
            "metadata": {
                "name": "a", "managedFields": [{ "CANARY": 1 }],
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": applied, "example.com/copy": applied,
                    "example.com/api-key": "CANARY", "example.com/owner": "team-a",
                },
            },
            "spec": {
                "containers": [{
                    "image": "runner:1", "args": ["--api-key", "CANARY", "--token=CANARY", "--port", "80"],
                    "command": ["sh", "-c", "serve --password CANARY"],
                    "env": [
                        { "name": "DB_PASSWORD", "value": "CANARY" }, { "name": "URL", "value": "https://h/p?key=CANARY" },
                        { "name": "HF_TOKEN", "valueFrom": { "secretKeyRef": { "name": "hf-secret", "key": "t" } } },
                        { "name": "PORT", "value": "80" },
                    ],
                }],
                "engine": { "args": { "api-key": "CANARY", "max-num-seqs": "4" } },
                "config": { "credentials": { "user": "CANARY", "list": ["CANARY"] } },
            },
        });
        object(&mut pod);
        let text = pod.to_string();
        assert!(!text.contains("CANARY"), "{text}");
        for kept in ["runner:1", "team-a", "\"--port\",\"80\"", "hf-secret", "max-num-seqs"] {
            assert!(text.contains(kept), "{kept} is lost: {text}");
        }
    }

    #[test]
    fn of_a_secret_only_the_name_is_left() {
        let mut secret = json!({ "kind": "Secret", "metadata": { "name": "a" }, "data": { "x": "CANARY" }, "stringData": { "y": "CANARY" } });
        object(&mut secret);
        assert_eq!(secret, json!({ "kind": "Secret", "metadata": { "name": "a" } }));
    }
}
