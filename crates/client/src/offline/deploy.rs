//! `kubeairunway deploy`: from a model and a few wishes to a ModelDeployment. What can be worked out is, and each such
//! choice says why. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use runway_api::ModelDeployment;
use runway_core::admission::{apply_defaults, id_on_hub, validate};
use runway_core::providers::Providers;
use runway_core::selection;
use serde_json::{Map, Value, json};

use crate::offline::documents::{Unfit, typed};
use crate::offline::why::{self, Why};

/// Settings given by the user.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Id of the model, as on the hub.
    pub model: String,
    /// Name of the ModelDeployment.
    pub name: Option<String>,
    /// Namespace.
    pub namespace: String,
    /// The engine.
    pub engine: Option<String>,
    /// GPUs of each replica.
    pub gpu: Option<i32>,
    /// Resource name of the GPU.
    pub gpu_type: Option<String>,
    /// Processors of each replica.
    pub cpu: Option<String>,
    /// Memory of each replica.
    pub memory: Option<String>,
    /// Number of replicas.
    pub replicas: Option<i32>,
    /// The provider.
    pub provider: Option<String>,
    /// Longest context in tokens.
    pub context_length: Option<i32>,
    /// The Secret with the Hugging Face token.
    pub secret: Option<String>,
    /// Name of the model in API requests.
    pub served_name: Option<String>,
    /// The image.
    pub image: Option<String>,
    /// Flags for the engine.
    pub engine_args: BTreeMap<String, String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
}

/// Result.
#[derive(Clone, Debug)]
pub struct Worked {
    /// Manifest to apply: only given and derived fields.
    pub manifest: Value,
    /// The same ModelDeployment as a Rust type, with defaults.
    pub md: ModelDeployment,
    /// Derived settings: setting, value, reason.
    pub choices: Vec<(&'static str, String, String)>,
    /// Provider selection.
    pub why: Why,
    /// Warnings of admission.
    pub warnings: Vec<String>,
}

/// Failure to derive a ModelDeployment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No name can be derived from the model ID.
    #[error("cannot derive a name from '{0}': set one with --name")]
    Name(String),
    /// No model on the hub has such an ID.
    #[error(
        "'{model}' is not the ID of a model on Hugging Face: write OWNER/NAME, such as google/gemma-3-1b-it; to find it, see https://huggingface.co/models{search}"
    )]
    ModelId {
        /// Text as given.
        model: String,
        /// Search of the hub, as the query of its URL.
        search: String,
    },
    /// No provider is registered.
    #[error(
        "no provider is registered: each registers when its controller has started; to see those that are installed, run: kubeairunway provider list; to install one, run: kubeairunway provider install NAME"
    )]
    NoProviders,
    /// Admission would refuse it.
    #[error("{0}")]
    Invalid(String),
    /// The settings do not form a valid ModelDeployment.
    #[error("cannot create a ModelDeployment from these settings")]
    Manifest(#[from] Unfit),
    /// No registered engine supports the model.
    #[error("no engine found for '{model}': {tried}. Set one with --engine")]
    NoEngine {
        /// The model.
        model: String,
        /// Engines that were considered, with the reasons against them.
        tried: String,
    },
}

/// Engines for models in the format of llama.cpp, the best first.
const FOR_GGUF: [&str; 1] = ["llamacpp"];
/// Engines on GPUs, the best first.
const ON_GPU: [&str; 3] = ["vllm", "sglang", "trtllm"];
/// Engines without, the best first.
const ON_CPU: [&str; 1] = ["vllm"];
/// A name of a Service is not longer.
const MOST_CHARS: usize = 63;

