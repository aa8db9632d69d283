//! Status of an AsyncActor.

use runway_api::async_actor::{
    ActorState, RUNTIME_INJECTED, SCALING_READY, TARGET_RESOLVED, TRANSPORT_READY, WARNING, WORKLOAD_READY,
};
use runway_api::condition;

use super::Is::{Either, False, True};
use super::{Condition, Kind, Present, Reason, Text};

pub(super) fn kind() -> Kind {
    Kind {
        name: "AsyncActor",
        field: "status",
        words: ActorState::ALL
            .iter()
            .map(|state| (state.as_str(), text(*state)))
            .collect(),
        conditions: CONDITIONS,
        notes: &[],
        plans: Some("crates/asya-operator/tests/plan"),
    }
}

fn text(state: ActorState) -> Text {
    match state {
        ActorState::Running => ("Enough replicas are ready", "Nothing"),
        ActorState::Napping => ("KEDA scaled the actor to zero; the next message starts it", "Nothing"),
        ActorState::Stopped => ("Zero replicas are desired", "Raise the replicas to process messages"),
        ActorState::Creating => (
            "The queue, the workload or its first replicas are being created",
            "Wait",
        ),
        ActorState::WakingUp => ("The first replica after scaling to zero is starting", "Wait"),
        ActorState::ScalingUp => ("More replicas are starting", "Nothing"),
        ActorState::ScalingDown => ("Replicas are ending", "Nothing"),
        ActorState::Updating => ("A rollout is in progress", "Wait"),
        ActorState::Moving => ("The binding is moving to another target or strategy", "Wait"),
        ActorState::WaitingForTarget => (
            "The target, its CRD or its URL does not exist yet",
            "Create the target, or correct `spec.workloadRef`",
        ),
        ActorState::Paused => (
            "Reconciliation is paused; pods keep running",
            "Remove the annotation, or run `kubeairunway resume`",
        ),
        ActorState::Terminating => (
            "The actor is being deleted; the message names what the deletion waits for, at most five minutes",
            "Wait",
        ),
        ActorState::Invalid => (
            "The spec violates a rule of the API",
            "Correct the fields that the message names",
        ),
        ActorState::BindingError => (
            "The actor cannot be bound to the target",
            "See the conditions `TargetResolved` and `RuntimeInjected`",
        ),
        ActorState::TransportError => (
            "The transport is not configured, or its broker cannot be used",
            "See the condition `TransportReady`",
        ),
        ActorState::Conflict => (
            "Another field manager removes the injected containers; the operator adds them again after a wait",
            "Set `spec.binding.strategy` to `Proxy` if this repeats",
        ),
        ActorState::ConflictStopped => (
            "Another field manager removed the injected containers more than five times; the operator leaves the target alone",
            "Set `spec.binding.strategy` or `spec.binding.onConflict` to `Proxy`; any change of the spec starts another attempt",
        ),
        ActorState::AlreadyManaged => (
            "An older actor is bound to the target",
            "Delete one of the two actors, or set `spec.binding.strategy` to `Proxy`",
        ),
        ActorState::NameTaken => (
            "An object with the required name exists and belongs to another owner",
            "Rename the actor, or delete the other object",
        ),
        ActorState::FieldConflict => (
            "Another field manager owns a field that the operator has to set",
            "Remove the field from the other manager's manifest",
        ),
        ActorState::Refused => (
            "The API server rejected an object, or has failed to write it for a minute",
            "Follow the message",
        ),
        ActorState::PendingResources => ("No node accepts a pod", "Add a node, or lower the requests"),
        ActorState::ImagePullError => (
            "The kubelet cannot pull an image",
            "Correct the image, or add pull credentials",
        ),
        ActorState::ConfigError => (
            "A Secret or ConfigMap that a pod needs does not exist",
            "Create it, or correct its name",
        ),
        ActorState::RuntimeError => (
            "The container `asya-runtime` fails",
            "Read its log; correct the handler",
        ),
        ActorState::SidecarError => (
            "The container `asya-sidecar` fails",
            "Read its log; check the transport",
        ),
        ActorState::WorkloadError => (
            "Pods cannot be created, or another container fails",
            "Follow the message",
        ),
        ActorState::ScalingError => ("KEDA cannot scale the actor", "See the condition `ScalingReady`"),
    }
}

