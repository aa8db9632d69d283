//! Command line of llama.cpp's `llama-server` (build 11669, `common/arg.cpp`), which several providers run.

/// Flags that name a model. Next to `model.id` they would replace it.
pub const MODEL_FLAGS: [&str; 8] = ["model", "hf-repo", "hf", "hfr", "model-url", "mu", "docker-repo", "dr"];

/// Flag for the file to load from a repository. Without it, the server loads the Q4_K_M file, or the first.
pub const FILE: &str = "hf-file";

/// Flag for the served name; a comma-separated list sets several.
pub const SERVED_NAME: &str = "alias";

/// Flag for the maximum context length, in tokens.
pub const CONTEXT_LENGTH: &str = "ctx-size";

/// Arguments that load a model from Hugging Face. The ID is `ORG/REPOSITORY` or `ORG/REPOSITORY/FILE`.
///
/// ```
/// use runway_provider::llama_server::from_hub;
///
/// assert_eq!(from_hub("org/repository/q8/model.gguf"), ["--hf-repo", "org/repository", "--hf-file", "q8/model.gguf"]);
/// ```
pub fn from_hub(id: &str) -> Vec<String> {
    let (repository, file) = split(id);
    let file = file.into_iter().flat_map(|file| ["--hf-file", file]);
    ["--hf-repo", repository]
        .into_iter()
        .chain(file)
        .map(str::to_owned)
        .collect()
}

/// The repository of an ID, and the file, which may be in a directory.
pub fn split(id: &str) -> (&str, Option<&str>) {
    match id.match_indices('/').nth(1) {
        Some((at, _)) => (&id[..at], Some(&id[at + 1..])),
        None => (id, None),
    }
}
