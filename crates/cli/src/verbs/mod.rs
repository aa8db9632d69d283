//! The verbs of the command, each with its arguments.
//!
//! | module | verbs |
//! |---|---|
//! | [`asya`] | `asya queue`, `asya dlq`, `asya send`, `asya result` |
//! | [`beside`] | ModelDeployments beside another one: stand-ins and canaries |
//! | [`change`] | `pause`, `resume`, `scale`, `delete` |
//! | [`chat`] | `chat` |
//! | [`deploy`] | `deploy` |
//! | [`diff`] | `diff` |
//! | [`edit`] | `edit` |
//! | [`explain`] | `why`, `tree`, `endpoint` |
//! | [`kit`] | `llama-stack provider new`, `llama-stack provider check` |
//! | [`logs`] | `logs` |
//! | [`look`] | `get`, `status` and `events` of every kind |
//! | [`migrate`] | `migrate` |
//! | [`offline`] | `render`, `validate` |
//! | [`proxy`] | `proxy` |
//! | [`rollout`] | `rollout start`, `rollout status`, `rollout promote`, `rollout revert` |
//! | [`route`] | `route` |
//! | [`selection`] | objects that a verb applies to |
//! | [`top`] | `top` |
//! | [`usage`] | `usage` |
//! | [`wait`] | the flag `--wait` |
//! | [`watch`] | the flag `--watch` of `get` |

pub mod arrival;
pub mod asya;
pub mod beside;
pub mod change;
pub mod chat;
pub mod deploy;
pub mod diff;
pub mod edit;
pub mod error;
pub mod explain;
pub mod kit;
pub mod logs;
pub mod look;
pub mod migrate;
pub mod offline;
pub mod proxy;
pub mod rollout;
pub mod route;
pub mod selection;
pub mod surge;
pub mod top;
pub mod usage;
pub mod wait;
pub mod watch;

pub use error::Error;
