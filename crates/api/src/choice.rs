//! Choice of the replica for a prompt, as the model router explains it.

use serde::{Deserialize, Serialize};

/// Replicas that a request for a model could go to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The model, as `NAMESPACE/NAME`.
    pub model: String,
    /// The model itself, and those that get requests for it.
    pub versions: Vec<Version>,
}

/// A ModelDeployment that may get the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// Name of the ModelDeployment.
    pub name: String,
    /// Part of the requests, in percent.
    pub weight: u32,
    /// Reason why it does not get the request; empty if it serves.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub obstacle: String,
    /// Blocks of the prompt, of 256 bytes each. 0 if prompts do not matter, because the upstream chooses the engine.
    pub blocks: usize,
    /// Deciding criterion: `only`, `prefix`, `load` or `busy`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Replicas that are ready.
    pub replicas: Vec<Replica>,
}

/// A replica, as the router sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// Name of the pod.
    pub pod: String,
    /// Requests of this router in flight.
    pub in_flight: u32,
    /// First blocks of the prompt that it has seen.
    pub seen: usize,
    /// `ready`, `new` (it begins with few requests), or `failing` (it gets none for a while).
    pub state: String,
    /// It would get the request.
    pub chosen: bool,
}
