//! The core's part of the status: computed from scratch each time, written only if it differs.
//!
//! Phase, message, observedGeneration, Ready and Stalled belong to the core until a provider is selected, then to the provider.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runway_api::condition::{self, Conditions, Owner, no, yes};
use runway_api::model_deployment::{Candidate, Phase, ProviderStatus};
use runway_api::provider_config::{Health, SILENCE};
use runway_api::{CoreReason, ModelDeploymentStatus};
use runway_operator::plan::{Note, Plan, StatusOf};

pub(super) use runway_api::condition::Draft;

use crate::observe::Observed;

/// Time for the provider's first status before the core writes one. Long enough for a burst of hundreds of objects, each of
/// which would otherwise cost an additional write.
const PATIENCE: Duration = Duration::from_secs(5);

/// Result of the selection.
pub(super) enum Choice {
    /// This provider is selected.
    Provider {
        name: String,
        reason: String,
        candidates: Vec<Candidate>,
        condition: Draft,
        note: Option<Note>,
        /// Removes the status fields of this field manager, which no longer writes.
        release: Option<String>,
    },
    /// The old provider is still deleting its objects.
    HandingOver {
        name: String,
        reason: String,
        candidates: Vec<Candidate>,
        message: String,
        look_again: Duration,
    },
    /// The user's own selector has selected a provider: its fields are not ours.
    Foreign,
    /// No provider is selected.
    None {
        reason: CoreReason,
        message: String,
        candidates: Vec<Candidate>,
        /// Removes the status fields of this field manager, which no longer writes.
        release: Option<String>,
    },
}

impl Choice {
    pub(super) fn none(reason: CoreReason, message: impl Into<String>) -> Self {
        Self::None {
            reason,
            message: message.into(),
            candidates: Vec::new(),
            release: None,
        }
    }

    /// Name of the provider that serves the model.
    pub(super) fn provider<'a>(&'a self, seen: &'a Observed) -> Option<&'a str> {
        match self {
            Self::Provider { name, .. } | Self::HandingOver { name, .. } => Some(name),
            Self::Foreign => seen.md.selected_provider(),
            Self::None { .. } => None,
        }
    }

    /// Removes the status fields of a field manager that no longer writes, if there is one.
    pub(super) fn releasing(mut self, manager: Option<String>) -> Self {
        if let Self::Provider { release, .. } | Self::None { release, .. } = &mut self {
            *release = manager;
        }
        self
    }
}

/// Status of a valid spec with the result of the selection, and the condition of the autoscaler.
pub(super) fn valid(seen: &Observed, choice: Choice, autoscaler: Option<Draft>) -> Plan {
    let validated = yes(
        condition::VALIDATED,
        CoreReason::ValidationPassed,
        "Schema validation passed",
    );
    let mut drafts: Vec<Draft> = [validated].into_iter().chain(autoscaler).collect();
    match choice {
        Choice::Provider {
            name,
            reason,
            candidates,
            condition,
            note,
            release,
        } => {
            drafts.push(condition);
            let silence = unavailable(seen, &name);
            let first = first_status(seen, &name, silence.as_ref());
            drafts.extend(silence);
            let is_another = seen.md.selected_provider().is_some_and(|before| before != name);
            let provider = ProviderStatus {
                name: Some(name),
                selected_reason: Some(reason),
                candidates,
                ..ProviderStatus::default()
            };
            let mut plan = write(seen, Some(provider), drafts, None);
            plan.events.extend(note);
            // The previous provider may be writing its part again, which must be removed first.
            plan.status_guarded = is_another;
            plan.status_of = release.map(StatusOf::dropped);
            match first {
                FirstStatus::Written => {}
                FirstStatus::Awaited(left) => plan.look_again = Some(left),
                FirstStatus::Missing(of) => plan.status_of = plan.status_of.or(Some(of)),
            }
            plan
        }
        Choice::HandingOver {
            name,
            reason,
            candidates,
            message,
            look_again,
        } => {
            drafts.push(super::handing_over(&message));
            drafts.extend(unavailable(seen, &name));
            let provider = ProviderStatus {
                name: Some(name),
                selected_reason: Some(reason),
                candidates,
                ..ProviderStatus::default()
            };
            let before = seen.md.conditions().get_condition(condition::PROVIDER_SELECTED);
            let is_news = before.is_none_or(|c| c.reason != CoreReason::HandingOver);
            let mut plan = write(seen, Some(provider), drafts, None);
            plan.events
                .extend(is_news.then(|| Note::normal(CoreReason::HandingOver, message)));
            plan.look_again = Some(look_again);
            plan
        }
        Choice::Foreign => {
            drafts.extend(seen.md.selected_provider().and_then(|name| unavailable(seen, name)));
            write(seen, None, drafts, None)
        }
        Choice::None {
            reason,
            message,
            candidates,
            release,
        } => {
            let provider = (!candidates.is_empty()).then(|| ProviderStatus {
                candidates,
                ..ProviderStatus::default()
            });
            drafts.push(no(condition::PROVIDER_SELECTED, reason, &message));
            Plan {
                status_of: release.map(StatusOf::dropped),
                ..write(seen, provider, drafts, Some(Pending { reason, message }))
            }
        }
    }
}

