//! Reasons of conditions and Events, each declared with the conditions that have it, its meaning and the remedy. They are a part
//! of the API: a reason never changes its meaning.
//!
//! Reasons from upstreams and third-party providers are copied unchanged. The text of a reason therefore does not identify the
//! controller that wrote it; [`crate::condition::Owner`] does.

use std::fmt;

use crate::async_actor::{
    ActorState, RUNTIME_INJECTED, SCALING_READY, TARGET_RESOLVED, TRANSPORT_READY, WARNING, WORKLOAD_READY,
};
use crate::condition::{
    AUTOSCALER_READY, DEPLOYMENT_READY, DRY_RUN, ENV_IGNORED, EXTERNAL_PROVIDERS_READY, FIELDS_IGNORED, GATEWAY_READY,
    HEALTH_CHECK, IMAGES_NOT_PINNED, OVERRIDES_IGNORED, PAUSED, PREFLIGHT_BYPASSED, PROVIDER_COMPATIBLE,
    PROVIDER_OVERRIDES, PROVIDER_SELECTED, PROVIDER_UNAVAILABLE, READY, RESOURCE_CREATED, RULES_VALID, SCALING_LIMITED,
    SERVICE_READY, SETTINGS_VALID, STALE_STATUS, STORAGE_READY, UPSTREAM_READY, VALIDATED,
};

/// Explanation of a reason in a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Condition type, or [`EXTERNAL_PROVIDER`].
    pub condition: &'static str,
    /// Status of the condition.
    pub status: Status,
    /// Text of the reason.
    pub reason: &'static str,
    /// State that the reason reports.
    pub meaning: &'static str,
    /// Step that resolves it, or "Nothing".
    pub remedy: &'static str,
}

/// Status of a condition with a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `True`.
    True,
    /// `False`.
    False,
    /// Depends on the state in which the reason is written.
    Either,
}

/// Place of the reasons of one external provider of a LlamaStackDistribution, `status.externalProviders[].reason`. The conditions
/// `Ready` and `Stalled` repeat the first of them.
pub const EXTERNAL_PROVIDER: &str = "externalProviders";

/// The texts of an enum: the names of its variants.
macro_rules! texts {
    ($type:ident { $($variant:ident)+ }) => {
        impl $type {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// As written in a condition.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                }
            }

            /// The reason with this text.
            pub fn of(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.as_str() == text)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl From<$type> for &'static str {
            fn from(reason: $type) -> Self {
                reason.as_str()
            }
        }

        impl From<$type> for String {
            fn from(reason: $type) -> Self {
                reason.as_str().to_owned()
            }
        }

        impl PartialEq<$type> for String {
            fn eq(&self, other: &$type) -> bool {
                self == other.as_str()
            }
        }
    };
}

