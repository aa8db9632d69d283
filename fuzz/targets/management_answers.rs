//! Feeds libFuzzer's inputs to [`runway_fuzz::management_answers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::management_answers::run(data));
