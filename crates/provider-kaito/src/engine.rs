//! Engines that KAITO supports.

use runway_provider::engine::{Dialect, LLAMACPP, VLLM};

use crate::family::Family;

/// Port of the container that KAITO's Service sends requests to (KAITO `pkg/workspace/manifests/manifests.go`).
pub const PORT: i32 = 5000;

/// Engine of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    LlamaCpp(Family),
}

impl Engine {
    /// Command line of the server.
    pub(crate) fn dialect(self) -> &'static Dialect {
        match self {
            Self::Vllm => &VLLM,
            Self::LlamaCpp(family) if family.is_llama_server() => &LLAMACPP,
            Self::LlamaCpp(_) => &LOCAL_AI,
        }
    }
}

/// LocalAI, as far as its flags are known (LocalAI `core/cli/run.go`, RunCMD). An image of another server may have llama.cpp's flag for
/// the name.
const LOCAL_AI: Dialect = Dialect {
    context_length: Ok("context-size"),
    model_flags: &["model"],
    ..LLAMACPP
};
