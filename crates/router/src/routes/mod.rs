//! HTTPRoutes and InferencePools for a Gateway of the cluster: the routes controller.
//!
//! It is a program of its own, `kubeairunway-gateway-routes`, and needs neither the router nor is needed by any other controller.
//! Modules, in reading order:
//!
//! | module | content |
//! |---|---|
//! | [`settings`] | arguments |
//! | [`kinds`] | kinds of the Gateway API, and the answers of its controllers; pure |
//! | [`claims`] | names of models at the Gateway; pure |
//! | [`pods`] | pods behind a Service; pure |
//! | `caches`, [`observe`] | everything that is read |
//! | [`plan`] | desired objects and the status; pure |
//! | [`run`](fn@run) | starts the controller |

mod caches;
pub mod claims;
pub mod kinds;
pub mod observe;
pub mod plan;
pub mod pods;
mod reconcile;
mod run;
pub mod settings;

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_api::labels;
use runway_operator::access::{named, rule};
use runway_operator::lease;

pub use run::run;
pub use settings::{Args, Settings};

/// Rules of the routes controller's ClusterRole: exactly what it uses.
pub fn access() -> Vec<PolicyRule> {
    let read = ["list", "watch"];
    let write = ["list", "watch", "create", "patch", "delete"];
    let crds = kinds::ALL.map(runway_operator::object::Kind::crd_name);
    let names: Vec<&str> = crds.iter().map(String::as_str).collect();
    vec![
        rule("kubeairunway.ai", &["modeldeployments"], &read),
        rule("kubeairunway.ai", &["modeldeployments/status"], &["patch"]),
        // Required for owner references that block deletion, in clusters that enforce it.
        rule("kubeairunway.ai", &["modeldeployments/finalizers"], &["update"]),
        rule(kinds::GATEWAY.group, &[kinds::GATEWAY.plural], &read),
        rule(kinds::HTTP_ROUTE.group, &[kinds::HTTP_ROUTE.plural], &write),
        rule(kinds::INFERENCE_POOL.group, &[kinds::INFERENCE_POOL.plural], &write),
        // Only with --endpoint-picker: the ports of the pods.
        rule("", &["services"], &read),
        rule("discovery.k8s.io", &["endpointslices"], &read),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        named(
            rule("apiextensions.k8s.io", &["customresourcedefinitions"], &read),
            &names,
        ),
    ]
}

/// Rules of the routes controller's Role in its own namespace: its Lease.
pub fn access_in_namespace() -> Vec<PolicyRule> {
    lease::access(labels::GATEWAY_MANAGER)
}
