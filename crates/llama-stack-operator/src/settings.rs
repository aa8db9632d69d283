//! Settings of the operator.

use std::collections::BTreeMap;

/// Distributions of the public releases, by name.
const KNOWN: [&str; 4] = ["starter", "remote-vllm", "meta-reference-gpu", "postgres-demo"];

/// Settings of the operator, the same for every LlamaStackDistribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of the operator, which runs `merge-config`. Without it, external providers are rejected.
    pub operator_image: Option<String>,
    /// The operator's version, for the status.
    pub operator_version: String,
    /// Namespace of the operator, which NetworkPolicies allow.
    pub operator_namespace: Option<String>,
    /// Images of distributions, by name.
    pub distributions: BTreeMap<String, String>,
    /// Create a NetworkPolicy for every server, not only if `spec.network.allowedFrom` is set.
    pub network_policies: bool,
    /// Disk space on a node for the external providers of a pod, such as `2Gi`.
    pub provider_volume_size: String,
    /// Domain of the cluster's Services.
    pub cluster_domain: String,
    /// User and volume group of pods. None if the cluster assigns them, as OpenShift does for each namespace.
    pub pod_user: Option<i64>,
}

/// Default user and volume group of pods. The public images have the files of group 0 and this group writable, for users that
/// they do not know (llama-stack, containers/Containerfile).
pub const POD_USER: i64 = 1001;

impl Default for Settings {
    fn default() -> Self {
        Self {
            operator_image: None,
            operator_version: env!("CARGO_PKG_VERSION").to_owned(),
            operator_namespace: None,
            distributions: KNOWN
                .iter()
                .map(|name| {
                    (
                        (*name).to_owned(),
                        format!("docker.io/llamastack/distribution-{name}:latest"),
                    )
                })
                .collect(),
            network_policies: false,
            provider_volume_size: "2Gi".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            pod_user: Some(POD_USER),
        }
    }
}