/// Status of an invalid spec that bypassed admission. Nothing is done until it is corrected; a provider continues to serve an
/// earlier spec.
pub(super) fn invalid(seen: &Observed, message: &str) -> Plan {
    const REASON: CoreReason = CoreReason::ValidationFailed;
    let message = condition::shorten(message.to_owned(), condition::MAX_STATUS_MESSAGE);
    let message = message.as_str();
    let before = seen
        .md
        .status
        .as_ref()
        .and_then(|s| s.provider.as_ref())
        .filter(|p| p.name.is_some());
    let mut drafts = vec![no(condition::VALIDATED, REASON, message)];
    drafts.extend(carried_over(seen, condition::AUTOSCALER_READY));
    let foreign = is_chosen_by_others(seen);
    if !foreign {
        drafts.extend(carried_over(seen, condition::PROVIDER_SELECTED));
    }
    let provider = before.filter(|_| !foreign).map(|p| ProviderStatus {
        resource_kind: None,
        resource_name: None,
        ..p.clone()
    });
    let was_valid = seen
        .md
        .conditions()
        .get_condition(condition::VALIDATED)
        .is_none_or(|c| c.message != message);
    let mut plan = write(seen, provider, drafts, Pending::unless_selected(seen, REASON, message));
    if was_valid {
        plan.events.push(Note::warning(REASON, message));
    }
    plan
}

/// Status of a paused ModelDeployment: the previous one with the condition Paused.
pub(super) fn paused(seen: &Observed) -> Plan {
    let paused = condition::paused(runway_api::labels::PAUSED);
    let pending = Pending::unless_selected(seen, CoreReason::Paused, paused.message());
    write_as_before(seen, paused, pending)
}

/// Status of a ModelDeployment that waits for deletion by a provider that is gone.
pub(super) fn deletion_stands_still(seen: &Observed) -> Plan {
    let silence = seen.md.selected_provider().and_then(|name| unavailable(seen, name));
    silence.map_or_else(Plan::default, |silence| write_as_before(seen, silence, None))
}

/// The previous status with one more condition.
fn write_as_before(seen: &Observed, added: Draft, pending: Option<Pending>) -> Plan {
    let foreign = is_chosen_by_others(seen);
    let mut drafts = vec![added];
    drafts.extend(carried_over(seen, condition::VALIDATED));
    drafts.extend(carried_over(seen, condition::AUTOSCALER_READY));
    if !foreign {
        drafts.extend(carried_over(seen, condition::PROVIDER_SELECTED));
    }
    let before = seen.md.status.as_ref().and_then(|s| s.provider.as_ref());
    let provider = before.filter(|_| !foreign).map(|p| ProviderStatus {
        resource_kind: None,
        resource_name: None,
        ..p.clone()
    });
    write(seen, provider, drafts, pending)
}

