//! The two containers: asya-sidecar receives and sends messages, asya-runtime runs the handler.

use std::collections::BTreeMap;
use std::iter;

use runway_api::async_actor::{RESERVED_VARIABLES, Retry, Runtime, Sidecar};
use runway_asya_transport::queues;
use serde_json::{Map, Value, json};

use super::surroundings::Surroundings;
use crate::names::{self, ERROR_END, HAPPY_END};
use crate::observe::Settings;
use crate::request::{self, RUNTIME, Request, SIDECAR};
use crate::transports::{RabbitMq, SecretKey, Sqs, Tls, Transport};

/// Socket between the two containers.
#[derive(Clone, Copy)]
pub(super) enum Meeting {
    /// In a folder that both mount, as existing handlers expect. For pods of the actor's own.
    Folder,
    /// An abstract socket, which requires no mount. For pods of targets.
    Abstract,
}

/// Folder of the socket.
pub(super) const SOCKET_DIR: &str = "/var/run/asya";

/// Volume for `/tmp` of the runtime, which the public Asya has, too: the file system of its image can be read-only.
pub(super) const TEMPORARY: &str = "asya-tmp";

/// Files in the folder with the credentials.
const PASSWORD_FILE: &str = "password";
const AUTHORITY_FILE: &str = "ca.crt";
const ACCESS_KEY_ID_FILE: &str = "access-key-id";
const SECRET_ACCESS_KEY_FILE: &str = "secret-access-key";

/// Address of the sidecar's metrics. Model servers, which can run in the same pod, do not use this port.
const METRICS_ADDRESS: &str = ":9464";

/// The status quotes the termination message of the runtime or, without one, the end of its log.
const LAST_WORDS: &str = "FallbackToLogsOnError";

/// Containers of a pod: how they meet, the termination grace period of the pod in seconds if the operator sets it, and the pod.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) meeting: Meeting,
    pub(super) grace: Option<i32>,
    pub(super) pod: Surroundings,
}

/// The sidecar.
pub(super) fn sidecar(
    request: &Request,
    asked: Option<&Sidecar>,
    transport: &Transport,
    settings: &Settings,
    place: Place,
) -> Value {
    let image = asked.and_then(|s| s.image.clone()).filter(|image| !image.is_empty());
    let policy = asked
        .and_then(|s| s.image_pull_policy)
        .map_or("IfNotPresent", request::policy);
    let resources = asked.and_then(|s| s.resources.as_ref());
    let resources = resources.map_or_else(|| place.pod.resources_of_sidecar(), |r| json!(r));
    let own = asked.map_or(&[][..], |s| s.env.as_slice());
    let mut container = json!({
        "name": SIDECAR,
        "image": image.unwrap_or_else(|| settings.sidecar_image.clone()),
        "imagePullPolicy": policy,
        "resources": resources,
        "env": merged(sidecar_env(request, transport, settings, place), &json!(own)),
        "securityContext": place.pod.of_sidecar(),
    });
    let mut mounts = Vec::new();
    if matches!(place.meeting, Meeting::Folder) {
        mounts.push(json!({"name": "socket-dir", "mountPath": SOCKET_DIR}));
    }
    if credentials(transport).is_some() {
        mounts.push(json!({"name": names::CREDENTIALS, "mountPath": names::CREDENTIALS_DIR, "readOnly": true}));
    }
    container["volumeMounts"] = mounts.into();
    without_empty(container)
}

