//! Standalone actors: a Deployment or StatefulSet, with the runtime from the ConfigMap `asya-runtime`.

use runway_api::ActorReason;
use runway_api::async_actor::{WORKLOAD_READY, WorkloadKind};
use runway_api::condition::{no, yes};
use serde_json::{Map, Value, json};

use super::containers::{self, Meeting, Place};
use super::part::{Outcome, Part};
use super::surroundings::Surroundings;
use super::{fields, objects, pods, scaling};
use crate::names;
use crate::object::{CONFIG_MAP, Key};
use crate::observe::Observed;
use crate::request::{RUNTIME, Request, Standalone};
use crate::targets::{DEPLOYMENT, STATEFUL_SET, replicas_asked};
use crate::transports::Transport;

pub(super) fn plan(
    seen: &Observed,
    request: &Request,
    workload: &Standalone,
    transport: Option<&Transport>,
) -> Outcome {
    let kind = match workload.kind {
        WorkloadKind::Deployment => DEPLOYMENT,
        WorkloadKind::StatefulSet => STATEFUL_SET,
    };
    let key = Key::new(kind, &request.name);
    let outcome = |parts: Vec<Part>| Outcome {
        shown: Some(key.clone()),
        parts,
        ..Outcome::default()
    };
    let Some(transport) = transport else {
        return outcome(vec![Part {
            keep_children: true,
            ..health(seen, request, &key)
        }]);
    };
    let runtime = Key::new(CONFIG_MAP, names::RUNTIME_CONFIG_MAP);
    if let Some(taken) = [&key, &runtime]
        .into_iter()
        .find_map(|key| objects::taken(seen, key, WORKLOAD_READY))
    {
        return outcome(vec![taken]);
    }
    let script = json!({"data": {names::RUNTIME_SCRIPT: seen.settings.runtime_script}});
    let script = objects::shared(seen, &runtime, script);
    let theirs = workload
        .template
        .get("spec")
        .and_then(|spec| spec["terminationGracePeriodSeconds"].as_i64());
    let grace = theirs.and_then(|s| i32::try_from(s).ok()).unwrap_or(workload.grace);
    let sidecar = containers::sidecar(
        request,
        seen.actor.spec.sidecar.as_ref(),
        transport,
        &seen.settings,
        Place {
            meeting: Meeting::Folder,
            grace: Some(grace),
            pod: Surroundings::of(workload.template.get("spec").unwrap_or(&Value::Null)),
        },
    );
    let template = template(seen, request, workload, sidecar, containers::credentials(transport));
    let body = workload_body(seen, request, &key, &template, workload.replicas);
    let children = vec![(runtime, script), (key.clone(), objects::owned(seen, &key, body))];
    let (scaled, scaling) = scaling::plan(seen, request, transport, &key, true);
    let own = Part {
        children,
        ..health(seen, request, &key)
    };
    Outcome {
        workload_ref: Some(objects::reference(seen, &key)),
        scaled,
        ..outcome(vec![own, scaling])
    }
}

/// The condition `WorkloadReady`.
fn health(seen: &Observed, request: &Request, key: &Key) -> Part {
    let well = match seen.live(key) {
        None => no(
            WORKLOAD_READY,
            ActorReason::WorkloadCreated,
            format!("{key} is being created"),
        ),
        Some(_) => yes(WORKLOAD_READY, ActorReason::WorkloadCreated, format!("{key} exists")),
    };
    pods::of_workload(seen, request, key).part(seen, WORKLOAD_READY, key, well)
}

/// The body of a Deployment or StatefulSet that the actor owns.
pub(super) fn workload_body(seen: &Observed, request: &Request, key: &Key, template: &Value, replicas: i32) -> Value {
    let mut spec = json!({
        "selector": {"matchLabels": {runway_api::labels::ASYA_ACTOR: request.name}},
        "template": template,
    });
    if key.kind == STATEFUL_SET {
        spec["serviceName"] = json!(key.name);
        spec["podManagementPolicy"] = json!("Parallel");
    } else if writes_to_claims(template) {
        // A claim that one pod or node uses cannot go from an old pod to a new one while both exist. Messages wait in the queue.
        spec["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    }
    if request.scaling.is_none() {
        spec["replicas"] = json!(replicas);
    } else {
        // KEDA owns the replicas. Until it writes them, keep the live number: a field without an owner falls back to 1.
        let live = seen.live(key).filter(|live| fields::hold_replicas_alone(live));
        if let Some(count) = live.and_then(replicas_asked) {
            spec["replicas"] = json!(count);
        }
    }
    json!({"spec": spec})
}

/// Whether pods write to a PersistentVolumeClaim. Its access mode is not known.
fn writes_to_claims(template: &Value) -> bool {
    let volumes = template["spec"]["volumes"].as_array();
    volumes.into_iter().flatten().any(|volume| {
        let claim = &volume["persistentVolumeClaim"];
        !claim.is_null() && claim["readOnly"] != true
    })
}

/// The user's template with the sidecar as the last container, and the shared volumes.
fn template(
    seen: &Observed,
    request: &Request,
    workload: &Standalone,
    sidecar: Value,
    credentials: Option<Value>,
) -> Value {
    let mut template = workload.template.clone();
    let mut metadata = map(template.remove("metadata"));
    let mut labels = map(metadata.remove("labels"));
    let ours = objects::common_labels(&request.name);
    labels.extend(ours.into_iter().map(|(key, value)| (key, value.into())));
    let mut annotations = map(metadata.remove("annotations"));
    // A new runtime requires new pods.
    let script = runway_operator::json::hash(&seen.settings.runtime_script);
    annotations.insert("asya.sh/runtime-hash".to_owned(), script.into());
    metadata.insert("labels".to_owned(), labels.into());
    metadata.insert("annotations".to_owned(), annotations.into());

    let mut spec = map(template.remove("spec"));
    let mut containers = list(spec.remove("containers"));
    for container in containers.iter_mut().filter_map(Value::as_object_mut) {
        if container.get("name").is_some_and(|name| name == RUNTIME) {
            containers::complete_runtime(container, request, &workload.python);
        }
    }
    containers.push(sidecar);
    let mut volumes = list(spec.remove("volumes"));
    volumes.push(json!({"name": "socket-dir", "emptyDir": {}}));
    volumes.push(json!({"name": containers::TEMPORARY, "emptyDir": {}}));
    volumes.push(json!({
        "name": "asya-runtime", "configMap": {"name": names::RUNTIME_CONFIG_MAP, "defaultMode": 0o755},
    }));
    volumes.extend(credentials);
    spec.insert("containers".to_owned(), containers.into());
    spec.insert("volumes".to_owned(), volumes.into());
    spec.entry("terminationGracePeriodSeconds")
        .or_insert_with(|| workload.grace.into());
    template.insert("metadata".to_owned(), metadata.into());
    template.insert("spec".to_owned(), spec.into());
    template.into()
}

fn map(value: Option<Value>) -> Map<String, Value> {
    match value {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}