/// Whether the user's own selector has selected the provider. Its fields must not be written.
fn is_chosen_by_others(seen: &Observed) -> bool {
    let md = &seen.md;
    !seen.selector_enabled && md.spec.provider_name().is_none() && md.selected_provider().is_some()
}

/// Reason and message while no provider is selected.
struct Pending {
    reason: CoreReason,
    message: String,
}

impl Pending {
    fn unless_selected(seen: &Observed, reason: CoreReason, message: &str) -> Option<Self> {
        seen.md.selected_provider().is_none().then(|| Self {
            reason,
            message: message.to_owned(),
        })
    }
}

/// State of the provider's first status.
enum FirstStatus {
    /// The provider has written it, or the core in its place.
    Written,
    /// The provider has this time left.
    Awaited(Duration),
    /// The provider has not written it: this is written in its place, and the provider's first write replaces it.
    Missing(StatusOf),
}

/// Writes the first status in place of a provider that does not act. Without a phase and Ready, tools would take the object for
/// ready.
fn first_status(seen: &Observed, name: &str, silence: Option<&Draft>) -> FirstStatus {
    let md = &seen.md;
    if md.selected_provider() != Some(name) {
        return FirstStatus::Awaited(PATIENCE);
    }
    let conditions = md.conditions();
    let ready = conditions.get_condition(condition::READY);
    let (reason, message) = match silence {
        Some(draft) => (CoreReason::ProviderUnavailable, draft.message().to_owned()),
        None => (
            CoreReason::WaitingForProvider,
            format!("Waiting for provider '{name}' to act"),
        ),
    };
    let is_written = md.status.as_ref().is_some_and(ModelDeploymentStatus::has_provider_part);
    if is_written || ready.is_some_and(|c| !stands_in(c) || c.message == message) {
        return FirstStatus::Written;
    }
    let since = conditions
        .get_condition(condition::PROVIDER_SELECTED)
        .map(|c| c.last_transition_time.0);
    let waited = since.and_then(|since| Duration::try_from(seen.now.duration_since(since)).ok());
    let left = PATIENCE.saturating_sub(waited.unwrap_or_default());
    if !left.is_zero() && silence.is_none() && ready.is_none() {
        return FirstStatus::Awaited(left);
    }
    let generation = md.metadata.generation;
    let drafts = vec![no(condition::READY, reason, &message)];
    let status = ModelDeploymentStatus {
        phase: Some(Phase::Pending),
        message: Some(condition::shorten(message, condition::MAX_STATUS_MESSAGE)),
        observed_generation: generation,
        conditions: condition::settle(drafts, conditions, generation, seen.now),
        ..ModelDeploymentStatus::default()
    };
    FirstStatus::Missing(StatusOf {
        manager: runway_api::labels::provider_manager(name),
        status: serde_json::to_value(status).unwrap_or_default(),
        guarded: true,
    })
}

/// A condition from the previous status.
pub(super) fn carried_over(seen: &Observed, type_: &'static str) -> Option<Draft> {
    let before = seen.md.conditions().get_condition(type_)?;
    let make = if before.status == "True" { yes } else { no };
    Some(make(type_, &before.reason, &before.message))
}

/// Present only while the selected provider's controller is gone. A short restart, or a missing upstream, which the provider
/// reports itself, would not be worth a write to every object.
fn unavailable(seen: &Observed, name: &str) -> Option<Draft> {
    let why = match seen.providers.get(name).map(|p| p.health(seen.now)) {
        Some(Health::Healthy | Health::NotReady(_)) => return None,
        Some(Health::Silent) => format!("its controller {SILENCE}"),
        None => "it is no longer registered".to_owned(),
    };
    Some(yes(
        condition::PROVIDER_UNAVAILABLE,
        CoreReason::ProviderUnavailable,
        format!("Provider '{name}' cannot act: {why}. The status may be out of date"),
    ))
}

