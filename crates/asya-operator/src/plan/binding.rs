//! Binding: two containers beside, or in front of, somebody else's model. What is theirs stays theirs: they are never made
//! anybody's dependent, model containers are not touched, and what was put in is taken out whole.

use kube::ResourceExt;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use runway_api::async_actor::{
    AskedStrategy, BindingStatus, ObjectRef, OnConflict, RUNTIME_INJECTED, Strategy, TARGET_RESOLVED, WorkloadKind,
};
use runway_api::condition::{no, yes};
use runway_api::{AsyncActor, labels};
use runway_operator::json;
use runway_operator::plan::{Apply, Edit, Note};
use serde_json::{Value, json};

use super::conflict::{self, Sight, Verdict};
use super::containers::{self, Meeting};
use super::objects::{self, SCALED_OBJECT, by};
use super::{Draft, LOOK_AGAIN, fields, pods, removal, scaling, standalone, status};
use crate::names;
use crate::observe::{Key, Observed};
use crate::request::{Bound, RUNTIME, SIDECAR};
use crate::targets::{self, DEPLOYMENT, INFERENCE_SERVICE, Resolved, Unresolved};
use crate::transports::Transport;

/// The object that holds our containers, by the status.
pub(super) fn previous_holder(actor: &AsyncActor) -> Option<Key> {
    let holder = actor.status.as_ref()?.binding.as_ref()?.holder.as_ref()?;
    let group = holder.api_version.split_once('/').map_or("", |(group, _)| group);
    let kind = targets::KNOWN
        .into_iter()
        .find(|k| k.group == group && k.kind == holder.kind)?;
    Some(Key::new(kind, &holder.name))
}

pub(super) fn plan(draft: &mut Draft<'_>, bound: &Bound, transport: Option<&Transport>) {
    let resolved = targets::resolve(
        bound,
        &draft.request.namespace,
        draft.request.scaling.is_some(),
        &draft.seen.objects,
    );
    let resolved = match resolved {
        Ok(resolved) => resolved,
        Err(unresolved) => return not_resolved(draft, &unresolved),
    };
    draft
        .conditions
        .push(yes(TARGET_RESOLVED, "Resolved", resolution(&resolved, bound)));
    draft.status.resolved_target = Some(target_ref(draft, &resolved, bound));
    let Some(transport) = transport else {
        draft.status.binding = before(draft.seen).and_then(|s| s.binding.clone());
        draft.conditions.push(no(
            RUNTIME_INJECTED,
            "TransportNotConfigured",
            "Nothing is put in without a transport",
        ));
        return;
    };
    let grace = resolved
        .holder
        .is_none()
        .then_some(draft.request.processing.saturating_add(30));
    let pair = pair(draft, bound, transport, &resolved.url, grace);
    let source = Key::new(
        targets::known(&bound.reference).unwrap_or(DEPLOYMENT),
        &bound.reference.name,
    );
    // The holder changes with every fight over it: only what stands above it says something new.
    let above = Some(&source) != resolved.holder.as_ref();
    let source_generation = draft
        .seen
        .live(&source)
        .filter(|_| above)
        .and_then(|o| o.metadata.generation);
    draft.status.binding = Some(BindingStatus {
        strategy: Some(resolved.strategy),
        source_generation,
        ..BindingStatus::default()
    });
    match resolved.holder.clone() {
        None => proxy(draft, bound, transport, &resolved, &pair),
        Some(holder) => in_place(draft, bound, transport, &resolved, &holder, &pair),
    }
}

fn before(seen: &Observed) -> Option<&runway_api::AsyncActorStatus> {
    seen.actor.status.as_ref()
}

fn told(resolved: &Resolved, bound: &Bound) -> String {
    if resolved.target.kind.kind.is_empty() {
        format!(
            "{} '{}', which is called at {}",
            bound.reference.kind, bound.reference.name, resolved.url
        )
    } else {
        resolved.target.told()
    }
}

fn resolution(resolved: &Resolved, bound: &Bound) -> String {
    let source = format!("{} '{}'", bound.reference.kind, bound.reference.name);
    let target = told(resolved, bound);
    if source == target {
        format!("{target} exists")
    } else {
        format!("{source} comes down to {target}")
    }
}

