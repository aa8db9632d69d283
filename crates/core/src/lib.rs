//! The ModelDeployment core controller: admission, selection, status. Knows no provider.
//!
//! | module | what |
//! |---|---|
//! | [`admission`] | defaults, validation, and the webhook server |
//! | [`rules`] | CEL rules, bounded |
//! | [`providers`], [`registry`] | the registered providers, and who keeps the list current |
//! | [`selection`] | which provider serves a ModelDeployment: pure |
//! | [`observe`], [`plan`] | what a plan is made from, and the plan: pure |
//! | [`conversion`] | ModelDeployments between versions of the API: pure |
//! | [`metrics`] | what is told of ModelDeployments |
//! | [`run`](fn@run), [`serve`] | start the controller, and the admission server |

mod access;
pub mod admission;
pub mod conversion;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod providers;
mod reconcile;
pub mod registry;
pub mod rules;
mod run;
pub mod selection;
pub mod serve;

pub use access::{access, access_in_namespace};
pub use registry::Registry;
pub use run::run;