/// Whether this is the Ready that the core writes in place of a provider. Only asked for a status without a provider's part; the
/// other reasons of the core are then of the time before the selection, and any other text is of a provider.
fn stands_in(ready: &Condition) -> bool {
    CoreReason::of(&ready.reason).is_some_and(CoreReason::stands_in)
}

/// Whether phase, message and Ready belong to the provider: from its selection on. If the user's own selector wrote it, the
/// core's previous fields stay until the core removes them.
fn is_handed_over(status: &ModelDeploymentStatus, foreign_selector: bool) -> bool {
    if status.provider.as_ref().is_none_or(|p| p.name.is_none()) {
        return false;
    }
    let ready = status.conditions.get_condition(condition::READY);
    let is_of_the_core = |c: &Condition| CoreReason::of(&c.reason).is_some() && !stands_in(c);
    !foreign_selector || status.has_provider_part() || !ready.is_some_and(is_of_the_core)
}

/// The core's part of a status.
pub fn owned(status: &ModelDeploymentStatus, foreign_selector: bool) -> ModelDeploymentStatus {
    let selected = is_handed_over(status, foreign_selector);
    let owners: &[Owner] = if selected {
        &[Owner::Core]
    } else {
        &[Owner::Core, Owner::Shared]
    };
    let mut conditions = condition::owned_by(&status.conditions, owners);
    if selected && foreign_selector {
        conditions.retain(|c| c.type_ != condition::PROVIDER_SELECTED);
    }
    let provider = status.provider.as_ref().filter(|_| !(selected && foreign_selector));
    let provider = provider.map(|p| ProviderStatus {
        resource_kind: None,
        resource_name: None,
        ..p.clone()
    });
    ModelDeploymentStatus {
        phase: status.phase.filter(|_| !selected),
        message: status.message.clone().filter(|_| !selected),
        observed_generation: status.observed_generation.filter(|_| !selected),
        provider: provider.filter(|p| *p != ProviderStatus::default()),
        conditions,
        ..ModelDeploymentStatus::default()
    }
}

/// Settles conditions, and writes the status only if it differs.
fn write(seen: &Observed, provider: Option<ProviderStatus>, mut drafts: Vec<Draft>, pending: Option<Pending>) -> Plan {
    let md = &seen.md;
    let generation = md.metadata.generation;
    let foreign_selector = md.spec.provider_name().is_none() && !seen.selector_enabled;
    let mut wanted = ModelDeploymentStatus {
        provider,
        ..ModelDeploymentStatus::default()
    };
    let mut events = Vec::new();
    if let Some(Pending { reason, message }) = pending {
        let reported = md
            .conditions()
            .get_condition(condition::READY)
            .is_some_and(|c| c.reason == reason);
        match reason {
            _ if reported => {}
            // The caller sends this Event, whether or not a provider is selected.
            CoreReason::ValidationFailed => {}
            CoreReason::Paused => events.push(Note::normal(reason, &message)),
            _ => events.push(Note::warning(reason, &message)),
        }
        let is_stalled = reason == CoreReason::ValidationFailed;
        drafts.push(no(condition::READY, reason, &message));
        drafts.extend(is_stalled.then(|| yes(condition::STALLED, reason, &message)));
        wanted.phase = Some(if is_stalled { Phase::Failed } else { Phase::Pending });
        wanted.message = Some(condition::shorten(message, condition::MAX_STATUS_MESSAGE));
        wanted.observed_generation = generation;
    }
    let settled = condition::settle(drafts, md.conditions(), generation, seen.now);
    wanted.conditions = condition::owned_by(&settled, &[Owner::Core, Owner::Shared]);
    let before = md.status.as_ref().map(|s| owned(s, foreign_selector));
    let unchanged = before.is_some_and(|before| before == wanted);
    Plan {
        status: if unchanged {
            None
        } else {
            serde_json::to_value(&wanted).ok()
        },
        events,
        ..Plan::default()
    }
}
