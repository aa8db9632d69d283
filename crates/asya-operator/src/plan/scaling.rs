//! Scaling with KEDA: ScaledObject and TriggerAuthentication.

use std::iter;

use kube::core::DynamicObject;
use runway_api::async_actor::{MetricType, SCALING_READY, Scaling, ScalingMode};
use runway_api::condition::{no, yes};
use runway_api::{ActorReason, EventReason};
use runway_operator::autoscaler::Reading;
use runway_operator::object::condition;
use runway_operator::plan::Note;
use serde_json::{Value, json};

use super::containers::without_empty;
use super::objects;
use super::part::{LOOK_AGAIN, Part, Scaled};
use crate::names;
use crate::object::{CONFIG_MAP, Found, Key, SCALED_OBJECT, TRIGGER_AUTHENTICATION};
use crate::observe::Observed;
use crate::request::Request;
use crate::targets::replicas_asked;
use crate::transports::{SecretKey, Tls, Transport};

/// Scales `target` by the queue, if the actor asks for scaling. `own` is whether the pods are the actor's own: pods of others
/// can have other clients, so by default one stays.
pub(super) fn plan(
    seen: &Observed,
    request: &Request,
    transport: &Transport,
    target: &Key,
    own: bool,
) -> (Scaled, Part) {
    let Some(scaling) = &request.scaling else {
        return (manual(), Part::default());
    };
    let minimum = scaling.min().unwrap_or_else(|| i32::from(!own));
    let scaled = Scaled {
        mode: Some(ScalingMode::Keda),
        min: Some(minimum),
        max: Some(scaling.max()),
        ..Scaled::default()
    };
    let key = Key::new(SCALED_OBJECT, names::scaler(&request.name));
    if matches!(seen.objects.get(&key), Some(Found::NotInstalled)) {
        let message =
            "KEDA is not installed (no CRD scaledobjects.keda.sh): install it, or set scaling.enabled to false";
        return (
            scaled,
            Part::says(no(SCALING_READY, ActorReason::KedaNotInstalled, message)),
        );
    }
    let authentication = authentication(request, transport);
    let mut keys = iter::once(&key).chain(authentication.iter().map(|(key, _)| key));
    if let Some(taken) = keys.find_map(|key| objects::taken(seen, key, SCALING_READY)) {
        return (scaled, taken);
    }
    let mut children: Vec<_> = authentication
        .into_iter()
        .map(|(key, body)| (key.clone(), objects::owned(seen, &key, body)))
        .collect();
    let live = seen.live(&key);
    // KEDA restores replicas when a ScaledObject is deleted, and not when its target changes.
    let points_at = live.map(|live| &live.data["spec"]["scaleTargetRef"]);
    if points_at.is_some_and(|there| there["name"] != target.name || there["kind"] != target.kind.kind) {
        let message = format!("{key} is replaced by one for {target}");
        let part = Part {
            children,
            look_again: Some(LOOK_AGAIN),
            ..Part::says(no(SCALING_READY, ActorReason::ScaledObjectCreated, message))
        };
        return (scaled, part);
    }
    let condition = match live.map(Reading::of) {
        None | Some(Reading::Silent) => no(
            SCALING_READY,
            ActorReason::ScaledObjectCreated,
            "Waiting for KEDA to reconcile the ScaledObject",
        ),
        Some(Reading::Ready) => yes(
            SCALING_READY,
            ActorReason::ScaledObjectReady,
            format!("KEDA scales {target} by the queue"),
        ),
        Some(Reading::Paused) => yes(
            SCALING_READY,
            ActorReason::Paused,
            "Scaling is paused by an annotation on the ScaledObject",
        ),
        Some(Reading::Refused(why)) => no(
            SCALING_READY,
            ActorReason::ScaledObjectRefused,
            format!("KEDA rejects {key}: {why}"),
        ),
        Some(Reading::Blind(why)) => no(
            SCALING_READY,
            ActorReason::ScaledObjectRefused,
            format!("KEDA cannot scale {target} by {key}: {why}"),
        ),
    };
    let scaled = Scaled {
        queue_active: live.and_then(sees_messages),
        reference: Some(objects::reference(seen, &key)),
        ..scaled
    };
    let body = scaled_object(seen, request, transport, scaling, target, minimum);
    let apply = objects::owned(seen, &key, body);
    children.push((key, apply));
    let part = Part {
        children,
        events: Vec::from_iter(shrinks(seen, target, minimum).filter(|_| live.is_none() && !own)),
        ..Part::says(condition)
    };
    (scaled, part)
}

