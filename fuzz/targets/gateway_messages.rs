//! Feeds libFuzzer's inputs to [`runway_fuzz::gateway_messages`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::gateway_messages::run(data));
