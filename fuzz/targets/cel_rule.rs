//! Feeds libFuzzer's inputs to [`runway_fuzz::cel_rule`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::cel_rule::run(data));
