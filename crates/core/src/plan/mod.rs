//! The core controller's plan for a ModelDeployment. Pure and deterministic: no client, no clock, no state.

mod autoscaling;
mod removal;
mod status;

use runway_api::condition::{self, Conditions, no, yes};
use runway_api::provider_config::{Health, SILENCE};
use runway_api::{CoreReason, EventReason};
use runway_operator::plan::{Note, Plan};
use runway_operator::{apply, object};

use crate::admission::validate::validate;
use crate::observe::Observed;
use crate::providers::Registered;
use crate::selection::{self, NO_HEALTHY_PROVIDERS, NoProvider};

pub use status::owned;
use status::{Choice, Draft};

/// Message if no provider is named and selection is disabled.
pub const NO_SELECTOR: &str = "No provider specified and provider-selector not installed";

/// The plan for one ModelDeployment.
pub fn plan(seen: &Observed) -> Plan {
    let md = &seen.md;
    // Deletion takes precedence over pause: nothing may block it.
    if md.is_deleting() {
        return removal::plan(seen);
    }
    if md.is_paused() {
        return status::paused(seen);
    }
    let mut findings = validate(md, &seen.providers);
    if md.selected_provider().is_some() && md.selected_provider() == md.spec.provider_name() {
        // A selected provider stays selected: uninstalling it does not make the spec invalid.
        findings.errors.retain(|v| v.field != "spec.provider.name");
    }
    if !findings.is_valid() {
        return status::invalid(seen, &findings.message());
    }
    let choice = choose(seen);
    let scaling = autoscaling::plan(seen, choice.provider(seen));
    Plan {
        delete: scaling.delete,
        apply: scaling.apply.into_iter().collect(),
        ..status::valid(seen, choice, scaling.condition)
    }
}

/// The status after the API server rejected the autoscaler that [`plan`] requested. Empty for other errors, after which a retry
/// may succeed.
pub fn after_failure(seen: &Observed, error: &apply::Error) -> Plan {
    // The status of a deleted object is that of its deletion.
    let rejected = autoscaling::refused(error).filter(|_| !seen.md.is_deleting());
    rejected.map_or_else(Plan::default, |condition| {
        status::valid(seen, choose(seen), Some(condition))
    })
}

/// Chooses a provider by the spec and the previous selection.
fn choose(seen: &Observed) -> Choice {
    let md = &seen.md;
    match (md.selected_provider(), md.spec.provider_name()) {
        (Some(current), Some(wanted)) if current != wanted => hand_over(seen, current, wanted),
        (Some(current), asked) => keep(seen, current, asked.is_some()),
        (None, Some(wanted)) => take_named(seen, wanted),
        (None, None) if seen.selector_enabled => select(seen),
        (None, None) => Choice::none(CoreReason::NoProvider, NO_SELECTOR),
    }
}

/// Keeps the selected provider, even if the rules have changed since.
fn keep(seen: &Observed, current: &str, explicit: bool) -> Choice {
    if !explicit && !seen.selector_enabled {
        return Choice::Foreign;
    }
    let before = seen.md.status.as_ref().and_then(|s| s.provider.as_ref());
    let selected = seen.md.conditions().when_true(condition::PROVIDER_SELECTED);
    let was_explicit = selected.map_or(explicit, |c| c.reason == CoreReason::ExplicitSelection);
    Choice::Provider {
        name: current.to_owned(),
        reason: before
            .and_then(|p| p.selected_reason.clone())
            .unwrap_or_else(|| EXPLICIT_REASON.to_owned()),
        candidates: before.map(|p| p.candidates.clone()).unwrap_or_default(),
        condition: selected_condition(current, was_explicit),
        note: None,
        release: None,
    }
}

/// `status.provider.selectedReason` if the user named the provider.
pub(crate) const EXPLICIT_REASON: &str = "explicit provider selection";

fn selected_condition(name: &str, explicit: bool) -> Draft {
    if explicit {
        yes(
            condition::PROVIDER_SELECTED,
            CoreReason::ExplicitSelection,
            format!("Provider {name} explicitly selected"),
        )
    } else {
        yes(
            condition::PROVIDER_SELECTED,
            CoreReason::AutoSelected,
            format!("Provider {name} auto-selected"),
        )
    }
}

