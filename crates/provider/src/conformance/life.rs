//! R12 and R19 to R25: creation, update, handover and deletion of objects.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeploymentStatus, condition, labels};
use runway_operator::json as documents;
use serde_json::{Value, json};

use super::cluster::{Cluster, Stored};
use super::trial::{Trial, annotate, condition_of, delete, message, minutes, phase, said};
use super::{RuleResult, ensure};
use crate::plan;
use crate::upstream::{Installed, State};

/// A changed field is reverted and reported once; fields of other field managers are kept.
pub(super) fn r12_drift_is_reverted(trial: &Trial) -> RuleResult {
    let running = trial.running()?;
    for index in 0..running.objects.len() {
        for edit in edits(&running.objects[index]) {
            let mut cluster = running.clone();
            edit.make(&mut cluster.objects[index].object);
            let what = format!("{} {}", running.objects[index].kind.kind, edit.path);
            cluster.step();
            ensure!(
                cluster.heard() == ["DriftDetected"],
                "{what} was edited by hand, and people hear {:?} of it, after {:?}",
                cluster.heard(),
                cluster.writes.last()
            );
            cluster.settle()?;
            let (live, applied) = (&cluster.objects[index].object, running.objects[index].applied());
            ensure!(
                documents::contains(live, applied),
                "a manual edit of {what} is not reverted"
            );
        }
        let mut cluster = running.clone();
        let lost = cluster.objects.remove(index);
        cluster.settle()?;
        let again = cluster
            .objects
            .iter()
            .any(|o| o.kind == lost.kind && o.name() == lost.name());
        ensure!(
            again,
            "{} '{}' was deleted by hand and is not made again",
            lost.kind.kind,
            lost.name()
        );
    }
    Ok(())
}

/// One manual edit.
struct Edit {
    path: String,
    value: Option<Value>,
}

impl Edit {
    fn make(&self, object: &mut Value) {
        if let Some(value) = &self.value {
            if let Some(place) = object.pointer_mut(&self.path) {
                place.clone_from(value);
            }
            return;
        }
        let (parent, name) = self.path.rsplit_once('/').unwrap_or_default();
        let name = name.replace("~1", "/").replace("~0", "~");
        if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
            fields.remove(&name);
        }
    }
}

/// Every applied value, changed; labels and annotations also removed.
fn edits(stored: &Stored) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (field, value) in stored.applied().as_object().into_iter().flatten() {
        match field.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                for part in ["labels", "annotations"] {
                    leaves(&format!("/metadata/{part}"), &value[part], &mut edits);
                    for key in value[part].as_object().into_iter().flat_map(|m| m.keys()) {
                        let path = format!("/metadata/{part}/{}", escaped(key));
                        edits.push(Edit { path, value: None });
                    }
                }
            }
            _ => leaves(&format!("/{}", escaped(field)), value, &mut edits),
        }
    }
    // These annotations are the controller's own records: a change of them is not drift.
    edits.retain(|e| !e.path.ends_with("made-for") && !e.path.ends_with("applied-hash"));
    edits
}

