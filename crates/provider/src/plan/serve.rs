//! The plan for a ModelDeployment that the provider serves.

use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::ProviderReason;
use runway_operator::object;
use runway_operator::plan::{Admission, Apply, Delete, Finalizer, Note, Plan};

use super::Decision;
use super::claims;
use super::objects;
use super::prepare::{Blocked, Prepared, is_upstream, prepare};
use super::status;
use crate::contract::{CLAIM, Kind, Object, Provider, Translation};
use crate::observe::{Child, Observed};

/// Interval of checks while an old object is being deleted, in case the watch misses its end.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

pub(super) fn decide(provider: &dyn Provider, seen: &Observed) -> Decision {
    if let Some(invalid) = &seen.invalid_settings {
        return status::without_settings(provider, seen, invalid).into();
    }
    let prepared = match prepare(provider, seen) {
        Ok(prepared) => prepared,
        Err(failure) => return status::failed(provider, seen, &failure).into(),
    };
    if seen.md.is_dry_run() {
        return status::dry_run(provider, seen, &prepared).into();
    }
    if let Some(failure) = in_the_way(seen, &prepared) {
        return status::failed(provider, seen, &failure).into();
    }
    let outgoing = outgoing(provider, seen, &prepared.translation);
    let mut decision = if outgoing.blocks {
        recreate(provider, seen, &prepared, &outgoing.reasons).into()
    } else {
        create(provider, seen, &prepared)
    };
    if !seen.md.has_finalizer() {
        decision.plan.finalizer = Finalizer::Add;
    }
    decision.plan.delete = outgoing.delete;
    decision
}

/// Refuses if an object with a required name has another owner, which is never changed, or if it is a claim that cannot be
/// changed as requested.
fn in_the_way(seen: &Observed, prepared: &Prepared) -> Option<Blocked> {
    prepared.translation.objects.iter().find_map(|wanted| {
        let live = seen.child(wanted.kind, &wanted.name)?;
        let is_claim = wanted.kind == CLAIM;
        if is_dependent(seen, live) {
            return None;
        }
        if object::is_ours(seen.md.as_ref(), live) || is_claim && claims::is_retained_for(&seen.md, live) {
            let changed = is_claim.then(|| claims::immutable(live, wanted)).flatten();
            return changed.map(Blocked::rejected);
        }
        Some(Blocked::name_taken(
            wanted.kind.kind,
            &wanted.name,
            &object::manager_of(live),
        ))
    })
}

/// Whether an object was created by the upstream from one of ours, such as the Service of an earlier release's object. It goes
/// with its owner, which is replaced before an object of its name is created.
fn is_dependent(seen: &Observed, live: &DynamicObject) -> bool {
    let mut ours = seen
        .children
        .iter()
        .filter(|child| object::is_ours(seen.md.as_ref(), &child.object));
    ours.any(|child| {
        let uid = child.object.uid();
        let mut owners = live.owner_references().iter();
        owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == uid.as_ref())
    })
}

/// Objects to delete before or while others are created.
struct Outgoing {
    delete: Vec<Delete>,
    /// Whether an upstream object is being deleted: nothing is created until it is gone.
    blocks: bool,
    reasons: Vec<String>,
}

fn outgoing(provider: &dyn Provider, seen: &Observed, translation: &Translation) -> Outgoing {
    let mut outgoing = Outgoing {
        delete: Vec::new(),
        blocks: false,
        reasons: Vec::new(),
    };
    for child in &seen.children {
        let live = child.object.as_ref();
        let name = live.name_any();
        let reasons = match translation
            .objects
            .iter()
            .find(|o| o.kind == child.kind && o.name == name)
        {
            _ if !object::is_ours(seen.md.as_ref(), live) => continue,
            Some(wanted) if is_upstream(provider, child.kind) => objects::outgrown(&seen.md, live, wanted),
            Some(_) => Vec::new(),
            None => replaced(provider, seen, child, translation),
        };
        let going = live.metadata.deletion_timestamp.is_some();
        if !reasons.is_empty() && !going {
            outgoing
                .delete
                .extend(deletion(seen, child.kind, live).map(|delete| Delete {
                    foreground: provider.recreates_after_dependents() && is_upstream(provider, child.kind),
                    ..delete
                }));
        }
        if is_upstream(provider, child.kind) && (going || !reasons.is_empty()) {
            outgoing.blocks = true;
            if !going {
                outgoing.reasons.extend(reasons);
            }
        }
    }
    outgoing
}

/// Reasons why an object has no place in a translation: the fields that differ, if it is an upstream object, and its successor.
fn replaced(provider: &dyn Provider, seen: &Observed, child: &Child, translation: &Translation) -> Vec<String> {
    let Some(main) = translation.objects.last() else {
        return Vec::new();
    };
    let mut reasons = Vec::new();
    if is_upstream(provider, child.kind) {
        reasons.extend(objects::changed(&child.object, &objects::made_for(&seen.md, main)));
    }
    reasons.push(format!(
        "{} is replaced by {}",
        child.kind.named(&child.object.name_any()),
        main.kind.named(&main.name)
    ));
    reasons
}

/// Deletion of a live object, in the version that is served.
pub(super) fn deletion(seen: &Observed, kind: Kind, live: &DynamicObject) -> Option<Delete> {
    let resource = match seen.installed.visible_version(kind) {
        Some(version) => kind.resource_in(&version),
        None => kind.resource(),
    };
    object::deletion(resource, live)
}

fn create(provider: &dyn Provider, seen: &Observed, prepared: &Prepared) -> Decision {
    let main = prepared.main();
    // The upstream's admission may check that referenced objects exist.
    let complete = prepared
        .translation
        .objects
        .iter()
        .all(|o| Some(o) == main || seen.child(o.kind, &o.name).is_some());
    let apply: Vec<Apply> = prepared
        .translation
        .objects
        .iter()
        .map(|object| {
            let mut apply = objects::apply(&seen.md, provider.name(), object, seen.child(object.kind, &object.name));
            if !complete && Some(object) == main {
                apply.admission = Admission::NeedsOthers;
            }
            if Some(object) != main && apply.note.as_ref().is_some_and(|n| !n.warning) {
                apply.note = None;
            }
            apply
        })
        .collect();
    let applied = apply.iter().all(|apply| apply.unchanged);
    let wanted = prepared.translation.objects.iter().zip(&apply);
    let edit = wanted
        .filter_map(|(object, apply)| claims::released(&seen.md, apply, seen.child(object.kind, &object.name)))
        .collect();
    let Decision { plan, probe } = status::serving(provider, seen, prepared, applied);
    Decision {
        plan: Plan { apply, edit, ..plan },
        probe,
    }
}

/// Waits until the old object is deleted.
fn recreate(provider: &dyn Provider, seen: &Observed, prepared: &Prepared, reasons: &[String]) -> Plan {
    let mut plan = status::recreating(provider, seen, prepared, reasons);
    plan.events.extend(recreation_note(prepared.main(), reasons));
    plan.look_again = Some(LOOK_AGAIN);
    plan
}

/// Event with the reason for a recreation.
fn recreation_note(main: Option<&Object>, reasons: &[String]) -> Option<Note> {
    let main = main?;
    (!reasons.is_empty()).then(|| {
        Note::normal(
            ProviderReason::Recreating,
            format!("Recreating {}: {}", main.kind.named(&main.name), reasons.join("; ")),
        )
    })
}
