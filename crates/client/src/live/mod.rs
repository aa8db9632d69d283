//! Requests to a cluster.

pub mod access;
mod belongings;
pub mod cluster;
pub mod diff;
mod error;
pub mod operated;
pub mod queue;
pub mod source;
pub mod talk;