fn leaves(path: &str, value: &Value, edits: &mut Vec<Edit>) {
    let other = match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                leaves(&format!("{path}/{}", escaped(key)), inner, edits);
            }
            return;
        }
        Value::Array(entries) => {
            for (index, inner) in entries.iter().enumerate() {
                leaves(&format!("{path}/{index}"), inner, edits);
            }
            return;
        }
        Value::String(text) => json!(format!("{text}-edited")),
        Value::Number(number) => json!(number.as_f64().unwrap_or(0.0) + 1.0),
        Value::Bool(flag) => json!(!flag),
        Value::Null => return,
    };
    edits.push(Edit {
        path: path.to_owned(),
        value: Some(other),
    });
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// An object without our controller reference was created by another owner: it is neither changed nor deleted.
pub(super) fn r19_foreign_objects_are_never_touched(trial: &Trial) -> RuleResult {
    let made = trial.made()?;
    let name = made.md.metadata.name.clone().unwrap_or_default();
    let another = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "name": name, "uid": "of-another", "controller": true});
    let mention =
        json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "name": name, "uid": "md-uid"});
    for child in trial.provider.children(&name) {
        for owner in [None, Some(another.clone()), Some(mention.clone())] {
            for blind in [false, true] {
                let what = format!("{} '{}' with another owner", child.kind.kind, child.name);
                let mut cluster = trial.fresh(&json!({}))?;
                cluster.put_foreign(child.kind, &child.name, owner.clone());
                cluster.blind = blind;
                let theirs = cluster.objects[0].clone();
                let in_the_way = made
                    .objects
                    .iter()
                    .any(|o| o.kind == child.kind && o.name() == child.name);
                if blind {
                    cluster.step();
                    cluster.blind = false;
                }
                cluster.settle()?;
                ensure!(cluster.objects.contains(&theirs), "{what} was changed or deleted");
                if in_the_way {
                    ensure!(
                        phase(&cluster) == Some(Phase::Failed)
                            && condition_of(&cluster, condition::RESOURCE_CREATED) == "False NameTaken"
                            && message(&cluster).contains(&child.name),
                        "{what} is in the way, and the status is {}",
                        said(&cluster)
                    );
                    let mut freed = cluster.clone();
                    freed.objects.retain(|o| *o != theirs);
                    freed.settle()?;
                    ensure!(
                        phase(&freed) != Some(Phase::Failed),
                        "{what} is gone, and the status is still {}",
                        said(&freed)
                    );
                }
                delete(&mut cluster);
                finish(&mut cluster)?;
                ensure!(
                    cluster.gone,
                    "{what} keeps the ModelDeployment from going: {}",
                    said(&cluster)
                );
                ensure!(
                    cluster.objects == [theirs],
                    "{what} was changed or deleted at the end, or something was left behind"
                );
            }
        }
    }
    Ok(())
}

/// The finalizer comes first, and the status names an upstream object before it exists. A controller that is killed after any
/// write reaches the same state as one that is not.
pub(super) fn r20_a_crash_between_two_writes_changes_nothing(trial: &Trial) -> RuleResult {
    let mut fresh = trial.fresh(&json!({}))?;
    fresh.md.metadata.finalizers = None;
    let mut deleted = trial.running()?;
    delete(&mut deleted);
    let mut starts = vec![("creation", fresh), ("deletion", deleted)];
    for (field, patch) in &trial.samples.identity {
        let mut changed = trial.running()?;
        trial.change(&mut changed, patch)?;
        starts.push((field, changed));
    }
    for (what, start) in starts {
        let mut whole = start.clone();
        whole.writes.clear();
        finish(&mut whole)?;
        if what == "creation" {
            let first = whole.writes.first().map_or("nothing", String::as_str);
            ensure!(
                first == "add the finalizer",
                "without a finalizer the first write is: {first}"
            );
        }
        for writes in 0..whole.writes.len() {
            let mut killed = start.clone();
            killed.budget = Some(writes);
            // The controller is killed repeatedly here; that it does not settle is expected.
            let _ = finish(&mut killed);
            ensure!(
                is_recorded(&killed) || upstream_uids(&killed).is_empty(),
                "{what}: killed after {writes} writes there is an object that status.provider does not name: the core may select another provider"
            );
            killed.budget = None;
            finish(&mut killed)?;
            ensure!(
                outcome(&killed) == outcome(&whole),
                "{what}: killed after {writes} writes it ends as {}, and otherwise as {}",
                outcome(&killed),
                outcome(&whole)
            );
        }
    }
    Ok(())
}

fn is_recorded(cluster: &Cluster) -> bool {
    let status = cluster.md.status.as_ref();
    let provider = status.and_then(|status| status.provider.as_ref());
    provider.is_some_and(|provider| provider.resource_name.is_some())
}

/// The persistent parts of the state, without server-generated values.
fn outcome(cluster: &Cluster) -> Value {
    let objects: Vec<Value> = cluster
        .objects
        .iter()
        .map(|stored| {
            let mut object = stored.object.clone();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                for numbered in ["uid", "generation", "resourceVersion"] {
                    metadata.remove(numbered);
                }
            }
            object
        })
        .collect();
    json!({"gone": cluster.gone, "finalizers": cluster.md.metadata.finalizers, "status": cluster.md.status, "objects": objects})
}

