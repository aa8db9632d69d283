//! What happens to a ModelDeployment before it is stored: defaulting, then validation.
//!
//! | module | what |
//! |---|---|
//! | [`defaults`] | what is filled in, pure |
//! | [`syntax`] | what small texts look like |
//! | [`validate`](mod@validate) | what is refused and what is warned of, pure; asked again at reconcile, and by `render` |
//! | [`handlers`] | the two webhooks, as an axum router |
//! | [`manifests`] | the objects that tell the API server of them |

pub mod defaults;
pub mod handlers;
pub mod manifests;
pub mod syntax;
#[cfg(test)]
mod tests;
pub mod validate;

pub use defaults::apply_defaults;
pub use validate::{Findings, Violation, validate};
