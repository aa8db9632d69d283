//! Results of a provider as texts of golden cases.

use serde_json::{Value, json};

use crate::contract::{Reading, Refusal};

/// A refusal, as text of a golden file.
pub fn refused(refusal: &Refusal) -> String {
    format!("{}: {refusal}\n", refusal.reason)
}

/// A reading of an upstream status, as a value of a golden file.
pub fn reading(reading: &Reading) -> Value {
    let mut value = json!({
        "phase": reading.phase,
        "reason": reading.reason,
        "message": reading.message,
        "ready": reading.ready,
        "available": reading.available,
        "lastChange": reading.last_change.map(|time| time.to_string()),
    });
    if let Some(time) = reading.settled_at {
        value["settledAt"] = json!(time.to_string());
    }
    for (label, found) in &reading.current {
        value["current"][label] = json!(found);
    }
    value
}
