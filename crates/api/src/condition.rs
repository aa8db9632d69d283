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
//! The tables of condition types are read by the status reference, by `kubeairunway why` and by the console. `Ready` is always
//! present; unusual conditions are present only while they are true (kstatus, as in Flux). A transition time changes only on a
//! transition.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A condition type of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionType {
    /// The type, such as `Ready`.
    pub name: &'static str,
    /// Controller that writes it.
    pub owner: Owner,
    /// When an object has it.
    pub presence: Presence,
    /// Meaning of the status `True`, for the reference.
    pub meaning: &'static str,
}

/// The controller that writes a condition type.
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
    /// The operator of the kind, which writes all of its status.
    Operator,
}

/// When a condition is in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// In every status.
    Always,
    /// In the case that the text names.
    If(&'static str),
    /// Only while it is true: it reports something unusual.
    WhileTrue,
}

/// The condition types of a kind. A line with a text declares the type, one without refers to a type of another kind.
macro_rules! conditions {
    ($(#[doc = $about:literal])+ $table:ident {
        $($name:ident $(= $text:literal)?, $owner:ident, $presence:ident $(($when:literal))?, $meaning:literal;)+
    }) => {
        $($(#[doc = $meaning] pub const $name: &str = $text;)?)+

        $(#[doc = $about])+
        pub const $table: &[$crate::condition::ConditionType] = &[$($crate::condition::ConditionType {
            name: $name,
            owner: $crate::condition::Owner::$owner,
            presence: $crate::condition::Presence::$presence $(($when))?,
            meaning: $meaning,
        },)+];
    };
}
conditions! {
    /// Condition types of a ModelDeployment, in the order in which they are written.
    MODEL_DEPLOYMENT {
        VALIDATED = "Validated", Core, Always,
            "The spec complies with the rules of the API.";
        PROVIDER_SELECTED = "ProviderSelected", Core, Always,
            "A provider is selected. `status.provider.candidates` lists every provider that was considered.";
        PAUSED = "Paused", Core, WhileTrue,
            "Reconciliation is paused by annotation; pods keep running. Deletion is not paused.";
        PROVIDER_UNAVAILABLE = "ProviderUnavailable", Core, WhileTrue,
            "The selected provider's controller is not registered any more, or has sent no heartbeat for 180 seconds. \
             The rest of the status may be out of date.";
        AUTOSCALER_READY = "AutoscalerReady", Core, If("with `spec.scaling.autoscaling`"),
            "The autoscaler of `spec.scaling.autoscaling` scales the model.";
        PROVIDER_COMPATIBLE = "ProviderCompatible", Provider, If("from the provider's first status on"),
            "The provider can translate the spec to its upstream.";
        RESOURCE_CREATED = "ResourceCreated", Provider, If("once the spec is found compatible"),
            "The upstream objects exist.";
        READY = "Ready", Shared, Always,
            "Pods of this generation serve, and the model has answered a request. It also has the reasons of `Validated`, \
             `ProviderSelected`, `ProviderCompatible` and `ResourceCreated` when one of these is False.";
        STALLED = "Stalled", Shared, WhileTrue,
            "The controllers cannot continue without a change. The phase is Failed; the reason is that of `Ready`.";
        STALE_STATUS = "StaleStatus", Provider, WhileTrue,
            "The upstream object should make progress, and the upstream operator is down or has reported no change \
             for five minutes.";
        OVERRIDES_IGNORED = "OverridesIgnored", Provider, WhileTrue,
            "`spec.provider.overrides` contains keys that the provider does not know.";
        FIELDS_IGNORED = "FieldsIgnored", Provider, WhileTrue,
            "Fields of the spec have no effect with this provider and engine.";
        SCALING_LIMITED = "ScalingLimited", Provider, WhileTrue,
            "A change of `scaling.replicas` is refused, or interrupts the model.";
        DRY_RUN = "DryRun", Provider, WhileTrue,
            "The object has the dry-run annotation: nothing is applied.";
        GATEWAY_READY = "GatewayReady", Gateway,
            If("while the routes controller runs with a Gateway, unless `spec.gateway.enabled` is false"),
            "The Gateway routes requests to the model \
             ([a Gateway of the cluster](../../how-to/gateway.md)). It says nothing about the model, see `Ready`.";
    }
}

conditions! {
    /// Condition types of an InferenceProviderConfig.
    INFERENCE_PROVIDER_CONFIG {
        UPSTREAM_READY = "UpstreamReady", Provider, Always,
            "The CRD of the upstream operator is installed, the provider knows its schema, and the operator runs, if \
             its Deployment is found by its usual name. `status.ready` follows it.";
        SETTINGS_VALID = "SettingsValid", Provider, Always,
            "The provider accepts `spec.settings`. `status.ready` follows it.";
        RULES_VALID = "RulesValid", Core, Always,
            "Every selection and validation rule compiles within its limits.";
    }
}

conditions! {
    /// Condition types of a LlamaStackDistribution.
    LLAMA_STACK_DISTRIBUTION {
        READY, Operator, Always,
            "The server serves. It also has the reasons of a failed external provider (below).";
        STALLED, Operator, WhileTrue,
            "The operator cannot continue without a change. The phase is Failed; the reason is that of `Ready`.";
        DEPLOYMENT_READY = "DeploymentReady", Operator, If("once objects are created"),
            "The Deployment has the desired pods.";
        SERVICE_READY = "ServiceReady", Operator, If("once objects are created"),
            "The Service exists.";
        STORAGE_READY = "StorageReady", Operator, If("with `spec.server.storage`"),
            "The PersistentVolumeClaim is bound and as large as requested.";
        HEALTH_CHECK = "HealthCheck", Operator, If("once objects are created"),
            "The running server has reported its version and providers.";
        EXTERNAL_PROVIDERS_READY = "ExternalProvidersReady", Operator, If("with external providers"),
            "Every external provider is in the running server.";
        PROVIDER_OVERRIDES = "ProviderOverrides", Operator, WhileTrue,
            "External providers replace providers of the base configuration.";
        PREFLIGHT_BYPASSED = "PreflightBypassed", Operator, WhileTrue,
            "The spec replaces the operator's command, so external providers are not checked before the server \
             starts.";
        IMAGES_NOT_PINNED = "ImagesNotPinned", Operator, WhileTrue,
            "The spec names images by the tag `latest`, or without a tag.";
        ENV_IGNORED = "EnvIgnored", Operator, WhileTrue,
            "Environment variables of the spec are not passed on, because the operator sets them.";
        PAUSED, Operator, WhileTrue,
            "Reconciliation is paused by annotation. Deletion is not paused.";
    }
}

conditions! {
    /// Condition types of an AsyncActor, in the order in which they are written.
    ASYNC_ACTOR {
        TARGET_RESOLVED = "TargetResolved", Operator, If("with `spec.workloadRef`"),
            "The workload behind `spec.workloadRef` and the URL of its model are known.";
        RUNTIME_INJECTED = "RuntimeInjected", Operator, If("with `spec.workloadRef`"),
            "The containers `asya-runtime` and `asya-sidecar` run with the target, in its pods or in a proxy \
             Deployment. It also has the pod reasons of `WorkloadReady`.";
        WORKLOAD_READY = "WorkloadReady", Operator, If("with `spec.workload`"),
            "The actor's own workload exists and its pods work.";
        TRANSPORT_READY = "TransportReady", Operator, Always,
            "The transport is configured and the actor's queue exists.";
        SCALING_READY = "ScalingReady", Operator, If("with `spec.scaling`"),
            "KEDA scales the workload by the length of the queue.";
        READY, Operator, Always,
            "The actor processes messages, or is at zero replicas as desired. Its reason is the word in \
             `status.status`.";
        STALLED, Operator, WhileTrue,
            "The spec violates a rule of the API, and nothing is changed. The reason is `Invalid`.";
        PAUSED, Operator, WhileTrue,
            "Reconciliation is paused by annotation. Deletion is not paused.";
        WARNING = "Warning", Operator, WhileTrue,
            "The actor works, but something needs attention.";
    }
}

/// Whether conditions of this type report something unusual, and are present only while true.
pub fn is_unusual(type_: &str) -> bool {
    let kinds = [
        MODEL_DEPLOYMENT,
        INFERENCE_PROVIDER_CONFIG,
        ASYNC_ACTOR,
        LLAMA_STACK_DISTRIBUTION,
    ];
    let mut all = kinds.into_iter().flatten();
    all.any(|known| known.name == type_ && known.presence == Presence::WhileTrue)
}

/// Whether the condition reports a problem: an unusual one that is `True`, or another that is not.
pub fn is_amiss(condition: &Condition) -> bool {
    (condition.status == "True") == is_unusual(&condition.type_)
}

/// Owner of a condition type of a ModelDeployment; absent for a type that is not ours.
pub fn owner(type_: &str) -> Option<Owner> {
    let known = MODEL_DEPLOYMENT.iter().find(|known| known.name == type_);
    known.map(|known| known.owner)
}

/// Conditions of a ModelDeployment that belong to one of these owners, in the order of [`MODEL_DEPLOYMENT`].
pub fn owned_by(conditions: &[Condition], owners: &[Owner]) -> Vec<Condition> {
    let types = MODEL_DEPLOYMENT.iter().filter(|known| owners.contains(&known.owner));
    types
        .flat_map(|known| conditions.iter().filter(|c| c.type_ == known.name))
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
    yes(PAUSED, "Paused", message)
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