/// Derives all settings that were not given.
///
/// # Errors
/// No name or engine can be derived, or the settings are invalid.
pub fn work_out(wish: &Wish, providers: &Providers, now: Timestamp) -> Result<Worked, Error> {
    if providers.is_empty() {
        return Err(Error::NoProviders);
    }
    let mut choices = Vec::new();
    let wish = &on_hub(wish, &mut choices)?;
    let name = wish.name.clone().or_else(|| name_of(&wish.model));
    let name = name.ok_or_else(|| Error::Name(wish.model.clone()))?;
    if wish.name.is_none() {
        choices.push(("name", name.clone(), "derived from the model ID".to_owned()));
    }
    let is_gguf = wish.model.to_lowercase().contains("gguf");
    let gpu = gpus(wish, is_gguf, &mut choices);
    let (tried, known) = engines(wish, providers, is_gguf, gpu > 0);
    let mut said = Vec::new();
    for engine in &tried {
        let manifest = manifest(wish, &name, engine, gpu);
        let mut md: ModelDeployment = typed(&manifest)?;
        apply_defaults(&mut md.spec);
        let verdict = validate(&md, providers);
        if !verdict.is_valid() {
            // What is wrong with the rest is wrong with every engine.
            return Err(Error::Invalid(verdict.message()));
        }
        match selection::select(&md, providers, now).winner {
            Err(none) if wish.engine.is_none() && wish.provider.is_none() => {
                said.push(format!("{engine}: {}", reason(&none)));
            }
            _ => {
                if wish.engine.is_none() {
                    choices.push(("engine", engine.clone(), engine_because(is_gguf, gpu > 0).to_owned()));
                }
                return Ok(Worked {
                    why: why::explain(&md, providers, now),
                    warnings: verdict.warnings,
                    manifest,
                    md,
                    choices,
                });
            }
        }
    }
    if said.is_empty() {
        said.push(match (&wish.provider, known.is_empty()) {
            (Some(provider), true) => format!("no provider '{provider}' with engines is registered"),
            (None, true) => "the registered providers have no engines".to_owned(),
            (_, false) => format!("registered providers support {known}"),
        });
    }
    Err(Error::NoEngine {
        model: wish.model.clone(),
        tried: said.join("; "),
    })
}

/// The wish with the ID of the model on the hub in the place of its URL. Other URLs are left to admission.
fn on_hub(wish: &Wish, choices: &mut Vec<(&'static str, String, String)>) -> Result<Wish, Error> {
    let mut wish = wish.clone();
    if let Some(id) = id_on_hub(&wish.model) {
        choices.push(("model", id.clone(), "the ID of this URL".to_owned()));
        wish.model = id;
    }
    let is_name = |part: &str| {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(is_known)
    };
    let parts: Vec<&str> = wish.model.split('/').collect();
    if wish.model.contains("://") || matches!(parts[..], [owner, name] if is_name(owner) && is_name(name)) {
        return Ok(wish);
    }
    let word = parts.iter().rfind(|part| is_name(part));
    Err(Error::ModelId {
        search: word.map_or_else(String::new, |word| format!("?search={word}")),
        model: wish.model,
    })
}

fn reason(none: &selection::NoProvider) -> String {
    match none {
        selection::NoProvider::NoneHealthy => selection::NO_HEALTHY_PROVIDERS.to_owned(),
        selection::NoProvider::NoneSuitable(message) => message.clone(),
    }
}

fn engine_because(is_gguf: bool, on_gpu: bool) -> &'static str {
    match (is_gguf, on_gpu) {
        (true, _) => "the model has the format of llama.cpp",
        (_, true) => "the first of vllm, sglang, trtllm that a registered provider runs on GPUs",
        (_, false) => "the engine that runs models in this format without a GPU",
    }
}

/// A model in llama.cpp's format runs without a GPU; others want one.
fn gpus(wish: &Wish, is_gguf: bool, choices: &mut Vec<(&'static str, String, String)>) -> i32 {
    if let Some(given) = wish.gpu {
        return given;
    }
    let (count, because) = match (is_gguf, wish.engine.as_deref()) {
        (true, _) | (_, Some("llamacpp")) => (0, "llama.cpp requires no GPU; set --gpu to request GPUs"),
        _ => (1, "default for this format; set --gpu 0 for none"),
    };
    choices.push(("gpu", count.to_string(), because.to_owned()));
    count
}

/// The engines to try, the best first, and all that are registered.
fn engines(wish: &Wish, providers: &Providers, is_gguf: bool, on_gpu: bool) -> (Vec<String>, String) {
    let asked = wish.provider.as_deref();
    let known: BTreeSet<String> = providers
        .iter()
        .filter(|(name, _)| asked.is_none_or(|asked| asked == *name))
        .flat_map(|(_, registered)| registered.config.spec.capabilities.engines.clone())
        .collect();
    let text = known.iter().cloned().collect::<Vec<_>>().join(", ");
    if let Some(engine) = &wish.engine {
        return (vec![engine.clone()], text);
    }
    let liked: &[&str] = match (is_gguf, on_gpu) {
        (true, _) => &FOR_GGUF,
        (_, true) => &ON_GPU,
        (_, false) => &ON_CPU,
    };
    let tried = liked.iter().filter(|name| known.contains(**name));
    (tried.map(|name| (*name).to_owned()).collect(), text)
}

/// The last part of the id as a name of an object and of a Service.
fn name_of(model: &str) -> Option<String> {
    let last = model.trim_end_matches('/').rsplit('/').next()?.to_lowercase();
    let mut name = String::new();
    for c in last.chars() {
        let c = if c.is_ascii_alphanumeric() { c } else { '-' };
        if c != '-' || !name.ends_with('-') {
            name.push(c);
        }
    }
    let name = name.trim_matches('-');
    let name = if name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("model-{name}")
    } else {
        name.to_owned()
    };
    let short: String = name.chars().take(MOST_CHARS).collect();
    Some(short.trim_end_matches('-').to_owned()).filter(|name| !name.is_empty())
}

