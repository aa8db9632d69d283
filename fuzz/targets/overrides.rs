//! Feeds libFuzzer's inputs to [`runway_fuzz::overrides`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::overrides::run(data));
