//! Every label, annotation, finalizer and field manager name, in one place.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Prefix of the labels that are copied from a ModelDeployment to its upstream object.
pub const PREFIX: &str = "kubeairunway.ai/";

/// Label on every object that we create; the value is [`MANAGED_BY_VALUE`].
pub const MANAGED_BY: &str = "kubeairunway.ai/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_VALUE: &str = "kubeairunway";
/// Kubernetes' label for the tool that manages an object (Kubernetes documentation, "Recommended Labels").
pub const RECOMMENDED_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label with the name of the ModelDeployment that an object was created for.
pub const DEPLOYMENT: &str = "kubeairunway.ai/deployment";
/// Label with the name of the provider that created an object.
pub const PROVIDER: &str = "kubeairunway.ai/provider";
/// Kueue's label for the queue of a workload. Copied from a ModelDeployment to its upstream object, like those with our prefix.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Label with `spec.model.source`.
pub const MODEL_SOURCE: &str = "kubeairunway.ai/model-source";
/// Label with `spec.engine.type`.
pub const ENGINE_TYPE: &str = "kubeairunway.ai/engine-type";

/// Annotation: `"true"` stops all changes to upstream objects except deletion.
pub const PAUSED: &str = "kubeairunway.ai/reconcile-paused";
/// Same as [`PAUSED`] for an AsyncActor: its workload, binding, queues and scaling are not changed.
pub const ASYA_PAUSED: &str = "asya.sh/reconcile-paused";
/// Annotation: `"true"` puts the plan into `status.plan` and creates nothing.
pub const DRY_RUN: &str = "kubeairunway.ai/dry-run";
/// Annotation on a ModelDeployment: name of another one of its namespace that gets its requests from the model router, while that
/// one serves and has [`STAND_IN_FOR`] with the name of this one.
pub const STAND_IN: &str = "kubeairunway.ai/stand-in";
/// Annotation on a ModelDeployment: name of the one that it stands in for. The model router knows it by its full name only.
pub const STAND_IN_FOR: &str = "kubeairunway.ai/stand-in-for";
/// Annotation on a ModelDeployment: name of the one of its namespace that it is a canary of. The model router gives it a part of the
/// requests for that one, see [`CANARY_WEIGHT`], and knows it by its full name only.
pub const CANARY_FOR: &str = "kubeairunway.ai/canary-for";
/// Annotation on a canary: the part of the requests that it gets, in percent, from `"0"` (default) to `"100"`.
pub const CANARY_WEIGHT: &str = "kubeairunway.ai/canary-weight";
/// Annotation on an upstream object: the identity that it was created for, as JSON. If it differs, the object is recreated.
pub const MADE_FOR: &str = "kubeairunway.ai/made-for";
/// Annotation on an upstream object: hash of the last applied state, so that nothing is applied again after a restart.
pub const APPLIED_HASH: &str = "kubeairunway.ai/applied-hash";

/// Annotation on a PersistentVolumeClaim that was created for a volume: `"true"` if it has no owner, and is used again by a
/// ModelDeployment of the same name.
pub const RETAIN: &str = "kubeairunway.ai/retain";

/// Annotation with the trace of an object, as a W3C `traceparent`.
pub const TRACE: &str = "kubeairunway.ai/traceparent";

/// Default namespace of the control plane.
pub const SYSTEM_NAMESPACE: &str = "kubeairunway-system";

/// Finalizer of a ModelDeployment.
pub const FINALIZER: &str = "kubeairunway.ai/provider-cleanup";

/// Finalizer of an AsyncActor.
pub const ASYA_FINALIZER: &str = "asya.sh/finalizer";
/// Field manager of the AsyncActor operator.
pub const ASYA_MANAGER: &str = "asya-operator";
/// Label on every object of an AsyncActor; the value is its name.
pub const ASYA_ACTOR: &str = "asya.sh/actor";
/// Label of the public Asya on the pods of an actor; the value is its name.
pub const ASYA_LEGACY: &str = "asya.sh/asya";
/// Annotation on a target that an AsyncActor is bound to in place: the name of the AsyncActor.
pub const ASYA_MANAGED_BY: &str = "asya.sh/managed-by";
/// Annotation on the same target: the UID of the AsyncActor.
pub const ASYA_BOUND_UID: &str = "asya.sh/bound-uid";
/// Annotation on the same target: hash of the added fields.
pub const ASYA_BOUND_HASH: &str = "asya.sh/bound-hash";
/// Annotation on a parent whose pod spec is extended: `list` if the operator created the list of containers, otherwise `items`.
pub const ASYA_ADDED: &str = "asya.sh/added";

/// Field manager of the core controller.
pub const CORE_MANAGER: &str = "kubeairunway-controller";
/// Field manager of the model router, which wakes ModelDeployments.
pub const ROUTER_MANAGER: &str = "kubeairunway-gateway";
/// Field manager of the controller that creates HTTPRoutes for ModelDeployments.
pub const GATEWAY_MANAGER: &str = "kubeairunway-gateway-routes";

/// Whether the annotation is present with the value `"true"`.
pub fn is_set(metadata: &ObjectMeta, annotation: &str) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(annotation))
        .is_some_and(|value| value == "true")
}

/// The name of the ModelDeployment that one is a canary of.
pub fn canary_for(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(CANARY_FOR).map(String::as_str)
}

/// The part of the requests that a canary gets, in percent; 0 if [`CANARY_WEIGHT`] is not a number up to 100.
pub fn canary_weight(metadata: &ObjectMeta) -> u8 {
    let written = metadata.annotations.as_ref().and_then(|all| all.get(CANARY_WEIGHT));
    let weight = written.and_then(|weight| weight.parse().ok());
    weight.filter(|weight| *weight <= 100).unwrap_or_default()
}

/// Field manager of a provider: `kaito-provider` for `kaito`.
pub fn provider_manager(provider: &str) -> String {
    format!("{provider}-provider")
}

/// Names of the Llama Stack operator. They are those of the public operator, so that existing objects are recognized.
pub mod llama_stack {
    /// Field manager of the operator, and value of [`MANAGED_BY`].
    pub const MANAGER: &str = "llama-stack-operator";
    /// Annotation on a LlamaStackDistribution: `"true"` stops all changes to its objects.
    pub const PAUSED: &str = "llamastack.io/reconcile-paused";
    /// Label on every object of the operator, including pods; the value is [`MANAGER`].
    pub const MANAGED_BY: &str = super::RECOMMENDED_MANAGED_BY;
    /// Label with the name of the LlamaStackDistribution.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Label by which a Deployment selects its pods, with [`INSTANCE`]; the value is [`APP_VALUE`].
    pub const APP: &str = "app";
    /// Value of [`APP`] and of [`PART_OF`].
    pub const APP_VALUE: &str = "llama-stack";
    /// Label with the application that an object is a part of.
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    /// Annotation: hash of the last applied state, so that nothing is applied again after a restart.
    pub const APPLIED_HASH: &str = "llamastack.io/applied-hash";
    /// Annotation on pods: hash of their template, to distinguish new pods from old ones.
    pub const TEMPLATE: &str = "llamastack.io/template";
    /// Annotation on pods: hash of the content of the user's ConfigMap.
    pub const USER_CONFIG_HASH: &str = "configmap.hash/user-config";
    /// Annotation on pods: hash of the CA bundle.
    pub const CA_BUNDLE_HASH: &str = "configmap.hash/ca-bundle";
    /// Annotation on pods: hash of the scripts of the init containers.
    pub const SCRIPTS_HASH: &str = "configmap.hash/scripts";
}