fn target_ref(draft: &Draft<'_>, resolved: &Resolved, bound: &Bound) -> ObjectRef {
    let made = standalone::made(draft, &resolved.target);
    if resolved.target.kind.kind.is_empty() {
        return ObjectRef {
            api_version: bound.reference.api_version.clone(),
            kind: bound.reference.kind.clone(),
            ..made
        };
    }
    made
}

fn not_resolved(draft: &mut Draft<'_>, why: &Unresolved) {
    let was_proxy = before(draft.seen).and_then(|s| s.binding.as_ref()?.strategy) == Some(Strategy::Proxy);
    // A target that is away for a moment does not tear the proxy down.
    draft.keep_children = was_proxy && why.may_come;
    if was_proxy && why.may_come {
        draft.status.binding = before(draft.seen).and_then(|s| s.binding.clone());
    }
    draft.conditions.push(no(TARGET_RESOLVED, why.reason, &why.message));
    draft.news(TARGET_RESOLVED, Note::warning(why.reason, &why.message));
    if leave(draft, None) {
        return;
    }
    draft.conditions.push(no(
        RUNTIME_INJECTED,
        "TargetNotResolved",
        "There is nothing to bind to yet",
    ));
}

/// The two containers of a binding, the runtime first.
fn pair(draft: &Draft<'_>, bound: &Bound, transport: &Transport, url: &str, grace: Option<i32>) -> [Value; 2] {
    let (seen, request) = (draft.seen, draft.request);
    let sidecar = seen.actor.spec.sidecar.as_ref();
    [
        containers::bound_runtime(request, &bound.runtime, url),
        containers::sidecar(request, sidecar, transport, &seen.settings, (Meeting::Abstract, grace)),
    ]
}

/// A Deployment of our own that calls the target.
fn proxy(draft: &mut Draft<'_>, bound: &Bound, transport: &Transport, resolved: &Resolved, pair: &[Value; 2]) {
    if leave(draft, None) {
        return;
    }
    let fallback = draft.status.binding.as_ref().and_then(|b| b.fallback).unwrap_or(false);
    let key = Key::new(DEPLOYMENT, names::proxy(&draft.request.name));
    draft.shown = Some(key.clone());
    if draft.is_taken(&key, RUNTIME_INJECTED) {
        return;
    }
    let grace = draft.request.processing.saturating_add(30);
    let template = json!({
        "metadata": {"labels": objects::common_labels(&draft.request.name)},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": grace,
            "containers": pair,
        },
    });
    let body = standalone::workload_body(draft, &key, &template, WorkloadKind::Deployment, 1);
    draft.want(&key, objects::owned(draft.seen, draft.request, &key, body));
    draft.status.workload_ref = Some(standalone::made(draft, &key));
    let reason = if fallback { "ConflictFallback" } else { "ProxyCreated" };
    let condition = match status::trouble(draft, &key) {
        Some(trouble) => status::bad_news(draft, RUNTIME_INJECTED, &trouble, &key),
        None => yes(
            RUNTIME_INJECTED,
            reason,
            format!("{} calls {} at {}", key.told(), told(resolved, bound), resolved.url),
        ),
    };
    draft.conditions.push(condition);
    scaling::plan(draft, transport, &key, true);
    if let Some(target) = resolved.scale_too.as_ref().filter(|_| bound.scale_target) {
        scaling::plan_target(draft, transport, target);
    }
}

