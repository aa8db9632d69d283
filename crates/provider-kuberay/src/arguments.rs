//! Engine arguments: `spec.engine` as keyword arguments of vLLM's engine, with the types it requires (vLLM 0.32.0
//! `vllm/engine/arg_utils.py`, EngineArgs; `vllm/entrypoints/launchers/cli_args.py`, FrontendArgs). Ray passes them on unchanged
//! (Ray `llm/_internal/serve/engines/vllm/vllm_models.py`, from_llm_config). The lane `vllm` compares the types with those that
//! vLLM's own command line derives from the same texts.

use std::collections::BTreeMap;

use runway_api::model_deployment::ModelSource;
use runway_provider::flags::{overruled, values};
use runway_provider::{Refusal, Request, refuse};
use serde_json::{Map, Value, json};

/// The argument that names the model; Ray sets it.
pub(crate) const MODEL: &str = "model";

/// Arguments by the engine's names, and messages about fields that have no effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) values: Map<String, Value>,
    pub(crate) ignored: Vec<String>,
}

/// Arguments for vLLM. `engine.args` takes precedence.
pub(crate) fn of(request: &Request) -> Result<Arguments, Refusal> {
    let mut arguments = Arguments::default();
    let mut spelt = BTreeMap::new();
    for (key, text) in &request.args {
        let (name, value) = argument(key, text)?;
        if let Some(other) = spelt.insert(name.clone(), key) {
            return refuse(format!(
                "engine.args.{other} and engine.args.{key} are the same argument: remove one of them"
            ));
        }
        if name == MODEL && request.source == ModelSource::Custom {
            continue;
        }
        is_ours_to_give(key, &name, &value)?;
        arguments.values.insert(name, value);
    }
    let mut set = |field: &str, name: &str, value: Value| match spelt.get(name) {
        Some(key) => arguments.ignored.push(overruled(field, key)),
        None => {
            arguments.values.insert(name.to_owned(), value);
        }
    };
    if let Some(tokens) = request.context_length {
        set("engine.contextLength", "max_model_len", json!(tokens));
    }
    if request.trust_remote_code {
        set("engine.trustRemoteCode", "trust_remote_code", json!(true));
    }
    Ok(arguments)
}

/// The given value of an argument, by the engine's name for it.
pub(crate) fn given<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let found = request.args.iter().find(|(key, _)| snake_case(key) == name);
    found.map(|(_, value)| value.as_str())
}

/// As on vLLM's command line, `no-` before a switch negates it.
fn argument(key: &str, text: &str) -> Result<(String, Value), Refusal> {
    let name = snake_case(key);
    if let Some(positive) = name.strip_prefix("no_").filter(|name| kind(name) == Kind::Truth) {
        let value = Kind::Truth.value(text).and_then(|value| value.as_bool());
        return match value {
            Some(value) => Ok((positive.to_owned(), json!(!value))),
            None => refuse(unfit(key, text, Kind::Truth)),
        };
    }
    let kind = kind(&name);
    match kind.value(text) {
        Some(value) => Ok((name, value)),
        None => refuse(unfit(key, text, kind)),
    }
}

fn snake_case(key: &str) -> String {
    key.trim_start_matches('-').replace('-', "_")
}

fn unfit(key: &str, text: &str, kind: Kind) -> String {
    let (wanted, example) = kind.wanted();
    format!(
        "engine.args.{key} is '{text}', but vLLM requires {wanted}: set it, for example, to {example}, or remove it"
    )
}

/// Arguments that Ray Serve sets itself, or does not support.
fn is_ours_to_give(key: &str, name: &str, value: &Value) -> Result<(), Refusal> {
    let why = match name {
        MODEL => "would replace the model: name the model in model.id and remove the argument",
        "served_model_name" => "is set by Ray Serve: use model.servedName and remove the argument",
        "host" | "port" => "has no effect under Ray Serve, which answers on port 8000: remove the argument",
        "distributed_executor_backend" if value != "ray" => {
            "must be 'ray' under Ray Serve, which distributes a replica over its GPUs: remove the argument"
        }
        "data_parallel_size" if *value != 1 => {
            "is not supported: request more replicas in scaling and remove the argument"
        }
        "disable_log_stats" if *value == true => {
            "is not supported under Ray Serve, which reads the engine's metrics: remove the argument"
        }
        _ => return Ok(()),
    };
    refuse(format!("engine.args.{key} {why}"))
}

/// Type of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A whole number.
    Whole,
    /// A whole number that is at least 1.
    Count,
    /// Any number.
    Number,
    /// A number above 0 and up to 1.
    Share,
    /// True or false.
    Truth,
    /// A JSON object.
    Object,
    /// A text, whatever it looks like.
    Text,
    /// A list of texts, or one of them.
    Texts,
    /// A list of whole numbers, or some with commas between them.
    Wholes,
    /// Unknown: derived from the text.
    Unknown,
}

