//! llama.cpp's `llama-server`. Its flags are those of `llama-server --help` of build 11669 (`common/arg.cpp`).
//!
//! `/health` answers 503 until the model is loaded. Without `--hf-file`, `--hf-repo` loads the repository's Q4_K_M file, or its
//! first. The images' entrypoint is the server (`.devops/cpu.Dockerfile`), in a directory that is not in the PATH. With several
//! GPUs it distributes a model's layers over all of them.

use std::collections::BTreeMap;

use super::{Dialect, Metrics, versions};
use crate::flags::find;
use crate::{Refusal, refuse};

/// llama.cpp.
pub const LLAMACPP: Dialect = Dialect {
    name: "llamacpp",
    title: "llama.cpp",
    gpu_image: versions::LLAMACPP_CUDA,
    cpu_image: Some(versions::LLAMACPP),
    command: &[],
    port: 8080,
    from_hub,
    from_path: |path| vec!["--model".to_owned(), path.to_owned()],
    model_flags: &["model", "hf-repo", "hf", "hfr", "model-url", "mu", "docker-repo", "dr"],
    served_name: Ok("alias"),
    listed_name,
    context_length: Ok("ctx-size"),
    trust_remote_code: Err("llama.cpp runs no code that comes with a model"),
    tensor_parallel: None,
    // The first directory that llama.cpp reads (`common/common.cpp`, fs_get_cache_directory), also before it shared Hugging Face's
    // cache (`common/hf-cache.cpp`).
    cache_variable: "LLAMA_CACHE",
    compilation_cache_variable: None,
    metrics_flag: Some("metrics"),
    metrics: Some(METRICS),
};

/// Metrics (llama.cpp `tools/server/server-context.cpp`, build 11669). The tokens of a request are counted when it ends.
pub const METRICS: Metrics = Metrics {
    family: "llamacpp:",
    running: "llamacpp:requests_processing",
    waiting: "llamacpp:requests_deferred",
    tokens: "llamacpp:tokens_predicted_total",
    tokens_per_second: None,
    kv_cache: &[],
    first_token: None,
};

/// Flag for the file to load from a repository. Without it, the server loads the Q4_K_M file, or the first.
pub const FILE: &str = "hf-file";

/// The file in `engine.args`: the key and the value.
pub fn file_in(args: &BTreeMap<String, String>) -> Option<(&str, &str)> {
    find(args, FILE)
}

/// Refuses a file in `engine.args` next to one in the ID.
///
/// # Errors
/// Both name a file.
pub fn one_file(args: &BTreeMap<String, String>, id: &str) -> Result<(), Refusal> {
    match (split(id), file_in(args)) {
        ((_, Some(_)), Some((key, _))) => refuse(format!(
            "engine.args.{key} and model.id '{id}' both name a file: use one of them"
        )),
        _ => Ok(()),
    }
}

/// Arguments that load a model from Hugging Face. The ID is `ORG/REPOSITORY` or `ORG/REPOSITORY/FILE`.
///
/// ```
/// use runway_provider::engine::LLAMACPP;
///
/// let arguments = (LLAMACPP.from_hub)("org/repository/q8/model.gguf");
/// assert_eq!(arguments, ["--hf-repo", "org/repository", "--hf-file", "q8/model.gguf"]);
/// ```
fn from_hub(id: &str) -> Vec<String> {
    let (repository, file) = split(id);
    let mut arguments = vec!["--hf-repo".to_owned(), repository.to_owned()];
    arguments.extend(file.into_iter().flat_map(|file| [format!("--{FILE}"), file.to_owned()]));
    arguments
}

/// The first of the names between commas, in the order of their bytes (`common/common.h`, where `model_alias` is a sorted set;
/// `tools/server/server-context.cpp`, load_model). Requests may name any of them.
fn listed_name(aliases: &str) -> &str {
    let names = aliases.split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).min().unwrap_or_default()
}

/// The repository of an ID, and the file, which may be in a directory.
pub fn split(id: &str) -> (&str, Option<&str>) {
    match id.match_indices('/').nth(1) {
        Some((at, _)) => (&id[..at], Some(&id[at + 1..])),
        None => (id, None),
    }
}
