//! What the `kubeairunway` command is made of, for the command itself, for tests and for `cargo xtask`.

pub mod manifests;
