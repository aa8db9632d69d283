//! The wall clock: read at the edge of a reconcile and handed in as a value.

use jiff::Timestamp;

/// Now, in whole seconds, as Kubernetes writes times.
pub fn now() -> Timestamp {
    let now = exact();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Now, as exactly as it is known.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
pub fn exact() -> Timestamp {
    Timestamp::now()
}
