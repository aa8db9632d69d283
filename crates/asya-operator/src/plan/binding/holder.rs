//! The object that holds the containers of a binding, and the writes to it.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use runway_api::async_actor::Strategy;
use runway_api::labels;
use runway_operator::json;
use runway_operator::plan::{Admission, Apply, Counts, Edit, Trial};
use serde_json::{Value, json};

use crate::names;
use crate::object::{Key, POD};
use crate::observe::Observed;
use crate::plan::part::Part;
use crate::plan::{containers, fields, objects};
use crate::request::{RUNTIME, SIDECAR};
use crate::targets::INFERENCE_SERVICE;

/// Addition to the pods of a target.
pub(super) struct Addition {
    pub(super) pair: [Value; 2],
    pub(super) volumes: Vec<Value>,
}

impl Addition {
    pub(super) fn hash(&self) -> String {
        if self.volumes.is_empty() {
            return json::hash(&self.pair);
        }
        json::hash(&(&self.pair, &self.volumes))
    }
}

/// The live object, if it holds the containers.
pub(in crate::plan) fn held<'a>(seen: &'a Observed, holder: &Key) -> Option<&'a DynamicObject> {
    let live = seen.live(holder)?;
    let uid = seen.actor.uid().unwrap_or_default();
    let is_ours = live.annotations().get(labels::ASYA_BOUND_UID) == Some(&uid);
    // Another writer can remove the annotation and leave the containers.
    let binding = seen.actor.status.as_ref().and_then(|s| s.binding.as_ref());
    let recorded = binding.and_then(|b| b.holder_uid.clone());
    let unmarked = !live.annotations().contains_key(labels::ASYA_BOUND_UID);
    let left = unmarked && recorded.is_some() && recorded == live.uid() && fields::hold_something(live);
    (is_ours || left).then_some(live)
}

/// Removes everything that the operator added to an object.
pub(in crate::plan) fn reverted(seen: &Observed, holder: &Key, live: &DynamicObject) -> Part {
    let is_parent = holder.kind == INFERENCE_SERVICE;
    Part {
        apply: (!is_parent).then(|| apply(seen, holder, live, bare(seen, holder, live))),
        edit: is_parent.then(|| parent_edit(seen, holder, live, None)),
        ..Part::default()
    }
}

/// The write of the operator's fields to an object with another owner.
pub(super) fn apply(seen: &Observed, holder: &Key, live: &DynamicObject, object: DynamicObject) -> Apply {
    Apply {
        resource: objects::resource(seen, holder),
        object,
        live: live.uid(),
        // Never: if another field manager wants a different value, it keeps the field.
        force: false,
        admission: Admission::Together,
        unchanged: false,
        note: None,
    }
}

/// Hash of the pod template of a holder, without what the operator added.
pub(super) fn own_template(live: &DynamicObject, strategy: Strategy) -> String {
    let spec = &live.data["spec"];
    let (mut metadata, mut pod) = match strategy {
        Strategy::ParentSpec => (Value::Null, spec["predictor"].clone()),
        Strategy::TemplatePatch | Strategy::Proxy => {
            (spec["template"]["metadata"].clone(), spec["template"]["spec"].clone())
        }
    };
    if let Some(labels) = metadata["labels"].as_object_mut() {
        labels.remove(labels::ASYA_ACTOR);
    }
    for (list, ours) in [
        ("containers", &[SIDECAR, RUNTIME][..]),
        ("volumes", &[names::CREDENTIALS]),
    ] {
        if let Some(items) = pod[list].as_array_mut() {
            items.retain(|item| !ours.iter().any(|name| item["name"] == *name));
        }
    }
    json::hash(&containers::without_empty(json!([metadata, pod])))
}

/// Pods as the changed template would create them: dry runs show whether the namespace accepts the containers. Pod Security and quotas
/// refuse pods, and not the template that they come from.
pub(super) fn trials(seen: &Observed, workload: &DynamicObject, addition: &Addition) -> Vec<Trial> {
    let whole = pod_spec(workload, addition);
    // The pod that is replaced gives its own amounts back.
    let mut added = whole.clone();
    for list in ["containers", "initContainers"] {
        let containers = added[list].as_array_mut().into_iter().flatten();
        let is_theirs = |container: &&mut Value| addition.pair.iter().all(|own| own["name"] != container["name"]);
        containers.filter(is_theirs).for_each(without_amounts);
    }
    let trial = |spec: Value, counts: Counts| Trial {
        object: trial(seen, workload, &spec),
        counts,
    };
    vec![trial(whole, Counts::AllButQuota), trial(added, Counts::Quota)]
}

