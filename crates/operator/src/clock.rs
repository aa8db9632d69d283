//! The wall clock: read at the start of a reconcile and passed as a value.

use jiff::Timestamp;

/// The current time in whole seconds, as Kubernetes writes times.
pub fn now() -> Timestamp {
    let now = exact();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The current time in full precision.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
pub fn exact() -> Timestamp {
    Timestamp::now()
}
