//! Feeds libFuzzer's inputs to [`runway_fuzz::asya_message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::asya_message::run(data));
