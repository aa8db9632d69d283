//! Admission of ModelDeployments: defaults, then validation.
//!
//! | module | what |
//! |---|---|
//! | [`capabilities`](mod@capabilities) | whether the provider supports the spec, pure; at admission only |
//! | [`defaults`] | default values, pure |
//! | [`validate`](mod@validate) | violations and warnings, pure; also used at reconcile and by `render` |
//! | `model_id` | remedies for a URL in the place of an ID on the hub |
//! | [`handlers`] | the two webhooks, as an axum router |
//! | [`manifests`] | webhook configurations |

pub mod capabilities;
pub mod defaults;
pub mod handlers;
pub mod manifests;
mod model_id;
#[cfg(test)]
mod tests;
pub mod validate;

pub use capabilities::capabilities;
pub use defaults::apply_defaults;
pub use model_id::id_on_hub;
pub use validate::{Findings, Violation, validate};
