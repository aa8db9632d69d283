//! The archive of `kubeairunway support-bundle`: random values are planted wherever a secret may be, and must not be in any file.

use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use runway_client::documents::Documents;
use runway_doctor::bundle::{Bundle, Collected};
use runway_doctor::check::Observed;
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

/// Values that were planted, by where.
#[derive(Default)]
struct Canaries {
    planted: BTreeMap<&'static str, String>,
    state: u64,
}

impl Canaries {
    /// Twenty random letters and digits.
    fn plant(&mut self, place: &'static str) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0123456789";
        let letter = |state: &mut u64| {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            char::from(LETTERS[(*state >> 33) as usize % LETTERS.len()])
        };
        let value: String = (0..20).map(|_| letter(&mut self.state)).collect();
        assert!(self.planted.insert(place, value.clone()).is_none(), "{place} twice");
        value
    }
}

/// All ways in which a value may be written.
fn forms(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    for before in 0..3 {
        let bytes = [&vec![0; before], value.as_bytes()].concat();
        // The letters at the ends depend on what stands before and behind.
        let (start, end) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        forms.push(STANDARD_NO_PAD.encode(&bytes)[start..end].to_owned());
        forms.push(URL_SAFE_NO_PAD.encode(&bytes)[start..end].to_owned());
    }
    let each = |form: fn(u8) -> String| value.bytes().map(form).collect::<String>();
    forms.extend([each(|b| format!("%{b:02X}")), each(|b| format!("%{b:02x}"))]);
    forms.extend([each(|b| format!("{b:02X}")), each(|b| format!("{b:02x}"))]);
    forms
}

fn unpacked(archive: &[u8]) -> Result<BTreeMap<String, String>, Failure> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(archive)).entries()? {
        let mut entry = entry?;
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        files.insert(entry.path()?.display().to_string(), text);
    }
    Ok(files)
}

fn meta(name: &str) -> Value {
    json!({ "name": name, "namespace": "team-a" })
}

