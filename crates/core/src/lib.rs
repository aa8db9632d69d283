//! The ModelDeployment core controller: admission, selection, status. Knows no provider.
//!
//! | module | what |
//! |---|---|
//! | [`admission`] | defaults, validation, and the webhook server |
//! | [`rules`] | CEL rules, bounded |
//! | [`providers`], [`registry`] | registered providers, and their current snapshot |
//! | [`selection`] | selection of a provider for a ModelDeployment: pure |
//! | [`autoscalers`] | autoscalers of ModelDeployments, and what exists of them |
//! | [`observe`], [`plan`] | observed state, and the plan: pure |
//! | [`conversion`] | ModelDeployments between versions of the API: pure |
//! | [`metrics`] | metrics about ModelDeployments |
//! | [`run`](fn@run), [`serve`] | start the controller, and the admission server |

mod access;
pub mod admission;
pub mod autoscalers;
mod caches;
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
pub mod task;

pub use access::{access, access_in_namespace};
pub use registry::Registry;
pub use run::run;
