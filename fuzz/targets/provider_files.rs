//! Feeds libFuzzer's inputs to [`runway_fuzz::provider_files`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::provider_files::run(data));
