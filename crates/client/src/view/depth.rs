//! Length of an actor's queue.

use std::fmt;

/// Number of messages in a queue, including those in delivery if the broker reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Number of messages.
    Messages(u64),
    /// The number is unknown, for this reason.
    Unknown(String),
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages(0) => f.write_str("empty"),
            Self::Messages(1) => f.write_str("1 message"),
            Self::Messages(count) => write!(f, "{count} messages"),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}
