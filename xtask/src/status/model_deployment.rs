//! Status of a ModelDeployment.

use runway_api::condition;
use runway_api::model_deployment::Phase;

use super::Is::{False, True};
use super::{Condition, Kind, Present, Reason, Table, Text};

pub(super) fn kind() -> Kind {
    Kind {
        name: "ModelDeployment",
        field: "phase",
        words: Phase::ALL.iter().map(|phase| (phase.as_str(), text(*phase))).collect(),
        conditions: CONDITIONS,
        notes: &[UPSTREAM],
        plans: Some("crates/core/tests/plan"),
    }
}

fn text(phase: Phase) -> Text {
    match phase {
        Phase::Pending => (
            "No provider is selected, or the provider has not created a workload",
            "See the reason of `Ready`",
        ),
        Phase::Deploying => (
            "The upstream objects exist; pods are starting, or the model has not answered yet",
            "Wait. If `Ready` names an obstacle, remove it",
        ),
        Phase::Running => ("The model serves, or is scaled to zero as requested", "Nothing"),
        Phase::Failed => (
            "The model cannot serve without a change",
            "Follow the message of `Stalled`; any change of the spec starts another attempt",
        ),
        Phase::Terminating => (
            "The object is being deleted, or handed over to another provider",
            "Wait. After five minutes the controllers stop waiting and record an Event `FinalizerTimeout`",
        ),
    }
}

