//! The `kubeairunway` command as a library, for the command itself, for tests and for `dev/generate`. The content that it shows
//! comes from `runway-client`, `runway-doctor` and `runway-llama-stack-kit`.
//!
//! | module | content |
//! |---|---|
//! | [`args`], [`commands`] | the command line, and dispatch to the commands |
//! | [`verbs`] | the verbs about models, actors and distributions |
//! | [`install`] | installs, upgrades and removes the product |
//! | [`check`] | problems of a cluster |
//! | [`support_bundle`] | archive of diagnostics for support |
//! | [`complete`] | candidates at the cursor, for shells and kubectl |
//! | [`ui`] | serves the web console |
//! | [`version`] | versions of the command and in the cluster |
//! | [`answer`], [`exit`] | output, errors and exit codes of commands |
//! | [`terminal`], [`patience`] | progress messages and questions; timeouts |

pub mod answer;
pub mod args;
pub mod check;
pub mod commands;
pub mod complete;
pub mod exit;
pub mod install;
pub mod patience;
pub mod support_bundle;
pub mod terminal;
pub mod ui;
pub mod verbs;
pub mod version;
