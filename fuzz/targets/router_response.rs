//! Feeds libFuzzer's inputs to [`runway_fuzz::router_response`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::router_response::run(data));
