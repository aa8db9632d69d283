//! The small shared runtime of every controller. Helpers you call, not a framework that calls you. No domain words.
//!
//! | module | what |
//! |---|---|
//! | [`process`] | a controller's process: its arguments, and what its parts share |
//! | [`client`] | command line arguments and the client made from them |
//! | [`plan`] | what a pure planner returns: objects, deletions, status, events |
//! | [`apply`] | the one place that writes |
//! | [`echo`] | what we wrote and the watch has not shown yet |
//! | [`crd`] | what is asked of a CustomResourceDefinition |
//! | [`watch`] | reflected watches that one bad object cannot stop |
//! | [`object`] | objects created for another one: kinds, owner, deletion, comparison with the live object |
//! | [`store`], [`packed`] | the objects of a watch, each kept in the least form; an object as compressed text |
//! | [`controller`] | runs a reconcile function with backoff per object, and executes its plans |
//! | [`lease`] | leader election |
//! | [`admin`], [`metrics`] | `/healthz`, `/readyz` and `/metrics` |
//! | [`webhook`] | TLS for webhooks: authority, leaf, CA bundle, server |
//! | [`access`] | RBAC rules |
//! | [`kubelet`] | how far a pod has come, and what keeps it |
//! | [`services`] | bounded HTTP requests to Services |
//! | [`json`] | containment, size and stable hashes of JSON |
//! | [`quantity`] | amounts of memory and processors as the API server stores them |
//! | [`trace`] | one trace per life of an object |
//! | [`clock`], [`telemetry`], [`shutdown`] | the edges of a process |

pub mod access;
pub mod admin;
pub mod apply;
pub mod client;
pub mod clock;
pub mod controller;
pub mod crd;
pub mod echo;
pub mod events;
pub mod json;
pub mod kubelet;
pub mod lease;
pub mod metrics;
pub mod object;
pub mod packed;
pub mod plan;
pub mod process;
pub mod quantity;
pub mod services;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod trace;
pub mod watch;
pub mod webhook;

/// Former names in [`object`], for the last crate that uses them.
pub mod child {
    pub use crate::object::{controller, is_ours as is_made_for, manager_of, taken, wanted};
}
