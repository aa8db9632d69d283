//! Estimated memory of a model: weights, KV cache of one request with the longest context, and overhead. An estimate from
//! few inputs, each with its source. It is a hint, and never a verdict.

use std::fmt;

use runway_api::ModelDeployment;
use runway_provider::engine::{ALL, LLAMACPP, llamacpp};
use runway_provider::flags::find;
use serde::Serialize;

/// Weights without a known format: two bytes per parameter, as in bfloat16.
const DEFAULT_BITS: f64 = 16.0;
/// Bits per weight of Q4_K_M, the file that llama.cpp loads from a repository if none is named.
const DEFAULT_GGUF_BITS: f64 = 4.85;
/// Context of models that set none.
const DEFAULT_CONTEXT: i64 = 8192;
/// Share of the weights that the engine needs beside them: activations, CUDA graphs, buffers.
const OVERHEAD: f64 = 0.10;
/// The least overhead of a GPU engine, in bytes: the CUDA context and the libraries' workspaces.
const LEAST_OVERHEAD: f64 = 1e9;
/// Bytes of KV cache per token of a model with 8 billion parameters: 32 layers, 8 KV heads of 128, keys and values in 16 bits
/// (config.json of Llama 3.1 8B).
const CACHE_OF_8B: f64 = 131_072.0;
/// Growth of the KV cache with the parameters: 1B 32 KiB, 8B 128 KiB, 70B 320 KiB, 405B 504 KiB (config.json of Llama 3.1
/// and 3.2).
const CACHE_GROWTH: f64 = 0.43;

/// Origin of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// A field of the ModelDeployment.
    Spec,
    /// The model's name.
    Name,
    /// Assumed, since neither the spec nor the name states it.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spec => "from the spec",
            Self::Name => "from the model's name",
            Self::Default => "default",
        })
    }
}

/// One input of the estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Input {
    /// Name.
    pub input: &'static str,
    /// Value, as text.
    pub value: String,
    /// Origin.
    pub source: Source,
}

/// Estimated memory of one replica.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// Weights, in bytes.
    pub weights: u64,
    /// KV cache of one request with the longest context, in bytes.
    pub kv_cache: u64,
    /// Everything else, in bytes.
    pub overhead: u64,
    /// Inputs.
    pub inputs: Vec<Input>,
}

impl Estimate {
    /// All parts, in bytes.
    pub fn total(&self) -> u64 {
        self.weights + self.kv_cache + self.overhead
    }
}

