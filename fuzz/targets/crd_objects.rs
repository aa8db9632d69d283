//! Feeds libFuzzer's inputs to [`runway_fuzz::crd_objects`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::crd_objects::run(data));
