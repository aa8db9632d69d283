//! A plan as readable YAML.

use runway_operator::plan::{Admission, Apply, Delete, Edit, Finalizer, Note, Plan, Rehearsal, Step, Trial};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value, json};

/// Everything that a plan does; `{}` if it is silent.
///
/// # Panics
/// The plan cannot be written as YAML.
pub fn plan(plan: &Plan) -> String {
    let mut reported = Map::new();
    let mut report = |key: &str, value: Value| {
        if !matches!(&value, Value::Null | Value::Bool(false)) && value != json!([]) {
            reported.insert(key.to_owned(), value);
        }
    };
    let finalizer = match plan.finalizer {
        Finalizer::Keep => None,
        Finalizer::Add => Some("add"),
        Finalizer::Remove => Some("remove"),
    };
    report("finalizer", json!(finalizer));
    report("delete", plan.delete.iter().map(deletion).collect());
    report("tried", plan.trials.iter().map(trial).collect());
    report("apply", plan.apply.iter().map(application).collect());
    report("edit", plan.edit.iter().map(edit).collect());
    report(
        "statusOf",
        json!(
            plan.status_of
                .as_ref()
                .map(|of| json!({ "manager": of.manager, "status": of.status, "guarded": of.guarded }))
        ),
    );
    report("status", json!(plan.status));
    report("statusGuarded", json!(plan.status_guarded && plan.status.is_some()));
    report("statusFirst", json!(plan.status_first && plan.status.is_some()));
    report("rehearseFirst", json!(plan.rehearsal == Rehearsal::All));
    report("events", plan.events.iter().map(note).collect());
    report("lookAgain", json!(plan.look_again.map(|after| format!("{after:?}"))));
    serde_saphyr::to_string(&Ordered(&reported.into())).unwrap()
}

/// Events that are sent when a plan is carried out, in order.
pub fn events(plan: &Plan) -> Vec<Value> {
    let sent = plan.steps().into_iter().filter_map(|step| match step {
        Step::Apply(apply) => apply.note.as_ref(),
        Step::Edit(edit) => edit.note.as_ref(),
        Step::Event(event) => Some(event),
        _ => None,
    });
    sent.map(note).collect()
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

/// The name only: its content follows from the other objects.
fn trial(trial: &Trial) -> Value {
    let Trial { object, counts } = trial;
    let name = object.object.metadata.name.as_deref().unwrap();
    format!("{} {name}: {counts:?}", object.resource.kind).into()
}

fn application(apply: &Apply) -> Value {
    let live = apply.live.as_deref().unwrap_or("absent");
    let mut reported =
        json!({ "live": live, "force": apply.force, "rehearsed": apply.admission != Admission::NeedsOthers });
    if apply.admission == Admission::Apart {
        reported["alone"] = true.into();
    }
    if let Some(said) = &apply.note {
        reported["event"] = note(said);
    }
    // The object is shown only if it is sent.
    if apply.unchanged {
        reported["unchanged"] = format!(
            "{} {}",
            apply.resource.kind,
            apply.object.metadata.name.as_deref().unwrap()
        )
        .into();
    } else {
        reported["object"] = serde_json::to_value(&apply.object).unwrap();
    }
    reported
}

fn edit(edit: &Edit) -> Value {
    let mut reported = json!({ "object": format!("{} {}", edit.resource.kind, edit.name), "patch": edit.patch });
    if let Some(said) = &edit.note {
        reported["event"] = note(said);
    }
    reported
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
