//! llama.cpp's `llama-server`. Its flags are those that `llama-server --help` of build 11669 lists (`common/arg.cpp`).
//!
//! `/health` answers 503 until the model is loaded. Without `--hf-file`, `--hf-repo` takes the repository's Q4_K_M file, or
//! its first. The images' entrypoint is the server (`.devops/cpu.Dockerfile`), in a folder that is not in the PATH. With
//! several GPUs it spreads a model's layers over all of them.

use super::{Dialect, ServedName};

pub(super) const DIALECT: Dialect = Dialect {
    name: "llamacpp",
    title: "llama.cpp",
    // The same build for both, tried together by others; newer tags come every day.
    gpu_image: "ghcr.io/ggml-org/llama.cpp:server-cuda-b10257",
    cpu_image: Some("ghcr.io/ggml-org/llama.cpp:server-b10257"),
    command: &[],
    port: 8080,
    from_hub,
    from_path: |path| vec!["--model".to_owned(), path.to_owned()],
    model_flags: &["model", "hf-repo", "hf", "hfr", "model-url", "mu", "docker-repo", "dr"],
    served_name: ServedName::Flag("alias"),
    context_length: Ok("ctx-size"),
    trust_remote_code: Err("llama.cpp runs no code that comes with a model"),
    tensor_parallel: None,
    // The first that llama.cpp looks at, also before it shared Hugging Face's cache (common/hf-cache.cpp).
    cache_variable: "LLAMA_CACHE",
};

/// An id of the form ORG/REPOSITORY/FILE names the file too.
fn from_hub(id: &str) -> Vec<String> {
    let (repository, file) = split(id);
    let repository = ["--hf-repo", repository];
    let file = file.into_iter().flat_map(|file| ["--hf-file", file]);
    repository.into_iter().chain(file).map(str::to_owned).collect()
}

/// The repository in an id, and the file, which may be in a folder.
fn split(id: &str) -> (&str, Option<&str>) {
    match id.match_indices('/').nth(1) {
        Some((at, _)) => (&id[..at], Some(&id[at + 1..])),
        None => (id, None),
    }
}
