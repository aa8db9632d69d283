//! The kinds that the operator creates, and the names of its objects for one LlamaStackDistribution.

/// Number of pods, by load.
pub use runway_operator::autoscaler::HORIZONTAL_POD_AUTOSCALER as AUTOSCALER;
pub use runway_operator::object::Kind;

/// Identity of the pods.
pub const SERVICE_ACCOUNT: Kind = Kind::new("", "v1", "ServiceAccount", "serviceaccounts");
/// CA bundle, and the scripts of the init containers.
pub const CONFIG_MAP: Kind = Kind::new("", "v1", "ConfigMap", "configmaps");
/// The server's data.
pub const CLAIM: Kind = Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");
/// Endpoint of the server inside the cluster.
pub const SERVICE: Kind = Kind::new("", "v1", "Service", "services");
/// Clients that may reach the server.
pub const NETWORK_POLICY: Kind = Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies");
/// Endpoint of the server outside the cluster.
pub const INGRESS: Kind = Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses");
/// Number of pods that an eviction must leave.
pub const DISRUPTION_BUDGET: Kind = Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets");
/// The pods.
pub const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments");

/// A model that a provider refers to. Its CRD may be installed later, or never.
pub const MODEL_DEPLOYMENT: Kind = Kind::new("kubeairunway.ai", "v1alpha1", "ModelDeployment", "modeldeployments");

/// Every kind that the operator creates.
pub const ALL: [Kind; 9] = [
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    CLAIM,
    SERVICE,
    NETWORK_POLICY,
    INGRESS,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    AUTOSCALER,
];

/// Name of the ServiceAccount, unless the user names one.
pub fn service_account(name: &str) -> String {
    format!("{name}-sa")
}

/// Name of the Service.
pub fn service(name: &str) -> String {
    format!("{name}-service")
}

/// Name of the claim.
pub fn claim(name: &str) -> String {
    format!("{name}-pvc")
}

/// Name of the ConfigMap with the CA bundle.
pub fn ca_bundle(name: &str) -> String {
    format!("{name}-ca-bundle")
}

/// Name of the ConfigMap with the scripts of the init containers.
pub fn scripts(name: &str) -> String {
    format!("{name}-scripts")
}

/// Every object that can exist for a LlamaStackDistribution, in the order of creation.
pub fn children(name: &str) -> [(Kind, String); 10] {
    [
        (SERVICE_ACCOUNT, service_account(name)),
        (CONFIG_MAP, scripts(name)),
        (CONFIG_MAP, ca_bundle(name)),
        (CLAIM, claim(name)),
        (SERVICE, service(name)),
        (NETWORK_POLICY, format!("{name}-network-policy")),
        (INGRESS, format!("{name}-ingress")),
        (DISRUPTION_BUDGET, format!("{name}-pdb")),
        (DEPLOYMENT, name.to_owned()),
        (AUTOSCALER, format!("{name}-hpa")),
    ]
}
