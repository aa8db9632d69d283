//! Functions that read manifests instead of a cluster.

pub mod deploy;
pub mod documents;
pub mod render;
pub mod state;
mod unknown;
pub mod validate;
pub mod why;
