//! The AsyncActor operator: a queue in front of a workload, the actor's own or somebody else's.
//!
//! | module | what |
//! |---|---|
//! | [`transports`] | the transports that the operator is configured with |
//! | [`request`] | what an actor asks for, in narrow types: pure |
//! | [`targets`] | the table of targets: what each comes down to, and how it is bound: pure |
//! | [`names`] | names of what is made: pure |
//! | [`object`] | kinds, names and lookup results of objects: pure |
//! | [`needs`] | the objects that a plan reads: pure |
//! | [`observe`], [`plan`] | what a plan is made from, and the plan: pure |
//! | [`policy`] | who may bind |
//! | [`run`](fn@run) | starts the operator |

mod access;
mod caches;
mod configuration;
pub mod names;
pub mod needs;
pub mod object;
pub mod observe;
pub mod plan;
pub mod policy;
mod queues;
mod reconcile;
pub mod request;
mod run;
pub mod targets;
pub mod transports;

pub use access::{access, access_in_namespace};
pub use reconcile::{ActorArgs, Args};
pub use run::run;

/// The runtime that standalone actors mount.
pub const RUNTIME_SCRIPT: &str = include_str!("../../../python/asya-runtime/src/asya_runtime/runtime.py");