/// The pod of a workload with the containers and volumes of a binding.
fn pod_spec(workload: &DynamicObject, addition: &Addition) -> Value {
    let mut spec = workload.data["spec"]["template"]["spec"].clone();
    let claims = workload.data["spec"]["volumeClaimTemplates"]
        .as_array()
        .into_iter()
        .flatten();
    let claims = claims.map(|claim| {
        let name = &claim["metadata"]["name"];
        json!({"name": name, "persistentVolumeClaim": {"claimName": name}})
    });
    let volumes: Vec<Value> = claims.chain(addition.volumes.iter().cloned()).collect();
    for (list, ours) in [("containers", &addition.pair[..]), ("volumes", &volumes)] {
        let is_theirs = |item: &&Value| ours.iter().all(|own| own["name"] != item["name"]);
        let theirs = spec[list].as_array().into_iter().flatten().filter(is_theirs);
        spec[list] = theirs.chain(ours).cloned().collect();
    }
    spec
}

fn without_amounts(container: &mut Value) {
    for kind in ["requests", "limits"] {
        let amounts = container["resources"][kind].as_object_mut();
        amounts
            .into_iter()
            .flat_map(|amounts| amounts.values_mut())
            .for_each(|amount| *amount = json!("0"));
    }
}

fn trial(seen: &Observed, workload: &DynamicObject, spec: &Value) -> Apply {
    let metadata = &workload.data["spec"]["template"]["metadata"];
    let texts = |field: &str| serde_json::from_value::<BTreeMap<String, String>>(metadata[field].clone()).ok();
    let mut labels = texts("labels").unwrap_or_default();
    labels.insert(labels::ASYA_ACTOR.to_owned(), seen.name());
    let pod = POD.resource();
    Apply {
        object: DynamicObject {
            types: Some(TypeMeta {
                api_version: pod.api_version.clone(),
                kind: pod.kind.clone(),
            }),
            metadata: ObjectMeta {
                name: Some(names::TRIAL_POD.to_owned()),
                namespace: Some(seen.namespace()),
                labels: Some(labels),
                annotations: texts("annotations"),
                ..ObjectMeta::default()
            },
            data: json!({"spec": spec}),
        },
        resource: pod,
        live: None,
        force: false,
        admission: Admission::Together,
        unchanged: false,
        note: None,
    }
}

/// The object's identity, without any field.
pub(super) fn bare(seen: &Observed, key: &Key, live: &DynamicObject) -> DynamicObject {
    DynamicObject {
        types: Some(objects::types(seen, key)),
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(seen.namespace()),
            uid: live.uid(),
            ..ObjectMeta::default()
        },
        data: json!({}),
    }
}

/// Annotations of an object that holds the containers.
pub(super) fn marks(seen: &Observed, hash: &str) -> BTreeMap<String, String> {
    [
        (labels::ASYA_MANAGED_BY, seen.name()),
        (labels::ASYA_BOUND_UID, seen.actor.uid().unwrap_or_default()),
        (labels::ASYA_BOUND_HASH, hash.to_owned()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// The change of a parent's list of containers, which has no keys by which server-side apply could own an item. The list is read,
/// changed and written back, guarded by the resource version. An annotation records whether the list was created too.
pub(super) fn parent_edit(
    seen: &Observed,
    holder: &Key,
    live: &DynamicObject,
    with: Option<(&Addition, &str)>,
) -> Edit {
    let in_predictor = |name: &str| {
        let list = live.data.pointer(&format!("/spec/predictor/{name}"));
        list.and_then(Value::as_array)
    };
    let there = in_predictor("containers");
    let recorded = live.annotations().get(labels::ASYA_ADDED);
    let made_list = recorded.map_or_else(|| there.is_none(), |r| r == "list");
    let mut list: Vec<Value> = there
        .into_iter()
        .flatten()
        .filter(|c| c["name"] != SIDECAR && c["name"] != RUNTIME)
        .cloned()
        .collect();
    let mut volumes: Vec<Value> = in_predictor("volumes").into_iter().flatten().cloned().collect();
    let before = volumes.clone();
    volumes.retain(|volume| volume["name"] != names::CREDENTIALS);
    let annotations = match with {
        Some((addition, hash)) => {
            volumes.extend(addition.volumes.iter().cloned());
            list.extend(addition.pair.iter().cloned());
            let mut marks = json!(marks(seen, hash));
            marks[labels::ASYA_ADDED] = json!(if made_list { "list" } else { "items" });
            marks
        }
        None => json!({
            labels::ASYA_MANAGED_BY: null, labels::ASYA_BOUND_UID: null, labels::ASYA_BOUND_HASH: null, labels::ASYA_ADDED: null,
        }),
    };
    let containers = if list.is_empty() && made_list {
        Value::Null
    } else {
        list.into()
    };
    let mut predictor = json!({"containers": containers});
    if volumes != before {
        predictor["volumes"] = if volumes.is_empty() {
            Value::Null
        } else {
            volumes.into()
        };
    }
    Edit {
        resource: objects::resource(seen, holder),
        namespace: seen.namespace(),
        name: holder.name.clone(),
        patch: json!({
            "metadata": {"resourceVersion": live.resource_version(), "annotations": annotations},
            "spec": {"predictor": predictor},
        }),
        note: None,
    }
}
