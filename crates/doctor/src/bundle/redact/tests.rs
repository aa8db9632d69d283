//! Tests of the redaction: planted values in every form, and what has to stay.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn object(value: &mut Value) {
    all([value], []);
}

fn text(text: &str) -> String {
    let mut text = text.to_owned();
    all([], [&mut text]);
    text
}

#[test]
fn every_pattern_is_one() {
    assert_eq!(shapes::count(), shapes::COUNT);
}

#[test]
fn secrets_are_redacted_and_the_rest_stays() {
    let cases = [
        (
            "GET https://u:CANARY@host/p?sig=CANARY done",
            "GET https://(redacted)@host/p?(redacted) done",
        ),
        ("Authorization: Bearer CANARY", ""),
        ("auth=bearer CANARY", "auth=bearer (redacted)"),
        ("auth: Basic CANARY", ""),
        (
            "serve --auth Bearer CANARY --port 80",
            "serve --auth Bearer (redacted) --port 80",
        ),
        ("curl -H 'x: bearer CANARY'", "curl -H 'x: bearer (redacted)'"),
        ("invalid bearer token: CANARY", ""),
        ("basic auth: CANARY", ""),
        ("bearer \npassword: CANARY\n", "bearer \n(redacted): (redacted)\n"),
        (
            "bearer \npassword: CANARY CANARY\n",
            "bearer \n(redacted): (redacted)\n",
        ),
        ("Bearer\nCANARY", "Bearer\n(redacted)"),
        ("bearer CANARY-secret: denied", ""),
        ("export AUTH=bearer CANARY", ""),
        ("auth=bearer CANARY, again CANARY", ""),
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
fn only_the_name_of_a_secret_is_kept() {
    let mut secret = json!({ "kind": "Secret", "metadata": { "name": "a" }, "data": { "x": "CANARY" }, "stringData": { "y": "CANARY" } });
    object(&mut secret);
    assert_eq!(secret, json!({ "kind": "Secret", "metadata": { "name": "a" } }));
}

#[test]
fn names_that_count_tokens_are_not_secrets() {
    for name in [
        "max-num-batched-tokens",
        "maxTokens",
        "tokenizer",
        "topologyKey",
        "secretName",
        "key",
        "passed",
        "sessionAffinity",
    ] {
        assert!(!shapes::is_secretive(name), "{name}");
    }
    for name in [
        "PGPASS",
        "MYSQL_PWD",
        "ENCRYPTIONKEY",
        "AWS_SESSION",
        "HF_TOKEN",
        "HF_TOKENS",
        "apiKey",
        "db_pass",
        "AUTH",
        "passphrase",
    ] {
        assert!(shapes::is_secretive(name), "{name}");
    }
    for name in [
        "env",
        "envs",
        "extraEnv",
        "extraEnvVars",
        "env_vars",
        "runtime_env",
        "environment",
        "runtimeEnvYAML",
    ] {
        assert!(shapes::is_environment(name), "{name}");
    }
    for name in ["envFrom", "seven", "environmentRef", "name"] {
        assert!(!shapes::is_environment(name), "{name}");
    }
}

#[test]
fn digests_names_and_certificates_are_kept() {
    for kept in [
        "docker-pullable://registry/runner@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "kubeairunway-controller-7d9f8b6c5d-x2x4z",
        "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "/usr/local/lib/python3/site-packages/vllm",
        "2026-11-23T14:11:36Z InferenceProviderConfig",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUQ0Rg9T3b7aX1cY2dZ0eF4gH5iJ6kwCgYIKoZIzj0EAwI\n-----END CERTIFICATE-----",
    ] {
        assert_eq!(text(kept), kept);
    }
}

#[test]
fn a_value_that_is_a_name_is_kept_elsewhere() {
    let mut pod = json!({
        "kind": "Pod", "metadata": { "name": "gemma-server" },
        "spec": { "containers": [{ "env": [{ "name": "SELF", "value": "gemma-server" }, { "name": "PART", "value": "server" }] }] },
    });
    object(&mut pod);
    assert_eq!(pod["metadata"]["name"], "gemma-server");
    assert_eq!(
        pod["spec"]["containers"][0]["env"][0],
        json!({ "name": "SELF", "value": REDACTED })
    );
}

#[test]
fn the_work_is_bounded() {
    assert_eq!(text(&"a".repeat(MAX_TEXT + 1)), TOO_LONG);
    let nested = (0..12).fold("password: CANARY\nport: 1\n".to_owned(), |inner, _| {
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, inner)
    });
    assert_eq!(text(&nested), REDACTED);
}

/// Documents with a marker wherever a value may be planted: in variables, behind names, in URLs, in documents within texts.
fn planted() -> impl Strategy<Value = Value> {
    let value = "[A-Za-z0-9]{4}CANARY[A-Za-z0-9]{4}";
    let leaf = prop_oneof![
        value.prop_map(|value| json!({ "env": [{ "name": "A", "value": value }] })),
        value.prop_map(|value| json!({ "extraEnvVars": { "B": value } })),
        value.prop_map(|value| json!({ "password": value })),
        value.prop_map(|value| json!({ "args": ["--api-key", value] })),
        value.prop_map(|value| json!({ "args": [format!("--token={value}")] })),
        value.prop_map(|value| json!({ "message": format!("GET https://u:{value}@host/: 500") })),
        value.prop_map(|value| json!({ "text": format!("a: 1\nclient_secret: {value}\n") })),
        "[a-z ]{0,20}".prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner.clone(), 0..4).prop_map(|map| json!(map)),
            // As deep as documents within texts are judged.
            inner
                .clone()
                .prop_map(|inner| json!({ "copy": json!({ "inner": inner }).to_string() })),
            inner.prop_map(|inner| json!({ "copy": base64::Engine::encode(
                &base64::engine::general_purpose::STANDARD, json!({ "inner": inner }).to_string()) })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_planted_value_survives(mut document in planted(), mut other in planted()) {
        all([&mut document, &mut other], []);
        let left = format!("{document}{other}");
        prop_assert!(!left.contains("CANARY"), "{left}");
        for token in left.split(|c: char| !c.is_ascii_alphanumeric() && !"+/".contains(c)) {
            let whole = token.len() - token.len() % 4;
            let decoded = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, &token[..whole]).unwrap_or_default();
            prop_assert!(!String::from_utf8_lossy(&decoded).contains("CANARY"), "{left}");
        }
    }

    #[test]
    fn any_text_is_redacted_without_a_panic(said in "\\PC{0,200}") {
        let once = text(&said);
        prop_assert!(once.len() <= said.len() + 20 * REDACTED.len() * (1 + said.len() / 6));
    }
}