/// Two containers in an object of somebody else's.
fn in_place(
    draft: &mut Draft<'_>,
    bound: &Bound,
    transport: &Transport,
    resolved: &Resolved,
    holder: &Key,
    pair: &[Value; 2],
) {
    draft.shown = Some(resolved.target.clone());
    let seen = draft.seen;
    let Some(live) = seen.live(holder) else {
        let message = format!("{} does not exist yet", holder.told());
        draft.conditions.push(no(RUNTIME_INJECTED, "TargetNotFound", message));
        return;
    };
    if leave(draft, Some((holder, live))) {
        return;
    }
    if let Some(rival) = older_rival(seen, bound, live) {
        if let Some(holding) = held(seen, holder) {
            take_out(draft, holder, holding);
        }
        let message = format!(
            "{} is bound by AsyncActor '{rival}', which came first: delete one of the two, or set binding.strategy to Proxy",
            holder.told()
        );
        draft.news(RUNTIME_INJECTED, Note::warning("AlreadyManaged", &message));
        draft.conditions.push(no(RUNTIME_INJECTED, "AlreadyManaged", message));
        return;
    }
    let insertion = match Insertion::new(seen, resolved.strategy, holder, live, pair) {
        Ok(insertion) => insertion,
        Err(message) => {
            draft.news(RUNTIME_INJECTED, Note::warning("ContainerNameConflict", &message));
            draft
                .conditions
                .push(no(RUNTIME_INJECTED, "ContainerNameConflict", message));
            return;
        }
    };
    let verdict = judge(draft, live, &insertion);
    if let Verdict::Stopped { now } = verdict {
        return stopped(draft, bound, transport, resolved, (holder, live), pair, now);
    }
    let status = draft.status.binding.get_or_insert_default();
    status.holder = None;
    status.holder_uid = live.uid();
    status.applied_hash = Some(insertion.hash.clone());
    let reference = standalone::made(draft, holder);
    draft.status.binding.get_or_insert_default().holder = Some(reference);
    // What must be taken out again must not be forgotten.
    if !seen.actor.has_finalizer() {
        draft.kube.finalizer = runway_operator::plan::Finalizer::Add;
    }
    say(draft, &verdict, holder, live, resolved.strategy);
    insertion.carry_out(draft, holder, live, verdict == Verdict::Apply);
    warn_of_grace(draft, live);
    match &resolved.scale {
        Ok(target) => scaling::plan(draft, transport, target, false),
        Err(why) => scaling::impossible(draft, why),
    }
}

fn judge(draft: &mut Draft<'_>, live: &DynamicObject, insertion: &Insertion) -> Verdict {
    let seen = draft.seen;
    let before = before(seen).cloned().unwrap_or_default();
    let recorded = before.binding.clone().unwrap_or_default();
    let now = draft.status.binding.clone().unwrap_or_default();
    let new_spec = before.observed_generation.is_some() && before.observed_generation != seen.actor.metadata.generation;
    let new_source = recorded.source_generation.is_some() && recorded.source_generation != now.source_generation;
    let sight = Sight {
        intact: insertion.intact,
        was_put_in: recorded.applied_hash.as_ref() == Some(&insertion.hash) && recorded.holder_uid == live.uid(),
        new_chance: new_spec || new_source,
        first_wait: seen.settings.conflict_wait,
        uid: &draft.request.uid,
        now: seen.now,
    };
    conflict::judge(&sight, &before, &mut draft.status)
}

fn say(draft: &mut Draft<'_>, verdict: &Verdict, holder: &Key, live: &DynamicObject, strategy: Strategy) {
    let count = draft.status.conflict_count.unwrap_or(0);
    match verdict {
        Verdict::Intact | Verdict::Apply => {
            let message = format!(
                "asya-sidecar and asya-runtime are in {} ({})",
                holder.told(),
                strategy.as_str()
            );
            let condition = match pods::judge(draft, false) {
                Some(trouble) => status::bad_news(draft, RUNTIME_INJECTED, &trouble, holder),
                None => yes(RUNTIME_INJECTED, "Injected", message),
            };
            draft.conditions.push(condition);
            if let Some(wait) = conflict::forgotten_in(&draft.status, draft.seen.now) {
                draft.look_again(wait);
            }
        }
        Verdict::Lost { wait } | Verdict::Waiting { wait } => {
            let message = format!(
                "The containers were taken out of {}{} ({count} of {} times): they are put back after a wait",
                holder.told(),
                by(live),
                conflict::MOST
            );
            if matches!(verdict, Verdict::Lost { .. }) {
                draft.kube.events.push(Note::warning("ConflictDetected", &message));
            }
            draft.conditions.push(no(RUNTIME_INJECTED, "ConflictDetected", message));
            draft.look_again(*wait);
        }
        Verdict::Stopped { .. } => {}
    }
}

