//! Parallel sizes in `engine.args` that need more GPUs than a worker has.

use std::collections::BTreeMap;

use crate::Refusal;
use crate::request::Gpu;

/// Names of the tensor-parallel size (vLLM, SGLang, TensorRT-LLM).
const TENSOR: [&str; 3] = ["tensor-parallel-size", "tp-size", "tp"];
/// Names of the pipeline-parallel size.
const PIPELINE: [&str; 3] = ["pipeline-parallel-size", "pp-size", "pp"];

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
