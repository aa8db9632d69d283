//! Feeds libFuzzer's inputs to [`runway_fuzz::sqs_answers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::sqs_answers::run(data));
