//! Feeds libFuzzer's inputs to [`runway_fuzz::router_models`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::router_models::run(data));
