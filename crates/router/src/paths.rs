//! Paths of the API that are passed on to engines.
//!
//! Only these: engines also have paths that are not for callers, some of them below `/v1/`, such as vLLM's
//! `/v1/load_lora_adapter`. What an engine does not have, it answers itself.

/// A path of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Path in requests of callers.
    pub path: &'static str,
    /// Path at the engine.
    pub at_engine: &'static str,
    /// Content of a request.
    pub content: Content,
    /// A stream has its tokens with `stream_options.include_usage`.
    pub has_stream_options: bool,
}

/// Content of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// An object of JSON.
    Json,
    /// A form with files: `multipart/form-data`.
    Form,
}

const fn json(path: &'static str) -> Endpoint {
    Endpoint {
        path,
        at_engine: path,
        content: Content::Json,
        has_stream_options: false,
    }
}

const fn form(path: &'static str) -> Endpoint {
    Endpoint {
        content: Content::Form,
        ..json(path)
    }
}

const fn streamed(path: &'static str) -> Endpoint {
    Endpoint {
        has_stream_options: true,
        ..json(path)
    }
}

/// A path that engines have without `/v1`.
const fn at_root(path: &'static str, at_engine: &'static str) -> Endpoint {
    Endpoint {
        at_engine,
        ..json(path)
    }
}

/// All paths.
pub const ENDPOINTS: [Endpoint; 18] = [
    streamed("/v1/chat/completions"),
    streamed("/v1/completions"),
    json("/v1/responses"),
    json("/v1/messages"),
    json("/v1/messages/count_tokens"),
    json("/v1/embeddings"),
    json("/v1/rerank"),
    json("/v1/score"),
    at_root("/v1/classify", "/classify"),
    at_root("/v1/pooling", "/pooling"),
    at_root("/v1/tokenize", "/tokenize"),
    at_root("/v1/detokenize", "/detokenize"),
    json("/v1/audio/speech"),
    form("/v1/audio/transcriptions"),
    form("/v1/audio/translations"),
    json("/v1/images/generations"),
    form("/v1/images/edits"),
    form("/v1/images/variations"),
];

/// Paths of Anthropic's API.
const ANTHROPIC: &str = "/v1/messages";

impl Endpoint {
    /// The endpoint at a path.
    pub fn at(path: &str) -> Option<Self> {
        ENDPOINTS.into_iter().find(|endpoint| endpoint.path == path)
    }
}

/// Whether a path belongs to Anthropic's API, whose errors have another form.
pub fn is_anthropic(path: &str) -> bool {
    path.strip_prefix(ANTHROPIC)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_administer_an_engine_are_not_passed_on() {
        for path in [
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/v1/chat/completions/",
            "/metrics",
            "",
        ] {
            assert_eq!(Endpoint::at(path), None, "{path}");
        }
        assert_eq!(
            Endpoint::at("/v1/tokenize").map(|endpoint| endpoint.at_engine),
            Some("/tokenize")
        );
    }

    #[test]
    fn anthropic_paths_are_recognized() {
        assert!(is_anthropic("/v1/messages") && is_anthropic("/v1/messages/count_tokens"));
        assert!(!is_anthropic("/v1/messagesx") && !is_anthropic("/v1/chat/completions"));
    }
}
