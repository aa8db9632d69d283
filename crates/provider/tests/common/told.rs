//! A plan as readable YAML.

use runway_operator::plan::{Apply, Delete, Edit, Finalizer, Note, Plan, Rehearsal};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value, json};

/// Everything that a plan does; `{}` if it is silent.
pub(crate) fn plan(plan: &Plan) -> String {
    let mut told = Map::new();
    let mut tell = |key: &str, value: Value| {
        if !matches!(&value, Value::Null | Value::Bool(false)) && value != json!([]) {
            told.insert(key.to_owned(), value);
        }
    };
    let finalizer = match plan.finalizer {
        Finalizer::Keep => None,
        Finalizer::Add => Some("add"),
        Finalizer::Remove => Some("remove"),
    };
    tell("finalizer", json!(finalizer));
    tell("delete", plan.delete.iter().map(deletion).collect());
    tell("apply", plan.apply.iter().map(application).collect());
    tell("edit", plan.edit.iter().map(edit).collect());
    tell(
        "statusOf",
        json!(
            plan.status_of
                .as_ref()
                .map(|of| json!({ "manager": of.manager, "status": of.status, "guarded": of.guarded }))
        ),
    );
    tell("status", json!(plan.status));
    tell("statusGuarded", json!(plan.status_guarded && plan.status.is_some()));
    tell("statusFirst", json!(plan.status_first && plan.status.is_some()));
    tell("rehearseFirst", json!(plan.rehearsal == Rehearsal::All));
    tell("events", plan.events.iter().map(note).collect());
    tell("lookAgain", json!(plan.look_again.map(|after| format!("{after:?}"))));
    serde_saphyr::to_string(&Ordered(&told.into())).unwrap()
}

/// Events that are sent when a plan is carried out, in the order of their objects.
pub(crate) fn events(plan: &Plan) -> Vec<Value> {
    let sent = plan.apply.iter().filter(|apply| !apply.unchanged);
    let of_objects = sent.filter_map(|apply| apply.note.as_ref());
    let of_edits = plan.edit.iter().filter_map(|edit| edit.note.as_ref());
    of_objects.chain(of_edits).chain(&plan.events).map(note).collect()
}

fn deletion(delete: &Delete) -> Value {
    let Delete {
        resource,
        namespace,
        name,
        uid,
        foreground,
    } = delete;
    format!(
        "{} {} {namespace}/{name}, uid {uid}{}",
        resource.api_version,
        resource.kind,
        if *foreground { ", dependents first" } else { "" }
    )
    .into()
}

fn application(apply: &Apply) -> Value {
    let live = apply.live.as_deref().unwrap_or("absent");
    let mut told = json!({ "live": live, "force": apply.force, "rehearsed": apply.rehearsed });
    if apply.alone {
        told["alone"] = true.into();
    }
    if let Some(said) = &apply.note {
        told["event"] = note(said);
    }
    // The object is shown only if it is sent.
    if apply.unchanged {
        told["unchanged"] = format!(
            "{} {}",
            apply.resource.kind,
            apply.object.metadata.name.as_deref().unwrap()
        )
        .into();
    } else {
        told["object"] = serde_json::to_value(&apply.object).unwrap();
    }
    told
}

fn edit(edit: &Edit) -> Value {
    let mut told = json!({ "object": format!("{} {}", edit.resource.kind, edit.name), "patch": edit.patch });
    if let Some(said) = &edit.note {
        told["event"] = note(said);
    }
    told
}

fn note(note: &Note) -> Value {
    let kind = if note.warning { "Warning" } else { "Normal" };
    format!("{kind} {}: {}", note.reason, note.message).into()
}

/// Keys in reading order.
struct Ordered<'a>(&'a Value);

const FIRST: [&str; 12] = [
    "finalizer",
    "delete",
    "apply",
    "apiVersion",
    "kind",
    "type",
    "name",
    "status",
    "reason",
    "phase",
    "message",
    "metadata",
];
const LAST: [&str; 4] = ["conditions", "statusGuarded", "events", "lookAgain"];

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|(key, _)| {
                    let first = FIRST.iter().position(|k| k == key).unwrap_or(FIRST.len());
                    (LAST.iter().position(|k| k == key).map_or(0, |at| at + 1), first)
                });
                let mut out = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    out.serialize_entry(key, &Ordered(value))?;
                }
                out.end()
            }
            Value::Array(list) => {
                let mut out = serializer.serialize_seq(Some(list.len()))?;
                for value in list {
                    out.serialize_element(&Ordered(value))?;
                }
                out.end()
            }
            other => other.serialize(serializer),
        }
    }
}
