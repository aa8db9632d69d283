//! Feeds libFuzzer's inputs to [`runway_fuzz::merge`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::merge::run(data));
