//! The front door of Asya: submits jobs to actors, and keeps their results.
//!
//! A job is accepted when it is on disk and the broker has confirmed its message. Its result arrives on a durable reply queue, and
//! is acknowledged when it is on disk. A kill at any point therefore loses no accepted job. Modules, in reading order:
//!
//! | module | content |
//! |---|---|
//! | [`server`] | the HTTP API |
//! | [`submission`], [`job`] | from a request to a job and its message, and to what callers see; pure |
//! | [`gateway`] | the life of a job |
//! | [`store`] | jobs and results on disk |
//! | [`shown`], [`memory`] | a job as JSON, and the memory for it |
//! | [`waits`] | waiting requests |
//! | [`callback`] | calls of URLs |
//! | [`refused`], [`metrics`] | refusals, metrics |
//! | [`run`](fn@run) | starts the gateway |

pub mod callback;
pub mod gateway;
pub mod job;
pub mod memory;
pub mod metrics;
pub mod refused;
mod run;
pub mod server;
pub mod shown;
pub mod store;
pub mod submission;
pub mod waits;

pub use run::{AUDIENCE, Args, Error, run};
