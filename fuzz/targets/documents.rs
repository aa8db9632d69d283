//! Feeds libFuzzer's inputs to [`runway_fuzz::documents`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::documents::run(data));