/// Reconciles with an upstream that completes deletions.
fn finish(cluster: &mut Cluster) -> RuleResult {
    for _ in 0..3 {
        cluster.settle()?;
        cluster.upstream_lets_go();
    }
    cluster.settle()
}

/// The same object with another body.
pub(super) fn r21_config_changes_are_made_in_place(trial: &Trial) -> RuleResult {
    ensure!(!trial.samples.updates.is_empty(), "samples: give at least one update");
    for patch in &trial.samples.updates {
        let mut cluster = trial.running()?;
        let (uids, before) = (upstream_uids(&cluster), applied(&cluster));
        trial.change(&mut cluster, patch)?;
        cluster.settle()?;
        ensure!(
            upstream_uids(&cluster) == uids,
            "{patch} replaced the object: {:?}",
            cluster.heard()
        );
        ensure!(
            applied(&cluster) != before,
            "{patch} changed nothing: {}",
            said(&cluster)
        );
        let observed = cluster.md.status.as_ref().and_then(|s| s.observed_generation);
        ensure!(
            observed == cluster.md.metadata.generation,
            "{patch}: observedGeneration stays at {observed:?}"
        );
        trial.becomes_ready(&mut cluster)?;
    }
    Ok(())
}

fn upstream_uids(cluster: &Cluster) -> BTreeSet<String> {
    cluster.upstream_objects().iter().map(|o| o.uid().to_owned()).collect()
}

fn applied(cluster: &Cluster) -> Vec<Value> {
    let mut all: Vec<Value> = cluster.objects.iter().map(|o| o.applied().clone()).collect();
    for fields in all.iter_mut().filter_map(Value::as_object_mut) {
        fields.remove("metadata");
    }
    all
}

/// The new object is created only after the old one is gone: there are never two.
pub(super) fn r22_a_recreated_object_goes_before_the_new_one_comes(trial: &Trial) -> RuleResult {
    let samples = trial.samples;
    for field in ["model.id", "model.source", "engine.type", "serving.mode"] {
        ensure!(
            samples.identity.iter().any(|(name, _)| *name == field),
            "samples: identity has no change of {field}"
        );
    }
    let mut recreated = 0;
    for (what, patch) in samples.identity.iter().chain(&samples.recreates) {
        if trial.translate(&trial.request(patch)?).is_ok() {
            recreates(trial, what, patch)?;
            recreated += 1;
        }
    }
    ensure!(recreated > 0, "samples: every identity change is refused");
    Ok(())
}

fn recreates(trial: &Trial, what: &str, patch: &Value) -> RuleResult {
    let mut cluster = trial.running()?;
    let old = upstream_uids(&cluster);
    let made_for = made_for(&cluster);
    cluster.writes.clear();
    trial.change(&mut cluster, patch)?;
    cluster.settle()?;
    ensure!(
        upstream_uids(&cluster) == old,
        "{what}: while the old object goes, there are {:?}; writes: {:?}",
        upstream_uids(&cluster),
        cluster.writes
    );
    ensure!(
        cluster.upstream_objects().iter().any(|o| o.is_going()),
        "{what} deletes nothing: {}",
        said(&cluster)
    );
    let upstream_was_written = trial.provider.upstreams().iter().any(|u| {
        cluster
            .writes
            .iter()
            .any(|w| w.starts_with(&format!("apply {} ", u.kind.kind)))
    });
    ensure!(
        !upstream_was_written,
        "{what}: something is made before the old object is gone: {:?}",
        cluster.writes
    );
    let noted = cluster
        .events
        .iter()
        .find(|e| e.reason == "Recreating")
        .map(|e| e.message.clone())
        .unwrap_or_default();
    ensure!(
        noted.contains(what),
        "the Event Recreating does not say '{what}': '{noted}'"
    );
    ensure!(
        condition_of(&cluster, condition::RESOURCE_CREATED) == "False Recreating",
        "{what}: while the old object goes, ResourceCreated is {}",
        condition_of(&cluster, condition::RESOURCE_CREATED)
    );
    cluster.upstream_lets_go();
    cluster.settle()?;
    let new = upstream_uids(&cluster);
    ensure!(
        new.difference(&old).next().is_some(),
        "{what}: the old object is gone, and no new one comes: {}",
        said(&cluster)
    );
    let is_identity = trial.samples.identity.iter().any(|(name, _)| *name == what);
    ensure!(
        !is_identity || self::made_for(&cluster) != made_for,
        "{what}: the new object says that it was made for the old spec"
    );
    trial.becomes_ready(&mut cluster)
}

