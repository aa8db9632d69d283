//! Feeds libFuzzer's inputs to [`runway_fuzz::engine_metrics`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::engine_metrics::run(data));
