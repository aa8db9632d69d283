//! The `kubeairunway` command as a library, for the command itself, for tests and for `cargo xtask`. The content that it shows
//! comes from `runway-client`.
//!
//! | module | content |
//! |---|---|
//! | [`args`], [`commands`] | the command line, and dispatch of each command |
//! | [`check`] | problems of a cluster |
//! | [`complete`] | candidates at the cursor, for shells and kubectl |
//! | [`install`] | installs, upgrades and removes the product |
//! | [`support_bundle`] | archive of diagnostics for support |
//! | [`migrate`] | migrates a ModelDeployment to another provider |
//! | [`patience`] | timeouts and progress messages |
//! | [`ui`] | serves the web console |
//! | [`version`] | versions of the command and in the cluster |
//! | [`verbs`] | all other verbs |

pub mod args;
pub mod check;
pub mod commands;
pub mod complete;
pub mod install;
pub mod migrate;
pub mod patience;
pub mod support_bundle;
pub mod ui;
pub mod verbs;
pub mod version;
