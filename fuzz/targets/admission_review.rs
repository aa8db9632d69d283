//! Feeds libFuzzer's inputs to [`runway_fuzz::admission_review`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::admission_review::run(data));
