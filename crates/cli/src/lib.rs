//! What the `kubeairunway` command is made of, for the command itself, for tests and for `cargo xtask`.
//!
//! | module | what |
//! |---|---|
//! | [`render`](mod@render) | the offline face of `plan`: pure |
//! | [`get`], [`status`], [`why`] | what people see of a ModelDeployment: pure |
//! | [`documents`], [`state`] | files become documents, documents become what a cluster holds |
//! | [`source`], [`cluster`] | what the commands that look read from |
//! | [`args`], [`commands`] | the command line, and what each command does |
//! | [`manifests`] | what must be in a cluster for the control plane to run |
//! | [`text`], [`diagnostic`] | what goes to stdout, and what goes to stderr |

pub mod args;
pub mod cluster;
pub mod commands;
pub mod diagnostic;
pub mod documents;
pub mod get;
pub mod manifests;
pub mod render;
pub mod source;
pub mod state;
pub mod status;
pub mod text;
pub mod why;

pub use render::render;