impl Kind {
    /// The value of a text, if it has this type. An empty text is a flag without a value.
    fn value(self, text: &str) -> Option<Value> {
        let text = text.trim();
        let whole = || text.parse::<i64>().ok();
        let number = || text.parse::<f64>().ok().filter(|n| n.is_finite());
        match self {
            Self::Whole => whole().map(Value::from),
            Self::Count => whole().filter(|n| *n >= 1).map(Value::from),
            Self::Number => whole().map(Value::from).or_else(|| number().map(Value::from)),
            Self::Share => number().filter(|n| *n > 0.0 && *n <= 1.0).map(Value::from),
            Self::Truth | Self::Unknown if text.is_empty() => Some(json!(true)),
            Self::Truth => text.to_ascii_lowercase().parse::<bool>().ok().map(Value::from),
            Self::Object => serde_json::from_str(text).ok().filter(Value::is_object),
            // A list of one text is that text, as on a command line.
            Self::Text => match values("", text).as_slice() {
                [one] => Some(json!(one)),
                _ => None,
            },
            Self::Texts => match serde_json::from_str(text) {
                Ok(Value::Array(items)) => items.iter().all(Value::is_string).then(|| json!(items)),
                _ => Self::Text.value(text).map(|item| json!([item])),
            },
            Self::Wholes => {
                let items: Result<Vec<i64>, _> = serde_json::from_str(text);
                let items = items
                    .ok()
                    .or_else(|| text.split(',').map(|item| item.trim().parse().ok()).collect());
                items.map(Value::from)
            }
            Self::Unknown => Self::Truth
                .value(text)
                .or_else(|| Self::Number.value(text))
                .or_else(|| {
                    serde_json::from_str(text)
                        .ok()
                        .filter(|v: &Value| v.is_object() || v.is_array())
                })
                .or_else(|| Self::Text.value(text)),
        }
    }

