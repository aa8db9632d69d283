//! KEDA's part: ScaledObject and TriggerAuthentication.

use kube::core::DynamicObject;
use runway_api::async_actor::{MetricType, ObjectRef, SCALING_READY, Scaling, ScalingMode};
use runway_api::condition::{no, yes};
use serde_json::{Value, json};

use super::objects::{self, CONFIG_MAP, SCALED_OBJECT, TRIGGER_AUTHENTICATION};
use super::{Draft, LOOK_AGAIN, standalone};
use crate::names;
use crate::observe::{Found, Key};
use crate::transports::{SecretKey, Transport};

/// Scales `target` by the queue, if that is asked for. `own` says whether the pods are the actor's own: those of others may
/// serve people directly, too.
pub(super) fn plan(draft: &mut Draft<'_>, transport: &Transport, target: &Key, own: bool) {
    let Some(scaling) = draft.request.scaling.clone() else {
        draft.status.scaling_mode = Some(ScalingMode::Manual);
        return;
    };
    draft.status.scaling_mode = Some(ScalingMode::Keda);
    let minimum = scaling.min().unwrap_or_else(|| i32::from(!own));
    draft.status.min_replicas = Some(minimum);
    draft.status.max_replicas = Some(scaling.max());
    let key = Key::new(SCALED_OBJECT, names::scaler(&draft.request.name));
    if matches!(draft.seen.objects.get(&key), Some(Found::NotInstalled)) {
        let message =
            "KEDA is not installed (no CRD scaledobjects.keda.sh): install it, or set scaling.enabled to false";
        draft.conditions.push(no(SCALING_READY, "KedaNotInstalled", message));
        return;
    }
    if draft.is_taken(&key, SCALING_READY) || !authentication(draft, transport) {
        return;
    }
    let body = scaled_object(draft, transport, &scaling, target, minimum);
    // KEDA puts replicas back when a ScaledObject goes, and not when it is pointed at something else.
    let points_at = draft
        .seen
        .live(&key)
        .map(|live| live.data["spec"]["scaleTargetRef"].clone());
    if points_at.is_some_and(|there| there["name"] != target.name || there["kind"] != target.kind.kind) {
        let message = format!("{} gives way to one for {}", key.told(), target.told());
        draft.conditions.push(no(SCALING_READY, "ScaledObjectCreated", message));
        draft.look_again(LOOK_AGAIN);
        return;
    }
    draft.want(&key, objects::owned(draft.seen, draft.request, &key, body));
    draft.status.queue_active = draft.seen.live(&key).and_then(sees_messages);
    draft.status.scaled_object_ref = Some(ObjectRef {
        ..standalone::made(draft, &key)
    });
    let told = match draft.seen.live(&key).map(read) {
        None | Some(Reading::Silent) => no(
            SCALING_READY,
            "ScaledObjectCreated",
            "KEDA has not taken the ScaledObject up yet",
        ),
        Some(Reading::Ready) => yes(
            SCALING_READY,
            "ScaledObjectReady",
            format!("KEDA scales {} by the queue", target.told()),
        ),
        Some(Reading::Paused) => yes(
            SCALING_READY,
            "Paused",
            "Scaling is paused by an annotation on the ScaledObject",
        ),
        Some(Reading::Refused(why)) => no(
            SCALING_READY,
            "ScaledObjectRefused",
            format!("KEDA says of {}: {why}", key.told()),
        ),
    };
    draft.conditions.push(told);
}

/// Scales a proxy's target besides.
pub(super) fn plan_target(draft: &mut Draft<'_>, transport: &Transport, target: &Key) {
    let Some(scaling) = draft.request.scaling.clone() else {
        return;
    };
    let key = Key::new(SCALED_OBJECT, names::target_scaler(&draft.request.name));
    if matches!(draft.seen.objects.get(&key), Some(Found::NotInstalled)) || draft.is_taken(&key, SCALING_READY) {
        return;
    }
    let minimum = scaling.min().unwrap_or(1);
    let body = scaled_object(draft, transport, &scaling, target, minimum);
    draft.want(&key, objects::owned(draft.seen, draft.request, &key, body));
}

/// Scaling that the target does not allow.
pub(super) fn impossible(draft: &mut Draft<'_>, why: &str) {
    draft.status.scaling_mode = Some(ScalingMode::Manual);
    if draft.request.scaling.is_some() {
        draft.conditions.push(no(SCALING_READY, "TargetNotScalable", why));
    }
}

/// Whether KEDA sees messages, as its condition `Active` says; that changes when the first comes and when the last is done.
fn sees_messages(object: &DynamicObject) -> Option<bool> {
    let active = condition(object, "Active")?;
    match active["status"].as_str()? {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == type_)
}

enum Reading {
    Silent,
    Ready,
    Paused,
    Refused(String),
}

fn read(object: &DynamicObject) -> Reading {
    if condition(object, "Paused").is_some_and(|c| c["status"] == "True") {
        return Reading::Paused;
    }
    match condition(object, "Ready") {
        Some(ready) if ready["status"] == "True" => Reading::Ready,
        Some(ready) if ready["status"] == "False" => {
            let said = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
            Reading::Refused(format!("{} ({})", said("message"), said("reason")))
        }
        _ => Reading::Silent,
    }
}