/// The Event for a running target with more replicas than the minimum, when its scaling begins.
fn shrinks(seen: &Observed, target: &Key, minimum: i32) -> Option<Note> {
    let replicas = seen.live(target).and_then(replicas_asked)?;
    (replicas > minimum.into()).then(|| {
        let message = format!(
            "KEDA scales {target} by the queue: spec.replicas is {replicas} now, and {minimum} while the queue is empty. To keep more, set scaling.minReplicas"
        );
        Note::new(EventReason::ScalingStarted, message)
    })
}

/// Scales the target of a proxy along with the proxy.
pub(super) fn plan_target(seen: &Observed, request: &Request, transport: &Transport, target: &Key) -> Part {
    let key = Key::new(SCALED_OBJECT, names::target_scaler(&request.name));
    let Some(scaling) = &request.scaling else {
        return Part::default();
    };
    if matches!(seen.objects.get(&key), Some(Found::NotInstalled)) {
        return Part::default();
    }
    if let Some(taken) = objects::taken(seen, &key, SCALING_READY) {
        return taken;
    }
    let minimum = scaling.min().unwrap_or(1);
    let body = scaled_object(seen, request, transport, scaling, target, minimum);
    let apply = objects::owned(seen, &key, body);
    Part::child(key, apply)
}

/// Reports that the target must not be scaled, if the actor asks for scaling.
pub(super) fn impossible(request: &Request, why: &str) -> (Scaled, Part) {
    let part = match request.scaling {
        Some(_) => Part::says(no(SCALING_READY, ActorReason::TargetNotScalable, why)),
        None => Part::default(),
    };
    (manual(), part)
}

fn manual() -> Scaled {
    Scaled {
        mode: Some(ScalingMode::Manual),
        ..Scaled::default()
    }
}

