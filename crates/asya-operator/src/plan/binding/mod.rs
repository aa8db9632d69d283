//! Bindings: two containers in, or in front of, the pods of an existing model. The target keeps its owner, its model containers
//! are not changed, and everything that was added to it is removed again.

pub(super) mod holder;
mod in_place;
mod proxy;
mod release;

use runway_api::ActorReason;
use runway_api::async_actor::{ObjectRef, RUNTIME_INJECTED, Strategy, TARGET_RESOLVED};
use runway_api::condition::{no, yes};

use self::proxy::Binding;
use super::objects;
use super::part::{Outcome, Part};
use crate::observe::Observed;
use crate::request::{Bound, Request};
use crate::targets::{self, Resolved, Target, Unresolved, Way};
use crate::transports::Transport;

pub(super) fn plan(seen: &Observed, request: &Request, bound: &Bound, transport: Option<&Transport>) -> Outcome {
    let resolved = match targets::resolve(bound, &request.namespace, request.scaling.is_some(), &seen.objects) {
        Ok(resolved) => resolved,
        Err(why) => return not_resolved(seen, why),
    };
    let mut outcome = match transport {
        None => without_transport(seen),
        Some(transport) => {
            let binding = Binding {
                seen,
                request,
                bound,
                transport,
            };
            match &resolved.way {
                Way::InPlace(place) => in_place::plan(&binding, place, &resolved.url),
                Way::Proxy { .. } => release::leave(seen, None)
                    .unwrap_or_else(|| proxy::plan(&binding, &resolved, &binding.status(Strategy::Proxy, None))),
            }
        }
    };
    outcome.parts.push(Part::says(yes(
        TARGET_RESOLVED,
        ActorReason::Resolved,
        resolution(bound, &resolved),
    )));
    Outcome {
        resolved_target: Some(target_ref(seen, &resolved.target)),
        ..outcome
    }
}

fn not_resolved(seen: &Observed, why: Unresolved) -> Outcome {
    let before = seen.actor.status.as_ref().and_then(|s| s.binding.clone());
    // A proxy stays while its target is missing for a moment.
    let kept = before.filter(|b| why.may_come && b.strategy == Some(Strategy::Proxy));
    let failure = Part {
        keep_children: kept.is_some(),
        ..Part::fails(seen, TARGET_RESOLVED, why.reason, why.message)
    };
    let mut outcome = release::leave(seen, None).unwrap_or_else(|| Outcome {
        binding: kept,
        parts: vec![Part::says(no(
            RUNTIME_INJECTED,
            ActorReason::TargetNotResolved,
            "The target is not resolved",
        ))],
        ..Outcome::default()
    });
    outcome.parts.insert(0, failure);
    outcome
}

/// Everything stays as it is until the transport is configured.
fn without_transport(seen: &Observed) -> Outcome {
    Outcome {
        binding: seen.actor.status.as_ref().and_then(|s| s.binding.clone()),
        parts: vec![Part {
            keep_children: true,
            ..Part::says(no(
                RUNTIME_INJECTED,
                ActorReason::TransportNotConfigured,
                "The containers are not added without a transport",
            ))
        }],
        ..Outcome::default()
    }
}

fn resolution(bound: &Bound, resolved: &Resolved) -> String {
    let source = format!("{} '{}'", bound.reference.kind, bound.reference.name);
    let target = resolved.target.to_string();
    match resolved.target {
        Target::Unknown(_) => format!(
            "{target} is called at {}; the operator does not check whether it exists",
            resolved.url
        ),
        Target::Known(_) if source == target => format!("{target} exists"),
        Target::Known(_) => format!("{source} resolves to {target}"),
    }
}

fn target_ref(seen: &Observed, target: &Target) -> ObjectRef {
    match target {
        Target::Known(key) => objects::reference(seen, key),
        Target::Unknown(reference) => ObjectRef {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            name: reference.name.clone(),
            namespace: Some(seen.namespace()),
        },
    }
}
