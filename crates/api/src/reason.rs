//! Reasons of the conditions of ModelDeployments and InferenceProviderConfigs. They are a part of the API: a reason never changes
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
        /// The upstream object exists.
        ResourceCreated,
        /// The upstream object is deleted and created again, because a field that cannot be updated changed.
        Recreating,
        /// An object with another owner has the name of the upstream object. Rename one of them.
        NameTaken,
        /// The API server or an admission webhook rejected the upstream object. The message gives its answer.
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
        /// The upstream has reported nothing for 5 minutes. Check that the upstream operator runs.
        UpstreamSilent,
        /// The upstream operator's Deployment has no available replica. Check its pods.
        OperatorUnavailable,
        /// No node fits the pod. The message gives the scheduler's reason.
        Unschedulable,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_camel_case_text_and_a_meaning() {
        let core = CoreReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let provider = ProviderReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        let registration = RegistrationReason::ALL.iter().map(|r| (r.as_str(), r.meaning()));
        for (text, meaning) in core.chain(provider).chain(registration) {
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
