//! The write of a status: only if it differs, and guarded.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runway_api::condition::{self, Conditions, Draft, Owner};
use runway_api::model_deployment::ProviderStatus;
use runway_api::{EventReason, ModelDeploymentStatus};
use runway_operator::plan::{Note, Plan};
use serde_json::Value;

use crate::observe::Observed;

/// Every write is guarded: the core may have removed this status and selected another provider, which could not write its own over
/// ours.
const GUARDED: bool = true;

/// The part of a status that a provider owns while it is selected.
pub fn owned(status: &ModelDeploymentStatus) -> ModelDeploymentStatus {
    let provider = status.provider.as_ref().map(|p| ProviderStatus {
        resource_kind: p.resource_kind.clone(),
        resource_name: p.resource_name.clone(),
        ..ProviderStatus::default()
    });
    ModelDeploymentStatus {
        provider: provider.filter(|p| *p != ProviderStatus::default()),
        conditions: condition::owned_by(&status.conditions, &[Owner::Provider, Owner::Shared]),
        ..status.clone()
    }
}

/// Settles conditions, and writes the status only if it differs. The Event is sent if its reason is new.
pub(super) fn write(
    seen: &Observed,
    mut status: ModelDeploymentStatus,
    drafts: Vec<Draft>,
    event: Option<Note>,
) -> Plan {
    let md = &seen.md;
    let reason_before = md
        .conditions()
        .get_condition(condition::READY)
        .map(|c| c.reason.clone());
    let reason_now = drafts
        .iter()
        .find(|d| d.is(condition::READY))
        .map(|d| d.reason().to_owned());
    let event_is_new = reason_before != reason_now;
    status.observed_generation = md.metadata.generation;
    status.message = status
        .message
        .map(|text| condition::shorten(text, condition::MAX_STATUS_MESSAGE));
    status.conditions = condition::settle(drafts, md.conditions(), md.metadata.generation, seen.now);
    let wanted = owned(&status);
    let before = md.status.as_ref().map(owned).unwrap_or_default();
    let unchanged = before == wanted;
    let mut events: Vec<Note> = event.into_iter().filter(|_| event_is_new).collect();
    events.extend(news(&before.conditions, &wanted.conditions));
    Plan {
        status: if unchanged {
            None
        } else {
            serde_json::to_value(&wanted).ok()
        },
        status_guarded: GUARDED,
        events,
        ..Plan::default()
    }
}

/// Warnings that are new or have a new message.
pub(super) fn news(before: &[Condition], now: &[Condition]) -> Vec<Note> {
    [
        (condition::OVERRIDES_IGNORED, EventReason::OverridesIgnored),
        (condition::FIELDS_IGNORED, EventReason::FieldsIgnored),
        (condition::STALE_STATUS, EventReason::StaleStatus),
    ]
    .into_iter()
    .filter_map(|(type_, reason)| {
        let said = now.get_condition(type_)?;
        let reported = before.get_condition(type_).is_some_and(|c| c.message == said.message);
        (!reported).then(|| Note::new(reason, &said.message))
    })
    .collect()
}

/// Removes the provider's part of the status.
pub(in crate::plan) fn cleared(seen: &Observed) -> Plan {
    let ours = seen.md.status.as_ref().map(owned).unwrap_or_default();
    let status = (ours != ModelDeploymentStatus::default()).then(|| Value::Object(serde_json::Map::new()));
    Plan {
        status,
        status_guarded: GUARDED,
        ..Plan::default()
    }
}
