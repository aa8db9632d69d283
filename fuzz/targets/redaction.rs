//! Feeds libFuzzer's inputs to [`runway_fuzz::redaction`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::redaction::run(data));