/// The volume with the credentials for the sidecar: the password and the certificates of RabbitMQ, which it reads for each connection,
/// or the keys of SQS, which it reads for each request. The kubelet updates them.
pub(super) fn credentials(transport: &Transport) -> Option<Value> {
    let item = |kind: &str, key: &SecretKey, path: &str| json!({kind: {"name": key.name, "items": [{"key": key.key, "path": path}]}});
    let sources: Vec<Value> = match transport {
        Transport::RabbitMq(rabbit) => {
            let password = names::password(rabbit).map(|key| item("secret", &key, PASSWORD_FILE));
            let authority = rabbit.tls.as_ref().map(|tls| match tls {
                Tls::CaSecretRef(key) => item("secret", key, AUTHORITY_FILE),
                Tls::CaConfigMapRef(key) => item("configMap", key, AUTHORITY_FILE),
            });
            password.into_iter().chain(authority).collect()
        }
        Transport::Sqs(sqs) => sqs.credentials.as_ref().map_or_else(Vec::new, |keys| {
            vec![
                item("secret", &keys.access_key_id_secret_ref, ACCESS_KEY_ID_FILE),
                item("secret", &keys.secret_access_key_secret_ref, SECRET_ACCESS_KEY_FILE),
            ]
        }),
    };
    (!sources.is_empty()).then(|| json!({"name": names::CREDENTIALS, "projected": {"sources": sources}}))
}

fn sidecar_env(
    request: &Request,
    transport: &Transport,
    settings: &Settings,
    Place { meeting, grace, .. }: Place,
) -> Vec<Value> {
    let (actor, namespace) = (&request.name, &request.namespace);
    let mut env = vec![plain("ASYA_LOG_LEVEL", "info")];
    env.extend(settings.gateway_url.as_ref().map(|url| plain("ASYA_GATEWAY_URL", url)));
    env.extend([
        plain("ASYA_ACTOR_NAME", actor),
        plain("ASYA_NAMESPACE", namespace),
        plain("ASYA_ACTOR_HAPPY_END", HAPPY_END),
        plain("ASYA_ACTOR_ERROR_END", ERROR_END),
    ]);
    env.extend(request.has_alias.then(|| plain("ASYA_QUEUE_ALIAS", "true")));
    env.extend(is_end(actor).then(|| plain("ASYA_IS_END_ACTOR", "true")));
    env.extend(shared_env(request));
    // A sidecar that exits would make the pod of a target unready. That of a handler that hangs is ended by the probe of the runtime.
    let start = match meeting {
        Meeting::Abstract => "24h".to_owned(),
        Meeting::Folder => format!("{}s", request.startup.saturating_add(60)),
    };
    env.push(plain("ASYA_RUNTIME_READY_TIMEOUT", &start));
    env.extend(retry_env(&request.retry));
    // Messages in progress must be finished before the pod is killed.
    env.extend(grace.map(|grace| plain("ASYA_DRAIN_TIMEOUT", &format!("{}s", (grace - 5).max(1)))));
    env.push(plain("ASYA_METRICS_ADDR", METRICS_ADDRESS));
    // The sidecar creates queues only if the operator does not.
    let manages = settings.manage_queues_of(transport);
    env.push(plain("ASYA_QUEUE_AUTO_CREATE", if manages { "false" } else { "true" }));
    let dead_letters = &transport.queues().dlq;
    env.extend(
        dead_letters
            .enabled
            // 0 would mean no limit.
            .then(|| plain("ASYA_MAX_DELIVERIES", &dead_letters.max_retry_count.max(1).to_string())),
    );
    env.extend(match transport {
        Transport::RabbitMq(rabbit) => rabbit_env(rabbit, namespace),
        Transport::Sqs(sqs) => sqs_env(sqs),
    });
    env.push(meeting_env(request, meeting));
    env
}

fn rabbit_env(rabbit: &RabbitMq, namespace: &str) -> Vec<Value> {
    let mut env = vec![
        plain("ASYA_TRANSPORT", "rabbitmq"),
        plain("ASYA_RABBITMQ_HOST", &rabbit.host),
        plain("ASYA_RABBITMQ_PORT", &rabbit.port().to_string()),
    ];
    let user = rabbit.tenants.as_ref().map(|tenants| tenants.user(namespace));
    env.push(plain(
        "ASYA_RABBITMQ_USERNAME",
        user.as_ref().unwrap_or(&rabbit.username),
    ));
    env.extend(names::password(rabbit).map(|_| file("ASYA_RABBITMQ_PASSWORD_FILE", PASSWORD_FILE)));
    if rabbit.tls.is_some() {
        env.push(plain("ASYA_RABBITMQ_TLS", "true"));
        env.push(file("ASYA_RABBITMQ_CA", AUTHORITY_FILE));
    }
    if rabbit.vhost != "/" {
        env.push(plain("ASYA_RABBITMQ_VHOST", &rabbit.vhost));
    }
    if user.is_some() {
        // This user may publish to the exchange of its namespace only, and create none.
        env.push(plain("ASYA_RABBITMQ_EXCHANGE", ""));
        env.push(plain("ASYA_RABBITMQ_PUBLISH_EXCHANGE", &queues::exchange(namespace)));
    } else {
        env.push(plain("ASYA_RABBITMQ_EXCHANGE", &rabbit.exchange));
    }
    env
}

