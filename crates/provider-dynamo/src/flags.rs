//! Engine flags: `spec.engine` as flags of Dynamo's worker for the engine.
//!
//! dynamo.vllm accepts vLLM's flags, dynamo.sglang SGLang's, dynamo.trtllm a few of its own; all reject unknown flags (Dynamo
//! `components/src/dynamo/*/args.py`). TensorRT-LLM's own options have no flags: they go into one flag, as JSON.

use std::collections::BTreeMap;

use runway_api::model_deployment::ModelSource;
use runway_provider::Request;
use runway_provider::engine::{self, parallel};
use runway_provider::flags::{arguments, find, first};
use serde_json::{Map, Value, json};

use crate::accepted::{Accepted, GpuWorker, Model};
use crate::engine::Engine;
use crate::runtime::{self, ENGINE_OPTIONS};

/// Flags that name the model.
pub(crate) const MODEL: [&str; 2] = ["model", "model-path"];

/// Flag with the served name, the same for all workers.
const MODEL_NAME: &str = "served-model-name";

/// Arguments of a worker, and fields of the spec that have no effect.
pub(crate) struct Arguments {
    pub(crate) list: Vec<String>,
    /// Served name, if a flag sets it.
    pub(crate) model_name: Option<String>,
    pub(crate) ignored: Vec<String>,
}

/// Arguments of one kind of worker. `engine.args` takes precedence.
pub(crate) fn of(request: &Request, accepted: &Accepted, worker: &GpuWorker) -> Arguments {
    let engine = accepted.engine;
    let mut flags = Flags::given(request, engine);
    flags.spec(request, engine);
    flags.name(request);
    let (version, publishes) = (accepted.runtime.version, accepted.frontend.router.reads_kv_caches());
    for (flag, value) in runtime::worker_flags(engine.releases, version, worker.role, publishes) {
        flags.derive(flag, value);
    }
    if worker.gpu.count > 1 && !parallel::flags().any(|flag| flags.reports(flag)) {
        flags.derive(engine.tensor_parallel, &worker.gpu.count.to_string());
    }
    let model = match accepted.model {
        Model::Id(id) => vec![format!("--{}", engine.model), id.to_owned()],
        Model::InArgs => Vec::new(),
    };
    Arguments {
        model_name: first(&flags.flags.values, MODEL_NAME),
        list: model.into_iter().chain(flags.arguments()).collect(),
        ignored: flags.flags.ignored,
    }
}

/// An option of TensorRT-LLM next to the flag that contains all of them.
pub(crate) fn reported_twice<'a>(request: &'a Request, engine: &Engine) -> Option<(&'a str, &'static str)> {
    let flag = engine.options.filter(|flag| request.args.contains_key(*flag))?;
    let option = request.args.keys().find(|key| is_option(key))?;
    Some((option, flag))
}

/// Flags have dashes, TensorRT-LLM's options underscores (enable_block_reuse, kv_cache_config).
fn is_option(key: &str) -> bool {
    key.contains('_')
}

/// Flags, and TensorRT-LLM's options.
struct Flags {
    flags: engine::Flags,
    options: Map<String, Value>,
}

impl Flags {
    fn given(request: &Request, engine: &Engine) -> Self {
        let (options, values): (BTreeMap<_, _>, BTreeMap<_, _>) = request
            .args
            .clone()
            .into_iter()
            .partition(|(key, _)| engine.options.is_some() && is_option(key));
        Self {
            flags: engine::Flags::given(&values),
            options: nested(
                options
                    .iter()
                    .map(|(key, value)| (key.clone(), option(value)))
                    .collect(),
            ),
        }
    }

    fn find(&self, flag: &str) -> Option<(&str, &str)> {
        find(&self.flags.values, flag)
    }

    /// Whether a flag is set, or TensorRT-LLM's option of that name.
    fn reports(&self, flag: &str) -> bool {
        self.find(flag).is_some() || self.options.keys().any(|option| option.replace('_', "-") == flag)
    }

    /// Flags for context length and trust.
    fn spec(&mut self, request: &Request, engine: &Engine) {
        if engine.options.is_none() {
            self.flags.context_length(request, engine.dialect.context_length);
            return self.flags.trust(request, engine.dialect);
        }
        if request.context_length.is_some() {
            self.flags.ignored.push(
                "engine.contextLength is ignored for trtllm: TensorRT-LLM fixes it when the engine is built; \
                 to limit requests at run time, set max-seq-len in engine.args"
                    .to_owned(),
            );
        }
        if request.trust_remote_code {
            self.flags.ignored.push(
                "engine.trustRemoteCode is ignored for trtllm: it is a matter of how the engine is built; \
                 for engines that are built at start set trust_remote_code in engine.args"
                    .to_owned(),
            );
        }
    }

    /// Name in client requests.
    fn name(&mut self, request: &Request) {
        match request.source {
            ModelSource::Huggingface => self.flags.name(request, Ok(MODEL_NAME), None),
            ModelSource::Custom if request.served_name_given => self.flags.ignored.push(
                "model.servedName is ignored for custom source: the image decides the model's name; if its worker supports a flag for it, set it in engine.args".to_owned(),
            ),
            ModelSource::Custom => {}
        }
        if let (ModelSource::Custom, Some(id)) = (request.source, &request.model_id) {
            self.flags.ignored.push(format!(
                "model.id: {id} is ignored for custom source: the image decides what is served"
            ));
        }
    }

    /// Sets a generated flag, unless `engine.args` has it.
    fn derive(&mut self, flag: &str, value: &str) {
        // A file or JSON text of options is left to the user.
        let options_are_reported = || self.find(ENGINE_OPTIONS).is_some() || self.find("extra-engine-args").is_some();
        if flag == ENGINE_OPTIONS {
            if !options_are_reported() {
                let derived = serde_json::from_str::<Map<String, Value>>(value).unwrap_or_default();
                let given = std::mem::replace(&mut self.options, derived);
                self.options.extend(given);
            }
        } else if !self.excludes(flag) {
            self.flags.derive(flag, value);
        }
    }

    /// SGLang's own tokenizer must not be skipped.
    fn excludes(&self, flag: &str) -> bool {
        flag == "skip-tokenizer-init" && self.find("use-sglang-tokenizer").is_some()
    }

    /// Arguments of a command.
    fn arguments(&self) -> Vec<String> {
        let options = (!self.options.is_empty()).then(|| {
            (
                ENGINE_OPTIONS.to_owned(),
                Value::Object(self.options.clone()).to_string(),
            )
        });
        let mut all = self.flags.values.clone();
        all.extend(options);
        arguments(&all).collect()
    }
}

/// Values are texts in `engine.args` and JSON in an option; an empty one stands for true.
fn option(text: &str) -> Value {
    if text.is_empty() {
        json!(true)
    } else {
        serde_json::from_str(text).unwrap_or_else(|_| json!(text))
    }
}

/// The design names `enable_block_reuse`, which is part of TensorRT-LLM's `kv_cache_config`.
fn nested(mut options: Map<String, Value>) -> Map<String, Value> {
    const INNER: &str = "enable_block_reuse";
    if let Some(value) = options.remove(INNER) {
        let outer = options.entry("kv_cache_config").or_insert_with(|| json!({}));
        match outer.as_object_mut() {
            Some(outer) => outer.entry(INNER).or_insert(value),
            None => options.entry(INNER).or_insert(value),
        };
    }
    options
}
