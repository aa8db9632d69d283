//! The model router: one OpenAI-compatible address for all models of a cluster.
//!
//! A request names a model. The router finds its ModelDeployment, checks that the caller may get it, and passes the request on to
//! its endpoint; a model that is scaled to zero is woken first. Modules, in reading order:
//!
//! | module | content |
//! |---|---|
//! | [`server`] | the HTTP API |
//! | [`paths`], [`requested`], [`form`], [`prompt`] | the parts of a request that the router reads; pure |
//! | [`model`], [`table`] | from the name in a request to a model; pure |
//! | [`models`] | the models of the cluster, from one watch |
//! | [`rights`], [`keys`], [`pattern`], [`mod@file`] | identity and rights of callers |
//! | [`limits`], [`quantity`] | limits of requests and tokens |
//! | [`serving`], [`canaries`] | waits until a model serves; the part of its requests for a canary |
//! | [`scale`] | wakes models that are scaled to zero |
//! | [`engine`], [`names`] | requests to engines |
//! | [`addresses`], [`balance`], [`pool`], [`body`] | the replica and the connection of a request |
//! | [`usage`], [`metered`], [`daily`] | tokens of responses, and their sums by day |
//! | [`revocable`] | responses that end with the right of their caller |
//! | [`refused`], [`metrics`], [`recent`], [`spans`] | refusals, metrics, traces |
//! | [`picker`] | the endpoint picker of Gateways, which send the requests themselves |
//! | [`run`](fn@run) | starts the router |
//! | [`routes`] | the routes controller, a program of its own: HTTPRoutes at a Gateway of the cluster |

pub mod addresses;
pub mod balance;
pub mod body;
pub mod canaries;
pub mod daily;
pub mod engine;
pub mod file;
pub mod form;
pub mod keys;
pub mod limits;
pub mod metered;
pub mod metrics;
pub mod model;
pub mod models;
pub mod names;
pub mod paths;
pub mod pattern;
pub mod picker;
pub mod pool;
pub mod prompt;
pub mod quantity;
pub mod recent;
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
pub mod usage;

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_operator::access::rule;

pub use run::{AUDIENCE, Args, Error, run, run_on, run_with};

/// Permissions of the router: to read and wake models, to find their addresses, to ask about callers, and to report canaries.
pub fn access() -> Vec<PolicyRule> {
    let mut rules = scale::access();
    rules.extend(addresses::access());
    rules.extend(runway_callers::access());
    rules.push(rule("events.k8s.io", &["events"], &["create", "patch"]));
    rules
}