fn sqs_env(sqs: &Sqs) -> Vec<Value> {
    let mut env = vec![plain("ASYA_TRANSPORT", "sqs"), plain("ASYA_AWS_REGION", &sqs.region)];
    env.extend(sqs.endpoint.as_ref().map(|url| plain("ASYA_SQS_ENDPOINT", url)));
    env.extend(
        sqs.visibility_timeout
            .map(|s| plain("ASYA_SQS_VISIBILITY_TIMEOUT", &s.to_string())),
    );
    env.push(plain("ASYA_SQS_WAIT_TIME_SECONDS", &sqs.wait_time_seconds.to_string()));
    if sqs.credentials.is_some() {
        env.push(file("ASYA_AWS_ACCESS_KEY_ID_FILE", ACCESS_KEY_ID_FILE));
        env.push(file("ASYA_AWS_SECRET_ACCESS_KEY_FILE", SECRET_ACCESS_KEY_FILE));
    }
    env
}

fn meeting_env(request: &Request, meeting: Meeting) -> Value {
    match meeting {
        Meeting::Folder => plain("ASYA_SOCKET_DIR", SOCKET_DIR),
        Meeting::Abstract => plain("ASYA_SOCKET", &names::socket(&request.namespace, &request.name)),
    }
}

/// Variables that both containers need: the time limit of a call, because a runtime whose handler does not return ends soon after the
/// sidecar stops to wait for it, and the number of calls.
fn shared_env(request: &Request) -> impl Iterator<Item = Value> {
    let timeout = plain("ASYA_RUNTIME_TIMEOUT", &format!("{}s", request.processing));
    let concurrency = request
        .concurrency
        .map(|count| plain("ASYA_RUNTIME_CONCURRENCY", &count.to_string()));
    iter::once(timeout).chain(concurrency)
}

fn retry_env(retry: &Retry) -> impl Iterator<Item = Value> {
    let seconds = |name: &str, value: Option<i32>| value.map(|value| plain(name, &format!("{value}s")));
    let attempts = retry
        .attempts
        .map(|count| plain("ASYA_RETRY_MAX_ATTEMPTS", &count.to_string()));
    let pauses = [
        seconds("ASYA_RETRY_BACKOFF", retry.backoff),
        seconds("ASYA_RETRY_MAX_BACKOFF", retry.max_backoff),
    ];
    attempts.into_iter().chain(pauses.into_iter().flatten())
}

/// The runtime of a binding. It has no probes: an unready container would remove the pod from the model's Service, which also has
/// other clients.
pub(super) fn bound_runtime(request: &Request, runtime: &Runtime, url: &str, pod: Surroundings) -> Value {
    let mut env = vec![meeting_env(request, Meeting::Abstract)];
    env.extend(shared_env(request));
    env.extend([
        plain("ASYA_HANDLER", &runtime.handler),
        plain(
            "ASYA_HANDLER_MODE",
            request::mode(runtime.handler_mode.unwrap_or_default()),
        ),
        plain("ASYA_TARGET_URL", url),
        // Less than the sidecar's own limit, so that the handler reports its error before the sidecar times out.
        plain(
            "ASYA_TARGET_TIMEOUT",
            &(request.processing - (request.processing / 5).max(1))
                .max(1)
                .to_string(),
        ),
    ]);
    let python = runtime.python_executable.clone().unwrap_or_else(request::python);
    let resources = runtime.resources.as_ref();
    let mut identity = pod.of_runtime();
    if let (Some(identity), Value::Object(own)) = (identity.as_object_mut(), json!(runtime.security_context)) {
        identity.extend(own);
    }
    without_empty(json!({
        "name": RUNTIME,
        "image": runtime.image,
        "imagePullPolicy": runtime.image_pull_policy.map(request::policy),
        "command": [python, "-m", "asya_runtime"],
        "env": merged(env, &json!(runtime.env)),
        "resources": resources.map_or_else(|| pod.resources_of_runtime(), |r| json!(r)),
        "terminationMessagePolicy": LAST_WORDS,
        "securityContext": identity,
    }))
}

