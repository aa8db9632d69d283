//! Requests to a cluster.

pub mod access;
pub mod cluster;
pub mod diff;
pub mod operated;
pub mod queue;
pub mod source;
pub mod talk;
