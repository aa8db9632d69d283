//! The upstream kind in its two schemas, with the fields that are written and read.

use runway_provider::{Installed, Kind, Schema, Upstream};

/// A frontend and workers that serve one model (Dynamo `deploy/operator/api/v1beta1/dynamographdeployment_types.go`).
pub const DYNAMO_GRAPH_DEPLOYMENT: Kind = Kind::new(
    "nvidia.com",
    "v1beta1",
    "DynamoGraphDeployment",
    "dynamographdeployments",
);

/// Structure of a DynamoGraphDeployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A map of `services`, each with fields of Dynamo's own.
    V1Alpha1,
    /// A list of `components`, each with a pod template whose container is called `main`.
    V1Beta1,
}

impl Shape {
    /// Structure of the installed version.
    pub(crate) fn installed(installed: &Installed) -> Option<Self> {
        match installed.version(DYNAMO_GRAPH_DEPLOYMENT)?.as_str() {
            "v1alpha1" => Some(Self::V1Alpha1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        }
    }

    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

pub(crate) fn upstreams() -> Vec<Upstream> {
    vec![Upstream {
        kind: DYNAMO_GRAPH_DEPLOYMENT,
        schemas: &SCHEMAS,
    }]
}

const SCHEMAS: [Schema; 3] = [
    Schema {
        version: "v1beta1",
        fields: &COMPONENTS,
    },
    Schema {
        version: "v1beta1",
        fields: FIRST_COMPONENTS,
    },
    Schema {
        version: "v1alpha1",
        fields: &SERVICES,
    },
];

/// The first releases with v1beta1 had no `runtimeVersionOverride`. It is written only for images from whose tag Dynamo cannot
/// read a version.
const FIRST_COMPONENTS: &[(&str, &str)] = {
    let [_, first @ ..] = &COMPONENTS;
    first
};

const COMPONENTS: [(&str, &str); 35] = [
    ("spec.components[].runtimeVersionOverride", "string"),
    ("spec.backendFramework", "string"),
    ("spec.components[].name", "string"),
    ("spec.components[].type", "string"),
    ("spec.components[].replicas", "integer"),
    ("spec.components[].podTemplate.metadata.labels{}", "string"),
    ("spec.components[].podTemplate.metadata.annotations{}", "string"),
    ("spec.components[].podTemplate.spec.imagePullSecrets[].name", "string"),
    ("spec.components[].podTemplate.spec.nodeSelector{}", "string"),
    ("spec.components[].podTemplate.spec.tolerations[].key", "string"),
    ("spec.components[].podTemplate.spec.tolerations[].operator", "string"),
    ("spec.components[].podTemplate.spec.tolerations[].value", "string"),
    ("spec.components[].podTemplate.spec.tolerations[].effect", "string"),
    (
        "spec.components[].podTemplate.spec.tolerations[].tolerationSeconds",
        "integer",
    ),
    ("spec.components[].podTemplate.spec.containers[].name", "string"),
    ("spec.components[].podTemplate.spec.containers[].image", "string"),
    ("spec.components[].podTemplate.spec.containers[].command[]", "string"),
    ("spec.components[].podTemplate.spec.containers[].args[]", "string"),
    ("spec.components[].podTemplate.spec.containers[].env[].name", "string"),
    ("spec.components[].podTemplate.spec.containers[].env[].value", "string"),
    (
        "spec.components[].podTemplate.spec.containers[].env[].valueFrom",
        "object",
    ),
    (
        "spec.components[].podTemplate.spec.containers[].envFrom[].secretRef.name",
        "string",
    ),
    (
        "spec.components[].podTemplate.spec.containers[].resources.requests{}",
        "any",
    ),
    (
        "spec.components[].podTemplate.spec.containers[].resources.limits{}",
        "any",
    ),
    (
        "spec.components[].podTemplate.spec.containers[].securityContext",
        "object",
    ),
    (
        "spec.components[].podTemplate.spec.containers[].terminationMessagePolicy",
        "string",
    ),
    ("status.state", "string"),
    ("status.observedGeneration", "integer"),
    ("status.components{}.readyReplicas", "integer"),
    ("status.components{}.availableReplicas", "integer"),
    ("status.conditions[].type", "string"),
    ("status.conditions[].status", "string"),
    ("status.conditions[].reason", "string"),
    ("status.conditions[].message", "string"),
    ("status.conditions[].lastTransitionTime", "string"),
];

const SERVICES: [(&str, &str); 36] = [
    ("spec.backendFramework", "string"),
    ("spec.services{}.componentType", "string"),
    ("spec.services{}.subComponentType", "string"),
    ("spec.services{}.replicas", "integer"),
    ("spec.services{}.envFromSecret", "string"),
    ("spec.services{}.envs[].name", "string"),
    ("spec.services{}.envs[].value", "string"),
    ("spec.services{}.envs[].valueFrom", "object"),
    ("spec.services{}.resources.requests.cpu", "string"),
    ("spec.services{}.resources.requests.memory", "string"),
    ("spec.services{}.resources.limits.memory", "string"),
    ("spec.services{}.resources.limits.gpu", "string"),
    ("spec.services{}.resources.limits.gpuType", "string"),
    ("spec.services{}.extraPodMetadata.labels{}", "string"),
    ("spec.services{}.extraPodMetadata.annotations{}", "string"),
    ("spec.services{}.extraPodSpec.imagePullSecrets[].name", "string"),
    ("spec.services{}.extraPodSpec.nodeSelector{}", "string"),
    ("spec.services{}.extraPodSpec.tolerations[].key", "string"),
    ("spec.services{}.extraPodSpec.tolerations[].operator", "string"),
    ("spec.services{}.extraPodSpec.tolerations[].value", "string"),
    ("spec.services{}.extraPodSpec.tolerations[].effect", "string"),
    (
        "spec.services{}.extraPodSpec.tolerations[].tolerationSeconds",
        "integer",
    ),
    ("spec.services{}.extraPodSpec.mainContainer.image", "string"),
    ("spec.services{}.extraPodSpec.mainContainer.command[]", "string"),
    ("spec.services{}.extraPodSpec.mainContainer.args[]", "string"),
    ("spec.services{}.extraPodSpec.mainContainer.securityContext", "object"),
    (
        "spec.services{}.extraPodSpec.mainContainer.terminationMessagePolicy",
        "string",
    ),
    ("status.state", "string"),
    ("status.observedGeneration", "integer"),
    ("status.services{}.readyReplicas", "integer"),
    ("status.services{}.availableReplicas", "integer"),
    ("status.conditions[].type", "string"),
    ("status.conditions[].status", "string"),
    ("status.conditions[].reason", "string"),
    ("status.conditions[].message", "string"),
    ("status.conditions[].lastTransitionTime", "string"),
];
