//! What the `kubeairunway` command is made of, for the command itself, for tests and for `cargo xtask`. What it shows comes
//! from `runway-client`.
//!
//! | module | what |
//! |---|---|
//! | [`args`], [`commands`] | the command line, and what each command does |
//! | [`check`] | what is not as it should be in a cluster |
//! | [`complete`] | what may stand at the cursor, for shells and kubectl |
//! | [`install`] | brings the product into a cluster, and out again |
//! | [`support_bundle`] | an archive for who is to help |
//! | [`migrate`] | moves a ModelDeployment to another provider |
//! | [`patience`] | waiting |
//! | [`ui`] | serves the web console |
//! | [`version`] | what is of which version |
//! | [`verbs`] | every other verb that talks to the cluster for more than a look |

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
