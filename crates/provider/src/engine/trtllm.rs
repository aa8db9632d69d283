//! TensorRT-LLM's `trtllm-serve MODEL` (TensorRT-LLM `tensorrt_llm/commands/serve.py`, serve; commit 00209af1): flags have
//! underscores, and dashes are not accepted.
//!
//! It listens after the model is loaded (launch_server), on localhost unless a host is set, and on IPv4 only. It lists the model
//! by its ID, or by the name of its directory (`tensorrt_llm/serve/openai_server.py`, OpenAIServer). Later releases accept
//! `--served_model_name` (pull request 11711).

use super::{Dialect, HF_HOME, versions};

/// TensorRT-LLM.
pub const TRTLLM: Dialect = Dialect {
    name: "trtllm",
    title: "TensorRT-LLM",
    gpu_image: versions::TRTLLM,
    cpu_image: None,
    command: &["trtllm-serve"],
    port: 8000,
    from_hub: |id| vec![id.to_owned()],
    from_path: |path| vec![path.to_owned()],
    model_flags: &["model"],
    served_name: Err(
        "trtllm-serve 1.2 lists a model by its id, or by the name of the folder it is in; if spec.image has a later release, \
         set served_model_name in engine.args",
    ),
    listed_name: |name| name,
    // The same text as in admission.
    context_length: Err(
        "TensorRT-LLM fixes it when the engine is built; to limit requests at run time, set max_seq_len in engine.args",
    ),
    trust_remote_code: Ok("trust_remote_code"),
    tensor_parallel: Some("tp_size"),
    cache_variable: HF_HOME,
    compilation_cache_variable: None,
    metrics_flag: None,
    metrics: None,
};