fn scaled_object(draft: &Draft<'_>, transport: &Transport, scaling: &Scaling, target: &Key, minimum: i32) -> Value {
    let bound = draft.request.is_bound();
    let cooldown = scaling.cooldown_period.unwrap_or(60);
    let version = draft.seen.version(target).unwrap_or(target.kind.version);
    let reference = json!({
        "apiVersion": target.kind.api_version(version), "kind": target.kind.kind, "name": target.name,
    });
    let modifiers = scaling.advanced.as_ref().filter(|a| a.formula.is_some()).map(|a| {
        json!({
            "formula": a.formula, "target": a.target, "activationTarget": a.activation_target,
            "metricType": a.metric_type.map(|m| match m {
                MetricType::AverageValue => "AverageValue",
                MetricType::Value => "Value",
            }),
        })
    });
    let asked = scaling
        .advanced
        .as_ref()
        .and_then(|a| a.restore_to_original_replica_count);
    super::containers::without_empty(json!({"spec": {
        "scaleTargetRef": reference,
        "pollingInterval": scaling.polling_interval.unwrap_or(10),
        "cooldownPeriod": cooldown,
        // A live model is not put to sleep because it was attached to an empty queue a moment ago.
        "initialCooldownPeriod": scaling.initial_cooldown_period.unwrap_or(if bound { cooldown } else { 0 }),
        "minReplicaCount": minimum,
        "maxReplicaCount": scaling.max(),
        "advanced": {
            "restoreToOriginalReplicaCount": asked.unwrap_or(bound),
            "scalingModifiers": modifiers,
            "horizontalPodAutoscalerConfig": {"behavior": {
                "scaleDown": {
                    "stabilizationWindowSeconds": 300,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
                },
                "scaleUp": {
                    "stabilizationWindowSeconds": 0,
                    "selectPolicy": "Max",
                    "policies": [
                        {"type": "Pods", "value": 10, "periodSeconds": 60},
                        {"type": "Percent", "value": 100, "periodSeconds": 60},
                    ],
                },
            }},
        },
        "triggers": [trigger(draft, transport, scaling)],
    }}))
}

/// Messages under way count: who works on the last one must not be scaled away.
fn trigger(draft: &Draft<'_>, transport: &Transport, scaling: &Scaling) -> Value {
    let queue = names::queue(&draft.request.namespace, &draft.request.name);
    let length = scaling.queue_length.unwrap_or(5).to_string();
    let (kind, metadata) = match transport {
        Transport::RabbitMq(rabbit) if rabbit.management_port != 0 => (
            "rabbitmq",
            json!({
                "protocol": "http",
                "host": format!("http://{}:{}/", rabbit.host, rabbit.management_port),
                "vhostName": rabbit.vhost,
                "queueName": queue,
                "mode": "QueueLength",
                "value": length,
                "excludeUnacknowledged": "false",
            }),
        ),
        Transport::RabbitMq(rabbit) => (
            "rabbitmq",
            json!({
                "protocol": "amqp",
                "host": format!("amqp://{}:{}/", rabbit.host, rabbit.port),
                "vhostName": rabbit.vhost,
                "queueName": queue,
                "mode": "QueueLength",
                "value": length,
            }),
        ),
        Transport::Sqs(sqs) => (
            "aws-sqs-queue",
            json!({
                "queueURL": sqs.queue_url(&queue),
                "queueLength": length,
                "awsRegion": sqs.region,
                "awsEndpoint": sqs.endpoint,
                "scaleOnInFlight": "true",
            }),
        ),
    };
    let name = names::authentication(&draft.request.name);
    let authentication = credentials(transport, &name).map(|_| json!({"name": name}));
    json!({"type": kind, "name": "queue", "metadata": metadata, "authenticationRef": authentication})
}

/// What KEDA needs to look at the queue; secrets by name.
fn credentials(transport: &Transport, name: &str) -> Option<Value> {
    let from = |parameter: &str, key: &SecretKey| json!({"parameter": parameter, "name": key.name, "key": key.key});
    match transport {
        Transport::RabbitMq(rabbit) => {
            let password = rabbit.password_secret_ref.as_ref()?;
            Some(json!({
                "secretTargetRef": [from("password", password)],
                // The user's name is no secret, but KEDA takes it from here or from a pod, which need not have it.
                "configMapTargetRef": [{"parameter": "username", "name": name, "key": "username"}],
            }))
        }
        Transport::Sqs(sqs) => Some(match (&sqs.credentials, &sqs.actor_role_arn) {
            (Some(keys), _) => json!({"secretTargetRef": [
                from("awsAccessKeyID", &keys.access_key_id_secret_ref),
                from("awsSecretAccessKey", &keys.secret_access_key_secret_ref),
            ]}),
            (None, Some(role)) => json!({"podIdentity": {"provider": "aws", "roleArn": role}}),
            (None, None) => json!({"podIdentity": {"provider": "aws"}}),
        }),
    }
}

/// Wants the objects with the credentials. False if the name of one is taken.
fn authentication(draft: &mut Draft<'_>, transport: &Transport) -> bool {
    let name = names::authentication(&draft.request.name);
    let Some(spec) = credentials(transport, &name) else {
        return true;
    };
    let mut wanted = Vec::new();
    if let Transport::RabbitMq(rabbit) = transport {
        wanted.push((CONFIG_MAP, json!({"data": {"username": rabbit.username}})));
    }
    wanted.push((TRIGGER_AUTHENTICATION, json!({"spec": spec})));
    let key = |kind| Key::new(kind, &name);
    if wanted
        .iter()
        .any(|(kind, _)| draft.is_taken(&key(*kind), SCALING_READY))
    {
        return false;
    }
    for (kind, body) in wanted {
        let apply = objects::owned(draft.seen, draft.request, &key(kind), body);
        draft.want(&key(kind), apply);
    }
    true
}
