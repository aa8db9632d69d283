//! Feeds libFuzzer's inputs to [`runway_fuzz::runtime_frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::runtime_frame::run(data));
