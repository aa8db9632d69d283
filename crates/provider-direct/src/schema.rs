//! The kinds of Kubernetes' own that are made.

use runway_provider::{ChildRef, Kind, Upstream};

/// Runs the pods; its status is read.
pub const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments");

/// Gives the pods one address.
pub const SERVICE: Kind = Kind::new("", "v1", "Service", "services");

/// A built-in kind needs no schema.
pub(crate) fn upstreams() -> Vec<Upstream> {
    vec![Upstream {
        kind: DEPLOYMENT,
        schemas: &[],
    }]
}

/// Both objects have the ModelDeployment's name.
pub(crate) fn children(name: &str) -> Vec<ChildRef> {
    [SERVICE, DEPLOYMENT]
        .map(|kind| ChildRef {
            kind,
            name: name.to_owned(),
        })
        .into()
}