    /// Description and example.
    fn wanted(self) -> (&'static str, &'static str) {
        match self {
            Self::Whole => ("a whole number", "8192"),
            Self::Count => ("a whole number of at least 1", "8"),
            Self::Number => ("a number", "4 or 0.5"),
            Self::Share => ("a number above 0 and up to 1", "0.9"),
            Self::Truth => ("true or false", "true (or leave the value empty)"),
            Self::Object => ("a JSON object", r#"{"key": "value"}"#),
            Self::Text | Self::Unknown => ("a text", "auto"),
            Self::Texts => ("a text, or a JSON list of texts", r#"["one", "two"]"#),
            Self::Wholes => ("whole numbers", "1,2,4"),
        }
    }
}

/// Known arguments, a line of names for each type.
const KNOWN: [(Kind, &str); 9] = [
    (
        Kind::Count,
        "block_size data_parallel_size decode_context_parallel_size max_cpu_loras max_lora_rank max_loras \
         max_model_len max_num_batched_tokens max_num_partial_prefills max_num_seqs \
         max_parallel_loading_workers max_seq_len_to_capture pipeline_parallel_size \
         prefill_context_parallel_size stream_interval tensor_parallel_size",
    ),
    (
        Kind::Whole,
        "kv_cache_memory_bytes long_prefill_token_threshold lora_extra_vocab_size max_logprobs \
         max_long_partial_prefills num_gpu_blocks_override num_lookahead_slots port seed",
    ),
    (
        Kind::Number,
        "cpu_offload_gb kv_offloading_size mm_processor_cache_gb rope_theta swap_space video_pruning_rate",
    ),
    (Kind::Share, "gpu_memory_utilization"),
    (
        Kind::Truth,
        "allow_deprecated_quantization async_scheduling calculate_kv_scales disable_cascade_attn \
         disable_chunked_mm_input disable_custom_all_reduce disable_hybrid_kv_cache_manager \
         disable_log_requests disable_log_stats disable_sliding_window enable_auto_tool_choice \
         enable_chunked_prefill enable_dbo enable_eplb enable_expert_parallel enable_log_outputs \
         enable_log_requests enable_lora enable_lora_bias enable_prefix_caching enable_prompt_embeds \
         enable_sleep_mode enforce_eager fully_sharded_loras interleave_mm_strings kv_sharing_fast_prefill \
         language_model_only ray_workers_use_nsight return_tokens_as_token_ids skip_mm_profiling \
         skip_tokenizer_init trust_remote_code use_tqdm_on_load",
    ),
    (
        Kind::Object,
        "additional_config attention_config default_chat_template_kwargs eplb_config \
         hf_overrides kv_events_config kv_transfer_config limit_mm_per_prompt media_io_kwargs \
         mm_processor_kwargs model_loader_extra_config override_generation_config override_neuron_config \
         override_pooler_config pooler_config rope_scaling speculative_config structured_outputs_config",
    ),
    (
        Kind::Text,
        "chat_template code_revision config_format distributed_executor_backend download_dir dtype \
         generation_config hf_config_path host kv_cache_dtype load_format lora_dtype model \
         quantization reasoning_parser revision scheduling_policy served_model_name tokenizer tokenizer_mode \
         tokenizer_revision tool_call_parser",
    ),
    (
        Kind::Texts,
        "allowed_media_domains api_key collect_detailed_traces cpu_offload_params ignore_patterns \
         kv_cache_dtype_skip_layers logits_processors lora_target_modules middleware numa_bind_cpus \
         offload_params sleep_preserve_parameter_names",
    ),
    (Kind::Wholes, "cudagraph_capture_sizes device_ids numa_bind_nodes"),
];

fn kind(name: &str) -> Kind {
    let found = KNOWN
        .iter()
        .find(|(_, names)| names.split(' ').any(|known| known == name));
    found.map_or(Kind::Unknown, |(kind, _)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, text: &str) -> Result<(String, Value), String> {
        argument(key, text).map_err(|refusal| refusal.message)
    }

    #[test]
    fn values_have_the_types_that_vllm_wants() {
        for (key, text, name, value) in [
            ("max-num-seqs", "064", "max_num_seqs", json!(64)),
            ("seed", "-1", "seed", json!(-1)),
            ("gpu-memory-utilization", "0.90", "gpu_memory_utilization", json!(0.9)),
            ("gpu_memory_utilization", "1", "gpu_memory_utilization", json!(1.0)),
            ("swap-space", "4", "swap_space", json!(4)),
            ("swap-space", ".5", "swap_space", json!(0.5)),
            ("enforce-eager", "", "enforce_eager", json!(true)),
            ("--enforce-eager", "False", "enforce_eager", json!(false)),
            ("no-enable-prefix-caching", "", "enable_prefix_caching", json!(false)),
            ("revision", "12", "revision", json!("12")),
            ("quantization", "awq", "quantization", json!("awq")),
            ("quantization", r#"["awq"]"#, "quantization", json!("awq")),
            (
                "of-tomorrow",
                r#"["a=org/a", "b=org/b"]"#,
                "of_tomorrow",
                json!(["a=org/a", "b=org/b"]),
            ),
            (
                "limit-mm-per-prompt",
                r#"{"image": 2}"#,
                "limit_mm_per_prompt",
                json!({"image": 2}),
            ),
            (
                "lora-target-modules",
                "q_proj",
                "lora_target_modules",
                json!(["q_proj"]),
            ),
            ("numa-bind-cpus", "3", "numa_bind_cpus", json!(["3"])),
            (
                "ignore-patterns",
                r#"["*.bin", "*.pt"]"#,
                "ignore_patterns",
                json!(["*.bin", "*.pt"]),
            ),
            (
                "cudagraph-capture-sizes",
                "1, 2",
                "cudagraph_capture_sizes",
                json!([1, 2]),
            ),
            ("numa-bind-nodes", "[0, 1]", "numa_bind_nodes", json!([0, 1])),
            ("of-tomorrow", "8", "of_tomorrow", json!(8)),
            ("of-tomorrow", "0.5", "of_tomorrow", json!(0.5)),
            ("of-tomorrow", "true", "of_tomorrow", json!(true)),
            ("of-tomorrow", "", "of_tomorrow", json!(true)),
            ("of-tomorrow", "[1]", "of_tomorrow", json!([1])),
            ("of-tomorrow", "{broken", "of_tomorrow", json!("{broken")),
            ("of-tomorrow", "nan", "of_tomorrow", json!("nan")),
            ("no-such-thing", "", "no_such_thing", json!(true)),
        ] {
            assert_eq!(read(key, text), Ok((name.to_owned(), value)), "{key}: {text}");
        }
    }

    #[test]
    fn values_of_the_wrong_type_are_refused_with_an_example() {
        for (key, text, reported) in [
            (
                "max-num-seqs",
                "many",
                "is 'many', but vLLM requires a whole number of at least 1: set it, for example, to 8",
            ),
            (
                "max-model-len",
                "",
                "is '', but vLLM requires a whole number of at least 1",
            ),
            ("tensor-parallel-size", "0", "a whole number of at least 1"),
            ("seed", "1.5", "requires a whole number:"),
            ("gpu-memory-utilization", "90", "a number above 0 and up to 1"),
            ("gpu-memory-utilization", "nan", "a number above 0 and up to 1"),
            ("enforce-eager", "1", "true or false"),
            ("no-enforce-eager", "perhaps", "true or false"),
            ("speculative-config", "ngram", "a JSON object"),
            ("quantization", "", "a text"),
            ("quantization", r#"["awq", "gptq"]"#, "a text"),
            ("lora-target-modules", "", "a text, or a JSON list of texts"),
            ("lora-target-modules", "[1]", "a text, or a JSON list of texts"),
            ("cudagraph-capture-sizes", "many", "whole numbers"),
        ] {
            let message = read(key, text).unwrap_err();
            assert!(
                message.starts_with(&format!("engine.args.{key} is ")) && message.contains(reported),
                "{message}"
            );
            assert!(message.ends_with("or remove it"), "{message}");
        }
    }
}