const CONDITIONS: &[Condition] = &[
    Condition {
        kind: TARGET_RESOLVED,
        present: Present::If("with `spec.workloadRef`"),
        meaning: "The workload behind `spec.workloadRef` and the URL of its model are known.",
        reasons: &[
            Reason(
                True,
                "Resolved",
                "`status.resolvedTarget` names the workload",
                "Nothing",
            ),
            Reason(
                False,
                "TargetNotFound",
                "The target does not exist, is being deleted, or has not created its workload",
                "Create it; the actor is bound as soon as it exists",
            ),
            Reason(
                False,
                "TargetKindNotInstalled",
                "The CRD of the target's kind is not installed",
                "Install the operator of this kind",
            ),
            Reason(
                False,
                "TargetURLUnknown",
                "The target has not published its URL yet",
                "Wait, or set `spec.runtime.targetURL`",
            ),
            Reason(
                False,
                "TargetURLRequired",
                "The URL cannot be derived from the target, is not allowed, or leads to the pod of the proxy itself",
                "Set `spec.runtime.targetURL`",
            ),
            Reason(
                False,
                "TargetNotSupported",
                "The operator does not know how objects of this kind create pods or where they answer",
                "Set `spec.binding.strategy` to `Proxy` and give a target URL",
            ),
            Reason(
                False,
                "StrategyNotPossible",
                "The requested strategy is not possible for this target",
                "Use the strategy `Auto` or `Proxy`",
            ),
        ],
    },
    Condition {
        kind: RUNTIME_INJECTED,
        present: Present::If("with `spec.workloadRef`"),
        meaning: "The containers `asya-runtime` and `asya-sidecar` run with the target, in its pods or in a proxy Deployment. It also has the pod reasons of `WorkloadReady`.",
        reasons: &[
            Reason(True, "Injected", "Both containers are in the target", "Nothing"),
            Reason(
                True,
                "ProxyCreated",
                "A Deployment of the actor calls the target",
                "Nothing",
            ),
            Reason(
                True,
                "ConflictFallback",
                "As `ProxyCreated`, after a conflict over the target",
                "Nothing",
            ),
            Reason(False, "TargetNotResolved", "See `TargetResolved`", "Resolve that first"),
            Reason(
                False,
                "TargetNotFound",
                "The object to change does not exist yet",
                "Wait",
            ),
            Reason(
                False,
                "TransportNotConfigured",
                "Nothing is injected without a transport; see `TransportReady`",
                "Configure the transport",
            ),
            Reason(
                False,
                "AlreadyManaged",
                "An older actor is bound to the target",
                "Delete one of the two actors, or use the strategy `Proxy`",
            ),
            Reason(
                False,
                "ContainerNameConflict",
                "The target has containers with the names that the operator needs",
                "Rename them, or use the strategy `Proxy`",
            ),
            Reason(
                False,
                "ConflictDetected",
                "Another field manager removed the containers; they are added again after a wait",
                "Find the manager in the message; use the strategy `Proxy` if it must keep control",
            ),
            Reason(
                False,
                "ConflictLoopDetected",
                "The containers were removed more than five times; the operator leaves the target alone",
                "Use the strategy `Proxy`, or `spec.binding.onConflict: Proxy`",
            ),
            Reason(
                False,
                "Leaving",
                "The containers are being removed from the previous target",
                "Wait",
            ),
            Reason(
                False,
                "NameTaken",
                "The name of the proxy Deployment belongs to another owner",
                "Rename the actor, or delete the other object",
            ),
            Reason(
                False,
                "FieldConflict",
                "Another field manager owns a field that the operator has to set",
                "Remove the field from the other manager's manifest",
            ),
            Reason(
                False,
                "Refused",
                "The API server rejected the change, or has failed to write it for a minute",
                "Follow the message",
            ),
        ],
    },
    Condition {
        kind: WORKLOAD_READY,
        present: Present::If("with `spec.workload`"),
        meaning: "The actor's own workload exists and its pods work.",
        reasons: &[
            Reason(
                Either,
                "WorkloadCreated",
                "True: the workload exists. False: it is being created",
                "Nothing",
            ),
            Reason(
                False,
                "PendingResources",
                "No node accepts a pod",
                "Add a node, or lower the requests",
            ),
            Reason(
                False,
                "ImagePullError",
                "The kubelet cannot pull an image",
                "Correct the image, or add pull credentials",
            ),
            Reason(
                False,
                "ConfigError",
                "A Secret or ConfigMap that a pod needs does not exist",
                "Create it, or correct its name",
            ),
            Reason(
                False,
                "RuntimeError",
                "The container `asya-runtime` fails",
                "Read its log; correct the handler",
            ),
            Reason(
                False,
                "SidecarError",
                "The container `asya-sidecar` fails",
                "Read its log; check the transport",
            ),
            Reason(
                False,
                "WorkloadError",
                "Pods cannot be created, or another container fails",
                "Follow the message",
            ),
            Reason(
                False,
                "NameTaken",
                "An object with the workload's name belongs to another owner",
                "Rename the actor, or delete the other object",
            ),
            Reason(
                False,
                "FieldConflict",
                "Another field manager owns a field that the operator has to set",
                "Remove the field from the other manager's manifest",
            ),
            Reason(
                False,
                "Refused",
                "The API server rejected the workload, or has failed to write it for a minute",
                "Follow the message",
            ),
        ],
    },
    Condition {
        kind: TRANSPORT_READY,
        present: Present::Always,
        meaning: "The transport is configured and the actor's queue exists.",
        reasons: &[
            Reason(True, "QueueReady", "The queue exists as configured", "Nothing"),
            Reason(
                True,
                "QueueDiffers",
                "The queue exists with other settings, and is used as it is",
                "Recreate the queue if the difference in the message matters",
            ),
            Reason(
                True,
                "NotManaged",
                "The operator does not manage queues of this transport; the sidecar creates the queue",
                "Nothing",
            ),
            Reason(False, "QueuePending", "The queue is being created", "Wait"),
            Reason(
                False,
                "QueueFailed",
                "The broker refused the operation or cannot be reached",
                "Follow the message; the operation is repeated",
            ),
            Reason(
                False,
                "QueueNameTooLong",
                "The name of the queue exceeds the limit of SQS",
                "Shorten the name of the actor or of the namespace",
            ),
            Reason(
                False,
                "TransportNotConfigured",
                "`spec.transport` names a transport that is not configured or not enabled",
                "Configure it in `ASYA_TRANSPORT_CONFIG`, or correct the name",
            ),
            Reason(
                False,
                "TransportNotAllowed",
                "`spec.transport` names a transport that is not available to this namespace",
                "Add the namespace to `transports.NAME.namespaces` of `asya-transports`, or use another transport",
            ),
            Reason(
                False,
                "TenantFailed",
                "The transport has a user for each namespace, and this actor cannot have it: the key of the passwords is missing, the operator does not manage queues, or the actor has a `queueAlias`",
                "Follow the message",
            ),
            Reason(
                False,
                "NameTaken",
                "A Secret `asya-broker` with another owner exists in the namespace",
                "Delete it",
            ),
        ],
    },
    Condition {
        kind: SCALING_READY,
        present: Present::If("with `spec.scaling`"),
        meaning: "KEDA scales the workload by the length of the queue.",
        reasons: &[
            Reason(True, "ScaledObjectReady", "KEDA scales the workload", "Nothing"),
            Reason(
                True,
                "Paused",
                "An annotation on the ScaledObject pauses scaling",
                "Remove the annotation to scale again",
            ),
            Reason(
                False,
                "ScaledObjectCreated",
                "KEDA has not accepted the ScaledObject yet",
                "Wait. If it lasts, check that KEDA runs",
            ),
            Reason(
                False,
                "ScaledObjectRefused",
                "KEDA reports an error for the ScaledObject",
                "Follow the message",
            ),
            Reason(
                False,
                "KedaNotInstalled",
                "The CRDs of KEDA are not installed",
                "Install KEDA, or set `spec.scaling.enabled` to false",
            ),
            Reason(
                False,
                "TargetNotScalable",
                "The target cannot be scaled by KEDA",
                "Remove `spec.scaling`, or use another strategy",
            ),
            Reason(
                False,
                "NameTaken",
                "An object with the required name belongs to another owner",
                "Rename the actor, or delete the other object",
            ),
            Reason(
                False,
                "FieldConflict",
                "Another field manager owns a field that the operator has to set",
                "Remove the field from the other manager's manifest",
            ),
            Reason(
                False,
                "Refused",
                "The API server rejected the ScaledObject, or has failed to write it for a minute",
                "Follow the message",
            ),
        ],
    },
    Condition {
        kind: condition::READY,
        present: Present::Always,
        meaning: "The actor processes messages, or is at zero replicas as desired. Its reason is the word in `status.status`.",
        reasons: &[],
    },
    Condition {
        kind: condition::STALLED,
        present: Present::WhileTrue,
        meaning: "The spec violates a rule of the API, and nothing is changed. The reason is `Invalid`.",
        reasons: &[],
    },
    Condition {
        kind: condition::PAUSED,
        present: Present::WhileTrue,
        meaning: "Reconciliation is paused by annotation. Deletion is not paused.",
        reasons: &[Reason(
            True,
            "Paused",
            "The object is paused",
            "Remove the annotation, or run `kubeairunway resume`",
        )],
    },
    Condition {
        kind: WARNING,
        present: Present::WhileTrue,
        meaning: "The actor works, but something needs attention.",
        reasons: &[Reason(
            True,
            "Warning",
            "The message lists what was found",
            "Follow the message",
        )],
    },
];
