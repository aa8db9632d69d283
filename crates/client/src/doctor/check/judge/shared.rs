//! Helpers of the judges.

use std::sync::LazyLock;

use crate::doctor::check::{Finding, Skip};
use crate::manifests::{self, Component};

/// Components of the product, computed once because schemas are expensive.
pub(super) static COMPONENTS: LazyLock<Vec<Component>> = LazyLock::new(manifests::components);

/// Skips a check without objects.
pub(super) fn unless_none<T>(all: &[T], what: &str) -> Result<(), Skip> {
    if all.is_empty() {
        return Err(Skip(format!("no {what}")));
    }
    Ok(())
}

/// Findings about each object.
pub(super) fn each<T>(all: &[T], find: impl Fn(&T) -> Option<Finding>) -> Vec<Finding> {
    all.iter().filter_map(find).collect()
}
