//! A workload of the actor's own: Deployment or StatefulSet, with the runtime from the ConfigMap `asya-runtime`.

use runway_api::async_actor::{ObjectRef, WORKLOAD_READY, WorkloadKind};
use serde_json::{Map, Value, json};

use super::containers::{self, Meeting};
use super::objects::{self, CONFIG_MAP};
use super::{Draft, fields, scaling, status};
use crate::names;
use crate::observe::Key;
use crate::request::{RUNTIME, Standalone};
use crate::targets::{DEPLOYMENT, STATEFUL_SET, replicas_asked};
use crate::transports::Transport;

pub(super) fn plan(draft: &mut Draft<'_>, workload: &Standalone, transport: Option<&Transport>) {
    let kind = match workload.kind {
        WorkloadKind::Deployment => DEPLOYMENT,
        WorkloadKind::StatefulSet => STATEFUL_SET,
    };
    let key = Key::new(kind, &draft.request.name);
    draft.shown = Some(key.clone());
    let Some(transport) = transport else {
        status::workload(draft, &key);
        return;
    };
    let runtime = Key::new(CONFIG_MAP, names::RUNTIME_CONFIG_MAP);
    if draft.is_taken(&key, WORKLOAD_READY) || draft.is_taken(&runtime, WORKLOAD_READY) {
        return;
    }
    let (seen, request) = (draft.seen, draft.request);
    let script = json!({"data": {names::RUNTIME_SCRIPT: seen.settings.runtime_script}});
    draft.want(&runtime, objects::shared(seen, &runtime, script));
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
        (Meeting::Folder, Some(grace)),
    );
    let template = template(draft, workload, sidecar);
    let body = workload_body(draft, &key, &template, workload.kind, workload.replicas);
    draft.want(&key, objects::owned(seen, request, &key, body));
    draft.status.workload_ref = Some(made(draft, &key));
    status::workload(draft, &key);
    scaling::plan(draft, transport, &key, true);
}

/// The body of a Deployment or StatefulSet of ours.
pub(super) fn workload_body(
    draft: &Draft<'_>,
    key: &Key,
    template: &Value,
    kind: WorkloadKind,
    replicas: i32,
) -> Value {
    let mut spec = json!({
        "selector": {"matchLabels": {runway_api::labels::ASYA_ACTOR: draft.request.name}},
        "template": template,
    });
    if kind == WorkloadKind::StatefulSet {
        spec["serviceName"] = json!(key.name);
        spec["podManagementPolicy"] = json!("Parallel");
    }
    if draft.request.scaling.is_none() {
        spec["replicas"] = json!(replicas);
    } else {
        // Replicas are KEDA's. Until it writes them, what is there stays: a field that nobody holds would fall back to 1.
        let live = draft.seen.live(key).filter(|live| fields::hold_replicas_alone(live));
        if let Some(count) = live.and_then(replicas_asked) {
            spec["replicas"] = json!(count);
        }
    }
    json!({"spec": spec})
}

/// An object in a status.
pub(super) fn made(draft: &Draft<'_>, key: &Key) -> ObjectRef {
    ObjectRef {
        api_version: key
            .kind
            .api_version(draft.seen.version(key).unwrap_or(key.kind.version)),
        kind: key.kind.kind.to_owned(),
        name: key.name.clone(),
        namespace: Some(draft.request.namespace.clone()),
    }
}

/// The user's template, with the sidecar last, and what the two containers share.
fn template(draft: &Draft<'_>, workload: &Standalone, sidecar: Value) -> Value {
    let mut template = workload.template.clone();
    let mut metadata = map(template.remove("metadata"));
    let mut labels = map(metadata.remove("labels"));
    let ours = objects::common_labels(&draft.request.name);
    labels.extend(ours.into_iter().map(|(key, value)| (key, value.into())));
    let mut annotations = map(metadata.remove("annotations"));
    // A new runtime means new pods.
    let script = runway_operator::json::hash(&draft.seen.settings.runtime_script);
    annotations.insert("asya.sh/runtime-hash".to_owned(), script.into());
    metadata.insert("labels".to_owned(), labels.into());
    metadata.insert("annotations".to_owned(), annotations.into());

    let mut spec = map(template.remove("spec"));
    let mut containers = list(spec.remove("containers"));
    for container in containers.iter_mut().filter_map(Value::as_object_mut) {
        if container.get("name").is_some_and(|name| name == RUNTIME) {
            containers::complete_runtime(container, draft.request, &workload.python);
        }
    }
    containers.push(sidecar);
    let mut volumes = list(spec.remove("volumes"));
    volumes.push(json!({"name": "socket-dir", "emptyDir": {}}));
    volumes.push(json!({
        "name": "asya-runtime", "configMap": {"name": names::RUNTIME_CONFIG_MAP, "defaultMode": 0o755},
    }));
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
