//! The strategies TemplatePatch and ParentSpec: two containers in the pods of the target.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::async_actor::{AskedStrategy, BindingStatus, OnConflict, RUNTIME_INJECTED, Strategy};
use runway_api::condition::{no, yes};
use runway_api::{ActorReason, EventReason, labels};
use runway_operator::json;
use runway_operator::plan::{Apply, Edit, Note};
use serde_json::{Value, json};

use super::holder::{self, Addition, bare, held, marks, parent_edit};
use super::proxy::{self, Binding};
use super::release;
use crate::names;
use crate::object::Key;
use crate::observe::Observed;
use crate::plan::conflict::{self, Judged, Sight, Verdict};
use crate::plan::objects::{self, by};
use crate::plan::part::{Outcome, Part};
use crate::plan::surroundings::Surroundings;
use crate::plan::{fields, pods, scaling};
use crate::request::{Bound, RUNTIME, Request, SIDECAR};
use crate::rivals::Rival;
use crate::targets::{self, DEPLOYMENT, INFERENCE_SERVICE, InPlace, STATEFUL_SET};

pub(super) fn plan(binding: &Binding<'_>, place: &InPlace, url: &str) -> Outcome {
    let seen = binding.seen;
    let holder = &place.holder;
    let status = binding.status(place.strategy, Some(holder));
    let outcome = |parts: Vec<Part>| Outcome {
        shown: Some(place.workload.clone()),
        binding: Some(status.clone()),
        parts,
        ..Outcome::default()
    };
    let Some(live) = seen.live(holder) else {
        let message = format!("{holder} does not exist yet");
        return outcome(vec![Part::says(no(
            RUNTIME_INJECTED,
            ActorReason::TargetNotFound,
            message,
        ))]);
    };
    if let Some(leaving) = release::leave(seen, Some(holder)) {
        return Outcome {
            shown: Some(place.workload.clone()),
            ..leaving
        };
    }
    if let Some(rival) = older_rival(seen, binding.bound, live) {
        let message = format!(
            "{holder} is already bound by AsyncActor '{rival}': delete one of the two, or set binding.strategy to Proxy"
        );
        let released = held(seen, holder).map(|live| release::take_out(seen, holder, live));
        let failure = Part::fails(seen, RUNTIME_INJECTED, ActorReason::AlreadyManaged, message);
        return outcome(released.into_iter().chain([failure]).collect());
    }
    let pod = targets::pod_of(live, place.strategy);
    let surroundings = Surroundings::of(&pod);
    let addition = binding.addition(url, surroundings);
    let insertion = match Insertion::new(seen, place, live, &addition) {
        Ok(insertion) => insertion,
        Err(message) => {
            return outcome(vec![Part::fails(
                seen,
                RUNTIME_INJECTED,
                ActorReason::ContainerNameConflict,
                message,
            )]);
        }
    };
    let spec_hash = json::hash(&seen.actor.spec);
    let insertion = insertion.until_rollout(seen, holder, &pod, &spec_hash);
    let judged = judge(binding, live, &insertion, &status);
    let conflicts = judged.conflicts.clone();
    if let Verdict::Stopped { now } = judged.verdict {
        return Outcome {
            conflicts,
            ..stopped(binding, place, live, outcome(Vec::new()), now)
        };
    }
    let (scaled, scaling) = match &place.scale {
        Ok(target) => scaling::plan(seen, binding.request, binding.transport, target, false),
        Err(why) => scaling::impossible(binding.request, why),
    };
    let says = says(binding, place, live, &judged);
    Outcome {
        binding: Some(BindingStatus {
            holder: Some(objects::reference(seen, holder)),
            holder_uid: live.uid(),
            applied_hash: Some(insertion.hash.clone()),
            spec_hash: Some(spec_hash),
            template_hash: Some(insertion.template.clone()),
            lost: judged.lost.then_some(true),
            ..status.clone()
        }),
        conflicts,
        scaled,
        ..outcome(vec![
            says,
            insertion.part(binding, place, live, (&addition, &judged)),
            quality_warning(surroundings, &addition),
            scaling,
        ])
    }
}