/// The other one wins: what is left of ours is taken out, and the target is called from outside if that is asked for.
fn stopped(
    draft: &mut Draft<'_>,
    bound: &Bound,
    transport: &Transport,
    resolved: &Resolved,
    (holder, live): (&Key, &DynamicObject),
    pair: &[Value; 2],
    now: bool,
) {
    let seen = draft.seen;
    let recorded = before(seen).and_then(|s| s.binding.clone()).unwrap_or_default();
    let fall_back = bound.on_conflict == OnConflict::Proxy;
    let winner = before(seen)
        .and_then(|s| s.conditions.iter().find(|c| c.type_ == RUNTIME_INJECTED))
        .filter(|c| c.reason == "ConflictLoopDetected" && !now)
        .map(|c| c.message.clone());
    let message = winner.unwrap_or_else(|| {
        let way_out = match (resolved.strategy, resolved.target.kind) {
            (Strategy::TemplatePatch, _) if targets::known(&bound.reference) == Some(INFERENCE_SERVICE) => {
                "set binding.strategy to ParentSpec or Proxy"
            }
            _ => "set binding.strategy to Proxy, or binding.onConflict to Proxy",
        };
        format!(
            "The containers were taken out of {}{} more than {} times: the target is left alone. To go on, {way_out}; any change of this spec tries again",
            holder.told(),
            by(live),
            conflict::MOST
        )
    });
    if now {
        draft.kube.events.push(Note::warning("ConflictLoopDetected", &message));
    }
    if let Some(holding) = held(seen, holder) {
        draft.status.binding = Some(BindingStatus { lost: None, ..recorded });
        draft
            .conditions
            .push(no(RUNTIME_INJECTED, "ConflictLoopDetected", message));
        take_out(draft, holder, holding);
        return;
    }
    if !fall_back {
        draft
            .conditions
            .push(no(RUNTIME_INJECTED, "ConflictLoopDetected", message));
        return;
    }
    let url = outside_url(bound, draft, resolved);
    let outside = match url {
        Ok(outside) => outside,
        Err(unresolved) => {
            draft.conditions.push(no(
                RUNTIME_INJECTED,
                "ConflictLoopDetected",
                format!("{message}. No proxy: {}", unresolved.message),
            ));
            return;
        }
    };
    let binding = draft.status.binding.get_or_insert_default();
    binding.strategy = Some(Strategy::Proxy);
    binding.fallback = Some(true);
    let [mut runtime, sidecar] = pair.clone();
    if let Some(variables) = runtime["env"].as_array_mut() {
        for variable in variables.iter_mut().filter(|v| v["name"] == "ASYA_TARGET_URL") {
            variable["value"] = json!(outside.url);
        }
    }
    proxy(draft, bound, transport, &outside, &[runtime, sidecar]);
}

/// The same target, called from another pod.
fn outside_url(bound: &Bound, draft: &Draft<'_>, resolved: &Resolved) -> Result<Resolved, Unresolved> {
    let bound = Bound {
        strategy: AskedStrategy::Proxy,
        ..bound.clone()
    };
    let outside = targets::resolve(
        &bound,
        &draft.request.namespace,
        draft.request.scaling.is_some(),
        &draft.seen.objects,
    )?;
    Ok(Resolved {
        target: resolved.target.clone(),
        ..outside
    })
}

/// Another actor that wants the same target in place and came first; or one that still holds it.
fn older_rival(seen: &Observed, bound: &Bound, live: &DynamicObject) -> Option<String> {
    let claims = targets::claims(&bound.reference);
    let age = |actor: &AsyncActor| (actor.metadata.creation_timestamp.clone().map(|t| t.0), actor.uid());
    let holding = live.annotations().get(labels::ASYA_BOUND_UID);
    let own = age(&seen.actor);
    let competes = |other: &&std::sync::Arc<AsyncActor>| {
        let wants = |reference| targets::claims(reference).iter().any(|claim| claims.contains(claim));
        let in_place = other.spec.strategy() != AskedStrategy::Proxy;
        let holds = holding.is_some() && holding == other.metadata.uid.as_ref();
        other.uid() != seen.actor.uid()
            && (holds
                || in_place
                    && !other.is_deleting()
                    && other.spec.workload_ref.as_ref().is_some_and(wants)
                    && age(other) < own)
    };
    seen.others.iter().filter(competes).map(|other| other.name_any()).min()
}

