//! Families of llama.cpp images. Their servers differ in their command lines, so that the family decides the arguments.

use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_provider::engine::{LLAMACPP, llamacpp};
use runway_provider::overrides::invalid;
use runway_provider::{Refusal, Request};
use serde_json::Value;

/// Key of `provider.overrides` that names the family, for images whose name does not show it.
pub(crate) const KEY: &str = "imageFamily";

/// A server of llama.cpp models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// LocalAI, and AIKit's images with a model, whose entrypoint is LocalAI (AIKit v0.21.0 `pkg/aikit2llb/inference/image.go`,
    /// NewImageConfig). It loads `huggingface://ORG/REPOSITORY/FILE`, never a repository (LocalAI `pkg/downloader/uri.go`,
    /// ResolveURL).
    LocalAi,
    /// AIKit's runner: LocalAI behind a script that downloads the model. It takes a URL, or a repository, of which it downloads
    /// every GGUF file and loads one; `ORG/REPOSITORY/FILE` is neither (AIKit v0.21.0 `pkg/aikit2llb/inference/runner.go`,
    /// generateLlamaCppDownload).
    AikitRunner,
    /// llama.cpp's own images (`.devops/cpu.Dockerfile`), whose entrypoint is `llama-server`.
    LlamaServer,
    /// RamaLama's images, which contain `llama-server` in the PATH; not all have an entrypoint (RamaLama
    /// `container-images/common/Containerfile.entrypoint`).
    RamaLama,
    /// Any other image. The arguments are LocalAI's; a repository without a file is left to it.
    Unknown,
}

/// Values of the override.
const NAMES: [(&str, Family); 4] = [
    ("LocalAI", Family::LocalAi),
    ("AIKitRunner", Family::AikitRunner),
    ("LlamaServer", Family::LlamaServer),
    ("RamaLama", Family::RamaLama),
];

/// The documented overrides.
pub(crate) fn overrides() -> Vec<OverrideKey> {
    vec![OverrideKey {
        path: KEY.to_owned(),
        kind: OverrideType::String,
        description: Some(format!(
            "Server in spec.image, with engine llamacpp: one of {}. Default: derived from the name of the image, otherwise LocalAI",
            names()
        )),
    }]
}

/// The override, or what the name of the image shows.
pub(crate) fn of(request: &Request, image: &str) -> Result<Family, Refusal> {
    Ok(given(request)?.unwrap_or_else(|| of_image(image)))
}

/// The override, if any.
pub(crate) fn given(request: &Request) -> Result<Option<Family>, Refusal> {
    let Some(name) = request.overrides.get(KEY).and_then(Value::as_str) else {
        return Ok(None);
    };
    match NAMES.iter().find(|(known, _)| *known == name) {
        Some((_, family)) => Ok(Some(*family)),
        None => Err(invalid(format!(
            "provider.overrides.{KEY} is '{name}': set it to one of {}",
            names()
        ))),
    }
}

fn names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

/// By the repository of the image. Mirrors usually keep it, behind another registry.
fn of_image(image: &str) -> Family {
    let repository = image.split('@').next().unwrap_or_default().to_ascii_lowercase();
    let mut parts: Vec<&str> = repository.split('/').collect();
    if let Some(last) = parts.last_mut() {
        *last = last.split(':').next().unwrap_or_default();
    }
    let has = |part: &str| parts.contains(&part);
    match parts.last().copied().unwrap_or_default() {
        _ if has("aikit") && has("runners") => Family::AikitRunner,
        _ if has("aikit") => Family::LocalAi,
        _ if has("ramalama") => Family::RamaLama,
        "local-ai" | "localai" => Family::LocalAi,
        "llama.cpp" | "llama-server" => Family::LlamaServer,
        _ => Family::Unknown,
    }
}

impl Family {
    /// Whether the server is llama.cpp's `llama-server`.
    pub(crate) fn is_llama_server(self) -> bool {
        matches!(self, Self::LlamaServer | Self::RamaLama)
    }

    /// Arguments that load a model from Hugging Face.
    pub(crate) fn load(self, repository: &str, file: Option<&str>) -> Vec<String> {
        let id = match file {
            Some(file) => format!("{repository}/{file}"),
            None => repository.to_owned(),
        };
        match (self, file) {
            (Self::LlamaServer | Self::RamaLama, _) => (LLAMACPP.from_hub)(&id),
            (Self::AikitRunner, Some(file)) => vec![format!("https://huggingface.co/{repository}/resolve/main/{file}")],
            _ => vec![format!("huggingface://{id}")],
        }
    }
}

/// Repository and file of the model; the file is a part of `model.id`, or `engine.args.hf-file`.
pub(crate) fn model<'a>(request: &'a Request, id: &'a str) -> (&'a str, Option<&'a str>) {
    let (repository, file) = llamacpp::split(id);
    (repository, file.or_else(|| Some(llamacpp::file_in(&request.args)?.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_image_shows_its_server() {
        for (image, family) in [
            ("ghcr.io/ggml-org/llama.cpp:server-b10257", Family::LlamaServer),
            ("mirror:5000/ggml-org/llama.cpp@sha256:0123", Family::LlamaServer),
            (
                "ghcr.io/kaito-project/aikit/runners/llama-cpp-cpu:latest",
                Family::AikitRunner,
            ),
            ("ghcr.io/kaito-project/aikit/llama3.2:1b", Family::LocalAi),
            ("quay.io/go-skynet/local-ai:v3.0.0", Family::LocalAi),
            ("localai/localai:latest-cpu", Family::LocalAi),
            ("quay.io/ramalama/ramalama:0.17", Family::RamaLama),
            ("quay.io/ramalama/cuda-llama-server", Family::RamaLama),
            ("ghcr.io/sozercan/llama-cpp-runner:latest", Family::Unknown),
            ("llama.cpp.example/engine:1", Family::Unknown),
            ("", Family::Unknown),
        ] {
            assert_eq!(of_image(image), family, "{image}");
        }
    }
}
