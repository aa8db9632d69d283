//! Quantities that rules limit. Pure.

use prometheus_client::encoding::EncodeLabelValue;

/// A quantity that a rule limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the label value is the name")]
pub enum Quantity {
    /// Requests a minute.
    requests_per_minute,
    /// Tokens a minute.
    tokens_per_minute,
    /// Tokens a day.
    tokens_per_day,
    /// Requests in flight.
    requests_in_flight,
}

impl Quantity {
    /// For people, after a number.
    pub fn name(self) -> &'static str {
        match self {
            Self::requests_per_minute => "requests a minute",
            Self::tokens_per_minute => "tokens a minute",
            Self::tokens_per_day => "tokens a day",
            Self::requests_in_flight => "requests in flight",
        }
    }
}
