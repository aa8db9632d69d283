//! TensorRT-LLM's `trtllm-serve MODEL` (TensorRT-LLM `tensorrt_llm/commands/serve.py`, 1.2.1): flags have underscores.
//!
//! It listens after the model is loaded (launch_server), and lists the model by its id, or by the name of the folder it is in
//! (`tensorrt_llm/serve/openai_server.py`, OpenAIServer). It listens on localhost unless it is told a host.

use super::{Dialect, ServedName};

pub(super) const DIALECT: Dialect = Dialect {
    name: "trtllm",
    title: "TensorRT-LLM",
    gpu_image: "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    cpu_image: None,
    command: &["trtllm-serve"],
    port: 8000,
    from_hub: |id| vec![id.to_owned()],
    from_path: |path| vec![path.to_owned()],
    model_flags: &["model"],
    served_name: ServedName::Fixed(
        "trtllm-serve lists a model by its id, or by the name of the folder it is in, and takes no other name",
    ),
    // As admission says for every provider.
    context_length: Err(
        "TensorRT-LLM takes it when the engine is built; to limit requests at run time set max_seq_len in engine.args",
    ),
    trust_remote_code: Ok("trust_remote_code"),
    tensor_parallel: Some("tp_size"),
    cache_variable: "HF_HOME",
};
