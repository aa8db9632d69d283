//! Status of a LlamaStackDistribution.

use runway_api::condition;
use runway_api::llama_stack_distribution::{DistributionPhase, ProviderPhase};

use super::Is::{Either, False, True};
use super::{Condition, Kind, Present, Reason, Table, Text};

pub(super) fn kind() -> Kind {
    let phases = DistributionPhase::ALL
        .iter()
        .map(|phase| (phase.as_str(), text(*phase)));
    // The compiler requires a text for each phase of a provider, too.
    debug_assert!(
        ProviderPhase::ALL
            .iter()
            .all(|phase| PROVIDER_PHASES.reasons.contains(&provider(*phase)))
    );
    Kind {
        name: "LlamaStackDistribution",
        field: "phase",
        words: phases.collect(),
        conditions: CONDITIONS,
        notes: &[PROVIDER_PHASES, PROVIDER_REASONS],
        plans: Some("crates/llama-stack-operator/tests/plan"),
    }
}

fn text(phase: DistributionPhase) -> Text {
    match phase {
        DistributionPhase::Pending => (
            "Nothing runs yet; something that the spec refers to is missing",
            "See the reason of `Ready`",
        ),
        DistributionPhase::Initializing => ("Objects are created, and pods are starting", "Wait"),
        DistributionPhase::Ready => ("The server serves, or is scaled to zero as requested", "Nothing"),
        DistributionPhase::Failed => (
            "The server cannot start without a change",
            "Follow the message of `Stalled`",
        ),
        DistributionPhase::Terminating => ("The object is being deleted; its children go with it", "Wait"),
    }
}

/// A phase of an external provider, with its texts.
const fn provider(phase: ProviderPhase) -> (&'static str, &'static str, &'static str) {
    let (meaning, remedy) = match phase {
        ProviderPhase::Pending => (
            "The init container has not started",
            "Wait; the distribution's `Ready` names obstacles",
        ),
        ProviderPhase::Installing => ("The init container is installing the provider", "Wait"),
        ProviderPhase::Ready => (
            "The provider is installed, and no later step failed because of it",
            "Nothing",
        ),
        ProviderPhase::Failed => (
            "The provider keeps the server from starting",
            "Follow `resolution` beside the phase",
        ),
    };
    (phase.as_str(), meaning, remedy)
}

const PROVIDER_PHASES: Table = Table {
    title: "External provider phase",
    text: "`status.externalProviders[].phase`.",
    reasons: &[
        provider(ProviderPhase::Pending),
        provider(ProviderPhase::Installing),
        provider(ProviderPhase::Ready),
        provider(ProviderPhase::Failed),
    ],
};

const PROVIDER_REASONS: Table = Table {
    title: "External provider reason",
    text: "`status.externalProviders[].reason`, while a provider is not installed. `Ready` and `Stalled` of the distribution have the same reason: the first failure decides.",
    reasons: &[
        (
            "ApiMismatch",
            "The provider implements another API than the section of the spec in which it is listed",
            "Move it to the section that the message names",
        ),
        (
            "ArchitectureMismatch",
            "The provider's packages are built for other processors",
            "Build the provider image for the processors of the nodes",
        ),
        (
            "ConfigInvalid",
            "The configuration class of the provider does not accept `config`",
            "Correct the fields that the message names",
        ),
        (
            "ConfigTooLarge",
            "The configuration of the provider, or of all providers together, exceeds its limit",
            "Shorten the configuration; mount large data as a volume",
        ),
        (
            "DependencyConflict",
            "A package of the provider conflicts with one of the distribution or of another provider",
            "Build the provider with the versions in the message",
        ),
        (
            "DuplicateProviderId",
            "Two providers have the same id",
            "Rename one of them",
        ),
        (
            "ImagePullFailed",
            "The kubelet cannot pull the provider image",
            "Correct the image, or add pull credentials to the ServiceAccount",
        ),
        (
            "InstallFailed",
            "The installation failed without a more precise reason",
            "Read the log of the init container",
        ),
        (
            "InvalidModelDeploymentRef",
            "`config.modelDeploymentRef` is incomplete or contradicts another key",
            "Correct the configuration",
        ),
        (
            "InvalidValueFrom",
            "`valueFrom` in the `config` of a provider is incomplete",
            "Correct the configuration",
        ),
        (
            "MetadataInvalid",
            "`lls-provider-spec.yaml` in the provider image is not valid",
            "Rebuild the image with a valid file",
        ),
        (
            "MetadataMissing",
            "The provider image has no `/lls-provider/lls-provider-spec.yaml`",
            "Rebuild the image: [providers](llama-stack-providers.md)",
        ),
        (
            "ModelDeploymentNotFound",
            "The ModelDeployment in `config.modelDeploymentRef` does not exist",
            "Create it",
        ),
        (
            "ModelDeploymentNotReady",
            "The ModelDeployment has no endpoint yet",
            "Wait",
        ),
        (
            "NoPython",
            "The provider image has no Python",
            "Build it on an image with python3 and pip",
        ),
        (
            "OutOfMemory",
            "A container exceeded its memory limit",
            "Raise the limit of the server; use smaller packages in a provider",
        ),
        (
            "PackagesMissing",
            "The provider image has no wheels in `/lls-provider/packages`",
            "Rebuild the image",
        ),
        (
            "ProviderNotListed",
            "The running server does not list the provider",
            "If the spec replaces the command, start the server with the file in `LLAMA_STACK_CONFIG`",
        ),
        (
            "ValidationFailed",
            "The check before the server's start failed for this provider",
            "Correct its configuration as the message says",
        ),
    ],
};

