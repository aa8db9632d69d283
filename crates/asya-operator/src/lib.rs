//! The AsyncActor operator: it runs a workload behind a message queue, or binds an existing one to a queue.
//!
//! | module | content |
//! |---|---|
//! | [`transports`] | the transports that the operator is configured with |
//! | [`request`] | the spec of an actor, in narrow types: pure |
//! | [`targets`] | the table of targets: workload, strategy and URL of each kind: pure |
//! | `ports` | the port of the model in a pod: pure |
//! | `formula` | names in a formula of KEDA: pure |
//! | [`names`] | names of created objects and queues: pure |
//! | [`object`] | kinds, names and lookup results of objects: pure |
//! | [`needs`] | the objects that a plan reads: pure |
//! | [`queue`] | names, state and work of an actor's queues: pure |
//! | [`observe`], [`plan`] | the observed state, and the plan for it: pure |
//! | [`rivals`] | bindings of the actors of a namespace, of which two may claim the same object |
//! | [`policy`] | admission policy: authorization of bindings |
//! | [`run`](fn@run) | starts the operator |

mod access;
mod caches;
mod configuration;
mod formula;
pub mod names;
pub mod needs;
pub mod object;
pub mod observe;
pub mod plan;
pub mod policy;
mod ports;
pub mod queue;
mod queues;
mod reconcile;
pub mod request;
pub mod rivals;
mod run;
pub mod targets;

pub use access::{access, access_in_namespace};
pub use reconcile::{ActorArgs, Args};
pub use run::run;
pub use runway_asya_transport::args::{SecretsArgs, TransportArgs};
pub use runway_asya_transport::settings as transports;

/// Source of the runtime that standalone actors mount.
pub const RUNTIME_SCRIPT: &str = include_str!("../../../python/asya-runtime/src/asya_runtime/runtime.py");
