//! Feeds libFuzzer's inputs to [`runway_fuzz::names_and_paths`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::names_and_paths::run(data));