/// Manifest with given and derived fields; admission sets defaults.
fn manifest(wish: &Wish, name: &str, engine: &str, gpu: i32) -> Value {
    let mut spec = Map::new();
    let mut set = |path: &[&str], value: Value| {
        let (last, above) = path.split_last().unwrap_or((&"", &[]));
        let mut at = &mut spec;
        for key in above {
            let next = at.entry(*key).or_insert_with(|| json!({}));
            let Some(object) = next.as_object_mut() else { return };
            at = object;
        }
        at.insert((*last).to_owned(), value);
    };
    set(&["model", "id"], json!(wish.model));
    set(&["engine", "type"], json!(engine));
    set(&["resources", "gpu", "count"], json!(gpu));
    let given: [(&[&str], Option<Value>); 10] = [
        (&["model", "servedName"], wish.served_name.as_ref().map(|v| json!(v))),
        (&["engine", "contextLength"], wish.context_length.map(|v| json!(v))),
        (&["resources", "gpu", "type"], wish.gpu_type.as_ref().map(|v| json!(v))),
        (&["resources", "memory"], wish.memory.as_ref().map(|v| json!(v))),
        (&["resources", "cpu"], wish.cpu.as_ref().map(|v| json!(v))),
        (&["provider", "name"], wish.provider.as_ref().map(|v| json!(v))),
        (&["scaling", "replicas"], wish.replicas.map(|v| json!(v))),
        (&["secrets", "huggingFaceToken"], wish.secret.as_ref().map(|v| json!(v))),
        (&["image"], wish.image.as_ref().map(|v| json!(v))),
        (
            &["engine", "args"],
            Some(json!(wish.engine_args)).filter(|_| !wish.engine_args.is_empty()),
        ),
    ];
    for (path, value) in given {
        if let Some(value) = value {
            set(path, value);
        }
    }
    if !wish.env.is_empty() {
        let env: Vec<Value> = wish
            .env
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        set(&["env"], env.into());
    }
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": { "name": name, "namespace": wish.namespace },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_an_id_and_other_text_is_refused() {
        let of = |model: &str| {
            let wish = Wish {
                model: model.to_owned(),
                ..Wish::default()
            };
            on_hub(&wish, &mut Vec::new()).map(|wish| wish.model)
        };
        for (model, id) in [
            ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
            ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", "Qwen/Qwen3-8B"),
            ("hf.co/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
            // Admission names the remedy.
            ("s3://models/qwen", "s3://models/qwen"),
        ] {
            assert_eq!(of(model).unwrap(), id);
        }
        for model in [
            "gemma3",
            "",
            "/",
            "./model",
            "a/b/c",
            "gemma3:4b",
            "org/model:Q4",
            "org/",
            "org/a b",
        ] {
            let said = of(model).unwrap_err().to_string();
            assert!(said.starts_with(&format!("'{model}' is not the ID")), "{said}");
            assert!(said.contains("write OWNER/NAME"), "{said}");
        }
        let said = of("gemma3").unwrap_err().to_string();
        assert!(said.ends_with("https://huggingface.co/models?search=gemma3"), "{said}");
    }

    #[test]
    fn a_name_is_derived_from_the_model_id() {
        for (model, name) in [
            (
                "google/gemma-3-1b-it-qat-q8_0-gguf",
                Some("gemma-3-1b-it-qat-q8-0-gguf"),
            ),
            ("meta-llama/Llama-3.1-8B-Instruct", Some("llama-3-1-8b-instruct")),
            ("org/7B", Some("model-7b")),
            ("org/__", None),
            ("", None),
        ] {
            assert_eq!(name_of(model).as_deref(), name, "{model}");
        }
        let long = name_of(&format!("org/{}-{}", "a".repeat(62), "b".repeat(9))).unwrap();
        assert_eq!(long, "a".repeat(62));
    }
}
