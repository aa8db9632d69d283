//! Registered providers, healthy or not.

use jiff::{SignedDuration, Timestamp};
use runway_api::{InferenceProviderConfig, InferenceProviderConfigSpec};
use serde::Deserialize;
use serde_json::json;

/// Health of a provider.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum How {
    #[serde(rename = "healthy")]
    Healthy,
    #[serde(rename = "not ready")]
    NotReady,
    /// No heartbeat for 181 seconds.
    #[serde(rename = "silent")]
    Silent,
    /// No status yet.
    #[serde(rename = "new")]
    New,
}

/// A provider as observed at `now`.
pub(crate) fn registered(
    name: &str,
    spec: InferenceProviderConfigSpec,
    how: How,
    now: Timestamp,
) -> InferenceProviderConfig {
    let beat = now - SignedDuration::from_secs(if how == How::Silent { 181 } else { 180 });
    let status = match how {
        How::New => json!(null),
        How::Healthy | How::Silent => json!({ "ready": true, "lastHeartbeat": beat }),
        How::NotReady => json!({ "ready": false, "lastHeartbeat": beat, "conditions": [{
            "type": "UpstreamReady", "status": "False", "reason": "CRDNotInstalled", "lastTransitionTime": beat,
            "message": format!("CRD things.{name}.example is not installed"),
        }]}),
    };
    let mut config = InferenceProviderConfig::new(name, spec);
    config.status = serde_json::from_value(status).unwrap();
    config
}
