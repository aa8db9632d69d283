//! The small shared runtime of every controller. Helpers you call, not a framework that calls you. No domain words.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | command line arguments and the client made from them |
//! | [`plan`] | what a pure planner returns: objects, deletions, status, events |
//! | [`apply`] | the one place that writes |
//! | [`echo`] | what we wrote and the watch has not shown yet |
//! | [`watch`] | reflected watches that one bad object cannot stop |
//! | [`controller`] | runs a reconcile function with per-object backoff |
//! | [`webhook`] | TLS for webhooks: authority, leaf, CA bundle, server |
//! | [`access`] | RBAC rules |
//! | [`json`] | containment and stable hashes of JSON |
//! | [`clock`], [`telemetry`], [`shutdown`] | the edges of a process |

pub mod access;
pub mod apply;
pub mod client;
pub mod clock;
pub mod controller;
pub mod echo;
pub mod events;
pub mod json;
pub mod plan;
pub mod shutdown;
pub mod telemetry;
pub mod watch;
pub mod webhook;
