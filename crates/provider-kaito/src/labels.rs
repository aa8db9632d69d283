//! Labels of KAITO on its pods, and of Kubernetes on the pods of a StatefulSet.

/// Name of the pod's Workspace (KAITO `api/v1beta1/labels.go`).
pub(crate) const POD_WORKSPACE: &str = "kaito.sh/workspace";

/// Name of the InferenceSet that owns the pod's Workspace (KAITO `pkg/utils/consts/consts.go`).
pub(crate) const POD_INFERENCE_SET: &str = "inferenceset.kaito.sh/created-by";

/// Ordinal of a StatefulSet's pod. The first pod of a Workspace serves the model; those on other nodes only compute (KAITO
/// `pkg/workspace/manifests/manifests.go`, GenerateServiceManifest).
pub(crate) const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Node label that every Workspace selects.
pub(crate) const NODE_OS: &str = "kubernetes.io/os";
