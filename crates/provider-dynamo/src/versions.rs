//! Default images. Made by `cargo xtask gen` from `versions.toml`. Do not edit.

/// Dynamo's runtime.
pub(crate) const DYNAMO: [u32; 3] = [1, 6, 0];
