//! Requests to a cluster.

pub mod access;
pub mod asya_gateway;
mod belongings;
pub mod cluster;
pub mod components;
pub mod daily_usage;
pub mod diff;
mod error;
pub mod fitting;
pub mod operated;
pub mod proxied;
pub mod queue;
pub mod router;
pub mod source;
pub mod talk;
pub mod usage;