/// Selects the named provider once it is healthy. Until then the status says what is missing.
fn take_named(seen: &Observed, wanted: &str) -> Choice {
    let Some(provider) = seen.providers.get(wanted) else {
        return Choice::none(
            CoreReason::ProviderNotFound,
            format!("Provider '{wanted}' CRD not installed in cluster"),
        );
    };
    match provider.health(seen.now) {
        Health::Healthy => taken(wanted),
        Health::NotReady(why) => Choice::none(
            CoreReason::ProviderNotReady,
            format!("Waiting for provider '{wanted}': {why}"),
        ),
        Health::Silent => Choice::none(
            CoreReason::ProviderNotReady,
            format!("Waiting for provider '{wanted}': {}", silence(provider)),
        ),
    }
}

/// Reason why a provider counts as silent, for a message.
fn silence(provider: &Registered) -> String {
    if provider
        .config
        .status
        .as_ref()
        .is_some_and(|s| s.last_heartbeat.is_some())
    {
        format!("its controller {SILENCE}")
    } else {
        "its controller has not reported yet".to_owned()
    }
}

fn taken(wanted: &str) -> Choice {
    Choice::Provider {
        name: wanted.to_owned(),
        reason: EXPLICIT_REASON.to_owned(),
        candidates: Vec::new(),
        condition: selected_condition(wanted, true),
        note: Some(selected_note(wanted, EXPLICIT_REASON)),
        release: None,
    }
}

fn selected_note(name: &str, reason: &str) -> Note {
    Note::new(
        EventReason::ProviderSelected,
        format!("Selected provider '{name}': {reason}"),
    )
}

fn select(seen: &Observed) -> Choice {
    let selected = selection::select(&seen.md, &seen.providers, seen.now);
    match selected.winner {
        Ok(name) => {
            let reason = selection::matched(&seen.md.spec);
            Choice::Provider {
                condition: selected_condition(&name, false),
                note: Some(selected_note(&name, &reason)),
                candidates: selected.candidates,
                release: None,
                name,
                reason,
            }
        }
        Err(NoProvider::NoneHealthy) => Choice::None {
            reason: CoreReason::NoHealthyProviders,
            message: NO_HEALTHY_PROVIDERS.to_owned(),
            candidates: selected.candidates,
            release: None,
        },
        Err(NoProvider::NoneSuitable(message)) => Choice::None {
            reason: CoreReason::NoMatchingProvider,
            message,
            candidates: selected.candidates,
            release: None,
        },
    }
}

/// Hands over to another provider. The old one deletes its objects and clears its part of the status; only then is the new one
/// selected, so that there are never two upstream objects.
fn hand_over(seen: &Observed, current: &str, wanted: &str) -> Choice {
    let provider = seen.md.status.as_ref().and_then(|s| s.provider.as_ref());
    let resource = provider.and_then(|p| p.resource_name.as_deref());
    let Some(resource) = resource else {
        // The old provider has no object, but may have written why. It cannot remove that itself afterwards.
        let manager = runway_api::labels::provider_manager(current);
        let says_something = seen.md.conditions().get_condition(condition::READY).is_some();
        return take_named(seen, wanted).releasing(says_something.then_some(manager));
    };

    let kind = provider.and_then(|p| p.resource_kind.as_deref()).unwrap_or("resource");
    let left = object::time_left(handing_over_since(seen), seen.now);
    if left.is_zero() {
        let orphan = format!("Provider '{current}' did not clean up in time, {kind} '{resource}' may be orphaned");
        let Choice::Provider {
            name,
            reason,
            candidates,
            condition,
            ..
        } = taken(wanted)
        else {
            return taken(wanted);
        };
        return Choice::Provider {
            name,
            reason,
            candidates,
            condition,
            note: Some(Note::new(EventReason::FinalizerTimeout, orphan)),
            release: Some(runway_api::labels::provider_manager(current)),
        };
    }
    let before = provider.cloned().unwrap_or_default();
    Choice::HandingOver {
        name: current.to_owned(),
        reason: before.selected_reason.unwrap_or_default(),
        candidates: before.candidates,
        message: format!(
            "Handing over from provider '{current}' to '{wanted}': waiting for {kind} '{resource}' to be deleted"
        ),
        look_again: left,
    }
}

fn handing_over_since(seen: &Observed) -> jiff::Timestamp {
    let condition = seen.md.conditions().get_condition(condition::PROVIDER_SELECTED);
    condition
        .filter(|c| c.reason == CoreReason::HandingOver)
        .map_or(seen.now, |c| c.last_transition_time.0)
}

fn handing_over(message: &str) -> Draft {
    no(condition::PROVIDER_SELECTED, CoreReason::HandingOver, message)
}
