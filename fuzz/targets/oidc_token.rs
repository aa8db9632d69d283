//! Feeds libFuzzer's inputs to [`runway_fuzz::oidc_token`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runway_fuzz::oidc_token::run(data));