const CONDITIONS: &[Condition] = &[
    Condition {
        kind: condition::VALIDATED,
        present: Present::Always,
        meaning: "The spec complies with the rules of the API. Written by the core.",
        reasons: &[
            Reason(True, "ValidationPassed", "The spec is valid", "Nothing"),
            Reason(
                False,
                "ValidationFailed",
                "The spec violates the rules that the message lists; the webhook was bypassed or unavailable. A model that already runs keeps serving its earlier spec, and is Stalled",
                "Correct the listed fields",
            ),
        ],
    },
    Condition {
        kind: condition::PROVIDER_SELECTED,
        present: Present::Always,
        meaning: "A provider is selected. `status.provider.candidates` lists every provider that was considered. Written by the core.",
        reasons: &[
            Reason(
                True,
                "AutoSelected",
                "The core selected the provider by its capabilities and rules",
                "Nothing",
            ),
            Reason(
                True,
                "ExplicitSelection",
                "`spec.provider.name` names the provider",
                "Nothing",
            ),
            Reason(
                False,
                "HandingOver",
                "`spec.provider.name` changed; the previous provider is deleting its upstream object",
                "Wait, five minutes at most",
            ),
            Reason(
                False,
                "NoProvider",
                "`spec.provider.name` is empty, and automatic selection is turned off in this installation",
                "Set `spec.provider.name`",
            ),
            Reason(
                False,
                "NoHealthyProviders",
                "No registered provider is ready",
                "`kubeairunway provider list` shows why; install a provider or its upstream operator",
            ),
            Reason(
                False,
                "NoMatchingProvider",
                "No ready provider supports this combination of engine, serving mode and hardware",
                "Read the reasons in `status.provider.candidates`; change the spec, or install a provider that matches",
            ),
            Reason(
                False,
                "ProviderNotFound",
                "The provider in `spec.provider.name` is not registered",
                "Correct the name, or install the provider",
            ),
            Reason(
                False,
                "ProviderNotReady",
                "The provider in `spec.provider.name` is registered, but not ready or silent",
                "Examine its InferenceProviderConfig and the pods of its controller",
            ),
        ],
    },
    Condition {
        kind: condition::AUTOSCALER_READY,
        present: Present::If("with `spec.scaling.autoscaling`"),
        meaning: "The autoscaler of `spec.scaling.autoscaling` scales the model. Written by the core.",
        reasons: &[
            Reason(True, "AutoscalerActive", "The autoscaler scales the model", "Nothing"),
            Reason(
                False,
                "AutoscalerPending",
                "The autoscaler has not reported yet, or one of another kind is being deleted",
                "Wait. For a trigger, check that KEDA runs if it lasts",
            ),
            Reason(
                False,
                "AutoscalerInactive",
                "The autoscaler reports that it cannot scale, such as for want of a metric",
                "Follow the message",
            ),
            Reason(
                False,
                "AutoscalerRejected",
                "The API server or an admission webhook rejected the autoscaler, or has failed to write it for a minute",
                "Follow the message",
            ),
            Reason(
                False,
                "OtherAutoscaler",
                "An autoscaler with another owner scales the model, so that none is created",
                "Delete the autoscaler that the message names, or remove `spec.scaling.autoscaling`",
            ),
            Reason(
                False,
                "MetricUnknown",
                "The provider has no name for the metric of the pods",
                "Use another metric, or `autoscaling.trigger`",
            ),
            Reason(
                False,
                "KedaNotInstalled",
                "`autoscaling.trigger` is set, and the CRD of KEDA is not installed",
                "Install KEDA, or use a metric of the pods",
            ),
            Reason(
                False,
                "NameTaken",
                "An object with another owner has the name of the autoscaler",
                "Rename the ModelDeployment, or delete the other object",
            ),
        ],
    },
    Condition {
        kind: condition::PROVIDER_COMPATIBLE,
        present: Present::If("from the provider's first status on"),
        meaning: "The provider can translate the spec to its upstream. Written by the provider.",
        reasons: &[
            Reason(
                True,
                "CompatibilityVerified",
                "The provider can serve this spec",
                "Nothing",
            ),
            Reason(
                False,
                "Incompatible",
                "The provider does not support a value in the spec",
                "Change the field that the message names, or select another provider",
            ),
            Reason(
                False,
                "InvalidOverrides",
                "A value in `spec.provider.overrides` has the wrong type or is not allowed",
                "Correct the path that the message names",
            ),
            Reason(
                False,
                "SettingsInvalid",
                "The provider does not accept `spec.settings` of its InferenceProviderConfig. A model that serves continues unchanged; new models and changes wait",
                "Correct the setting that the message names: [settings of an installation](install.md#settings-of-an-installation)",
            ),
            Reason(
                False,
                "CRDNotInstalled",
                "The CRD of the upstream operator is not installed",
                "Install the upstream operator; the provider notices it at once",
            ),
            Reason(
                False,
                "UnknownUpstreamSchema",
                "The installed version of the upstream CRD has a schema that the provider does not know",
                "Install a supported version of the upstream operator, or upgrade the provider",
            ),
        ],
    },
    Condition {
        kind: condition::RESOURCE_CREATED,
        present: Present::If("once the spec is found compatible"),
        meaning: "The upstream objects exist. Written by the provider.",
        reasons: &[
            Reason(True, "ResourceCreated", "The upstream object exists", "Nothing"),
            Reason(
                False,
                "NameTaken",
                "An object with the required name exists and belongs to another owner; it is not changed",
                "Rename the ModelDeployment, or delete the other object",
            ),
            Reason(
                False,
                "ResourceRejected",
                "The API server or an admission webhook rejected the upstream object, or has failed to write it for a minute",
                "Follow the message, which contains the API server's answer",
            ),
            Reason(
                False,
                "Creating",
                "The upstream object is about to be created, or was created less than 5 seconds ago",
                "Wait. If it lasts, see the logs of the provider's controller",
            ),
            Reason(
                False,
                "Recreating",
                "The upstream object is being deleted and created again, because a field that cannot be changed in place changed",
                "Wait",
            ),
        ],
    },
    Condition {
        kind: condition::READY,
        present: Present::Always,
        meaning: "Pods of this generation serve, and the model has answered a request. Written by the core until a provider is selected, then by the provider. Before that it also has the reasons of `Validated`, `ProviderSelected`, `ProviderCompatible` and `ResourceCreated` when one of these is False.",
        reasons: &[
            Reason(True, "DeploymentReady", "The model serves", "Nothing"),
            Reason(
                False,
                "ScaledToZero",
                "No replica is desired, so nothing serves",
                "Raise `spec.scaling.replicas` to serve",
            ),
            Reason(
                False,
                "WaitingForProvider",
                "A provider is selected and has not written a status for five seconds",
                "Wait. If it lasts, examine the provider's controller",
            ),
            Reason(
                False,
                "ProviderUnavailable",
                "The selected provider's controller does not report; see the condition of that name",
                "Start the provider's controller",
            ),
            Reason(
                False,
                "Updating",
                "Pods serve, but not yet with the latest spec",
                "Wait",
            ),
            Reason(
                False,
                "WaitingForAnswer",
                "Pods are ready; the first request to the model is under way",
                "Wait",
            ),
            Reason(
                False,
                "NotAnswering",
                "Pods are ready, but the model does not answer the way the engine should. The request is repeated",
                "Check `spec.image`, `spec.engine.args` and `spec.model.servedName`; read `kubeairunway logs`",
            ),
            Reason(
                False,
                "PodsNotReady",
                "The upstream reports that the model serves, but fewer pods are ready than it needs",
                "Wait; if it lasts, see the pods with `kubeairunway tree`, and the upstream operator with `kubeairunway check`",
            ),
            Reason(
                False,
                "PodsOutdated",
                "A pod runs another image, command or environment than requested, and the upstream does not replace it",
                "Delete the object that the message names; the upstream creates it again",
            ),
            Reason(
                False,
                "ForeignPod",
                "A pod of another owner has the labels by which the endpoint selects its pods, so that requests may reach it",
                "Remove these labels from the pod, or delete it",
            ),
            Reason(
                False,
                "ScalingToZero",
                "No replica is desired, and pods still run",
                "Wait; if it lasts, check the upstream operator with `kubeairunway check`",
            ),
            Reason(
                False,
                "Unschedulable",
                "No node accepts a pod",
                "Add a node, lower `spec.resources`, or correct `spec.nodeSelector` and `spec.tolerations`",
            ),
            Reason(
                False,
                "SchedulingGated",
                "A pod has scheduling gates, so that the scheduler does not consider it yet",
                "With Kueue, check the quota of the queue; otherwise the controller that set the gates removes them",
            ),
            Reason(
                False,
                "ImagePullFailed",
                "The kubelet cannot pull an image",
                "Correct `spec.image`, or add pull credentials to the pod's ServiceAccount",
            ),
            Reason(
                False,
                "SecretNotFound",
                "A Secret that a pod needs does not exist",
                "Create it, or correct its name in `spec.secrets` or `spec.env`",
            ),
            Reason(
                False,
                "SecretKeyNotFound",
                "A Secret lacks a key that a pod needs",
                "Add the key, or correct its name in `spec.env`",
            ),
            Reason(
                False,
                "ConfigMapNotFound",
                "A ConfigMap that a pod needs does not exist",
                "Create it, or correct its name in `spec.env`",
            ),
            Reason(
                False,
                "ConfigMapKeyNotFound",
                "A ConfigMap lacks a key that a pod needs",
                "Add the key, or correct its name in `spec.env`",
            ),
            Reason(
                False,
                "ContainerConfigError",
                "The kubelet cannot create a container",
                "Follow the message; `kubectl describe pod` shows the details",
            ),
            Reason(
                False,
                "ContainerStartFailed",
                "A container was created, but its program cannot be started",
                "Check that `spec.image` contains the engine and matches the processors of the nodes",
            ),
            Reason(
                False,
                "CrashLoopBackOff",
                "A container exits again and again; the message has its exit code and last output",
                "Check `spec.engine.args`, `spec.image` and `spec.env`; read `kubeairunway logs --previous`",
            ),
            Reason(
                False,
                "OOMKilled",
                "A container exceeded its memory limit",
                "Raise `spec.resources.memory`, or lower `spec.engine.contextLength`",
            ),
            Reason(
                False,
                "Evicted",
                "The kubelet evicted a pod",
                "Free the resource that the message names on the node",
            ),
            Reason(
                False,
                "PodFailed",
                "A pod ended as a whole",
                "`kubectl describe pod` shows why",
            ),
            Reason(
                False,
                "DryRun",
                "The object has the dry-run annotation",
                "Remove the annotation to apply the plan",
            ),
            Reason(
                False,
                "Paused",
                "The object was paused before a provider was selected",
                "Remove the annotation, or run `kubeairunway resume`",
            ),
            Reason(False, "Recreating", "See `ResourceCreated`", "Wait"),
            Reason(False, "Terminating", "The object is being deleted", "Wait"),
        ],
    },
    Condition {
        kind: condition::GATEWAY_READY,
        present: Present::If("while the routes controller runs with a Gateway, unless `spec.gateway.enabled` is false"),
        meaning: "The Gateway routes requests to the model ([a Gateway of the cluster](gateway.md#a-gateway-of-the-cluster)). It says nothing about the model, see `Ready`. Written by the routes controller.",
        reasons: &[
            Reason(
                True,
                "RouteAccepted",
                "The Gateway accepted the HTTPRoute; `status.gateway` has the address and the name of the model",
                "Nothing",
            ),
            Reason(
                True,
                "RoutedToService",
                "The same, but the route leads to the Service: an InferencePool is configured and cannot be created",
                "Follow the message",
            ),
            Reason(
                False,
                "ModelNotServing",
                "The model has not served yet; the HTTPRoute is created as soon as it does",
                "See `Ready`",
            ),
            Reason(
                False,
                "RoutePending",
                "The HTTPRoute exists, and the Gateway's controller has not answered",
                "Wait. If it lasts, check that the Gateway's controller runs",
            ),
            Reason(
                False,
                "RouteNotAccepted",
                "The Gateway does not accept the HTTPRoute; the message has its answer",
                "Follow the message; often a listener must allow routes from the namespace",
            ),
            Reason(
                False,
                "RouteNotResolved",
                "The Gateway cannot resolve a reference of the HTTPRoute or of the InferencePool",
                "Follow the message",
            ),
            Reason(
                False,
                "RouteRejected",
                "The API server or an admission webhook rejected the HTTPRoute or the InferencePool, or has failed to write it for a minute",
                "Follow the message",
            ),
            Reason(
                False,
                "RouteNotFound",
                "The HTTPRoute of `spec.gateway.httpRouteRef` does not exist",
                "Create it, or remove the field",
            ),
            Reason(
                False,
                "RouteWithoutModel",
                "The HTTPRoute of `spec.gateway.httpRouteRef` has no backend of this model",
                "Add the backend that the message names",
            ),
            Reason(
                False,
                "GatewayNotFound",
                "The Gateway that the administrator named does not exist",
                "Create it, or correct `--gateway` of the routes controller",
            ),
            Reason(
                False,
                "GatewayNotReady",
                "The Gateway is not accepted, not programmed, or has no address",
                "Examine the Gateway and its controller",
            ),
            Reason(
                False,
                "GatewayAmbiguous",
                "The administrator named several Gateways; routes stay as they are",
                "Start the routes controller with one `--gateway`",
            ),
            Reason(
                False,
                "GatewayAPINotInstalled",
                "The CRDs of Gateways and HTTPRoutes are not installed in version v1",
                "Install the Gateway API; the controller notices it at once",
            ),
            Reason(
                False,
                "NameTaken",
                "An HTTPRoute with another owner has the name of the ModelDeployment; it is not changed",
                "Rename the ModelDeployment, delete the other object, or set `spec.gateway.httpRouteRef`",
            ),
            Reason(
                False,
                "ModelNameTaken",
                "Another ModelDeployment has the same model name at the Gateway",
                "Set `spec.gateway.modelName` to another name",
            ),
            Reason(
                False,
                "ModelNameInvalid",
                "The model name cannot be the value of a header",
                "Set `spec.gateway.modelName` to ASCII characters without spaces",
            ),
        ],
    },
    Condition {
        kind: condition::STALLED,
        present: Present::WhileTrue,
        meaning: "The controllers cannot continue without a change. The phase is Failed; the reason is that of `Ready`.",
        reasons: &[],
    },
    Condition {
        kind: condition::PAUSED,
        present: Present::WhileTrue,
        meaning: "Reconciliation is paused by annotation; pods keep running. Deletion is not paused. Written by the core.",
        reasons: &[Reason(
            True,
            "Paused",
            "The object is paused",
            "Remove the annotation, or run `kubeairunway resume`",
        )],
    },
    Condition {
        kind: condition::PROVIDER_UNAVAILABLE,
        present: Present::WhileTrue,
        meaning: "The selected provider's controller is not registered any more, or has sent no heartbeat for 180 seconds. The rest of the status may be out of date. Written by the core.",
        reasons: &[Reason(
            True,
            "ProviderUnavailable",
            "The provider's controller does not report",
            "Start the provider's controller, or set `spec.provider.name` to another provider",
        )],
    },
    Condition {
        kind: condition::STALE_STATUS,
        present: Present::WhileTrue,
        meaning: "The upstream object should make progress, and the upstream operator is down or has reported no change for five minutes. Written by the provider.",
        reasons: &[
            Reason(
                True,
                "UpstreamSilent",
                "The upstream operator reports nothing",
                "Check that the upstream operator runs, and read its log",
            ),
            Reason(
                True,
                "OperatorUnavailable",
                "The Deployment of the upstream operator has no available replica",
                "Check its pods",
            ),
        ],
    },
    Condition {
        kind: condition::OVERRIDES_IGNORED,
        present: Present::WhileTrue,
        meaning: "`spec.provider.overrides` contains keys that the provider does not know. Written by the provider.",
        reasons: &[Reason(
            True,
            "UnknownKeys",
            "The keys that the message lists have no effect",
            "Remove or correct them; [fields](reference/fields.md) lists the overrides of each provider",
        )],
    },
    Condition {
        kind: condition::FIELDS_IGNORED,
        present: Present::WhileTrue,
        meaning: "Fields of the spec have no effect with this provider and engine. Written by the provider.",
        reasons: &[Reason(
            True,
            "NotSupportedHere",
            "The fields that the message lists have no effect",
            "Remove them, or select another provider or engine",
        )],
    },
    Condition {
        kind: condition::SCALING_LIMITED,
        present: Present::WhileTrue,
        meaning: "A change of `scaling.replicas` is refused, or interrupts the model. Written by the provider.",
        reasons: &[Reason(
            True,
            "FixedReplicas",
            "The upstream object of this model is exactly one replica",
            "Follow the message before you scale, or before an autoscaler does",
        )],
    },
    Condition {
        kind: condition::DRY_RUN,
        present: Present::WhileTrue,
        meaning: "The object has the dry-run annotation: nothing is applied. Written by the provider.",
        reasons: &[Reason(
            True,
            "DryRun",
            "`status.plan` contains the objects that would be applied",
            "Remove the annotation to apply them",
        )],
    },
];