/// The object, if it holds what is ours.
pub(super) fn held<'a>(seen: &'a Observed, holder: &Key) -> Option<&'a DynamicObject> {
    let live = seen.live(holder)?;
    let uid = seen.actor.uid().unwrap_or_default();
    let is_ours = live.annotations().get(labels::ASYA_BOUND_UID) == Some(&uid);
    // Somebody may have wiped the annotation and left the containers.
    let recorded = before(seen).and_then(|s| s.binding.as_ref()?.holder_uid.clone());
    let unmarked = !live.annotations().contains_key(labels::ASYA_BOUND_UID);
    let left = unmarked && recorded.is_some() && recorded == live.uid() && fields::hold_something(live);
    (is_ours || left).then_some(live)
}

/// Takes what is ours out of the object of before, if that is another one than `now`. True while that is under way: scaling goes
/// first, because it may put replicas back.
fn leave(draft: &mut Draft<'_>, now: Option<(&Key, &DynamicObject)>) -> bool {
    let seen = draft.seen;
    let Some(previous) = previous_holder(&seen.actor) else {
        return false;
    };
    if now.is_some_and(|(key, _)| *key == previous) {
        return false;
    }
    let Some(live) = held(seen, &previous) else {
        return false;
    };
    draft.status.binding = before(seen).and_then(|s| s.binding.clone());
    draft.conditions.push(no(
        RUNTIME_INJECTED,
        "Leaving",
        format!("The containers are being taken out of {}", previous.told()),
    ));
    take_out(draft, &previous, live);
    true
}

/// Takes what is ours out, once nothing scales the target any more.
pub(super) fn take_out(draft: &mut Draft<'_>, holder: &Key, live: &DynamicObject) {
    let scaler = Key::new(SCALED_OBJECT, names::scaler(&seen_name(draft)));
    // Whatever is not wanted is deleted at the end of the plan.
    if removal::still_goes(draft.seen, &scaler) {
        draft.look_again(LOOK_AGAIN);
        return;
    }
    let note = Note::normal(
        "Unbound",
        format!("Took asya-sidecar and asya-runtime out of {}", holder.told()),
    );
    draft.kube.events.push(note);
    put_back(draft.seen, holder, live, &mut draft.kube);
}

fn seen_name(draft: &Draft<'_>) -> String {
    draft.seen.name()
}

/// The write that restores an object as it was.
pub(super) fn put_back(seen: &Observed, holder: &Key, live: &DynamicObject, plan: &mut runway_operator::plan::Plan) {
    if holder.kind == INFERENCE_SERVICE {
        plan.edit.push(parent_edit(seen, holder, live, None));
        return;
    }
    let nothing = bare(seen, holder, live);
    plan.apply.push(Apply {
        resource: holder
            .kind
            .resource(seen.version(holder).unwrap_or(holder.kind.version)),
        object: nothing,
        live: live.uid(),
        force: false,
        rehearsed: true,
        unchanged: false,
        note: None,
    });
}

/// The target's identity and nothing else.
fn bare(seen: &Observed, key: &Key, live: &DynamicObject) -> DynamicObject {
    DynamicObject {
        types: Some(TypeMeta {
            api_version: key.kind.api_version(seen.version(key).unwrap_or(key.kind.version)),
            kind: key.kind.kind.to_owned(),
        }),
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(seen.namespace()),
            uid: live.uid(),
            ..ObjectMeta::default()
        },
        data: json!({}),
    }
}

/// What is put into an object, and whether it is there.
struct Insertion {
    hash: String,
    intact: bool,
    what: What,
}

enum What {
    Patch(Box<DynamicObject>),
    Parent(Box<Edit>),
}

