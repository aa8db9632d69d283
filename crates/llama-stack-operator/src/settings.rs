//! What the operator is told when it starts.

use std::collections::BTreeMap;

/// Distributions of the public releases, by name.
const KNOWN: [&str; 4] = ["starter", "remote-vllm", "meta-reference-gpu", "postgres-demo"];

/// What the operator is told when it starts. The same for every LlamaStackDistribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The operator's own image: `merge-config` runs from it. Without it external providers are refused.
    pub operator_image: Option<String>,
    /// The operator's version, for the status.
    pub operator_version: String,
    /// The operator's namespace: NetworkPolicies let it in.
    pub operator_namespace: Option<String>,
    /// Images of distributions, by name.
    pub distributions: BTreeMap<String, String>,
    /// A NetworkPolicy for every server, not only where `spec.network.allowedFrom` is given.
    pub network_policies: bool,
    /// The most that external providers may take on a node's disk, as `2Gi`.
    pub provider_volume_size: String,
    /// Domain of the cluster's Services.
    pub cluster_domain: String,
}

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
        }
    }
}
