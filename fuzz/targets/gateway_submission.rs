//! Feeds libFuzzer's inputs to [`runway_fuzz::gateway_submission`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::gateway_submission::run(data));
