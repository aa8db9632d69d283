//! Feeds libFuzzer's inputs to [`runway_fuzz::router_limits`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::router_limits::run(data));
