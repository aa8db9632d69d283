//! Every label, annotation, finalizer and field manager name, in one place.

/// Prefix of the labels that are copied from a ModelDeployment to its upstream object (design 4.12).
pub const PREFIX: &str = "kubeairunway.ai/";

/// Label on everything we create; the value is [`MANAGED_BY_VALUE`].
pub const MANAGED_BY: &str = "kubeairunway.ai/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_VALUE: &str = "kubeairunway";
/// Label that carries the name of the ModelDeployment an object was made for.
pub const DEPLOYMENT: &str = "kubeairunway.ai/deployment";
/// Label that carries the name of the provider that made an object.
pub const PROVIDER: &str = "kubeairunway.ai/provider";
/// Label that carries `spec.model.source`.
pub const MODEL_SOURCE: &str = "kubeairunway.ai/model-source";
/// Label that carries `spec.engine.type`.
pub const ENGINE_TYPE: &str = "kubeairunway.ai/engine-type";

/// Annotation: `"true"` stops all changes to upstream objects, deletion aside (design 4.6).
pub const PAUSED: &str = "kubeairunway.ai/reconcile-paused";
/// Annotation: `"true"` puts the plan into `status.plan` and creates nothing (design 5, phase 2).
pub const DRY_RUN: &str = "kubeairunway.ai/dry-run";
/// Annotation on an upstream object: the identity it was made for, as JSON. When it differs, the object is recreated.
pub const MADE_FOR: &str = "kubeairunway.ai/made-for";
/// Annotation on an upstream object: hash of what was applied last, so that a restart sends nothing again.
pub const APPLIED_HASH: &str = "kubeairunway.ai/applied-hash";

/// The one finalizer of a ModelDeployment.
pub const FINALIZER: &str = "kubeairunway.ai/provider-cleanup";

/// Field manager of the core controller (design 3.10).
pub const CORE_MANAGER: &str = "kubeairunway-controller";

/// Field manager of a provider: `kaito` writes as `kaito-provider` (design 3.10, contract rule).
pub fn provider_manager(provider: &str) -> String {
    format!("{provider}-provider")
}
