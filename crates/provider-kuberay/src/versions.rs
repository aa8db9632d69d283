//! Default images. Made by `cargo xtask gen` from `versions.toml`. Do not edit.

/// Ray with vLLM for NVIDIA GPUs, with NIXL.
pub(crate) const RAY: &str = "rayproject/ray-llm:2.58.0-py312-cu130";
