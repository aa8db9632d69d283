//! Engines that KAITO supports.

use crate::family::Family;

/// Engine of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    LlamaCpp(Family),
}