const UPSTREAM: Table = Table {
    title: "Ready reasons from upstream operators",
    text: "While no pod reports an obstacle, the provider passes on the reason of the upstream object, with a capital first letter. It may be any reason of the upstream operator; these occur most often.",
    reasons: &[
        (
            "Deploying",
            "The upstream operator has not reported a reason yet",
            "Wait",
        ),
        ("Ready", "The upstream object is ready", "Nothing"),
        (
            "Failed",
            "The upstream operator reports a failure without a reason",
            "Read the message and the log of the upstream operator",
        ),
        ("Pending", "KubeRay has not started the Ray cluster", "Wait"),
        ("NotStarted", "KubeRay: the Serve application has not started", "Wait"),
        (
            "DeployFailed",
            "KubeRay: the Serve application failed to deploy",
            "Read the message and the log of the Ray head pod",
        ),
        (
            "Unhealthy",
            "KubeRay: replicas of the Serve application fail their health checks",
            "Read the message and the logs of the Ray workers",
        ),
        ("Deleting", "KubeRay: the Serve application is being deleted", "Wait"),
        (
            "InitializingTimeout",
            "KubeRay gave up on the RayService after its initialization timeout",
            "Correct what the message names; a change of the spec starts again",
        ),
        (
            "ValidationFailed",
            "KubeRay refused the RayService",
            "Follow the message",
        ),
        (
            "UpgradeInProgress",
            "KubeRay: the previous version serves while a second cluster starts with the new one",
            "Wait",
        ),
        (
            "UpgradeFailing",
            "KubeRay: the previous version serves; the new one does not start",
            "Correct what the message names",
        ),
        (
            "Suspending",
            "KubeRay is deleting the pods, because no replica is desired",
            "Wait",
        ),
        (
            "Suspended",
            "KubeRay: no replica is desired, and no pod runs",
            "Nothing",
        ),
        (
            "ProgressDeadlineExceeded",
            "direct: a rollout of the Deployment does not progress",
            "Examine its pods: `kubeairunway why`",
        ),
        (
            "FailedCreate",
            "direct: the Deployment cannot create pods",
            "Follow the message; a quota or a policy of the namespace forbids them",
        ),
        (
            "WorkspacePending",
            "KAITO has not finished setting up the Workspace",
            "Wait",
        ),
    ],
};