/// An enum of reasons. Each is declared under a condition, with the status of the condition and the remedy; its doc comment is the
/// meaning.
macro_rules! reasons {
    ($(#[doc = $about:literal])+ $type:ident { $($condition:ident {
        $($(#[doc = $meaning:literal])+ $status:ident $variant:ident: $remedy:literal,)+
    })+ }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($($(#[doc = $meaning])+ $variant,)+)+
        }

        texts!($type { $($($variant)+)+ });

        impl $type {
            /// Explanation of every value.
            pub const EXPLAINED: &[Explained] = explained! {
                $($condition { $($(#[doc = $meaning])+ $status $type::$variant: $remedy,)+ })+
            };
        }
    };
}

/// Explanations of declared reasons.
macro_rules! explained {
    ($($condition:ident { $($(#[doc = $meaning:literal])+ $status:ident $reason:path: $remedy:literal,)+ })+) => {
        &[$($(Explained {
            condition: $condition,
            status: Status::$status,
            reason: $reason.as_str(),
            meaning: concat!($($meaning),+).trim_ascii(),
            remedy: $remedy,
        },)+)+]
    };
}

/// Reasons of a ModelDeployment, except those of its upstream: [`UpstreamReason`].
pub const MODEL_DEPLOYMENT: &[&[Explained]] = &[
    ProviderReason::EXPLAINED,
    CoreReason::EXPLAINED,
    GatewayReason::EXPLAINED,
    explained! {
        READY {
            /// The selected provider's controller does not report; see the condition of that name.
            False CoreReason::ProviderUnavailable: "Start the provider's controller",
            /// The object has the dry-run annotation.
            False ProviderReason::DryRun: "Remove the annotation to apply the plan",
            /// The object was paused before a provider was selected.
            False CoreReason::Paused: "Remove the annotation, or run `kubeairunway resume`",
            /// See `ResourceCreated`.
            False ProviderReason::Recreating: "Wait",
        }
    },
];

/// Reasons of an AsyncActor, except those of `Ready` and `Stalled`: the words of [`ActorState`].
pub const ASYNC_ACTOR: &[&[Explained]] = &[
    ActorReason::EXPLAINED,
    explained! {
        TRANSPORT_READY {
            /// A Secret `asya-broker` with another owner exists in the namespace.
            False ActorState::NameTaken: "Delete it",
        }
        RUNTIME_INJECTED {
            /// The object to change does not exist yet.
            False ActorReason::TargetNotFound: "Wait",
            /// Nothing is injected without a transport; see `TransportReady`.
            False ActorReason::TransportNotConfigured: "Configure the transport",
            /// The name of the proxy Deployment belongs to another owner.
            False ActorState::NameTaken: "Rename the actor, or delete the other object",
            /// Another field manager owns a field that the operator has to set.
            False ActorState::FieldConflict: "Remove the field from the other manager's manifest",
            /// The API server rejected the change, or has failed to write it for a minute.
            False ActorState::Refused: "Follow the message",
        }
        WORKLOAD_READY {
            /// No node accepts a pod.
            False ActorState::PendingResources: "Add a node, or lower the requests",
            /// The kubelet cannot pull an image.
            False ActorState::ImagePullError: "Correct the image, or add pull credentials",
            /// A Secret or ConfigMap that a pod needs does not exist.
            False ActorState::ConfigError: "Create it, or correct its name",
            /// The container `asya-runtime` fails.
            False ActorState::RuntimeError: "Read its log; correct the handler",
            /// The container `asya-sidecar` fails.
            False ActorState::SidecarError: "Read its log; check the transport",
            /// Pods cannot be created, or another container fails.
            False ActorState::WorkloadError: "Follow the message",
            /// An object with the workload's name belongs to another owner.
            False ActorState::NameTaken: "Rename the actor, or delete the other object",
            /// Another field manager owns a field that the operator has to set.
            False ActorState::FieldConflict: "Remove the field from the other manager's manifest",
            /// The API server rejected the workload, or has failed to write it for a minute.
            False ActorState::Refused: "Follow the message",
        }
        SCALING_READY {
            /// An object with the required name belongs to another owner.
            False ActorState::NameTaken: "Rename the actor, or delete the other object",
            /// Another field manager owns a field that the operator has to set.
            False ActorState::FieldConflict: "Remove the field from the other manager's manifest",
            /// The API server rejected the ScaledObject, or has failed to write it for a minute.
            False ActorState::Refused: "Follow the message",
        }
        PAUSED {
            /// The object is paused.
            True CoreReason::Paused: "Remove the annotation, or run `kubeairunway resume`",
        }
    },
];

/// Reasons of a LlamaStackDistribution.
pub const LLAMA_STACK_DISTRIBUTION: &[&[Explained]] = &[
    DistributionReason::EXPLAINED,
    explained! {
        READY {
            /// The object was paused before its first status.
            False CoreReason::Paused: "Remove the annotation, or run `kubeairunway resume`",
        }
        PAUSED {
            /// The object is paused.
            True CoreReason::Paused: "Remove the annotation, or run `kubeairunway resume`",
        }
    },
];

reasons! {
    /// Reasons that the core controller writes.
    CoreReason {
        VALIDATED {
            /// The spec is valid.
            True ValidationPassed: "Nothing",
            /// The spec violates the rules that the message lists; the webhook was bypassed or unavailable. A model
            /// that already runs keeps serving its earlier spec, and is Stalled.
            False ValidationFailed: "Correct the listed fields",
        }
        PROVIDER_SELECTED {
            /// The core selected the provider by its capabilities and rules.
            True AutoSelected: "Nothing",
            /// `spec.provider.name` names the provider.
            True ExplicitSelection: "Nothing",
            /// `spec.provider.name` changed; the previous provider is deleting its upstream object.
            False HandingOver: "Wait, five minutes at most",
            /// `spec.provider.name` is empty, and automatic selection is turned off in this installation.
            False NoProvider: "Set `spec.provider.name`",
            /// No registered provider is ready.
            False NoHealthyProviders:
                "`kubeairunway provider list` shows why; install a provider or its upstream operator",
            /// No ready provider supports this combination of engine, serving mode and hardware.
            False NoMatchingProvider:
                "Read the reasons in `status.provider.candidates`; change the spec, or install a provider that matches",
            /// The provider in `spec.provider.name` is not registered.
            False ProviderNotFound: "Correct the name, or install the provider",
            /// The provider in `spec.provider.name` is registered, but not ready or silent.
            False ProviderNotReady: "Examine its InferenceProviderConfig and the pods of its controller",
        }
        AUTOSCALER_READY {
            /// The autoscaler scales the model.
            True AutoscalerActive: "Nothing",
            /// The autoscaler has not reported yet, or one of another kind is being deleted.
            False AutoscalerPending: "Wait. For a trigger, check that KEDA runs if it lasts",
            /// The autoscaler reports that it cannot scale, such as for want of a metric.
            False AutoscalerInactive: "Follow the message",
            /// The API server or an admission webhook rejected the autoscaler, or has failed to write it for a minute.
            False AutoscalerRejected: "Follow the message",
            /// An autoscaler with another owner scales the model, so that none is created.
            False OtherAutoscaler: "Delete the autoscaler that the message names, or remove `spec.scaling.autoscaling`",
            /// The provider has no name for the metric of the pods.
            False MetricUnknown: "Use another metric, or `autoscaling.trigger`",
            /// `autoscaling.trigger` is set, and the CRD of KEDA is not installed.
            False KedaNotInstalled: "Install KEDA, or use a metric of the pods",
            /// An object with another owner has the name of the autoscaler.
            False NameTaken: "Rename the ModelDeployment, or delete the other object",
        }
        READY {
            /// A provider is selected and has not written a status for five seconds.
            False WaitingForProvider: "Wait. If it lasts, examine the provider's controller",
        }
        PAUSED {
            /// The object is paused.
            True Paused: "Remove the annotation, or run `kubeairunway resume`",
        }
        PROVIDER_UNAVAILABLE {
            /// The provider's controller does not report.
            True ProviderUnavailable:
                "Start the provider's controller, or set `spec.provider.name` to another provider",
        }
    }
}

impl CoreReason {
    /// Whether the core writes it as the reason of `Ready` in place of a provider that has not written its status yet.
    pub const fn stands_in(self) -> bool {
        matches!(self, Self::WaitingForProvider | Self::ProviderUnavailable)
    }
}

reasons! {
    /// Reasons that the reconcile loop of the providers writes. Providers add their own and those of their upstream.
    ProviderReason {
        PROVIDER_COMPATIBLE {
            /// The provider can serve this spec.
            True CompatibilityVerified: "Nothing",
            /// The provider does not support a value in the spec.
            False Incompatible: "Change the field that the message names, or select another provider",
            /// A value in `spec.provider.overrides` has the wrong type or is not allowed.
            False InvalidOverrides: "Correct the path that the message names",
            /// The provider does not accept `spec.settings` of its InferenceProviderConfig. A model that serves
            /// continues unchanged; new models and changes wait.
            False SettingsInvalid:
                "Correct the setting that the message names: [settings of an installation](../../operate/install.md#settings-of-an-installation)",
            /// The CRD of the upstream operator is not installed.
            False CRDNotInstalled: "Install the upstream operator; the provider notices it at once",
            /// The installed version of the upstream CRD has a schema that the provider does not know.
            False UnknownUpstreamSchema:
                "Install a supported version of the upstream operator, or upgrade the provider",
        }
        RESOURCE_CREATED {
            /// The upstream object exists.
            True ResourceCreated: "Nothing",
            /// An object with the required name exists and belongs to another owner; it is not changed.
            False NameTaken: "Rename the ModelDeployment, or delete the other object",
            /// The API server or an admission webhook rejected the upstream object, or has failed to write it for a
            /// minute.
            False ResourceRejected: "Follow the message, which contains the API server's answer",
            /// The upstream object is about to be created, or was created less than 5 seconds ago.
            False Creating: "Wait. If it lasts, see the logs of the provider's controller",
            /// The upstream object is being deleted and created again, because a field that cannot be changed in place
            /// changed.
            False Recreating: "Wait",
        }
        READY {
            /// The model serves.
            True DeploymentReady: "Nothing",
            /// No replica is desired, so nothing serves.
            False ScaledToZero: "Raise `spec.scaling.replicas` to serve",
            /// Pods serve, but not yet with the latest spec.
            False Updating: "Wait",
            /// Pods are ready; the first request to the model is under way.
            False WaitingForAnswer: "Wait",
            /// Pods are ready, but the model does not answer the way the engine should. The request is repeated.
            False NotAnswering:
                "Check `spec.image`, `spec.engine.args` and `spec.model.servedName`; read `kubeairunway logs`",
            /// The upstream reports that the model serves, but fewer pods are ready than it needs.
            False PodsNotReady:
                "Wait; if it lasts, see the pods with `kubeairunway tree`, and the upstream operator with `kubeairunway check`",
            /// A pod runs another image, command or environment than requested, and the upstream does not replace it.
            False PodsOutdated: "Delete the object that the message names; the upstream creates it again",
            /// A pod of another owner has the labels by which the endpoint selects its pods, so that requests may reach
            /// it.
            False ForeignPod: "Remove these labels from the pod, or delete it",
            /// No replica is desired, and pods still run.
            False ScalingToZero: "Wait; if it lasts, check the upstream operator with `kubeairunway check`",
            /// No node accepts a pod.
            False Unschedulable:
                "Add a node, lower `spec.resources`, or correct `spec.nodeSelector` and `spec.tolerations`",
            /// A pod has scheduling gates, so that the scheduler does not consider it yet.
            False SchedulingGated:
                "With Kueue, check the quota of the queue; otherwise the controller that set the gates removes them",
            /// The kubelet cannot pull an image.
            False ImagePullFailed: "Correct `spec.image`, or add pull credentials to the pod's ServiceAccount",
            /// A Secret that a pod needs does not exist.
            False SecretNotFound: "Create it, or correct its name in `spec.secrets` or `spec.env`",
            /// A Secret lacks a key that a pod needs.
            False SecretKeyNotFound: "Add the key, or correct its name in `spec.env`",
            /// A ConfigMap that a pod needs does not exist.
            False ConfigMapNotFound: "Create it, or correct its name in `spec.env`",
            /// A ConfigMap lacks a key that a pod needs.
            False ConfigMapKeyNotFound: "Add the key, or correct its name in `spec.env`",
            /// The kubelet cannot create a container.
            False ContainerConfigError: "Follow the message; `kubectl describe pod` shows the details",
            /// A container was created, but its program cannot be started.
            False ContainerStartFailed:
                "Check that `spec.image` contains the engine and matches the processors of the nodes",
            /// A container exits again and again; the message has its exit code and last output.
            False CrashLoopBackOff:
                "Check `spec.engine.args`, `spec.image` and `spec.env`; read `kubeairunway logs --previous`",
            /// A container exceeded its memory limit.
            False OOMKilled: "Raise `spec.resources.memory`, or lower `spec.engine.contextLength`",
            /// The kubelet evicted a pod.
            False Evicted: "Free the resource that the message names on the node",
            /// A pod ended as a whole.
            False PodFailed: "`kubectl describe pod` shows why",
            /// The object is being deleted.
            False Terminating: "Wait",
        }
        STALE_STATUS {
            /// The upstream operator reports nothing.
            True UpstreamSilent: "Check that the upstream operator runs, and read its log",
            /// The Deployment of the upstream operator has no available replica.
            True OperatorUnavailable: "Check its pods",
        }
        OVERRIDES_IGNORED {
            /// The keys that the message lists have no effect.
            True UnknownKeys:
                "Remove or correct them; [fields](../fields/README.md) lists the overrides of each provider",
        }
        FIELDS_IGNORED {
            /// The fields that the message lists have no effect.
            True NotSupportedHere: "Remove them, or select another provider or engine",
        }
        SCALING_LIMITED {
            /// The upstream object of this model is exactly one replica.
            True FixedReplicas: "Follow the message before you scale, or before an autoscaler does",
        }
        DRY_RUN {
            /// `status.plan` contains the objects that would be applied.
            True DryRun: "Remove the annotation to apply them",
        }
    }
}

reasons! {
    /// Reasons of the condition `GatewayReady` of a ModelDeployment.
    GatewayReason {
        GATEWAY_READY {
            /// The Gateway accepted the HTTPRoute; `status.gateway` has the address and the name of the model.
            True RouteAccepted: "Nothing",
            /// The same, but the route leads to the Service: an InferencePool is configured and cannot be created.
            True RoutedToService: "Follow the message",
            /// The model has not served yet; the HTTPRoute is created as soon as it does.
            False ModelNotServing: "See `Ready`",
            /// The HTTPRoute exists, and the Gateway's controller has not answered.
            False RoutePending: "Wait. If it lasts, check that the Gateway's controller runs",
            /// The Gateway does not accept the HTTPRoute; the message has its answer.
            False RouteNotAccepted: "Follow the message; often a listener must allow routes from the namespace",
            /// The Gateway cannot resolve a reference of the HTTPRoute or of the InferencePool.
            False RouteNotResolved: "Follow the message",
            /// The API server or an admission webhook rejected the HTTPRoute or the InferencePool, or has failed to
            /// write it for a minute.
            False RouteRejected: "Follow the message",
            /// The HTTPRoute of `spec.gateway.httpRouteRef` does not exist.
            False RouteNotFound: "Create it, or remove the field",
            /// The HTTPRoute of `spec.gateway.httpRouteRef` has no backend of this model.
            False RouteWithoutModel: "Add the backend that the message names",
            /// The Gateway that the administrator named does not exist.
            False GatewayNotFound: "Create it, or correct `--gateway` of the routes controller",
            /// The Gateway is not accepted, not programmed, or has no address.
            False GatewayNotReady: "Examine the Gateway and its controller",
            /// The administrator named several Gateways; routes stay as they are.
            False GatewayAmbiguous: "Start the routes controller with one `--gateway`",
            /// The CRDs of Gateways and HTTPRoutes are not installed in version v1.
            False GatewayAPINotInstalled: "Install the Gateway API; the controller notices it at once",
            /// An HTTPRoute with another owner has the name of the ModelDeployment; it is not changed.
            False NameTaken: "Rename the ModelDeployment, delete the other object, or set `spec.gateway.httpRouteRef`",
            /// Another ModelDeployment has the same model name at the Gateway.
            False ModelNameTaken: "Set `spec.gateway.modelName` to another name",
            /// The model name cannot be the value of a header.
            False ModelNameInvalid: "Set `spec.gateway.modelName` to ASCII characters without spaces",
        }
    }
}

reasons! {
    /// Reasons of the conditions of an InferenceProviderConfig.
    RegistrationReason {
        UPSTREAM_READY {
            /// The CRD is installed in a version that the provider supports.
            True SchemaKnown: "Nothing",
            /// The provider needs no upstream operator.
            True NoUpstream: "Nothing",
            /// The CRD is not installed.
            False CRDNotInstalled: "Install the upstream operator",
            /// The CRD has a schema that the provider does not know.
            False UnknownUpstreamSchema:
                "Install a supported version of the upstream operator, or upgrade the provider",
            /// The Deployment of the upstream operator, which the message names, has had no available replica for a
            /// minute.
            False OperatorUnavailable: "Check its pods; `kubeairunway check` shows the cause",
            /// The provider's controller was shut down.
            False ShutDown: "Start it again, or delete the InferenceProviderConfig",
        }
        SETTINGS_VALID {
            /// The settings are used.
            True SettingsAccepted: "Nothing",
            /// A setting is unknown or has a wrong value. Existing models continue unchanged; new models and changes
            /// wait.
            False SettingsRejected:
                "Correct the setting that the message names: [settings of an installation](../../operate/install.md#settings-of-an-installation)",
        }
        RULES_VALID {
            /// All rules are used.
            True RulesCompiled: "Nothing",
            /// The rules that the message lists are skipped; the others are used.
            False RulesRejected: "Correct the rules: [provider contract](../provider-contract.md)",
        }
    }
}

reasons! {
    /// Reasons of the conditions of an AsyncActor, beside [`crate::async_actor::ActorState`], whose words are reasons too.
    ActorReason {
        TARGET_RESOLVED {
            /// `status.resolvedTarget` names the workload.
            True Resolved: "Nothing",
            /// The target does not exist, is being deleted, or has not created its workload.
            False TargetNotFound: "Create it; the actor is bound as soon as it exists",
            /// The CRD of the target's kind is not installed.
            False TargetKindNotInstalled: "Install the operator of this kind",
            /// The target has not published its URL yet.
            False TargetURLUnknown: "Wait, or set `spec.runtime.targetURL`",
            /// The URL cannot be derived from the target, is not allowed, or leads to the pod of the proxy itself.
            False TargetURLRequired: "Set `spec.runtime.targetURL`",
            /// The operator does not know how objects of this kind create pods or where they answer.
            False TargetNotSupported: "Set `spec.binding.strategy` to `Proxy` and give a target URL",
            /// The requested strategy is not possible for this target.
            False StrategyNotPossible: "Use the strategy `Auto` or `Proxy`",
        }
        RUNTIME_INJECTED {
            /// Both containers are in the target.
            True Injected: "Nothing",
            /// A Deployment of the actor calls the target.
            True ProxyCreated: "Nothing",
            /// As `ProxyCreated`, after a conflict over the target.
            True ConflictFallback: "Nothing",
            /// See `TargetResolved`.
            False TargetNotResolved: "Resolve that first",
            /// An older actor is bound to the target.
            False AlreadyManaged: "Delete one of the two actors, or use the strategy `Proxy`",
            /// The target has containers with the names that the operator needs.
            False ContainerNameConflict: "Rename them, or use the strategy `Proxy`",
            /// Another field manager removed the containers; they are added again after a wait.
            False ConflictDetected: "Find the manager in the message; use the strategy `Proxy` if it must keep control",
            /// The containers were removed more than five times; the operator leaves the target alone.
            False ConflictLoopDetected: "Use the strategy `Proxy`, or `spec.binding.onConflict: Proxy`",
            /// The containers are being removed from the previous target.
            False Leaving: "Wait",
        }
        WORKLOAD_READY {
            /// True: the workload exists. False: it is being created.
            Either WorkloadCreated: "Nothing",
        }
        TRANSPORT_READY {
            /// The queue exists as configured.
            True QueueReady: "Nothing",
            /// The queue exists with other settings, and is used as it is.
            True QueueDiffers: "Recreate the queue if the difference in the message matters",
            /// The operator does not manage queues of this transport; the sidecar creates the queue.
            True NotManaged: "Nothing",
            /// The queue is being created.
            False QueuePending: "Wait",
            /// The broker refused the operation or cannot be reached.
            False QueueFailed: "Follow the message; the operation is repeated",
            /// The name of the queue exceeds the limit of SQS.
            False QueueNameTooLong: "Shorten the name of the actor or of the namespace",
            /// `spec.transport` names a transport that is not configured or not enabled.
            False TransportNotConfigured: "Configure it in the ConfigMap `asya-transports`, or correct the name",
            /// `spec.transport` names a transport that is not available to this namespace.
            False TransportNotAllowed:
                "Add the namespace to `transports.NAME.namespaces` of `asya-transports`, or use another transport",
            /// The transport has a user for each namespace, and this actor cannot have it: the key of the passwords is
            /// missing, the operator does not manage queues, or the actor has a `queueAlias`.
            False TenantFailed: "Follow the message",
        }
        SCALING_READY {
            /// KEDA scales the workload.
            True ScaledObjectReady: "Nothing",
            /// An annotation on the ScaledObject pauses scaling.
            True Paused: "Remove the annotation to scale again",
            /// KEDA has not accepted the ScaledObject yet.
            False ScaledObjectCreated: "Wait. If it lasts, check that KEDA runs",
            /// KEDA reports an error for the ScaledObject.
            False ScaledObjectRefused: "Follow the message",
            /// The CRDs of KEDA are not installed.
            False KedaNotInstalled: "Install KEDA, or set `spec.scaling.enabled` to false",
            /// The target cannot be scaled by KEDA.
            False TargetNotScalable: "Remove `spec.scaling`, or use another strategy",
        }
        WARNING {
            /// The message lists what was found.
            True Warning: "Follow the message",
        }
    }
}

reasons! {
    /// Reasons of the conditions of a LlamaStackDistribution and of its external providers.
    DistributionReason {
        READY {
            /// The server serves.
            True Ready: "Nothing",
            /// No replica is desired.
            True ScaledToZero: "Raise `spec.replicas` to serve",
            /// Objects are being created.
            False Creating: "Wait",
            /// Pods are starting, or providers are being installed.
            False Initializing: "Wait",
            /// The object is being deleted.
            False Terminating: "Wait",
            /// The spec violates the rules that the message lists.
            False InvalidSpec: "Correct the listed fields",
            /// The operator does not know the distribution name.
            False UnknownDistribution: "Use one of the names in the message, or give an image",
            /// A ConfigMap in another namespace is named; pods cannot mount it.
            False ForeignNamespace: "Copy the ConfigMap into the namespace of the object",
            /// A ConfigMap that the spec names does not exist.
            False ConfigMapNotFound: "Create it",
            /// The user's ConfigMap has neither `run.yaml` nor `config.yaml`, or its TLS conflicts with
            /// `spec.server.workers`.
            False UserConfigInvalid: "Follow the message",
            /// The ConfigMap contains no valid certificates.
            False CaBundleInvalid: "Correct the ConfigMap",
            /// The operator does not know its own image, which external providers need.
            False OperatorImageUnknown: "Start the operator with `--operator-image`",
            /// An object with a required name belongs to another owner.
            False NameTaken: "Rename the distribution, or delete the other object",
            /// The API server rejected an object, or has failed to write it for a minute.
            False Refused: "Follow the message",
            /// No node accepts a pod.
            False Unschedulable: "Add a node, or lower the requests",
            /// A pod has scheduling gates, so that the scheduler does not consider it yet.
            False SchedulingGated:
                "With Kueue, check the quota of the queue; otherwise the controller that set the gates removes them",
            /// The kubelet evicted a pod.
            False Evicted: "If a volume exceeded its limit, use smaller packages or a larger `--provider-volume-size`",
            /// Pods cannot be created.
            False PodsRefused: "Follow the message: a quota, a policy, or a missing ServiceAccount",
            /// The pods did not become ready in time.
            False ProgressDeadlineExceeded: "Examine the pods and their logs",
            /// The distribution image contains no `run.yaml`.
            False NoBaseConfig: "Provide one with `spec.server.userConfig`",
            /// merge-config failed.
            False MergeFailed: "Read the log of this init container",
            /// The distribution image has no shell.
            False NoShell: "Use another image, or give `spec.server.containerSpec.command`",
            /// A container cannot be started.
            False StartFailed: "Follow the message",
            /// The server exits.
            False ServerFailed: "Read its log",
        }
        DEPLOYMENT_READY {
            /// All pods are ready.
            True DeploymentReady: "Nothing",
            /// Pods are starting.
            False DeploymentPending: "Wait",
            /// Pods do not become ready.
            False DeploymentFailed: "See the reason of `Ready`",
        }
        SERVICE_READY {
            /// The Service exists.
            True ServiceReady: "Nothing",
            /// The Service is being created.
            False ServicePending: "Wait",
        }
        STORAGE_READY {
            /// The claim is bound.
            True StorageReady: "Nothing",
            /// The claim is not bound yet.
            False StoragePending: "Wait. If it lasts, check the StorageClass",
            /// The claim has lost its volume.
            False StorageFailed: "Restore the volume, or delete the claim",
            /// The spec requests less than the claim has; claims cannot shrink.
            False CannotShrink: "Raise `spec.server.storage.size`",
        }
        HEALTH_CHECK {
            /// The server answered.
            True Answered: "Nothing",
            /// The server answered, and lists its providers only with authentication.
            True AuthenticationRequired: "Nothing",
            /// The server uses TLS; the kubelet's probes succeed.
            True Probed: "Nothing",
            /// The server did not answer as expected.
            False NoAnswer: "Read its log; the request is repeated",
            /// No pod is ready yet.
            False NotAsked: "Wait",
        }
        EXTERNAL_PROVIDERS_READY {
            /// All external providers are ready.
            True ProvidersReady: "Nothing",
            /// Providers are being installed.
            False ProvidersInstalling: "Wait",
            /// The providers that the message lists failed.
            False ProvidersFailed: "See `status.externalProviders`",
        }
        PROVIDER_OVERRIDES {
            /// The message lists what was replaced.
            True ConfigurationMerged: "Rename the provider if this is not intended",
        }
        PREFLIGHT_BYPASSED {
            /// `command` or `args` are set.
            True OwnCommand: "Remove them to have providers checked",
        }
        IMAGES_NOT_PINNED {
            /// The message lists the images.
            True LatestTag: "Name them by digest, or by a tag that does not move",
        }
        ENV_IGNORED {
            /// The message lists the variables.
            True SetByOperator: "Use `spec.server.userConfig` for a configuration of your own",
        }
        EXTERNAL_PROVIDER {
            /// The provider implements another API than the section of the spec in which it is listed.
            False ApiMismatch: "Move it to the section that the message names",
            /// The provider's packages are built for other processors.
            False ArchitectureMismatch: "Build the provider image for the processors of the nodes",
            /// The configuration class of the provider does not accept `config`.
            False ConfigInvalid: "Correct the fields that the message names",
            /// The configuration of the provider, or of all providers together, exceeds its limit.
            False ConfigTooLarge: "Shorten the configuration; mount large data as a volume",
            /// A package of the provider conflicts with one of the distribution or of another provider.
            False DependencyConflict: "Build the provider with the versions in the message",
            /// Two providers have the same id.
            False DuplicateProviderId: "Rename one of them",
            /// The kubelet cannot pull the provider image.
            False ImagePullFailed: "Correct the image, or add pull credentials to the ServiceAccount",
            /// The installation failed without a more precise reason.
            False InstallFailed: "Read the log of the init container",
            /// `config.modelDeploymentRef` is incomplete or contradicts another key.
            False InvalidModelDeploymentRef: "Correct the configuration",
            /// `valueFrom` in the `config` of a provider is incomplete.
            False InvalidValueFrom: "Correct the configuration",
            /// `lls-provider-spec.yaml` in the provider image is not valid.
            False MetadataInvalid: "Rebuild the image with a valid file",
            /// The provider image has no `/lls-provider/lls-provider-spec.yaml`.
            False MetadataMissing: "Rebuild the image: [providers](../../how-to/llama-stack-providers.md)",
            /// The ModelDeployment in `config.modelDeploymentRef` does not exist.
            False ModelDeploymentNotFound: "Create it",
            /// The ModelDeployment has no endpoint yet.
            False ModelDeploymentNotReady: "Wait",
            /// The provider image has no Python.
            False NoPython: "Build it on an image with python3 and pip",
            /// A container exceeded its memory limit.
            False OutOfMemory: "Raise the limit of the server; use smaller packages in a provider",
            /// The provider image has no wheels in `/lls-provider/packages`.
            False PackagesMissing: "Rebuild the image",
            /// The running server does not list the provider.
            False ProviderNotListed:
                "If the spec replaces the command, start the server with the file in `LLAMA_STACK_CONFIG`",
            /// The check before the server's start failed for this provider.
            False ValidationFailed: "Correct its configuration as the message says",
        }
    }
}

reasons! {
    /// Reasons that upstream operators report most often. Providers pass them on in the condition `Ready`.
    UpstreamReason {
        READY {
            /// The upstream operator has not reported a reason yet.
            False Deploying: "Wait",
            /// The upstream object is ready.
            False Ready: "Nothing",
            /// The upstream operator reports a failure without a reason.
            False Failed: "Read the message and the log of the upstream operator",
            /// KubeRay has not started the Ray cluster.
            False Pending: "Wait",
            /// KubeRay: the Serve application has not started.
            False NotStarted: "Wait",
            /// KubeRay: the Serve application failed to deploy.
            False DeployFailed: "Read the message and the log of the Ray head pod",
            /// KubeRay: replicas of the Serve application fail their health checks.
            False Unhealthy: "Read the message and the logs of the Ray workers",
            /// KubeRay: the Serve application is being deleted.
            False Deleting: "Wait",
            /// KubeRay gave up on the RayService after its initialization timeout.
            False InitializingTimeout: "Correct what the message names; a change of the spec starts again",
            /// KubeRay refused the RayService.
            False ValidationFailed: "Follow the message",
            /// KubeRay: the previous version serves while a second cluster starts with the new one.
            False UpgradeInProgress: "Wait",
            /// KubeRay: the previous version serves; the new one does not start.
            False UpgradeFailing: "Correct what the message names",
            /// KubeRay is deleting the pods, because no replica is desired.
            False Suspending: "Wait",
            /// KubeRay: no replica is desired, and no pod runs.
            False Suspended: "Nothing",
            /// direct: a rollout of the Deployment does not progress.
            False ProgressDeadlineExceeded: "Examine its pods: `kubeairunway why`",
            /// direct: the Deployment cannot create pods.
            False FailedCreate: "Follow the message; a quota or a policy of the namespace forbids them",
            /// KAITO has not finished setting up the Workspace.
            False WorkspacePending: "Wait",
        }
    }
}

/// An enum of reasons of Events, each with the type of the Event and the kinds that have it.
macro_rules! events {
    ($(#[doc = $about:literal])+ $type:ident {
        $($(#[doc = $meaning:literal])+ $severity:ident $variant:ident: $kinds:literal,)+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[doc = $meaning])+ $variant,)+
        }

        texts!($type { $($variant)+ });

        impl $type {
            /// Type of the Event: `Normal` or `Warning`.
            pub const fn severity(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($severity),)+
                }
            }

            /// Kinds of the objects that the Event is about.
            pub const fn kinds(self) -> &'static str {
                match self {
                    $(Self::$variant => $kinds,)+
                }
            }

            /// Meaning of the reason and the remedy.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($meaning),+).trim_ascii(),)+
                }
            }
        }
    };
}

events! {
    /// Reasons of Events. An Event about a condition that changed has the reason of the condition instead.
    EventReason {
        /// The core controller selected a provider.
        Normal ProviderSelected: "ModelDeployment",
        /// The provider does not support the spec. Change the fields that the message names, or the provider.
        Warning ProviderIncompatible: "ModelDeployment",
        /// The upstream reports an error, or the API server rejected an object. Follow the message.
        Warning ProviderError: "ModelDeployment",
        /// `spec.provider.overrides` has keys that have no effect.
        Warning OverridesIgnored: "ModelDeployment",
        /// Fields of the spec have no effect with this provider and engine.
        Warning FieldsIgnored: "ModelDeployment",
        /// The canary fails more often or answers later than the version that it is of. It gets no more requests until its spec or
        /// weight changes.
        Warning CanaryStopped: "ModelDeployment",
        /// The upstream has reported nothing for 5 minutes. Check that the upstream operator runs.
        Warning StaleStatus: "ModelDeployment",
        /// An object was created for a ModelDeployment or a LlamaStackDistribution.
        Normal ResourceCreated: "ModelDeployment, LlamaStackDistribution",
        /// An object was created for an AsyncActor.
        Normal Created: "AsyncActor",
        /// An object was edited directly; the controller reverts the edit. Change the owner's spec instead.
        Warning DriftDetected: "ModelDeployment, AsyncActor, LlamaStackDistribution",
        /// The deletion waited five minutes and continues. Delete the objects that the message names, if they still exist.
        Warning FinalizerTimeout: "ModelDeployment, AsyncActor",
        /// asya-sidecar and asya-runtime were added to the target.
        Normal Bound: "AsyncActor",
        /// asya-sidecar and asya-runtime were removed from the target.
        Normal Unbound: "AsyncActor",
        /// The actor is deleted, and its queue is kept because it holds messages. Empty and delete the queue.
        Warning QueueLeft: "AsyncActor",
        /// KEDA scales the actor from now on.
        Normal ScalingStarted: "AsyncActor",
        /// The server serves.
        Normal Ready: "LlamaStackDistribution",
        /// The server does not serve. Follow the message.
        Warning Failed: "LlamaStackDistribution",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_camel_case_text_a_meaning_and_a_remedy() {
        let kinds = [MODEL_DEPLOYMENT, ASYNC_ACTOR, LLAMA_STACK_DISTRIBUTION];
        let rest = [RegistrationReason::EXPLAINED, UpstreamReason::EXPLAINED];
        for row in kinds.into_iter().flatten().copied().chain(rest).flatten() {
            let text = row.reason;
            assert!(
                text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric),
                "{text}"
            );
            assert!(row.meaning.ends_with('.') && !row.meaning.starts_with(' '), "{row:?}");
            assert!(!row.remedy.is_empty() && !row.remedy.ends_with('.'), "{row:?}");
        }
        assert_eq!(CoreReason::of("Paused"), Some(CoreReason::Paused));
        assert_eq!(CoreReason::of("paused"), None);
    }
}
