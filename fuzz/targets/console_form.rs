//! Feeds libFuzzer's inputs to [`runway_fuzz::console_form`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::console_form::run(data));
