//! The model router: one OpenAI-compatible address for all models of a cluster.
//!
//! A request names a model. The router finds its ModelDeployment, checks that the caller may get it, and passes the request on to
//! its endpoint; a model that is scaled to zero is woken first. Modules, in reading order:
//!
//! | module | content |
//! |---|---|
//! | [`server`] | the HTTP API |
//! | [`requested`], [`model`], [`table`] | from the name in a request to a model; pure |
//! | [`models`] | the models of the cluster, from one watch |
//! | [`rights`], [`keys`] | identity and rights of callers |
//! | [`serving`] | waits until a model serves |
//! | [`scale`] | wakes models that are scaled to zero |
//! | [`engine`], [`addresses`], [`names`] | requests to engines |
//! | [`revocable`] | responses that end with the right of their caller |
//! | [`refused`], [`metrics`], [`spans`] | refusals, metrics, traces |
//! | [`run`](fn@run) | starts the router |
//! | [`routes`] | the routes controller, a program of its own: HTTPRoutes at a Gateway of the cluster |

pub mod addresses;
pub mod engine;
pub mod keys;
pub mod metrics;
pub mod model;
pub mod models;
pub mod names;
pub mod refused;
pub mod requested;
pub mod revocable;
pub mod rights;
pub mod routes;
mod run;
pub mod scale;
pub mod server;
pub mod serving;
pub mod spans;
pub mod table;

use k8s_openapi::api::rbac::v1::PolicyRule;

pub use run::{AUDIENCE, Args, Error, run, run_on, run_with};

/// Permissions of the router: to read and wake models, to find their addresses, and to ask about callers.
pub fn access() -> Vec<PolicyRule> {
    let mut rules = scale::access();
    rules.extend(addresses::access());
    rules.extend(runway_callers::access());
    rules
}
