//! Built-in kinds that the provider creates.

use runway_provider::{ChildRef, Kind, Upstream};

/// Runs the pods; its status is read.
pub const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments");

/// Service for the pods.
pub const SERVICE: Kind = Kind::new("", "v1", "Service", "services");

/// A built-in kind needs no schema.
pub(crate) fn upstreams() -> Vec<Upstream> {
    vec![Upstream {
        kind: DEPLOYMENT,
        schemas: &[],
    }]
}

/// Both objects have the name of the ModelDeployment.
pub(crate) fn children(name: &str) -> Vec<ChildRef> {
    [SERVICE, DEPLOYMENT]
        .map(|kind| ChildRef {
            kind,
            name: name.to_owned(),
        })
        .into()
}