impl Insertion {
    fn new(
        seen: &Observed,
        strategy: Strategy,
        holder: &Key,
        live: &DynamicObject,
        pair: &[Value; 2],
    ) -> Result<Self, String> {
        let hash = json::hash(pair);
        let path = if strategy == Strategy::ParentSpec {
            "/spec/predictor/containers"
        } else {
            "/spec/template/spec/containers"
        };
        let there = live.data.pointer(path).and_then(Value::as_array);
        let is_held = held(seen, holder).is_some();
        if let Some(name) = [SIDECAR, RUNTIME]
            .iter()
            .find(|name| there.into_iter().flatten().any(|c| c["name"] == **name) && !is_held)
        {
            return Err(format!(
                "{} has a container named {name} that the operator did not put there: rename it, or set binding.strategy to Proxy",
                holder.told()
            ));
        }
        if strategy == Strategy::ParentSpec {
            let ours_are_there = pair.iter().all(|c| {
                there
                    .into_iter()
                    .flatten()
                    .any(|found| found["name"] == c["name"] && json::contains(found, c))
            });
            let marked = live.annotations().get(labels::ASYA_BOUND_HASH) == Some(&hash);
            return Ok(Self {
                intact: ours_are_there && marked && is_held,
                what: What::Parent(Box::new(parent_edit(seen, holder, live, Some((pair, &hash))))),
                hash,
            });
        }
        let mut wanted = bare(seen, holder, live);
        wanted.metadata.annotations = Some(marks(seen, &hash));
        // By the label we find the pods, and tell why they do not work.
        wanted.data = json!({"spec": {"template": {
            "metadata": {"labels": {labels::ASYA_ACTOR: seen.name()}},
            "spec": {"containers": pair},
        }}});
        Ok(Self {
            intact: is_held && fields::is_intact(live, &wanted),
            what: What::Patch(Box::new(wanted)),
            hash,
        })
    }

    fn carry_out(self, draft: &mut Draft<'_>, holder: &Key, live: &DynamicObject, now: bool) {
        let note = Note::normal(
            "Bound",
            format!("Put asya-sidecar and asya-runtime into {}", holder.told()),
        );
        let first = live.annotations().get(labels::ASYA_BOUND_UID).is_none();
        match self.what {
            What::Patch(patch) => draft.kube.apply.push(Apply {
                resource: holder
                    .kind
                    .resource(draft.seen.version(holder).unwrap_or(holder.kind.version)),
                object: *patch,
                live: live.uid(),
                // Never: a field that somebody else wants otherwise is theirs.
                force: false,
                rehearsed: true,
                unchanged: !now,
                note: first.then_some(note),
            }),
            What::Parent(edit) if now => draft.kube.edit.push(Edit {
                note: first.then_some(note),
                ..*edit
            }),
            What::Parent(_) => {}
        }
    }
}

fn marks(seen: &Observed, hash: &str) -> std::collections::BTreeMap<String, String> {
    [
        (labels::ASYA_MANAGED_BY, seen.name()),
        (labels::ASYA_BOUND_UID, seen.actor.uid().unwrap_or_default()),
        (labels::ASYA_BOUND_HASH, hash.to_owned()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// The list of a parent's containers has no keys, so nobody can hold an item of it: it is read, changed and written back, guarded by its
/// resource version. What was added is recorded, to be taken out again.
fn parent_edit(seen: &Observed, holder: &Key, live: &DynamicObject, with: Option<(&[Value; 2], &str)>) -> Edit {
    let there = live
        .data
        .pointer("/spec/predictor/containers")
        .and_then(Value::as_array);
    let recorded = live.annotations().get(labels::ASYA_ADDED);
    let made_list = recorded.map_or_else(|| there.is_none(), |r| r == "list");
    let mut list: Vec<Value> = there
        .into_iter()
        .flatten()
        .filter(|c| c["name"] != SIDECAR && c["name"] != RUNTIME)
        .cloned()
        .collect();
    let annotations = match with {
        Some((pair, hash)) => {
            list.extend(pair.iter().cloned());
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
    Edit {
        resource: holder
            .kind
            .resource(seen.version(holder).unwrap_or(holder.kind.version)),
        namespace: seen.namespace(),
        name: holder.name.clone(),
        patch: json!({
            "metadata": {"resourceVersion": live.resource_version(), "annotations": annotations},
            "spec": {"predictor": {"containers": containers}},
        }),
        note: None,
    }
}

/// The pod's time to end belongs to the target; work that takes longer is cut.
fn warn_of_grace(draft: &mut Draft<'_>, live: &DynamicObject) {
    let grace = live
        .data
        .pointer("/spec/template/spec/terminationGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(30);
    let processing = i64::from(draft.request.processing);
    if processing > grace && draft.request.scaling.is_some() && live.data.pointer("/spec/template").is_some() {
        draft.warnings.push(format!(
            "timeout.processing is {processing} s, and pods of the target have {grace} s to end: a message under way when a pod goes is handled again. Raise terminationGracePeriodSeconds of the target"
        ));
    }
}
