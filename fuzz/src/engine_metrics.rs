//! Any text as the metrics of an engine: what is read of it are finite numbers.
//!
//! The input is two readings with a NUL between.

use std::time::Duration;

use runway_engines::usage::{Reading, Usage};

pub fn run(data: &[u8]) {
    let readings = crate::parts::<2>(data).map(|text| Reading::of(&String::from_utf8_lossy(text)));
    let [first, Some(last)] = readings else { return };
    for elapsed in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(2)] {
        let usage = Usage::between(first.as_ref(), &last, elapsed);
        for usage in [usage, usage.and(usage)] {
            let numbers = [usage.running, usage.waiting, usage.tokens_per_second, usage.kv_cache];
            assert!(numbers.iter().flatten().all(|number| number.is_finite()), "{usage:?}");
            assert!(serde_json::to_string(&usage).is_ok());
        }
    }
}
