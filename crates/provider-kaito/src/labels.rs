//! Labels that KAITO puts on its pods and Kubernetes on those of a StatefulSet.

/// Carries the name of the pod's Workspace (KAITO `api/v1beta1/labels.go`).
pub(crate) const POD_WORKSPACE: &str = "kaito.sh/workspace";

/// Carries the name of the InferenceSet that made the pod's Workspace (KAITO `pkg/utils/consts/consts.go`).
pub(crate) const POD_INFERENCE_SET: &str = "inferenceset.kaito.sh/created-by";

/// Carries the ordinal of a StatefulSet's pod. The model answers on the first pod of a Workspace; those of other nodes
/// only compute (KAITO `pkg/workspace/manifests/manifests.go`, GenerateServiceManifest).
pub(crate) const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Every Workspace selects nodes with it (design 4.2, example 2).
pub(crate) const NODE_OS: &str = "kubernetes.io/os";
