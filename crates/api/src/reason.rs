//! Reasons of conditions and Events. They are a part of the API: a reason never changes
//! its meaning.
//!
//! Reasons from upstreams and third-party providers are copied unchanged. The text of a reason therefore does not identify the
//! controller that wrote it; [`crate::condition::Owner`] does.

use std::fmt;

/// An enum of reasons. The text is the name of the variant; the doc comment is its meaning, for the reference.
macro_rules! reasons {
    ($(#[doc = $about:literal])+ $type:ident { $($(#[doc = $meaning:literal])+ $variant:ident,)* }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[doc = $meaning])+ $variant,)*
        }

        impl $type {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// As written in a condition.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)*
                }
            }

            /// Meaning of the reason and the remedy, in one or two sentences.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($meaning),+).trim_start(),)*
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

reasons! {
    /// Reasons that the core controller writes.
    CoreReason {
        /// The spec is valid.
        ValidationPassed,
        /// The spec is invalid. Correct the fields that the message names.
        ValidationFailed,
        /// `spec.provider.name` names the provider.
        ExplicitSelection,
        /// The core controller selected the provider.
        AutoSelected,
        /// The previous provider deletes its objects before the next one is selected.
        HandingOver,
        /// No provider is named, and automatic selection is off. Set `spec.provider.name`.
        NoProvider,
        /// No provider that could serve the model is ready. Run `kubeairunway check`.
        NoHealthyProviders,
        /// No provider supports the spec; the message gives the obstacle of each. Run `kubeairunway why`.
        NoMatchingProvider,
        /// The provider named in `spec.provider.name` is not registered. Install it, or correct the name.
        ProviderNotFound,
        /// The provider named in `spec.provider.name` is not ready; it is selected as soon as it is.
        ProviderNotReady,
        /// Reconciliation is paused by annotation. Remove the annotation to continue.
        Paused,
        /// The selected provider has not written a status yet. Check the pods of the provider's controller if this lasts.
        WaitingForProvider,
        /// The selected provider's controller is gone or sends no heartbeat. Check the pods of the provider's controller.
        ProviderUnavailable,
        /// The autoscaler scales the model.
        AutoscalerActive,
        /// The autoscaler exists, and has not reported yet.
        AutoscalerPending,
        /// The autoscaler reports that it cannot scale the model, such as for want of a metric. Follow the message.
        AutoscalerInactive,
        /// The API server or an admission webhook rejected the autoscaler. Follow the message.
        AutoscalerRejected,
        /// An autoscaler with another owner scales the model, so that none is created. Delete one of them.
        OtherAutoscaler,
        /// The provider has no name for the metric of the pods. Use another metric, or a trigger of KEDA.
        MetricUnknown,
        /// `spec.scaling.autoscaling.trigger` is set, and the CRD of KEDA is not installed. Install KEDA, or use a metric of the pods.
        KedaNotInstalled,
        /// An object with another owner has the name of the autoscaler. Rename one of them.
        NameTaken,
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
        /// The provider supports the spec.
        CompatibilityVerified,
        /// The provider does not support the spec. Change the fields that the message names, or the provider.
        Incompatible,
        /// `spec.provider.overrides` has a key of the wrong type. Correct the keys that the message names.
        InvalidOverrides,
        /// The upstream's CRD is not installed. Install the upstream operator.
        CRDNotInstalled,
        /// The installed CRD has a schema that the provider does not know. Update the provider's controller.
        UnknownUpstreamSchema,
        /// `spec.settings` of the provider's InferenceProviderConfig is invalid. Existing models continue unchanged; new ones and
        /// changes wait. An administrator must correct the setting that the message names.
        SettingsInvalid,
        /// The upstream object is about to be created.
        Creating,
        /// The upstream object exists.
        ResourceCreated,
        /// The upstream object is deleted and created again, because a field that cannot be updated changed.
        Recreating,
        /// An object with another owner has the name of the upstream object. Rename one of them.
        NameTaken,
        /// The API server or an admission webhook rejected the upstream object, or has failed to write it for a
        /// minute. The message gives its answer.
        ResourceRejected,
        /// The change is applied, and the upstream has not picked it up yet.
        Updating,
        /// Pods are ready, and the endpoint has not answered the first request yet.
        WaitingForAnswer,
        /// Pods are ready, and the endpoint does not answer. The message gives the request and the response.
        NotAnswering,
        /// All replicas serve, and the endpoint has answered.
        DeploymentReady,
        /// No replica is desired.
        ScaledToZero,
        /// The annotation `kubeairunway.ai/dry-run` is `"true"`: nothing is applied. Remove the annotation to continue.
        DryRun,
        /// The objects of the provider are being deleted.
        Terminating,
        /// `spec.provider.overrides` has keys that the provider does not know. They have no effect.
        UnknownKeys,
        /// Fields of the spec have no effect with this provider and engine.
        NotSupportedHere,
        /// The number of replicas cannot change without an interruption, or not at all. The message gives the remedy.
        FixedReplicas,
        /// The upstream has reported nothing for 5 minutes. Check that the upstream operator runs.
        UpstreamSilent,
        /// The upstream operator's Deployment has no available replica. Check its pods.
        OperatorUnavailable,
        /// The upstream reports that the model serves, but not all of its pods are ready.
        PodsNotReady,
        /// Pods run an earlier spec, or one that was changed by hand, and the upstream does not replace them. Delete the object that
        /// the message names.
        PodsOutdated,
        /// A pod of another owner has the labels by which the endpoint selects its pods. Remove its labels.
        ForeignPod,
        /// No replica is desired, and pods still run.
        ScalingToZero,
        /// No node fits the pod. The message gives the scheduler's reason.
        Unschedulable,
        /// The pod has scheduling gates, such as Kueue's, that are not removed yet. The message names them.
        SchedulingGated,
        /// The image of a container cannot be pulled. Check `spec.image` and the pull secrets.
        ImagePullFailed,
        /// A Secret that a pod refers to does not exist.
        SecretNotFound,
        /// A Secret has no key of the name that a pod refers to.
        SecretKeyNotFound,
        /// A ConfigMap that a pod refers to does not exist.
        ConfigMapNotFound,
        /// A ConfigMap has no key of the name that a pod refers to.
        ConfigMapKeyNotFound,
        /// The kubelet cannot create a container.
        ContainerConfigError,
        /// The container runtime cannot start a container, for example because the image has no such program.
        ContainerStartFailed,
        /// A container used more memory than its limit.
        OOMKilled,
        /// A container exits. The message gives the exit code and the last error.
        CrashLoopBackOff,
        /// The kubelet evicted a pod.
        Evicted,
        /// A pod failed as a whole.
        PodFailed,
    }
}

reasons! {
    /// Reasons of the condition `GatewayReady` of a ModelDeployment.
    GatewayReason {
        /// The Gateway accepted the HTTPRoute. `status.gateway` has the address.
        RouteAccepted,
        /// The Gateway accepted the HTTPRoute, which leads to the Service: an InferencePool is configured and cannot be created. The message gives the cause.
        RoutedToService,
        /// The HTTPRoute is created as soon as the model serves. See the condition `Ready`.
        ModelNotServing,
        /// The HTTPRoute exists, and the Gateway's controller has not accepted it yet. If it lasts, check that the Gateway's controller runs.
        RoutePending,
        /// The Gateway does not accept the HTTPRoute. The message gives its answer and the remedy.
        RouteNotAccepted,
        /// The Gateway cannot resolve what the HTTPRoute or the InferencePool refers to. The message gives its answer and the remedy.
        RouteNotResolved,
        /// The API server or an admission webhook rejected the HTTPRoute or the InferencePool. The message gives its answer.
        RouteRejected,
        /// The HTTPRoute of `spec.gateway.httpRouteRef` does not exist. Create it, or remove the field.
        RouteNotFound,
        /// The HTTPRoute of `spec.gateway.httpRouteRef` has no backend of this model. Add the backend that the message names.
        RouteWithoutModel,
        /// The Gateway that the administrator named does not exist. Create it, or correct `--gateway` of the routes controller.
        GatewayNotFound,
        /// The Gateway is not accepted, not programmed, or has no address yet. The message gives the answer of its controller.
        GatewayNotReady,
        /// The administrator named several Gateways. Start the routes controller with one `--gateway`.
        GatewayAmbiguous,
        /// The CRDs of the Gateway API are not installed in version v1. Install them.
        GatewayAPINotInstalled,
        /// An HTTPRoute with another owner has the name of the ModelDeployment. Rename one of them, or set `spec.gateway.httpRouteRef`.
        NameTaken,
        /// Another ModelDeployment has the same model name at the Gateway. Set `spec.gateway.modelName` to another name.
        ModelNameTaken,
        /// The model name cannot be the value of a header. Set `spec.gateway.modelName`.
        ModelNameInvalid,
    }
}

reasons! {
    /// Reasons of the conditions of an InferenceProviderConfig.
    RegistrationReason {
        /// The upstream's CRD is installed with a schema that the provider knows.
        SchemaKnown,
        /// The provider needs no upstream CRD.
        NoUpstream,
        /// The upstream's CRD is not installed. Install the upstream operator.
        CRDNotInstalled,
        /// The installed CRD has a schema that the provider does not know. Update the provider's controller.
        UnknownUpstreamSchema,
        /// The upstream operator's Deployment has no available replica. Check its pods.
        OperatorUnavailable,
        /// The provider's controller was shut down.
        ShutDown,
        /// The provider uses `spec.settings`.
        SettingsAccepted,
        /// `spec.settings` has an unknown setting or a wrong value. Correct the setting that the message names.
        SettingsRejected,
        /// Every CEL rule of the registration compiles.
        RulesCompiled,
        /// Some CEL rules do not compile and are skipped; the message names them.
        RulesRejected,
    }
}

reasons! {
    /// Reasons of the conditions of an AsyncActor, beside [`crate::async_actor::ActorState`], whose words are reasons too.
    ActorReason {
        /// `status.resolvedTarget` names the workload.
        Resolved,
        /// The target does not exist, is being deleted, or has not created its workload. Create it; the actor is bound as soon as it exists.
        TargetNotFound,
        /// The CRD of the target's kind is not installed. Install the operator of this kind.
        TargetKindNotInstalled,
        /// The target has not published its URL yet. Wait, or set `spec.runtime.targetURL`.
        TargetURLUnknown,
        /// The URL cannot be derived from the target, or is not allowed. Set `spec.runtime.targetURL`.
        TargetURLRequired,
        /// The operator does not know how objects of this kind create pods. Set `spec.binding.strategy` to `Proxy`.
        TargetNotSupported,
        /// The requested strategy is not possible for this target. Use `Auto` or `Proxy`.
        StrategyNotPossible,
        /// Both containers are in the target.
        Injected,
        /// A Deployment of the actor calls the target.
        ProxyCreated,
        /// A Deployment of the actor calls the target, after a conflict over it.
        ConflictFallback,
        /// The condition `TargetResolved` is not true.
        TargetNotResolved,
        /// An older actor is bound to the target. Delete one of the two, or use the strategy `Proxy`.
        AlreadyManaged,
        /// The target has containers with the names that the operator needs. Rename them.
        ContainerNameConflict,
        /// Another field manager removed the containers; they are added again after a wait.
        ConflictDetected,
        /// The containers were removed more than five times; the operator leaves the target alone.
        ConflictLoopDetected,
        /// The containers are being removed from the previous target.
        Leaving,
        /// The workload of the actor exists, or is being created.
        WorkloadCreated,
        /// `spec.transport` names a transport that is not configured or not enabled.
        TransportNotConfigured,
        /// `spec.transport` names a transport that is not available to the namespace of the actor.
        TransportNotAllowed,
        /// The user of the namespace at the broker cannot be used by this actor, or its password is unknown.
        TenantFailed,
        /// The queue exists as configured.
        QueueReady,
        /// The queue exists with other settings, and is used as it is.
        QueueDiffers,
        /// The operator does not manage queues of this transport; the sidecar creates the queue.
        NotManaged,
        /// The queue is being created.
        QueuePending,
        /// The broker refused the operation or cannot be reached. The operation is repeated.
        QueueFailed,
        /// The name of the queue exceeds the limit of SQS. Shorten the name of the actor or of the namespace.
        QueueNameTooLong,
        /// KEDA scales the workload.
        ScaledObjectReady,
        /// KEDA has not accepted the ScaledObject yet. If it lasts, check that KEDA runs.
        ScaledObjectCreated,
        /// KEDA reports an error for the ScaledObject.
        ScaledObjectRefused,
        /// An annotation on the ScaledObject pauses scaling.
        Paused,
        /// The CRDs of KEDA are not installed. Install KEDA, or set `spec.scaling.enabled` to false.
        KedaNotInstalled,
        /// KEDA cannot scale the target. Remove `spec.scaling`, or use another strategy.
        TargetNotScalable,
        /// The message lists what needs attention.
        Warning,
    }
}

reasons! {
    /// Reasons of the conditions of a LlamaStackDistribution and of its external providers.
    DistributionReason {
        /// The server serves.
        Ready,
        /// No replica is desired.
        ScaledToZero,
        /// Objects are being created.
        Creating,
        /// Pods are starting, or providers are being installed.
        Initializing,
        /// The object is being deleted.
        Terminating,
        /// The spec violates the rules that the message lists. Correct the listed fields.
        InvalidSpec,
        /// The operator does not know the distribution name. Use one of those in the message, or give an image.
        UnknownDistribution,
        /// A ConfigMap in another namespace is named; pods cannot mount it. Copy it into the namespace of the object.
        ForeignNamespace,
        /// A ConfigMap that the spec names does not exist. Create it.
        ConfigMapNotFound,
        /// The user's ConfigMap has neither `run.yaml` nor `config.yaml`, or its TLS conflicts with `spec.server.workers`.
        UserConfigInvalid,
        /// The ConfigMap contains no valid certificates.
        CaBundleInvalid,
        /// The operator does not know its own image, which external providers need. Start it with `--operator-image`.
        OperatorImageUnknown,
        /// An object with a required name belongs to another owner. Rename one of them.
        NameTaken,
        /// The API server rejected an object.
        Refused,
        /// No node accepts a pod.
        Unschedulable,
        /// A pod has scheduling gates, such as Kueue's, that are not removed yet.
        SchedulingGated,
        /// The kubelet evicted a pod.
        Evicted,
        /// Pods cannot be created, because of a quota, a policy or a missing ServiceAccount.
        PodsRefused,
        /// The pods did not become ready in time.
        ProgressDeadlineExceeded,
        /// The distribution image contains no `run.yaml`. Provide one with `spec.server.userConfig`.
        NoBaseConfig,
        /// merge-config failed. Read the log of this init container.
        MergeFailed,
        /// The distribution image has no shell.
        NoShell,
        /// A container cannot be started.
        StartFailed,
        /// The server exits. Read its log.
        ServerFailed,
        /// A provider implements another API than the section of the spec in which it is listed.
        ApiMismatch,
        /// A provider's packages are built for other processors.
        ArchitectureMismatch,
        /// The configuration class of a provider does not accept `config`.
        ConfigInvalid,
        /// The configuration of a provider, or of all providers together, exceeds its limit.
        ConfigTooLarge,
        /// A package of a provider conflicts with one of the distribution or of another provider.
        DependencyConflict,
        /// Two providers have the same id. Rename one of them.
        DuplicateProviderId,
        /// The kubelet cannot pull an image.
        ImagePullFailed,
        /// The installation of a provider failed without a more precise reason.
        InstallFailed,
        /// `config.modelDeploymentRef` is incomplete or contradicts another key.
        InvalidModelDeploymentRef,
        /// `valueFrom` in the `config` of a provider is incomplete.
        InvalidValueFrom,
        /// `lls-provider-spec.yaml` in a provider image is not valid.
        MetadataInvalid,
        /// A provider image has no `/lls-provider/lls-provider-spec.yaml`.
        MetadataMissing,
        /// The ModelDeployment in `config.modelDeploymentRef` does not exist.
        ModelDeploymentNotFound,
        /// The ModelDeployment in `config.modelDeploymentRef` has no endpoint yet.
        ModelDeploymentNotReady,
        /// A provider image has no Python.
        NoPython,
        /// A container exceeded its memory limit.
        OutOfMemory,
        /// A provider image has no wheels in `/lls-provider/packages`.
        PackagesMissing,
        /// The running server does not list a provider.
        ProviderNotListed,
        /// The check before the server's start failed for a provider.
        ValidationFailed,
        /// All pods are ready.
        DeploymentReady,
        /// Pods are starting.
        DeploymentPending,
        /// Pods do not become ready.
        DeploymentFailed,
        /// The Service exists.
        ServiceReady,
        /// The Service is being created.
        ServicePending,
        /// The PersistentVolumeClaim is bound.
        StorageReady,
        /// The PersistentVolumeClaim is not bound yet. If it lasts, check the StorageClass.
        StoragePending,
        /// The PersistentVolumeClaim has lost its volume.
        StorageFailed,
        /// The spec requests less storage than the PersistentVolumeClaim has; claims cannot shrink.
        CannotShrink,
        /// The server answered.
        Answered,
        /// The server answered, and lists its providers only with authentication.
        AuthenticationRequired,
        /// The server uses TLS, and the kubelet's probes succeed.
        Probed,
        /// The server did not answer as expected. The request is repeated.
        NoAnswer,
        /// No pod is ready yet.
        NotAsked,
        /// All external providers are ready.
        ProvidersReady,
        /// External providers are being installed.
        ProvidersInstalling,
        /// External providers failed. See `status.externalProviders`.
        ProvidersFailed,
        /// External providers replace providers of the base configuration.
        ConfigurationMerged,
        /// `command` or `args` replace the operator's; external providers are not checked before the start.
        OwnCommand,
        /// The spec names images by the tag `latest`, or without a tag. Name them by digest, or by a tag that does not move.
        LatestTag,
        /// Environment variables of the spec are ignored, because the operator sets them.
        SetByOperator,
    }
}

reasons! {
    /// Reasons of Events. An Event about a condition that changed has the reason of the condition instead.
    EventReason {
        /// The core controller selected a provider.
        ProviderSelected,
        /// The provider does not support the spec. Change the fields that the message names, or the provider.
        ProviderIncompatible,
        /// The upstream reports an error, or the API server rejected an object. Follow the message.
        ProviderError,
        /// `spec.provider.overrides` has keys that have no effect.
        OverridesIgnored,
        /// Fields of the spec have no effect with this provider and engine.
        FieldsIgnored,
        /// The upstream has reported nothing for 5 minutes. Check that the upstream operator runs.
        StaleStatus,
        /// An object was created for a ModelDeployment or a LlamaStackDistribution.
        ResourceCreated,
        /// An object was created for an AsyncActor.
        Created,
        /// An object was edited directly; the controller reverts the edit. Change the owner's spec instead.
        DriftDetected,
        /// The deletion waited five minutes and continues. Delete the objects that the message names, if they still exist.
        FinalizerTimeout,
        /// asya-sidecar and asya-runtime were added to the target.
        Bound,
        /// asya-sidecar and asya-runtime were removed from the target.
        Unbound,
        /// The actor is deleted, and its queue is kept because it holds messages. Empty and delete the queue.
        QueueLeft,
        /// KEDA scales the actor from now on.
        ScalingStarted,
        /// The server serves.
        Ready,
        /// The server does not serve. Follow the message.
        Failed,
    }
}

impl EventReason {
    /// Whether Events with this reason have the type Warning instead of Normal.
    pub const fn is_warning(self) -> bool {
        !matches!(
            self,
            Self::ProviderSelected
                | Self::ResourceCreated
                | Self::Created
                | Self::Bound
                | Self::Unbound
                | Self::ScalingStarted
                | Self::Ready
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_camel_case_text_and_a_meaning() {
        let core = CoreReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let provider = ProviderReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let gateway = GatewayReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let registration = RegistrationReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let actor = ActorReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let distribution = DistributionReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let event = EventReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        for (text, meaning) in core
            .chain(provider)
            .chain(gateway)
            .chain(registration)
            .chain(event)
            .chain(actor)
            .chain(distribution)
        {
            assert!(
                text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric),
                "{text}"
            );
            assert!(meaning.ends_with('.') && !meaning.starts_with(' '), "{text}: {meaning}");
        }
        assert_eq!(CoreReason::of("Paused"), Some(CoreReason::Paused));
        assert_eq!(CoreReason::of("paused"), None);
    }
}
