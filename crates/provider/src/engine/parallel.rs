//! Parallel sizes in `engine.args`: flags by which a user distributes a model over GPUs.

use std::collections::BTreeMap;

use crate::Refusal;
use crate::request::Gpu;

/// Names of the tensor-parallel size (vLLM, SGLang, TensorRT-LLM).
const TENSOR: [&str; 3] = ["tensor-parallel-size", "tp-size", "tp"];
/// Names of the pipeline-parallel size.
const PIPELINE: [&str; 3] = ["pipeline-parallel-size", "pp-size", "pp"];
/// Names of the other sizes. vLLM's decode-context-parallel-size is not one of them: it needs no additional GPUs.
const OTHERS: [&str; 6] = [
    "data-parallel-size",
    "dp-size",
    "dp",
    "context-parallel-size",
    "cp-size",
    "prefill-context-parallel-size",
];

/// Flags of all sizes. The number of GPUs is their product (vLLM `vllm/config/parallel.py`, world_size), so that none is derived
/// if the user sets one of them.
pub fn flags() -> impl Iterator<Item = &'static str> {
    TENSOR.into_iter().chain(PIPELINE).chain(OTHERS)
}

/// Refuses sizes whose product exceeds the GPUs of a worker in one pod: the engine would not start. `field` is the number of
/// GPUs, such as `resources.gpu.count`. Data-parallel sizes are left to the engine, since their meaning differs.
///
/// # Errors
/// The sizes need more GPUs.
pub fn check(args: &BTreeMap<String, String>, field: &str, gpu: &Gpu) -> Result<(), Refusal> {
    let size = |names: [&str; 3]| {
        args.iter()
            .filter(|(key, _)| names.contains(&key.replace('_', "-").as_str()))
            .find_map(|(key, value)| Some((key, value.trim().parse::<u32>().ok()?)))
    };
    // The pods of several nodes share the sizes.
    if args.contains_key("nnodes") {
        return Ok(());
    }
    let given: Vec<_> = [size(TENSOR), size(PIPELINE)].into_iter().flatten().collect();
    let needed = given
        .iter()
        .fold(1_u64, |product, (_, size)| product.saturating_mul(u64::from(*size)));
    if needed <= u64::from(gpu.count.unsigned_abs()) {
        return Ok(());
    }
    let sizes: Vec<_> = given
        .iter()
        .map(|(key, size)| format!("engine.args.{key} {size}"))
        .collect();
    Err(Refusal::incompatible(format!(
        "{field} is {}, but {} needs {needed} GPUs: set {field} to {needed}, or use a smaller size",
        gpu.count,
        sizes.join(" with ")
    )))
}