fn judge(binding: &Binding<'_>, live: &DynamicObject, insertion: &Insertion, status: &BindingStatus) -> Judged {
    let seen = binding.seen;
    let before = seen.actor.status.clone().unwrap_or_default();
    let recorded = before.binding.clone().unwrap_or_default();
    let new_spec = before.observed_generation.is_some() && before.observed_generation != seen.actor.metadata.generation;
    let new_source = recorded.source_generation.is_some() && recorded.source_generation != status.source_generation;
    let sight = Sight {
        intact: insertion.intact,
        was_put_in: recorded.applied_hash.as_ref() == Some(&insertion.hash) && recorded.holder_uid == live.uid(),
        new_chance: new_spec || new_source,
        first_wait: seen.settings.conflict_wait,
        uid: &binding.request.uid,
        now: seen.now,
    };
    conflict::judge(&sight, &before)
}

/// The condition `RuntimeInjected` for a verdict.
fn says(binding: &Binding<'_>, place: &InPlace, live: &DynamicObject, judged: &Judged) -> Part {
    let (seen, holder) = (binding.seen, &place.holder);
    let (is_new, wait) = match judged.verdict {
        Verdict::Lost { wait } => (true, wait),
        Verdict::Waiting { wait } => (false, wait),
        Verdict::Intact | Verdict::Apply | Verdict::Stopped { .. } => {
            let message = format!(
                "asya-sidecar and asya-runtime are in {holder} ({})",
                place.strategy.as_str()
            );
            let well = yes(RUNTIME_INJECTED, ActorReason::Injected, message);
            return pods::of_target(seen, binding.request, &place.workload).part(seen, RUNTIME_INJECTED, holder, well);
        }
    };
    let message = format!(
        "The containers were removed from {holder}{} ({} of {} times) and are restored after a wait",
        by(live),
        judged.conflicts.count,
        conflict::MOST
    );
    Part {
        events: Vec::from_iter(is_new.then(|| Note::warning(ActorReason::ConflictDetected, &message))),
        look_again: Some(wait),
        ..Part::says(no(RUNTIME_INJECTED, ActorReason::ConflictDetected, message))
    }
}

/// After too many conflicts the other writer wins: containers that are left are removed and, if the actor asks for it, a proxy
/// calls the target.
fn stopped(binding: &Binding<'_>, place: &InPlace, live: &DynamicObject, outcome: Outcome, now: bool) -> Outcome {
    let (seen, holder) = (binding.seen, &place.holder);
    let before = seen.actor.status.as_ref();
    let recorded = before
        .and_then(|s| s.conditions.iter().find(|c| c.type_ == RUNTIME_INJECTED))
        .filter(|c| c.reason == ActorReason::ConflictLoopDetected && !now);
    let message = recorded.map_or_else(|| stopped_text(binding, place, live), |c| c.message.clone());
    let events = Vec::from_iter(now.then(|| Note::warning(ActorReason::ConflictLoopDetected, &message)));
    let says = |message: String| Part::says(no(RUNTIME_INJECTED, ActorReason::ConflictLoopDetected, message));
    let event = Part {
        events,
        ..Part::default()
    };
    if let Some(holding) = held(seen, holder) {
        return Outcome {
            binding: Some(BindingStatus {
                lost: None,
                ..before.and_then(|s| s.binding.clone()).unwrap_or_default()
            }),
            parts: vec![event, says(message), release::take_out(seen, holder, holding)],
            ..outcome
        };
    }
    if binding.bound.on_conflict != OnConflict::Proxy {
        return Outcome {
            parts: vec![event, says(message)],
            ..outcome
        };
    }
    let proxied = Bound {
        strategy: AskedStrategy::Proxy,
        ..binding.bound.clone()
    };
    let Request { namespace, scaling, .. } = binding.request;
    match targets::resolve(&proxied, namespace, scaling.is_some(), &seen.objects) {
        Err(why) => {
            let missing = format!(
                "cannot create the proxy that binding.onConflict requests: {}",
                why.message
            );
            // The message of the condition is kept from one plan to the next, and this reason can change.
            let warning = Part {
                warnings: vec![missing],
                ..Part::default()
            };
            Outcome {
                parts: vec![event, says(message), warning],
                ..outcome
            }
        }
        Ok(resolved) => {
            let status = BindingStatus {
                strategy: Some(Strategy::Proxy),
                fallback: Some(true),
                ..outcome.binding.unwrap_or_default()
            };
            let mut fallback = proxy::plan(binding, &resolved, &status);
            fallback.parts.insert(0, event);
            fallback
        }
    }
}

