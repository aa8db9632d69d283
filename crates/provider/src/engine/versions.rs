//! Default images. Made by `cargo xtask gen` from `versions.toml`. Do not edit.

/// llama.cpp for CPUs.
pub(crate) const LLAMACPP: &str = "ghcr.io/ggml-org/llama.cpp:server-b10257";

/// llama.cpp for NVIDIA GPUs.
pub(crate) const LLAMACPP_CUDA: &str = "ghcr.io/ggml-org/llama.cpp:server-cuda-b10257";

/// SGLang.
pub(crate) const SGLANG: &str = "lmsysorg/sglang:v0.5.18";

/// TensorRT-LLM.
pub(crate) const TRTLLM: &str = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1";

/// vLLM.
pub(crate) const VLLM: &str = "vllm/vllm-openai:v0.32.0";
