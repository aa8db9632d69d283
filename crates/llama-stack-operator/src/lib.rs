//! The Llama Stack operator: runs a Llama Stack server, with third-party providers installed at deploy time from images.
//!
//! | module | where it runs | what |
//! |---|---|---|
//! | [`validate`](fn@validate) | controller, `render` | what the CRD says, as a function: pure |
//! | [`observe`], [`plan`] | controller, `render` | what a plan is made from, and the plan: pure |
//! | [`kinds`], [`references`], [`settings`] | controller, `render` | created kinds, names that a spec refers to, and the configuration of the operator |
//! | [`run`](fn@run) | controller | starts it |
//! | [`merge`](mod@merge) | init container `merge-config` | base `run.yaml` + external providers → the server's `run.yaml`: pure |
//! | [`merge_config`] | init container `merge-config` | reads the files for it, and writes them |
//! | [`requests`] | controller, command | HTTP requests to servers |
//! | [`pod`] | | the scripts that run in provider and distribution images, and their input |

mod access;
mod caches;
mod config_maps;
pub mod kinds;
pub mod merge;
pub mod merge_config;
pub mod observe;
pub mod plan;
pub mod pod;
mod reconcile;
pub mod references;
pub mod requests;
mod run;
mod servers;
pub mod settings;
mod validate;

pub use access::{access, access_in_namespace};
pub use run::{RunArgs, assigns_users, run};
pub use validate::validate;
