//! Helpers of the plan tests, here and in the core.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests, and not every test needs all of them"
)]

pub(crate) mod acme;
pub(crate) mod ssa;

use std::path::Path;

use serde::de::DeserializeOwned;

pub(crate) fn yaml<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
