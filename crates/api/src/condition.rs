//! Conditions: their types, and how they are built and updated.
//!
//! ```
//! use runway_api::condition::{Conditions, READY, no, settle, yes};
//!
//! let (start, later) = ("2026-03-01T10:00:00Z".parse()?, "2026-03-01T10:05:00Z".parse()?);
//! let first = settle(vec![no(READY, "Deploying", "Waiting for pods")], &[], Some(1), start);
//! let waiting = settle(vec![no(READY, "Updating", "Waiting for a rollout")], &first, Some(2), later);
//! assert_eq!(waiting[0].last_transition_time.0, start);
//! let ready = settle(vec![yes(READY, "DeploymentReady", "All replicas are ready")], &waiting, Some(2), later);
//! assert!(ready.is_true(READY));
//! assert_eq!(ready[0].last_transition_time.0, later);
//! # Ok::<(), jiff::Error>(())
//! ```
//!
//! Each condition type has one owner. `Ready` is always present; abnormal conditions are present only while they are true
//! (kstatus, as in Flux). A transition time changes only on a transition.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::reason::CoreReason;

/// The schema of the spec was accepted. Owner: core.
pub const VALIDATED: &str = "Validated";
/// A provider is selected. Owner: core.
pub const PROVIDER_SELECTED: &str = "ProviderSelected";
/// Reconciliation is paused by annotation; present only while true. Owner: core; on kinds without one, their operator.
pub const PAUSED: &str = "Paused";
/// The selected provider's controller is silent; present only while true. Owner: core.
pub const PROVIDER_UNAVAILABLE: &str = "ProviderUnavailable";
/// The autoscaler of `spec.scaling.autoscaling` scales the model; present only with it. Owner: core.
pub const AUTOSCALER_READY: &str = "AutoscalerReady";
/// The Gateway routes requests to the model; present only while the routes controller runs for it. Owner: gateway.
pub const GATEWAY_READY: &str = "GatewayReady";
/// The provider supports the spec. Owner: provider.
pub const PROVIDER_COMPATIBLE: &str = "ProviderCompatible";
/// The upstream objects exist. Owner: provider.
pub const RESOURCE_CREATED: &str = "ResourceCreated";
/// The upstream object's status is older than 5 minutes while work is in progress; present only while true. Owner: provider.
pub const STALE_STATUS: &str = "StaleStatus";
/// Overrides contain keys that the provider does not know; present only while true. Owner: provider.
pub const OVERRIDES_IGNORED: &str = "OverridesIgnored";
/// Fields of the spec have no effect with this provider and engine; present only while true. Owner: provider.
pub const FIELDS_IGNORED: &str = "FieldsIgnored";
/// A change of the number of replicas is refused or interrupts the model; present only while true. Owner: provider.
pub const SCALING_LIMITED: &str = "ScalingLimited";
/// A dry run is requested; present only while true. Owner: provider.
pub const DRY_RUN: &str = "DryRun";
/// The model serves. Owner: core until a provider is selected, then the provider.
pub const READY: &str = "Ready";
/// The state will not change unless the user changes something; present only while true. Owner: same as [`READY`].
pub const STALLED: &str = "Stalled";

/// The provider's upstream CRD is installed with a known schema. On InferenceProviderConfig. Owner: provider.
pub const UPSTREAM_READY: &str = "UpstreamReady";
/// The provider accepts `spec.settings`. On InferenceProviderConfig. Owner: provider.
pub const SETTINGS_VALID: &str = "SettingsValid";
/// Every CEL rule compiles. On InferenceProviderConfig. Owner: core.
pub const RULES_VALID: &str = "RulesValid";

/// The Deployment has the desired pods. On LlamaStackDistribution, as are the following.
pub const DEPLOYMENT_READY: &str = "DeploymentReady";
/// The Service exists.
pub const SERVICE_READY: &str = "ServiceReady";
/// The PersistentVolumeClaim is bound with the desired size; present only with storage.
pub const STORAGE_READY: &str = "StorageReady";
/// The running server responded with its version and providers.
pub const HEALTH_CHECK: &str = "HealthCheck";
/// Every external provider is loaded in the running server; present only with external providers.
pub const EXTERNAL_PROVIDERS_READY: &str = "ExternalProvidersReady";
/// External providers replace providers of the base configuration; present only while true.
pub const PROVIDER_OVERRIDES: &str = "ProviderOverrides";
/// The user's own command replaces ours, so that providers are not checked; present only while true.
pub const PREFLIGHT_BYPASSED: &str = "PreflightBypassed";
/// Images of the spec have the tag `latest`, or none; present only while true.
pub const IMAGES_NOT_PINNED: &str = "ImagesNotPinned";
/// Some of the user's environment variables are not passed on; present only while true.
pub const ENV_IGNORED: &str = "EnvIgnored";

/// The controller that writes a condition type of a ModelDeployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The core controller.
    Core,
    /// The selected provider.
    Provider,
    /// The core controller until a provider is selected, then the provider.
    Shared,
    /// The controller that creates HTTPRoutes.
    Gateway,
}

/// Condition types of a ModelDeployment with their owners, in the order in which they are written.
pub const MODEL_DEPLOYMENT: [(&str, Owner); 15] = [
    (VALIDATED, Owner::Core),
    (PROVIDER_SELECTED, Owner::Core),
    (PAUSED, Owner::Core),
    (PROVIDER_UNAVAILABLE, Owner::Core),
    (AUTOSCALER_READY, Owner::Core),
    (PROVIDER_COMPATIBLE, Owner::Provider),
    (RESOURCE_CREATED, Owner::Provider),
    (READY, Owner::Shared),
    (STALLED, Owner::Shared),
    (STALE_STATUS, Owner::Provider),
    (OVERRIDES_IGNORED, Owner::Provider),
    (FIELDS_IGNORED, Owner::Provider),
    (SCALING_LIMITED, Owner::Provider),
    (DRY_RUN, Owner::Provider),
    (GATEWAY_READY, Owner::Gateway),
];