/// The objects of a cluster.
fn objects(canaries: &mut Canaries) -> Vec<Value> {
    let mut plant = |place| canaries.plant(place);
    let config =
        json!({ "providers": { "api_key": plant("base64 of JSON"), "password": plant("base64 of JSON, another") } });
    let yaml = format!("database:\n  password: {}\n  port: 5432\n", plant("base64 of YAML"));
    let wrapped: Vec<String> = STANDARD
        .encode(json!({ "text": "x".repeat(90), "client_secret": plant("wrapped base64") }).to_string())
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let copy =
        json!({ "spec": { "env": [{ "name": "PLAIN", "value": plant("annotation with a copy") }] } }).to_string();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "gemma-0", "namespace": "team-a",
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": json!({ "note": plant("last-applied-configuration") }).to_string(),
                "example.com/copy": copy,
                "example.com/api-key": plant("annotation by name"),
                "example.com/config": STANDARD.encode(yaml),
                "example.com/wrapped": wrapped.join("\n"),
                "example.com/random": STANDARD.encode(format!("\u{1}\u{2}{}\u{3}\u{0}", plant("base64 of bytes"))),
            },
            "managedFields": [{ "manager": plant("managedFields") }],
        },
        "spec": {
            "initContainers": [{ "name": "fetch", "image": "fetcher:2", "env": [{ "name": "MIRROR", "value": plant("init container") }] }],
            "containers": [{
                "name": "model", "image": "registry.example.com/runner:1.4",
                "args": [
                    "--api-key", plant("argument behind a flag"), format!("--token={}", plant("argument with =")), "--port", "8080",
                    "--max-num-batched-tokens", "8192", "-H", format!("Authorization: Bearer {}", plant("argument with Bearer")),
                ],
                "command": ["sh", "-c", format!("export SETTING={}; serve --password {}", plant("exported"), plant("command of a shell"))],
                "env": [
                    { "name": "PLAIN_NAME", "value": plant("variable") }, { "name": "PGPASS", "value": plant("PGPASS") },
                    { "name": "MYSQL_PWD", "value": plant("MYSQL_PWD") }, { "name": "ENCRYPTIONKEY", "value": plant("ENCRYPTIONKEY") },
                    { "name": "AWS_SESSION", "value": plant("AWS_SESSION") }, { "name": "PORT", "value": "8080" },
                    { "name": "LLS_CRD_CONFIG", "value": STANDARD.encode(config.to_string()) },
                    { "name": "HF_TOKEN", "valueFrom": { "secretKeyRef": { "name": "hf-secret", "key": "token" } } },
                    { "name": "DATABASE_URL", "value": format!("postgresql://app:{}/x@db:5432/app", plant("password of a variable")) },
                    { "name": "LINES", "value": format!("first line\n{}\nthe last", plant("line of a variable")) },
                ],
                "livenessProbe": { "httpGet": { "path": "/", "port": 80, "httpHeaders": [{ "name": "X-Probe", "value": plant("header of a probe") }] } },
            }],
        },
        "status": { "phase": "Running", "message": format!("cannot reach redis://:{}@cache:6379/0", plant("redis URL")) },
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "workspace-operator", "namespace": "kaito" },
        "spec": {
            "selector": {},
            "template": { "spec": { "containers": [{ "name": "manager", "image": "kaito:0.9",
                "env": [{ "name": "SETTING", "value": plant("template of a Deployment") }] }] } },
        },
    });
    let model = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": meta("gemma"),
        "spec": {
            "model": { "id": "google/gemma-3-27b-it" },
            "engine": { "type": "vllm", "args": { "api-key": plant("engine argument"), "max-model-len": "4096" } },
            "env": [{ "name": "SETTING", "value": plant("ModelDeployment") }],
        },
        "status": { "phase": "Deploying", "message": format!(
            "libpq: host=db user=app password={} dbname=x", plant("libpq")) },
    });
    let workspace = json!({
        "apiVersion": "kaito.sh/v1beta1", "kind": "Workspace", "metadata": meta("gemma"),
        "inference": { "template": { "spec": { "containers": [{ "image": "runner",
            "env": [{ "name": "A", "value": plant("template of a Workspace") }] }] } } },
        "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": "PullFailed",
            "message": format!("GET https://robot:{}/y@z@hub.example.com/v2: 401", plant("URL password with / and @")) }] },
    });
    let ray = json!({
        "apiVersion": "ray.io/v1", "kind": "RayService", "metadata": meta("ray"),
        "spec": {
            "serveConfigV2": format!("applications:\n- name: llm\n  runtime_env:\n    env_vars:\n      MIRROR: {}\n", plant("serveConfigV2")),
            "rayClusterConfig": { "runtimeEnvYAML": format!("env_vars: {{ MIRROR: {} }}", plant("runtimeEnvYAML")) },
        },
    });
    let dynamo = json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": meta("graph"),
        "spec": { "envs": [{ "name": "A", "value": plant("envs of Dynamo") }], "services": { "Frontend": {
            "extraPodSpec": { "mainContainer": { "env": [{ "name": "B", "value": plant("extraPodSpec") }] } },
            "extraEnvVars": { "C": plant("map of variables") }, "environment": [format!("D={}", plant("list of NAME=value"))],
        } } },
    });
    let stack = json!({
        "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution", "metadata": meta("stack"),
        "spec": { "server": { "distribution": { "name": "starter" },
            "containerSpec": { "env": [{ "name": "A", "value": plant("LlamaStackDistribution") }] } } },
    });
    vec![pod, deployment, model, workspace, ray, dynamo, stack]
}

fn events(canaries: &mut Canaries) -> Vec<Value> {
    let mut plant = |place| canaries.plant(place);
    let key = format!(
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        plant("private key")
    );
    let messages = [
        format!("dial amqp://guest:{}@rabbit:5672/: refused", plant("AMQP URL")),
        format!(
            "dial amqps://u:%40{}%2F@rabbit/",
            plant("URL password with percent encoding")
        ),
        format!("GET https://hub/model?X-Signature={}: 403", plant("query of a URL")),
        format!("token hf_{} is not valid", plant("Hugging Face token")),
        format!("key sk-{} is not valid", plant("key with sk-")),
        format!("clone with ghp_{}: denied", plant("GitHub token")),
        format!("AKIA{} has no rights", plant("AWS key").to_uppercase()),
        format!("jwt eyJhbGciOiJIUzI1NiJ9.{}.c2ln", plant("JWT")),
        format!("cookie: session={}; path=/", plant("cookie")),
        key,
    ];
    let event = |(number, message): (usize, String)| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "name": format!("gemma.{number}"), "namespace": "team-a" },
            "involvedObject": { "kind": "Pod", "name": "gemma-0" }, "type": "Warning", "reason": "FailedMount", "message": message,
        })
    };
    messages.into_iter().enumerate().map(event).collect()
}