const CONDITIONS: &[Condition] = &[
    Condition {
        kind: condition::READY,
        present: Present::Always,
        meaning: "The server serves. It also has the reasons of a failed external provider (below).",
        reasons: &[
            Reason(True, "Ready", "The server serves", "Nothing"),
            Reason(
                True,
                "ScaledToZero",
                "No replica is desired",
                "Raise `spec.replicas` to serve",
            ),
            Reason(False, "Creating", "Objects are being created", "Wait"),
            Reason(
                False,
                "Initializing",
                "Pods are starting, or providers are being installed",
                "Wait",
            ),
            Reason(False, "Terminating", "The object is being deleted", "Wait"),
            Reason(
                False,
                "Paused",
                "The object was paused before its first status",
                "Remove the annotation, or run `kubeairunway resume`",
            ),
            Reason(
                False,
                "InvalidSpec",
                "The spec violates the rules that the message lists",
                "Correct the listed fields",
            ),
            Reason(
                False,
                "UnknownDistribution",
                "The operator does not know the distribution name",
                "Use one of the names in the message, or give an image",
            ),
            Reason(
                False,
                "ForeignNamespace",
                "A ConfigMap in another namespace is named; pods cannot mount it",
                "Copy the ConfigMap into the namespace of the object",
            ),
            Reason(
                False,
                "ConfigMapNotFound",
                "A ConfigMap that the spec names does not exist",
                "Create it",
            ),
            Reason(
                False,
                "UserConfigInvalid",
                "The user's ConfigMap has neither `run.yaml` nor `config.yaml`, or its TLS conflicts with `spec.server.workers`",
                "Follow the message",
            ),
            Reason(
                False,
                "CaBundleInvalid",
                "The ConfigMap contains no valid certificates",
                "Correct the ConfigMap",
            ),
            Reason(
                False,
                "OperatorImageUnknown",
                "The operator does not know its own image, which external providers need",
                "Start the operator with `--operator-image`",
            ),
            Reason(
                False,
                "NameTaken",
                "An object with a required name belongs to another owner",
                "Rename the distribution, or delete the other object",
            ),
            Reason(
                False,
                "Refused",
                "The API server rejected an object, or has failed to write it for a minute",
                "Follow the message",
            ),
            Reason(
                False,
                "Unschedulable",
                "No node accepts a pod",
                "Add a node, or lower the requests",
            ),
            Reason(
                False,
                "SchedulingGated",
                "A pod has scheduling gates, so that the scheduler does not consider it yet",
                "With Kueue, check the quota of the queue; otherwise the controller that set the gates removes them",
            ),
            Reason(
                False,
                "Evicted",
                "The kubelet evicted a pod",
                "If a volume exceeded its limit, use smaller packages or a larger `--provider-volume-size`",
            ),
            Reason(
                False,
                "PodsRefused",
                "Pods cannot be created",
                "Follow the message: a quota, a policy, or a missing ServiceAccount",
            ),
            Reason(
                False,
                "ProgressDeadlineExceeded",
                "The pods did not become ready in time",
                "Examine the pods and their logs",
            ),
            Reason(
                False,
                "NoBaseConfig",
                "The distribution image contains no `run.yaml`",
                "Provide one with `spec.server.userConfig`",
            ),
            Reason(
                False,
                "MergeFailed",
                "merge-config failed",
                "Read the log of this init container",
            ),
            Reason(
                False,
                "NoShell",
                "The distribution image has no shell",
                "Use another image, or give `spec.server.containerSpec.command`",
            ),
            Reason(
                False,
                "StartFailed",
                "A container cannot be started",
                "Follow the message",
            ),
            Reason(False, "ServerFailed", "The server exits", "Read its log"),
        ],
    },
    Condition {
        kind: condition::STALLED,
        present: Present::WhileTrue,
        meaning: "The operator cannot continue without a change. The phase is Failed; the reason is that of `Ready`.",
        reasons: &[],
    },
    Condition {
        kind: condition::DEPLOYMENT_READY,
        present: Present::If("once objects are created"),
        meaning: "The Deployment has the desired pods.",
        reasons: &[
            Reason(True, "DeploymentReady", "All pods are ready", "Nothing"),
            Reason(False, "DeploymentPending", "Pods are starting", "Wait"),
            Reason(
                False,
                "DeploymentFailed",
                "Pods do not become ready",
                "See the reason of `Ready`",
            ),
        ],
    },
    Condition {
        kind: condition::SERVICE_READY,
        present: Present::If("once objects are created"),
        meaning: "The Service exists.",
        reasons: &[
            Reason(True, "ServiceReady", "The Service exists", "Nothing"),
            Reason(False, "ServicePending", "The Service is being created", "Wait"),
        ],
    },
    Condition {
        kind: condition::STORAGE_READY,
        present: Present::If("with `spec.server.storage`"),
        meaning: "The PersistentVolumeClaim is bound and as large as requested.",
        reasons: &[
            Reason(True, "StorageReady", "The claim is bound", "Nothing"),
            Reason(
                False,
                "StoragePending",
                "The claim is not bound yet",
                "Wait. If it lasts, check the StorageClass",
            ),
            Reason(
                False,
                "StorageFailed",
                "The claim has lost its volume",
                "Restore the volume, or delete the claim",
            ),
            Reason(
                False,
                "CannotShrink",
                "The spec requests less than the claim has; claims cannot shrink",
                "Raise `spec.server.storage.size`",
            ),
        ],
    },
    Condition {
        kind: condition::HEALTH_CHECK,
        present: Present::If("once objects are created"),
        meaning: "The running server has reported its version and providers.",
        reasons: &[
            Reason(True, "Answered", "The server answered", "Nothing"),
            Reason(
                True,
                "AuthenticationRequired",
                "The server answered, and lists its providers only with authentication",
                "Nothing",
            ),
            Reason(
                True,
                "Probed",
                "The server uses TLS; the kubelet's probes succeed",
                "Nothing",
            ),
            Reason(
                False,
                "NoAnswer",
                "The server did not answer as expected",
                "Read its log; the request is repeated",
            ),
            Reason(False, "NotAsked", "No pod is ready yet", "Wait"),
        ],
    },
    Condition {
        kind: condition::EXTERNAL_PROVIDERS_READY,
        present: Present::If("with external providers"),
        meaning: "Every external provider is in the running server.",
        reasons: &[
            Reason(True, "ProvidersReady", "All external providers are ready", "Nothing"),
            Reason(False, "ProvidersInstalling", "Providers are being installed", "Wait"),
            Reason(
                False,
                "ProvidersFailed",
                "The providers that the message lists failed",
                "See `status.externalProviders`",
            ),
        ],
    },
    Condition {
        kind: condition::PROVIDER_OVERRIDES,
        present: Present::WhileTrue,
        meaning: "External providers replace providers of the base configuration.",
        reasons: &[Reason(
            True,
            "ConfigurationMerged",
            "The message lists what was replaced",
            "Rename the provider if this is not intended",
        )],
    },
    Condition {
        kind: condition::PREFLIGHT_BYPASSED,
        present: Present::WhileTrue,
        meaning: "The spec replaces the operator's command, so external providers are not checked before the server starts.",
        reasons: &[Reason(
            True,
            "OwnCommand",
            "`command` or `args` are set",
            "Remove them to have providers checked",
        )],
    },
    Condition {
        kind: condition::IMAGES_NOT_PINNED,
        present: Present::WhileTrue,
        meaning: "The spec names images by the tag `latest`, or without a tag.",
        reasons: &[Reason(
            True,
            "LatestTag",
            "The message lists the images",
            "Name them by digest, or by a tag that does not move",
        )],
    },
    Condition {
        kind: condition::ENV_IGNORED,
        present: Present::WhileTrue,
        meaning: "Environment variables of the spec are not passed on, because the operator sets them.",
        reasons: &[Reason(
            True,
            "SetByOperator",
            "The message lists the variables",
            "Use `spec.server.userConfig` for a configuration of your own",
        )],
    },
    Condition {
        kind: condition::PAUSED,
        present: Present::WhileTrue,
        meaning: "Reconciliation is paused by annotation. Deletion is not paused.",
        reasons: &[Reason(
            Either,
            "Paused",
            "The object is paused",
            "Remove the annotation, or run `kubeairunway resume`",
        )],
    },
];