/// Estimates the memory of a replica; `None` if the number of parameters is not in the model's name.
pub fn estimate(md: &ModelDeployment) -> Option<Estimate> {
    let engine = md.spec.engine.as_ref();
    let is_llamacpp = md.spec.engine_type() == Some(LLAMACPP.name);
    let arg = |names: &[&str]| {
        let args = engine.map(|engine| &engine.args)?;
        names.iter().find_map(|name| Some(find(args, name)?.1))
    };
    // A file in the format of llama.cpp says more than its repository.
    let file = arg(&[llamacpp::FILE, "model", "model-path", "m"]).unwrap_or_default();
    let id = md.spec.model_id().unwrap_or_default();
    let name = format!("{id} {file}").to_lowercase().replace(".gguf", "");
    let parameters = parameters(&name)?;
    let mut inputs = vec![Input {
        input: "parameters",
        value: billions(parameters),
        source: Source::Name,
    }];

    let in_spec = |names: &[&str]| arg(names).and_then(|value| bits(&value.to_lowercase()));
    let ((format, bits), source) = if let Some(found) = in_spec(&["quantization", "load-format"]) {
        (found, Source::Spec)
    } else if let Some(found) = bits(&name) {
        (found, Source::Name)
    } else if let Some(found) = in_spec(&["dtype"]) {
        (found, Source::Spec)
    } else if is_llamacpp {
        (("Q4_K_M".to_owned(), DEFAULT_GGUF_BITS), Source::Default)
    } else {
        (("bf16".to_owned(), DEFAULT_BITS), Source::Default)
    };
    inputs.push(Input {
        input: "weights",
        value: format!("{format}, {bits} bits each"),
        source,
    });

    // TensorRT-LLM's max-seq-len limits requests, and with them the cache.
    let flags = ALL.iter().filter_map(|engine| engine.context_length.ok());
    let context_arg = arg(&flags.chain(["max-seq-len"]).collect::<Vec<_>>());
    let context_arg = context_arg
        .and_then(|value| value.parse::<i64>().ok())
        .filter(|value| *value > 0);
    let context_field = engine.and_then(|engine| engine.context_length).map(i64::from);
    let (context, source) = match context_arg.or(context_field) {
        Some(given) => (given, Source::Spec),
        None => (DEFAULT_CONTEXT, Source::Default),
    };
    inputs.push(Input {
        input: "context length",
        value: format!("{context} tokens, 1 request"),
        source,
    });
    let cache_type = arg(&["kv-cache-dtype", "cache-type-k"]);
    let cache_bits = cache_type.and_then(|value| bits_of_cache(&value.to_lowercase()));
    inputs.push(Input {
        input: "KV cache",
        value: format!("{} bits", cache_bits.unwrap_or(16)),
        source: if cache_bits.is_some() {
            Source::Spec
        } else {
            Source::Default
        },
    });

    let weights = parameters * bits / 8.0;
    let per_token = CACHE_OF_8B * (parameters / 8e9).powf(CACHE_GROWTH) * f64::from(cache_bits.unwrap_or(16)) / 16.0;
    let gpus = md
        .spec
        .resources
        .as_ref()
        .and_then(|r| r.gpu.as_ref())
        .and_then(|gpu| gpu.count);
    let least = if is_llamacpp && gpus.unwrap_or(0) == 0 {
        0.0
    } else {
        LEAST_OVERHEAD
    };
    #[expect(clippy::cast_precision_loss, reason = "a context has at most 10^8 tokens")]
    let context = context as f64;
    Some(Estimate {
        weights: whole(weights),
        kv_cache: whole(per_token * context),
        overhead: whole((weights * OVERHEAD).max(least)),
        inputs,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and amounts of memory are not negative"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

/// Number of parameters in a model's name in lower case: `8b`, `1.5b`, `270m`, `8x7b`. The largest counts: `30b-a3b` has 30.
fn parameters(name: &str) -> Option<f64> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let sizes = words.filter_map(|word| {
        let (number, unit) = word.split_at_checked(word.len().checked_sub(1)?)?;
        let unit = match unit {
            "b" => 1e9,
            "m" => 1e6,
            "t" => 1e12,
            _ => return None,
        };
        let (times, number) = number.split_once('x').unwrap_or(("1", number));
        let number = number.trim_start_matches('e');
        let (times, number): (f64, f64) = (times.parse().ok()?, number.parse().ok()?);
        let size = times * number * unit;
        (1e7..=1e13).contains(&size).then_some(size)
    });
    sizes.fold(None, |most: Option<f64>, size| {
        Some(most.map_or(size, |most| most.max(size)))
    })
}

fn billions(parameters: f64) -> String {
    if parameters < 1e9 {
        format!("{:.0} million", parameters / 1e6)
    } else {
        let text = format!("{:.1}", parameters / 1e9);
        format!("{} billion", text.trim_end_matches(".0"))
    }
}

/// Format of the weights by a name in lower case, with bits per weight. Scales and layers that are not quantized are included.
/// GGUF: the table of llama.cpp's `quantize` for Llama 3.1 8B.
fn bits(name: &str) -> Option<(String, f64)> {
    const FORMATS: [(&str, f64); 37] = [
        ("iq1_s", 2.0),
        ("iq2_xxs", 2.4),
        ("iq2_xs", 2.6),
        ("iq3_xxs", 3.3),
        ("iq3_m", 3.8),
        ("iq4_xs", 4.5),
        ("iq4_nl", 4.7),
        ("q2_k", 3.2),
        ("q3_k_s", 3.6),
        ("q3_k_m", 4.0),
        ("q3_k_l", 4.3),
        ("q4_k_s", 4.7),
        ("q4_k_m", 4.85),
        ("q4_0", 4.7),
        ("q4_1", 5.1),
        ("q5_k_s", 5.6),
        ("q5_k_m", 5.7),
        ("q5_0", 5.6),
        ("q6_k", 6.6),
        ("q8_0", 8.5),
        ("nvfp4", 4.75),
        ("mxfp4", 4.5),
        ("gpt-oss", 4.5),
        ("bnb-4bit", 4.75),
        ("bitsandbytes", 4.75),
        ("awq", 4.5),
        ("gptq", 4.5),
        ("w4a16", 4.5),
        ("int4", 4.5),
        ("4bit", 4.5),
        ("w8a8", 8.25),
        ("w8a16", 8.25),
        ("int8", 8.25),
        ("8bit", 8.25),
        ("fp8", 8.25),
        ("float32", 32.0),
        ("fp32", 32.0),
    ];
    const HALVES: [&str; 5] = ["bf16", "bfloat16", "fp16", "float16", "half"];
    let found = FORMATS.iter().find(|(format, _)| name.contains(format));
    let half = || HALVES.iter().find(|format| name.contains(**format));
    match found {
        // GPTQ is also done with 8 bits.
        Some((format, _)) if *format == "gptq" && name.contains("int8") => Some(("gptq int8".to_owned(), 8.25)),
        Some((format, bits)) => Some(((*format).to_owned(), *bits)),
        None => half().map(|format| ((*format).to_owned(), DEFAULT_BITS)),
    }
}

fn bits_of_cache(kind: &str) -> Option<u32> {
    match kind {
        kind if kind.starts_with("fp8") || kind.starts_with("q8") || kind.starts_with("int8") => Some(8),
        kind if kind.starts_with("q4") || kind.starts_with("iq4") || kind.starts_with("nvfp4") => Some(4),
        "f32" => Some(32),
        "f16" | "bf16" | "bfloat16" | "float16" => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn md(id: &str, engine: &serde_json::Value) -> ModelDeployment {
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "a"},
            "spec": {"model": {"id": id}, "engine": engine, "resources": {"gpu": {"count": 1}}},
        });
        serde_json::from_value(md).unwrap()
    }

    #[test]
    fn parameters_are_read_from_names() {
        for (name, expected) in [
            ("meta-llama/llama-3.1-8b-instruct", Some(8e9)),
            ("qwen/qwen3-30b-a3b", Some(30e9)),
            ("mistralai/mixtral-8x7b-v0.1", Some(56e9)),
            ("qwen/qwen2.5-1.5b", Some(1.5e9)),
            ("google/gemma-3-270m-it", Some(270e6)),
            ("google/gemma-3n-e4b-it", Some(4e9)),
            ("openai/gpt-oss-120b", Some(120e9)),
            ("microsoft/phi-4-mini-instruct", None),
            ("org/model-4bit", None),
            ("a/b", None),
            ("", None),
        ] {
            assert_eq!(parameters(name), expected, "{name}");
        }
    }

    #[test]
    fn every_input_has_a_source() {
        let found = estimate(&md(
            "meta-llama/Llama-3.1-8B-Instruct",
            &json!({"type": "vllm", "contextLength": 4096}),
        ))
        .unwrap();
        let sources: Vec<Source> = found.inputs.iter().map(|input| input.source).collect();
        assert_eq!(sources, [Source::Name, Source::Default, Source::Spec, Source::Default]);
        // 8e9 parameters of 2 bytes, and 4096 tokens of 128 KiB.
        assert_eq!((found.weights, found.kv_cache), (16_000_000_000, 536_870_912));
        assert_eq!(found.overhead, 1_600_000_000);
    }

    #[test]
    fn quantization_comes_from_the_spec_before_the_name() {
        let of = |id: &str, engine: &serde_json::Value| estimate(&md(id, engine)).unwrap().inputs[1].clone();
        for (id, engine, value, source) in [
            (
                "a/b-8B-AWQ",
                json!({"type": "vllm"}),
                "awq, 4.5 bits each",
                Source::Name,
            ),
            (
                "a/b-8B",
                json!({"type": "vllm", "args": {"quantization": "fp8"}}),
                "fp8, 8.25 bits each",
                Source::Spec,
            ),
            (
                "a/b-8B-AWQ",
                json!({"type": "vllm", "args": {"dtype": "auto"}}),
                "awq, 4.5 bits each",
                Source::Name,
            ),
            (
                "google/gemma-3-1b-it-qat-q8_0-gguf",
                json!({"type": "llamacpp"}),
                "q8_0, 8.5 bits each",
                Source::Name,
            ),
            (
                "a/b-8B-GGUF",
                json!({"type": "llamacpp", "args": {"hf-file": "b-Q6_K.gguf"}}),
                "q6_k, 6.6 bits each",
                Source::Name,
            ),
            (
                "a/b-8B-GGUF",
                json!({"type": "llamacpp"}),
                "Q4_K_M, 4.85 bits each",
                Source::Default,
            ),
            (
                "a/b-8B-GPTQ-Int8",
                json!({"type": "vllm"}),
                "gptq int8, 8.25 bits each",
                Source::Name,
            ),
        ] {
            let found = of(id, &engine);
            assert_eq!((found.value.as_str(), found.source), (value, source), "{id}");
        }
    }

    #[test]
    fn nothing_is_estimated_without_parameters() {
        assert_eq!(
            estimate(&md("microsoft/Phi-4-mini-instruct", &json!({"type": "vllm"}))),
            None
        );
    }
}