fn made_for(cluster: &Cluster) -> Vec<Option<String>> {
    cluster
        .upstream_objects()
        .iter()
        .map(|o| o.annotation(labels::MADE_FOR).map(str::to_owned))
        .collect()
}

/// Deletes all objects, then clears the provider's part of the status, so that the core continues.
pub(super) fn r23_hand_over_ends_with_a_cleared_status(trial: &Trial) -> RuleResult {
    let successor = json!({"spec": {"provider": {"name": "another"}}});
    let mut unknown_upstream = trial.running()?;
    unknown_upstream.installed = unknown(trial);
    let starts = [
        ("waiting", trial.made()?),
        ("serving", trial.running()?),
        ("upstream schema unknown", unknown_upstream),
    ];
    for (what, mut cluster) in starts {
        cluster.writes.clear();
        trial.change(&mut cluster, &successor)?;
        cluster.settle()?;
        ensure!(
            cluster.objects.iter().all(Stored::is_going),
            "{what}: not everything is deleted for the successor"
        );
        ensure!(
            resource_name(&cluster).is_some() && phase(&cluster) == Some(Phase::Terminating),
            "{what}: the status is given up before the objects are gone: {}",
            said(&cluster)
        );
        cluster.upstream_lets_go();
        cluster.settle()?;
        let left = cluster.md.status.as_ref().map(plan::owned).unwrap_or_default();
        ensure!(
            left == ModelDeploymentStatus::default(),
            "{what}: everything is gone, and the status still says {left:?}"
        );
        ensure!(
            !cluster.writes.iter().any(|w| w.starts_with("apply")),
            "{what}: objects are made during the hand-over"
        );
        cluster.installed = trial.installed();
        trial.change(&mut cluster, &json!({}))?;
        cluster.settle()?;
        ensure!(
            !cluster.objects.is_empty(),
            "{what}: the choice was taken back, and nothing is made: {}",
            said(&cluster)
        );
    }
    Ok(())
}

fn resource_name<'c>(cluster: &'c Cluster) -> Option<&'c str> {
    cluster.md.status.as_ref()?.provider.as_ref()?.resource_name.as_deref()
}

/// Our objects are deleted if another provider was selected meanwhile; its objects stay.
pub(super) fn r24_what_another_provider_serves_now_is_deleted(trial: &Trial) -> RuleResult {
    let mut cluster = trial.running()?;
    if let Some(provider) = cluster.md.status.as_mut().and_then(|s| s.provider.as_mut()) {
        provider.name = Some("another".to_owned());
    }
    let mut theirs = cluster.clone();
    for stored in &mut theirs.objects {
        stored.object["metadata"]["labels"][labels::PROVIDER] = json!("another");
    }
    let before = theirs.objects.clone();
    theirs.settle()?;
    ensure!(
        theirs.objects == before,
        "objects that another provider made are touched: {:?}",
        theirs.writes.last()
    );

    let status = cluster.md.status.clone();
    cluster.settle()?;
    ensure!(
        cluster.objects.iter().all(Stored::is_going),
        "what was made here stays beside the other provider's"
    );
    ensure!(
        cluster.md.status == status,
        "the status of a ModelDeployment that another provider serves is written"
    );
    Ok(())
}