/// A log that repeats what was found elsewhere, encoded in each way.
fn log(canaries: &mut Canaries) -> String {
    let new = [
        format!(
            "WARN connect Authorization: Bearer {}",
            canaries.plant("log with Bearer")
        ),
        format!(r#"{{"level":"info","password":"{}"}}"#, canaries.plant("log in JSON")),
        "INFO reconcile{kind=\"ModelDeployment\" name=\"gemma\"}: applied".to_owned(),
    ];
    let known = canaries.planted["variable"].clone();
    let again = [
        format!("WARN {known} is repeated"),
        format!("{{\"x\":\"{known}\"}}"),
        STANDARD.encode(format!("a{known}b")),
        STANDARD.encode(format!("ab{known}c")),
        URL_SAFE_NO_PAD.encode(format!("???{known}")),
        format!("path/{}", STANDARD.encode(&known)),
        known.bytes().fold(String::new(), |all, b| format!("{all}%{b:02x}")),
        known.bytes().fold(String::new(), |all, b| format!("{all}{b:02x}")),
        format!("line: {}", canaries.planted["line of a variable"]),
        format!(
            "FATAL password authentication failed: {}",
            canaries.planted["password of a variable"]
        ),
        format!("nested: {}", canaries.planted["base64 of JSON"]),
    ];
    new.into_iter()
        .chain(again)
        .fold(String::new(), |all, line| all + &line + "\n")
}

#[test]
fn no_planted_value_is_in_the_archive_and_what_helps_is() -> Result<(), Failure> {
    let mut canaries = Canaries::default();
    let mut documents = Documents::default();
    for object in objects(&mut canaries) {
        documents.take_in_text("cluster", &object.to_string());
    }
    let (mut observed, said) = Observed::from_documents(documents);
    assert!(said.is_empty(), "{said:?}");
    observed.facts.url = format!(
        "https://admin:{}@api.example.com",
        canaries.plant("URL of the API server")
    );
    let collected = Collected {
        observed,
        events: events(&mut canaries),
        logs: BTreeMap::from([("logs/controller_manager.log".to_owned(), log(&mut canaries))]),
        missing: vec![format!(
            "Node: GET https://u:{}@host: 500",
            canaries.plant("what could not be read")
        )],
    };
    assert!(canaries.planted.len() > 45, "{}", canaries.planted.len());

    let archive = Bundle::new(collected, Timestamp::UNIX_EPOCH)?.archive("bundle", Timestamp::UNIX_EPOCH)?;
    let files = unpacked(&archive)?;
    let mut found = Vec::new();
    for (place, value) in &canaries.planted {
        for (path, text) in &files {
            let mut forms = forms(value).into_iter().chain([value.to_uppercase()]);
            if let Some(form) = forms.find(|form| text.contains(form.as_str())) {
                let line = text.lines().find(|line| line.contains(&form)).unwrap_or_default();
                found.push(format!("{place}: {path}: {form}: {line}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));

    let all: String = files.values().map(String::as_str).collect();
    for kept in [
        "gemma-0",
        "team-a",
        "registry.example.com/runner:1.4",
        "fetcher:2",
        "phase: Running",
        "phase: Deploying",
        "FailedMount",
        "PullFailed",
        "hf-secret",
        "PGPASS",
        "LLS_CRD_CONFIG",
        "MIRROR",
        "google/gemma-3-27b-it",
        "max-model-len",
        "--max-num-batched-tokens",
        "8192",
        "hub.example.com",
        "rabbit:5672",
        "INFO reconcile",
        "cache:6379",
        "dbname=x",
        "port: 80",
    ] {
        assert!(all.contains(kept), "{kept} is lost: {all}");
    }
    let mut documents = Documents::default();
    for (path, text) in files.iter().filter(|(path, _)| path.contains("objects/")) {
        documents.take_in_text(path, text);
    }
    let (_, said) = Observed::from_documents(documents);
    assert!(said.is_empty(), "{said:?}");
    Ok(())
}
