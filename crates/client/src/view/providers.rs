//! Providers that are registered without being used.

use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::provider_config::Health;
use runway_api::{InferenceProviderConfig, ModelDeployment, RegistrationReason};

/// Whether a provider has no upstream operator and no model names it: there is nothing to repair.
pub fn is_unused<'a>(
    config: &InferenceProviderConfig,
    models: impl IntoIterator<Item = &'a ModelDeployment>,
    now: Timestamp,
) -> bool {
    let name = config.name_any();
    let names = |md: &ModelDeployment| [md.spec.provider_name(), md.selected_provider()].contains(&Some(&name));
    matches!(config.health(now), Health::NotReady(_)) && lacks_operator(config) && !models.into_iter().any(names)
}

/// Whether its upstream operator is not installed.
fn lacks_operator(config: &InferenceProviderConfig) -> bool {
    let conditions = config.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let ready = conditions.when_false(condition::UPSTREAM_READY);
    ready.is_some_and(|c| c.reason == RegistrationReason::CRDNotInstalled)
}