/// Owner of a condition type of a ModelDeployment; absent for a type that is not ours.
pub fn owner(type_: &str) -> Option<Owner> {
    let entry = MODEL_DEPLOYMENT.iter().find(|(known, _)| *known == type_);
    entry.map(|(_, owner)| *owner)
}

/// Conditions of a ModelDeployment that belong to one of these owners, in the order of [`MODEL_DEPLOYMENT`].
pub fn owned_by(conditions: &[Condition], owners: &[Owner]) -> Vec<Condition> {
    let types = MODEL_DEPLOYMENT.iter().filter(|(_, owner)| owners.contains(owner));
    types
        .flat_map(|(type_, _)| conditions.iter().filter(move |c| c.type_ == *type_))
        .cloned()
        .collect()
}

/// A condition without transition time and generation.
///
/// Turned into a [`Condition`] by [`settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    type_: &'static str,
    status: bool,
    reason: String,
    message: String,
}

impl Draft {
    /// Whether the condition has this type.
    pub fn is(&self, type_: &str) -> bool {
        self.type_ == type_
    }

    /// Whether the status is `True`.
    pub fn holds(&self) -> bool {
        self.status
    }

    /// Reason of the condition.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Message of the condition.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// A condition with status `True`.
pub fn yes(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Draft {
    Draft {
        type_,
        status: true,
        reason: reason.into(),
        message: message.into(),
    }
}

/// A condition with status `False`.
pub fn no(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Draft {
    Draft {
        type_,
        status: false,
        reason: reason.into(),
        message: message.into(),
    }
}

/// The condition of an object that is paused by this annotation.
pub fn paused(annotation: &str) -> Draft {
    let message = format!("Reconciliation is paused: remove the annotation {annotation} to continue");
    yes(PAUSED, CoreReason::Paused, message)
}

/// Maximum length of a message in `metav1.Condition`, in bytes.
const MAX_MESSAGE: usize = 32 * 1024;

/// Turns drafts into conditions: a transition time is taken from `previous` unless the status changed.
pub fn settle(drafts: Vec<Draft>, previous: &[Condition], generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    drafts
        .into_iter()
        .map(|draft| {
            let status = if draft.status { "True" } else { "False" };
            let since = previous
                .iter()
                .find(|c| c.type_ == draft.type_ && c.status == status)
                .map_or_else(|| Time(whole_seconds(now)), |c| c.last_transition_time.clone());
            Condition {
                type_: draft.type_.to_owned(),
                status: status.to_owned(),
                reason: draft.reason,
                message: shorten(draft.message, MAX_MESSAGE),
                last_transition_time: since,
                observed_generation: generation,
            }
        })
        .collect()
}

/// Conditions of a paused object: the previous ones, with `Paused` added.
pub fn settle_paused(paused: Draft, previous: &[Condition], generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    let mut drafts = Vec::new();
    if previous.get_condition(READY).is_none() {
        drafts.push(no(READY, paused.reason.clone(), paused.message.clone()));
    }
    drafts.push(paused);
    let mut all = previous.to_vec();
    for condition in settle(drafts, previous, generation, now) {
        match all.iter_mut().find(|c| c.type_ == condition.type_) {
            Some(before) => *before = condition,
            None => all.push(condition),
        }
    }
    all
}

/// The time in whole seconds, as `metav1.Time` is serialized.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Maximum length of a message in a status, in bytes. Messages may repeat texts of users and upstreams.
pub const MAX_STATUS_MESSAGE: usize = 4096;

/// Cuts a text at a character boundary, and marks the cut with `…`.
pub fn shorten(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        let cut = text.floor_char_boundary(max_bytes.saturating_sub('…'.len_utf8()));
        text.truncate(cut);
        text.push('…');
    }
    text
}

/// Queries on a list of conditions.
pub trait Conditions {
    /// The condition of this type.
    fn get_condition(&self, type_: &str) -> Option<&Condition>;

    /// The condition of this type, while it is `True`.
    fn when_true(&self, type_: &str) -> Option<&Condition> {
        self.get_condition(type_).filter(|c| c.status == "True")
    }

    /// The condition of this type, while it is `False`.
    fn when_false(&self, type_: &str) -> Option<&Condition> {
        self.get_condition(type_).filter(|c| c.status == "False")
    }

    /// Whether the condition of this type is present and `True`.
    fn is_true(&self, type_: &str) -> bool {
        self.when_true(type_).is_some()
    }
}

impl Conditions for [Condition] {
    fn get_condition(&self, type_: &str) -> Option<&Condition> {
        self.iter().find(|c| c.type_ == type_)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn transition_time_moves_only_on_a_transition() {
        let first = settle(vec![no(READY, "Waiting", "a")], &[], Some(1), at(10));
        let same = settle(vec![no(READY, "Other", "b")], &first, Some(2), at(20));
        assert_eq!(same[0].last_transition_time, Time(at(10)));
        assert_eq!(
            (same[0].reason.as_str(), same[0].observed_generation),
            ("Other", Some(2))
        );
        let flipped = settle(vec![yes(READY, "Up", "c")], &same, Some(2), at(30));
        assert_eq!(flipped[0].last_transition_time, Time(at(30)));
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        assert_eq!(shorten("ääää".to_owned(), 6), "ä…");
        assert_eq!(shorten("abc".to_owned(), 3), "abc");
    }
}
