//! Engine flags: `spec.engine` as the engine's own flags.

use std::collections::BTreeMap;

use runway_api::model_deployment::ModelSource;
pub(crate) use runway_provider::flags::{find, first, values};
use runway_provider::{Request, flags, llama_server};

use crate::engine::Engine;
use crate::family::Family;

/// Port of the container that KAITO's Service sends requests to (KAITO `pkg/workspace/manifests/manifests.go`).
pub(crate) const PORT: &str = "5000";

/// Flags by name, with an empty value for a flag without one, and messages about fields that have no effect.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) ignored: Vec<String>,
}

/// Flags of an engine. `engine.args` takes precedence.
pub(crate) fn of(request: &Request, engine: Engine) -> Flags {
    let mut flags = Flags {
        values: request.args.clone(),
        ignored: Vec::new(),
    };
    if let (Engine::LlamaCpp(family), ModelSource::Huggingface) = (engine, request.source) {
        // The file is a part of the arguments for the model.
        flags.values.remove(llama_server::FILE);
        if family == Family::AikitRunner
            && request.token_secret.is_some()
            && request.args.contains_key(llama_server::FILE)
        {
            flags.ignored.push(format!(
                "secrets.huggingFaceToken has no effect with engine.args.{}: AIKit's runner downloads a file without it",
                llama_server::FILE
            ));
        }
    }
    if let Some(tokens) = request.context_length {
        let flag = match engine {
            Engine::Vllm => "max-model-len",
            Engine::LlamaCpp(family) => family.context_length(),
        };
        flags.set("engine.contextLength", flag, &tokens.to_string());
    }
    match engine {
        Engine::Vllm if request.trust_remote_code => flags.set("engine.trustRemoteCode", "trust-remote-code", ""),
        Engine::LlamaCpp(_) if request.trust_remote_code => {
            flags
                .ignored
                .push("engine.trustRemoteCode is ignored: llama.cpp runs no code that comes with a model".to_owned());
        }
        _ => {}
    }
    flags
}

impl Flags {
    /// Sets the flag for a field, unless `engine.args` has it.
    pub(crate) fn set(&mut self, field: &str, flag: &str, value: &str) {
        match find(&self.values, flag) {
            Some((key, _)) => {
                let ignored = format!("{field} is ignored: engine.args.{key} sets the same and takes precedence");
                self.ignored.push(ignored);
            }
            None => {
                self.values.insert(flag.to_owned(), value.to_owned());
            }
        }
    }

    /// Arguments of a command.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = String> {
        flags::arguments(&self.values)
    }
}