/// Whether KEDA sees messages, according to its condition `Active`.
fn sees_messages(object: &DynamicObject) -> Option<bool> {
    match condition(&object.data["status"], "Active")?.status {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

fn scaled_object(
    seen: &Observed,
    request: &Request,
    transport: &Transport,
    scaling: &Scaling,
    target: &Key,
    minimum: i32,
) -> Value {
    let bound = request.is_bound();
    let cooldown = scaling.cooldown_period.unwrap_or(60);
    let types = objects::types(seen, target);
    let reference = json!({"apiVersion": types.api_version, "kind": types.kind, "name": target.name});
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
    without_empty(json!({"spec": {
        "scaleTargetRef": reference,
        "pollingInterval": scaling.polling_interval.unwrap_or(10),
        "cooldownPeriod": cooldown,
        // A running model must not be scaled to zero right after it is bound to an empty queue.
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
        "triggers": triggers(request, transport, scaling),
    }}))
}

/// The triggers of the queue and its alias. That of the alias only has to start the first replica, which moves all messages to the queue.
fn triggers(request: &Request, transport: &Transport, scaling: &Scaling) -> Vec<Value> {
    let own = names::queue(&request.namespace, &request.name);
    let alias = request.has_alias.then(|| ("alias", names::alias(&request.name)));
    iter::once(("queue", own))
        .chain(alias)
        .map(|(name, queue)| trigger(request, transport, scaling, (name, &queue)))
        .collect()
}

/// The trigger of a queue. It counts unacknowledged messages, so that a replica that processes the last message is not removed.
fn trigger(request: &Request, transport: &Transport, scaling: &Scaling, (name, queue): (&str, &str)) -> Value {
    let length = scaling
        .queue_length
        .unwrap_or_else(|| request.concurrency.unwrap_or(1).max(5))
        .to_string();
    let (kind, metadata) = match transport {
        Transport::RabbitMq(rabbit) => {
            let (protocol, port) = match rabbit.management_port() {
                Some(port) => ("http", port),
                None => ("amqp", rabbit.port()),
            };
            let secure = if rabbit.tls.is_some() { "s" } else { "" };
            let mut metadata = json!({
                "protocol": protocol,
                "host": format!("{protocol}{secure}://{}:{port}/", rabbit.host),
                "vhostName": rabbit.vhost,
                "queueName": queue,
                "mode": "QueueLength",
                "value": length,
            });
            if protocol == "http" {
                metadata["excludeUnacknowledged"] = "false".into();
            }
            ("rabbitmq", metadata)
        }
        Transport::Sqs(sqs) => (
            "aws-sqs-queue",
            json!({
                "queueURL": sqs.queue_url(queue),
                "queueLength": length,
                "awsRegion": sqs.region,
                "awsEndpoint": sqs.endpoint,
                "scaleOnInFlight": "true",
            }),
        ),
    };
    let credentials_name = names::authentication(&request.name);
    let authentication = credentials(transport, &credentials_name).map(|_| json!({"name": credentials_name}));
    json!({"type": kind, "name": name, "metadata": metadata, "authenticationRef": authentication})
}

/// Spec of the TriggerAuthentication, with references to Secrets.
fn credentials(transport: &Transport, name: &str) -> Option<Value> {
    let from = |parameter: &str, key: &SecretKey| json!({"parameter": parameter, "name": key.name, "key": key.key});
    match transport {
        Transport::RabbitMq(rabbit) => {
            let own = |parameter: &str| json!({"parameter": parameter, "name": name, "key": parameter});
            let (mut secrets, mut config_maps) = (Vec::new(), Vec::new());
            if let Some(password) = names::password(rabbit) {
                secrets.push(from("password", &password));
                // KEDA reads the user name from here or from the target's pods, which need not have it.
                config_maps.push(own("username"));
            }
            // KEDA takes `tls` only from here (pkg/scalers/rabbitmq_scaler.go, v2.21.0).
            config_maps.extend(rabbit.tls.is_some().then(|| own("tls")));
            match &rabbit.tls {
                Some(Tls::CaSecretRef(key)) => secrets.push(from("ca", key)),
                Some(Tls::CaConfigMapRef(key)) => config_maps.push(from("ca", key)),
                None if secrets.is_empty() => return None,
                None => {}
            }
            Some(without_empty(
                json!({"secretTargetRef": secrets, "configMapTargetRef": config_maps}),
            ))
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

/// The objects from which KEDA reads the credentials.
fn authentication(request: &Request, transport: &Transport) -> Vec<(Key, Value)> {
    let name = names::authentication(&request.name);
    let Some(spec) = credentials(transport, &name) else {
        return Vec::new();
    };
    let user = match transport {
        Transport::RabbitMq(rabbit) => {
            let user = rabbit.tenants.as_ref().map(|tenants| tenants.user(&request.namespace));
            let mut data = json!({"username": user.as_ref().unwrap_or(&rabbit.username)});
            if rabbit.tls.is_some() {
                data["tls"] = "enable".into();
            }
            Some((CONFIG_MAP, json!({"data": data})))
        }
        Transport::Sqs(_) => None,
    };
    user.into_iter()
        .chain([(TRIGGER_AUTHENTICATION, json!({"spec": spec}))])
        .map(|(kind, body)| (Key::new(kind, &name), body))
        .collect()
}
