//! Feeds libFuzzer's inputs to [`runway_fuzz::amqp_session`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::amqp_session::run(data));
