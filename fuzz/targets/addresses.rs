//! Feeds libFuzzer's inputs to [`runway_fuzz::addresses`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::addresses::run(data));
