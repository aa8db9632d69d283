//! The verbs of the command, each with its arguments.
//!
//! | module | verbs |
//! |---|---|
//! | [`asya`] | `asya queue`, `asya dlq`, `asya send`, `asya result` |
//! | [`change`] | `pause`, `resume`, `delete` |
//! | [`chat`] | `chat` |
//! | [`deploy`] | `deploy` |
//! | [`diff`] | `diff` |
//! | [`explain`] | `why`, `tree`, `endpoint` |
//! | [`kit`] | `llama-stack provider new`, `llama-stack provider check` |
//! | [`logs`] | `logs` |
//! | [`look`] | `get`, `status` and `events` of every kind |
//! | [`migrate`] | `migrate` |
//! | [`offline`] | `render`, `validate` |
//! | [`top`] | `top` |
//! | [`wait`] | the flag `--wait` |

pub mod arrival;
pub mod asya;
pub mod change;
pub mod chat;
pub mod deploy;
pub mod diff;
pub mod error;
pub mod explain;
pub mod kit;
pub mod logs;
pub mod look;
pub mod migrate;
pub mod offline;
pub mod surge;
pub mod top;
pub mod wait;

pub use error::Error;
