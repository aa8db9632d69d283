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
    /// Command line of the engine's own server. LocalAI's differs in the flags for the model, its name and the context length.
    pub(crate) fn dialect(self) -> &'static Dialect {
        match self {
            Self::Vllm => &VLLM,
            Self::LlamaCpp(_) => &LLAMACPP,
        }
    }

    /// Whether the command line is that of the engine's own server.
    pub(crate) fn is_own_server(self) -> bool {
        match self {
            Self::Vllm => true,
            Self::LlamaCpp(family) => family.is_llama_server(),
        }
    }

    /// Flag for the maximum context length, or why there is none (LocalAI `core/cli/run.go`, RunCMD).
    pub(crate) fn context_length(self) -> Result<&'static str, &'static str> {
        if self.is_own_server() {
            self.dialect().context_length
        } else {
            Ok("context-size")
        }
    }

    /// Flags that name a model.
    pub(crate) fn model_flags(self) -> &'static [&'static str] {
        if self.is_own_server() {
            self.dialect().model_flags
        } else {
            &["model"]
        }
    }
}
