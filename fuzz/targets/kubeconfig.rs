//! Feeds libFuzzer's inputs to [`runway_fuzz::kubeconfig`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::kubeconfig::run(data));
