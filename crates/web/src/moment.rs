//! Moments as pages show them.

use jiff::Timestamp;
use runway_client::text;

/// A point in time: its age, and the exact time on hover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// RFC 3339.
    pub at: String,
    /// Age, such as `5m`.
    pub ago: String,
}

impl Moment {
    /// The age of `at` at the time `now`.
    pub fn new(at: Timestamp, now: Timestamp) -> Self {
        Self {
            at: at.to_string(),
            ago: text::since(at, now),
        }
    }
}