/// Deletion completes from any state: when the objects are gone, or after five minutes.
pub(super) fn r25_deletion_always_ends(trial: &Trial) -> RuleResult {
    for (what, start) in states(trial)? {
        let mut smooth = start.clone();
        delete(&mut smooth);
        smooth.settle()?;
        let visible: Vec<String> = smooth
            .observe()
            .children
            .iter()
            .filter_map(|c| c.object.metadata.name.clone())
            .collect();
        if !visible.is_empty() {
            ensure!(!smooth.gone, "{what}: the finalizer goes before the objects");
            ensure!(
                phase(&smooth) == Some(Phase::Terminating)
                    && visible.iter().all(|name| message(&smooth).contains(name)),
                "{what}: the status does not say what is waited for: {}",
                said(&smooth)
            );
        }
        smooth.heard();
        finish(&mut smooth)?;
        ensure!(
            smooth.gone,
            "{what}: the objects are gone, and it is not: {}",
            said(&smooth)
        );
        ensure!(
            !smooth.heard().contains(&"FinalizerTimeout"),
            "{what}: FinalizerTimeout without a timeout"
        );
        if !visible.is_empty() {
            is_given_up_in_time(what, start, &visible)?;
        }
    }
    Ok(())
}

fn is_given_up_in_time(what: &str, mut stuck: Cluster, visible: &[String]) -> RuleResult {
    delete(&mut stuck);
    stuck.settle()?;
    stuck.pass(minutes(5) - SignedDuration::from_secs(1));
    stuck.settle()?;
    ensure!(
        !stuck.gone,
        "{what}: the objects are stuck, and they are given up before five minutes are over"
    );
    let again = stuck.plan().look_again.map(|wait| wait.as_secs());
    ensure!(
        again == Some(1),
        "{what}: one second before the timeout it wants to look again in {again:?} seconds"
    );
    stuck.heard();
    stuck.pass(SignedDuration::from_secs(1));
    stuck.settle()?;
    ensure!(
        stuck.gone,
        "{what}: the objects are stuck, and the finalizer is still there after five minutes"
    );
    let noted = stuck.events.iter().find(|e| e.reason == "FinalizerTimeout");
    ensure!(
        noted.is_some_and(|e| e.warning && visible.iter().all(|name| e.message.contains(name))),
        "{what}: the Event FinalizerTimeout does not name what may be orphaned: {noted:?}"
    );
    Ok(())
}

/// An upstream release with an unknown schema.
fn unknown(trial: &Trial) -> Installed {
    let by_crd = trial.provider.upstreams().into_iter().filter(|u| !u.kind.is_built_in());
    let states = by_crd.map(|u| {
        let served = u.schemas.iter().map(|s| s.version.to_owned()).collect();
        let problems = vec!["spec.everything does not exist".to_owned()];
        (u.kind, State::Unknown { served, problems })
    });
    Installed::new(states.collect::<Vec<_>>())
}

fn states<'a>(trial: &Trial<'a>) -> Result<Vec<(&'static str, Cluster<'a>)>, String> {
    let mut failed = trial.running()?;
    failed.upstream_says(trial.samples.failed);
    failed.settle()?;
    let mut refused = trial.running()?;
    if let Some((_, patch)) = trial.samples.refused.first() {
        trial.change(&mut refused, patch)?;
        refused.settle()?;
    }
    let mut recreating = trial.running()?;
    for (_, patch) in &trial.samples.identity {
        trial.change(&mut recreating, patch)?;
        recreating.settle()?;
    }
    let mut unvalidated = trial.running()?;
    unvalidated.md.metadata.generation = Some(7);
    let mut paused = trial.running()?;
    annotate(&mut paused, labels::PAUSED, Some("true"));
    let mut dry = trial.running()?;
    annotate(&mut dry, labels::DRY_RUN, Some("true"));
    let mut unknown_upstream = trial.running()?;
    unknown_upstream.installed = unknown(trial);
    let mut without_upstream = trial.running()?;
    without_upstream.installed =
        Installed::new(trial.provider.upstreams().into_iter().map(|u| (u.kind, State::Missing)));
    Ok(vec![
        ("just handed over", trial.fresh(&json!({}))?),
        ("waiting", trial.made()?),
        ("serving", trial.running()?),
        ("failed", failed),
        ("refused", refused),
        ("recreating", recreating),
        ("not validated", unvalidated),
        ("paused", paused),
        ("dry run", dry),
        ("upstream CRD gone", without_upstream),
        ("upstream schema unknown", unknown_upstream),
    ])
}
