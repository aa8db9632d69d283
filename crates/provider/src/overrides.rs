//! Values of `provider.overrides` that several providers accept. The loop has checked the types.

use runway_api::reason::ProviderReason;
use runway_operator::quantity::{self, Amount};
use serde_json::Value;

use crate::Refusal;

/// A quantity with one of the suffixes, or the default if the value is absent.
///
/// # Errors
/// The text is not a quantity. An upstream whose schema accepts any text would fail later.
pub fn quantity<'a>(path: &str, given: &'a Value, default: &'a str, suffixes: &[&str]) -> Result<&'a str, Refusal> {
    let text = given.as_str().unwrap_or(default);
    if quantity::amount(text, suffixes) == Amount::Unreadable {
        return Err(invalid(format!(
            "spec.provider.overrides.{path} must be a quantity such as {default}, not '{text}'"
        )));
    }
    Ok(text)
}

/// A refusal of a value.
pub fn invalid(message: String) -> Refusal {
    Refusal {
        reason: ProviderReason::InvalidOverrides.into(),
        message,
    }
}