fn stopped_text(binding: &Binding<'_>, place: &InPlace, live: &DynamicObject) -> String {
    let is_kserve = targets::source(&binding.bound.reference).is_some_and(|source| source.kind == INFERENCE_SERVICE);
    let way_out = if binding.bound.on_conflict == OnConflict::Proxy {
        "binding.onConflict requests a proxy instead"
    } else if is_kserve && place.strategy == Strategy::TemplatePatch {
        "To continue, set binding.strategy to ParentSpec or Proxy"
    } else {
        "To continue, set binding.strategy to Proxy, or binding.onConflict to Proxy"
    };
    format!(
        "The containers were removed from {}{} more than {} times and are no longer restored. {way_out}; any change of this spec tries again",
        place.holder,
        by(live),
        conflict::MOST
    )
}

/// Name of another actor that has the right to the target: one that requested an in-place binding earlier, or that still holds
/// it.
fn older_rival(seen: &Observed, bound: &Bound, live: &DynamicObject) -> Option<String> {
    let claims = targets::claims(&bound.reference);
    let holding = live.annotations().get(labels::ASYA_BOUND_UID);
    let own = Rival::of(&seen.actor)?;
    let competes = |other: &&Rival| {
        let wants = || {
            targets::claims(&other.reference)
                .iter()
                .any(|claim| claims.contains(claim))
        };
        let holds = holding.is_some() && holding == other.uid.as_ref();
        other.uid != own.uid && (holds || other.in_place && !other.is_deleting && wants() && other.age() < own.age())
    };
    let rivals = seen.rivals.iter().map(Arc::as_ref).filter(competes);
    rivals.map(|rival| rival.name.clone()).min()
}

/// The containers as they must be in the holder.
struct Insertion {
    hash: String,
    /// Hash of the holder's own pod template.
    template: String,
    /// Whether the holder keeps the containers of other settings of the operator until its next rollout.
    outdated: bool,
    /// Whether they are there, unchanged.
    intact: bool,
    write: Part,
}

impl Insertion {
    fn new(seen: &Observed, place: &InPlace, live: &DynamicObject, addition: &Addition) -> Result<Self, String> {
        let (strategy, key) = (place.strategy, &place.holder);
        let Addition { pair, volumes } = addition;
        let template = holder::own_template(live, strategy);
        let hash = addition.hash();
        let spec = if strategy == Strategy::ParentSpec {
            "/spec/predictor"
        } else {
            "/spec/template/spec"
        };
        let list = |name: &str| live.data.pointer(&format!("{spec}/{name}")).and_then(Value::as_array);
        let there = list("containers");
        let is_init = |name: &str| list("initContainers").into_iter().flatten().any(|c| c["name"] == name);
        let is_held = held(seen, key).is_some();
        if let Some(name) = [SIDECAR, RUNTIME]
            .iter()
            .find(|name| is_init(name) || !is_held && there.into_iter().flatten().any(|c| c["name"] == **name))
        {
            return Err(format!(
                "{key} has a container named {name} that the operator did not add: rename it, or set binding.strategy to Proxy"
            ));
        }
        let is_other = |found: &Value| {
            found["name"] == names::CREDENTIALS && !volumes.iter().any(|volume| json::contains(found, volume))
        };
        if !is_held && list("volumes").into_iter().flatten().any(is_other) {
            return Err(format!(
                "{key} has a volume named {} that the operator did not add: rename it, or set binding.strategy to Proxy",
                names::CREDENTIALS
            ));
        }
        if strategy == Strategy::ParentSpec {
            let has = |list: Option<&Vec<Value>>, wanted: &Value| {
                let mut found = list.into_iter().flatten();
                found.any(|found| found["name"] == wanted["name"] && json::contains(found, wanted))
            };
            let ours_are_there = pair.iter().all(|c| has(there, c)) && volumes.iter().all(|v| has(list("volumes"), v));
            let marked = live.annotations().get(labels::ASYA_BOUND_HASH) == Some(&hash);
            return Ok(Self {
                intact: ours_are_there && marked && is_held,
                write: Part {
                    edit: Some(parent_edit(seen, key, live, Some((addition, &hash)))),
                    ..Part::default()
                },
                hash,
                template,
                outdated: false,
            });
        }
        let mut wanted = bare(seen, key, live);
        wanted.metadata.annotations = Some(marks(seen, &hash));
        // The operator finds the pods by this label.
        wanted.data = json!({"spec": {"template": {
            "metadata": {"labels": {labels::ASYA_ACTOR: seen.name()}},
            "spec": {"containers": pair},
        }}});
        if !volumes.is_empty() {
            wanted.data["spec"]["template"]["spec"]["volumes"] = json!(volumes);
        }
        Ok(Self {
            intact: is_held && fields::is_intact(live, &wanted),
            write: Part {
                apply: Some(holder::apply(seen, key, live, wanted)),
                ..Part::default()
            },
            hash,
            template,
            outdated: false,
        })
    }