/// Adds the command, variables, mounts and probes of a standalone actor to the user's asya-runtime container.
pub(super) fn complete_runtime(container: &mut Map<String, Value>, request: &Request, python: &str) {
    container.insert(
        "command".to_owned(),
        json!([python, format!("/opt/asya/{}", names::RUNTIME_SCRIPT)]),
    );
    let mut env = vec![meeting_env(request, Meeting::Folder)];
    env.extend(shared_env(request));
    if is_end(&request.name) {
        env.push(plain("ASYA_ENABLE_VALIDATION", "false"));
    }
    let theirs = container.get("env").cloned().unwrap_or_default();
    container.insert("env".to_owned(), merged(env, &theirs).into());
    let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
    if let Some(mounts) = mounts.as_array_mut() {
        if !mounts.iter().any(|mount| mount["mountPath"] == "/tmp") {
            mounts.push(json!({"name": TEMPORARY, "mountPath": "/tmp"}));
        }
        mounts.push(json!({"name": "socket-dir", "mountPath": SOCKET_DIR}));
        mounts.push(json!({
            "name": "asya-runtime", "mountPath": format!("/opt/asya/{}", names::RUNTIME_SCRIPT),
            "subPath": names::RUNTIME_SCRIPT, "readOnly": true,
        }));
    }
    // The user's image has Python, but not always a shell.
    let ready = format!("import os, sys; sys.exit(not os.path.exists('{SOCKET_DIR}/runtime-ready'))");
    let probe = |period: i32, failures: i32| json!({"exec": {"command": [python, "-c", ready]}, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures});
    container
        .entry("terminationMessagePolicy")
        .or_insert_with(|| json!(LAST_WORDS));
    container
        .entry("startupProbe")
        .or_insert_with(|| probe(2, (request.startup + 1) / 2));
    container.entry("readinessProbe").or_insert_with(|| probe(10, 3));
}

fn is_end(actor: &str) -> bool {
    [HAPPY_END, ERROR_END].contains(&actor)
}

fn plain(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

/// Variable with the path of a file with credentials.
fn file(name: &str, file: &str) -> Value {
    plain(name, &format!("{}/{file}", names::CREDENTIALS_DIR))
}

/// Generated variables and those of the user, which take precedence unless they are reserved. Names are unique, because server-side
/// apply requires it.
fn merged(generated: Vec<Value>, theirs: &Value) -> Vec<Value> {
    let is_free = |variable: &&Value| !RESERVED_VARIABLES.iter().any(|name| variable["name"] == **name);
    let theirs: Vec<&Value> = theirs.as_array().into_iter().flatten().filter(is_free).collect();
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, variable) in theirs.iter().enumerate() {
        last.insert(variable["name"].as_str().unwrap_or_default(), index);
    }
    let kept = generated
        .into_iter()
        .filter(|g| !last.contains_key(g["name"].as_str().unwrap_or_default()));
    let own = theirs
        .iter()
        .enumerate()
        .filter(|(index, v)| last.get(v["name"].as_str().unwrap_or_default()) == Some(index))
        .map(|(_, v)| (*v).clone());
    kept.chain(own).collect()
}

/// The value without empty fields, which the API server does not store.
pub(super) fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, inner)| (key, without_empty(inner)))
            .filter(|(_, inner)| !is_empty(inner))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
