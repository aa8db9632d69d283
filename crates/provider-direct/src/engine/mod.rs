//! The command lines of the engines. A new engine is a module with a [`Dialect`], and a line in [`ALL`].

mod llamacpp;
mod sglang;
mod trtllm;
mod vllm;

use std::collections::BTreeMap;

/// Every engine.
pub(crate) const ALL: [&Dialect; 4] = [&llamacpp::DIALECT, &vllm::DIALECT, &sglang::DIALECT, &trtllm::DIALECT];

/// An engine's server: how it is started, and what its command line calls things.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// The name in `engine.type`.
    pub(crate) name: &'static str,
    /// The name in messages.
    pub(crate) title: &'static str,
    /// Image for NVIDIA GPUs.
    pub(crate) gpu_image: &'static str,
    /// Image for models without GPUs; `None` if the engine needs GPUs.
    pub(crate) cpu_image: Option<&'static str>,
    /// Command of the server; empty where every image's own entrypoint is the server.
    pub(crate) command: &'static [&'static str],
    /// Port on which the server listens by default.
    pub(crate) port: u16,
    /// Arguments that load a model from Hugging Face by its id.
    pub(crate) from_hub: fn(&str) -> Vec<String>,
    /// Arguments that load a model from a path in the image.
    pub(crate) from_path: fn(&str) -> Vec<String>,
    /// Flags that name a model. `model.id` does that, so they are refused beside it.
    pub(crate) model_flags: &'static [&'static str],
    /// How the engine is told the name that clients use.
    pub(crate) served_name: ServedName,
    /// Flag for the longest context, or why there is none.
    pub(crate) context_length: Result<&'static str, &'static str>,
    /// Flag for trust in code that comes with a model, or why there is none.
    pub(crate) trust_remote_code: Result<&'static str, &'static str>,
    /// Flag for the number of GPUs over which each layer is spread; `None` if the engine uses all GPUs unasked.
    pub(crate) tensor_parallel: Option<&'static str>,
    /// Variable that says where downloads are kept.
    pub(crate) cache_variable: &'static str,
}

/// How an engine is told the name under which `/v1/models` lists the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedName {
    /// By a flag.
    Flag(&'static str),
    /// Not at all, and why: the name follows from where the model is loaded.
    Fixed(&'static str),
}

/// Flags by which a user decides how a model is spread over GPUs.
pub(crate) const PARALLEL: [&str; 12] = [
    "tensor-parallel-size",
    "tp-size",
    "tp",
    "pipeline-parallel-size",
    "pp-size",
    "pp",
    "data-parallel-size",
    "dp-size",
    "dp",
    "context-parallel-size",
    "cp-size",
    // Of vLLM, as for the three above: GPUs are the product of all. Its decode-context-parallel-size takes none of its own.
    "prefill-context-parallel-size",
];

/// The engine of this name.
pub(crate) fn find(name: &str) -> Option<&'static Dialect> {
    ALL.into_iter().find(|dialect| dialect.name == name)
}

/// A flag as it is spelled in `args`: dashes and underscores are the same.
pub(crate) fn flag<'a>(args: &'a BTreeMap<String, String>, name: &str) -> Option<(&'a str, &'a str)> {
    let wanted = name.replace('_', "-");
    args.iter()
        .find(|(key, _)| key.replace('_', "-") == wanted)
        .map(|(key, value)| (key.as_str(), value.as_str()))
}