    /// The containers that stay as they are if only the settings of the operator changed, such as its images and transports: all bound
    /// models would restart at once. A rollout that the holder's owner starts takes the present ones along.
    fn until_rollout(self, seen: &Observed, holder: &Key, pod: &Value, spec_hash: &str) -> Self {
        let (Some(before), Some(live)) = (seen.actor.status.as_ref(), seen.live(holder)) else {
            return self;
        };
        let recorded = before.binding.clone().unwrap_or_default();
        let marked = live.annotations().get(labels::ASYA_BOUND_HASH);
        let containers = pod["containers"].as_array();
        let has = |name: &str| containers.into_iter().flatten().any(|c| c["name"] == name);
        let stays = !self.intact
            && held(seen, holder).is_some()
            && recorded.spec_hash.as_deref() == Some(spec_hash)
            && marked == recorded.applied_hash.as_ref()
            && marked != Some(&self.hash)
            && [SIDECAR, RUNTIME].iter().all(|name| has(name))
            && recorded.template_hash.as_ref() == Some(&self.template);
        match recorded.applied_hash {
            Some(hash) if stays => Self {
                hash,
                intact: true,
                outdated: true,
                ..self
            },
            _ => self,
        }
    }

    fn part(
        self,
        binding: &Binding<'_>,
        place: &InPlace,
        live: &DynamicObject,
        (addition, judged): (&Addition, &Judged),
    ) -> Part {
        let holder = &place.holder;
        let now = judged.verdict == Verdict::Apply;
        let outdated = self.outdated.then(|| {
            format!(
                "The containers in {holder} have the image and the transport of earlier settings of the operator. They get the present ones with the next change of its pod template{}",
                restart_hint(holder)
            )
        });
        let first = live.annotations().get(labels::ASYA_BOUND_UID).is_none();
        let note = first.then(|| {
            let message = format!("Added asya-sidecar and asya-runtime to {holder}");
            Note::new(EventReason::Bound, message)
        });
        let workload = binding.seen.live(&place.workload).filter(|_| now);
        let is_put_in = matches!(judged.verdict, Verdict::Intact | Verdict::Apply);
        let forgotten = conflict::forgotten_in(&judged.conflicts, binding.seen.now);
        Part {
            trials: workload.map_or_else(Vec::new, |workload| holder::trials(binding.seen, workload, addition)),
            apply: self.write.apply.map(|apply| Apply {
                unchanged: !now,
                note: note.clone(),
                ..apply
            }),
            edit: self.write.edit.filter(|_| now).map(|edit| Edit { note, ..edit }),
            warnings: grace_warning(binding.request, live)
                .into_iter()
                .chain(outdated)
                .collect(),
            // The containers must be removed before the actor goes.
            needs_finalizer: true,
            look_again: forgotten.filter(|_| is_put_in),
            ..Part::default()
        }
    }
}

/// Command that changes the template, if there is one.
fn restart_hint(holder: &Key) -> String {
    let kind = holder.kind.kind.to_lowercase();
    if [DEPLOYMENT, STATEFUL_SET].contains(&holder.kind) {
        format!(": kubectl rollout restart {kind}/{}", holder.name)
    } else {
        String::new()
    }
}

/// Pods that lose their QoS class can lose their exclusive CPUs, and are evicted earlier.
fn quality_warning(surroundings: Surroundings, addition: &Addition) -> Part {
    let is_lost = surroundings.loses_guarantee(&addition.pair);
    Part {
        warnings: Vec::from_iter(is_lost.then(|| {
            "The pods of the target lose the QoS class Guaranteed: in runtime.resources and sidecar.resources, set limits of CPU and memory that are equal to the requests, or omit them".to_owned()
        })),
        ..Part::default()
    }
}

/// The target decides how long its pods have to end. Longer work is cut off.
fn grace_warning(request: &Request, live: &DynamicObject) -> Option<String> {
    let template = live.data.pointer("/spec/template")?;
    let grace = template
        .pointer("/spec/terminationGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(30);
    let processing = i64::from(request.processing);
    (processing > grace && request.scaling.is_some()).then(|| {
        format!(
            "timeout.processing is {processing} s, and pods of the target have {grace} s to end: a message that is being processed when a pod ends is processed again. Increase terminationGracePeriodSeconds of the target"
        )
    })
}
