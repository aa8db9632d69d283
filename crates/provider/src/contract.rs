//! What a provider implements: a name, a registration, the upstream schemas it knows, and two pure functions.
//!
//! Everything else (watching, applying, deleting, hand-over, drift, finalizer, staleness, dry run) is the loop's.
//! `docs/provider-contract.md` states the rules by number.

use std::collections::BTreeMap;

use runway_api::model_deployment::{Endpoint, Phase};
use runway_api::{InferenceProviderConfigSpec, ProviderReason};
pub use runway_operator::object::Kind;
use serde_json::Value;

use crate::request::Request;
use crate::upstream::{Installed, Upstream};

/// Version of the contract, as in `docs/provider-contract.md`.
pub const VERSION: &str = "v1alpha1";

/// A provider: translates a ModelDeployment into upstream objects, and their status back. Both ways are pure.
pub trait Provider: Send + Sync + 'static {
    /// Name of the provider and of its InferenceProviderConfig, as `kaito`.
    fn name(&self) -> &'static str;

    /// Name and version of the provider's controller, as `kaito-provider:v0.1.0`.
    fn version(&self) -> String;

    /// What the provider registers: capabilities, rules, documented overrides.
    fn registration(&self) -> InferenceProviderConfigSpec;

    /// The upstream kinds it makes, and the schemas of each that it knows. The first is the main one: without it the
    /// provider is not ready. Kinds that only serve them, such as a ConfigMap, are named in [`children`](Self::children) alone.
    fn upstreams(&self) -> Vec<Upstream>;

    /// Every object that may exist for a ModelDeployment of this name, whatever its spec says or said.
    fn children(&self, name: &str) -> Vec<ChildRef>;

    /// Labels by which pods are found: each carries the name of its ModelDeployment. Pods are read for what keeps them waiting.
    fn pod_labels(&self) -> Vec<&'static str> {
        vec![runway_api::labels::DEPLOYMENT]
    }

    /// Translates a request for the upstream schemas that are installed.
    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal>;

    /// What the upstream object says of itself. It is called with the main object of a [`Translation`], when it exists.
    fn read_status(&self, request: &Request, object: &Value) -> Reading;
}

/// `ConfigMap`, for settings that an upstream reads from one.
pub const CONFIG_MAP: Kind = Kind::new("", "v1", "ConfigMap", "configmaps");

/// An object that may exist for a ModelDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildRef {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

/// What a ModelDeployment becomes upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// The objects in apply order; the last one is the main one, whose status is read.
    pub objects: Vec<Object>,
    /// Fields of the spec that do nothing here, each a sentence that says why. Told as a warning, never dropped in silence.
    pub ignored: Vec<String>,
    /// Where the model will answer.
    pub endpoint: Option<Endpoint>,
    /// The name under which `/v1/models` of the endpoint lists the model; `None` where the image decides it.
    pub model_name: Option<String>,
    /// Workers that serve the model, as asked for.
    pub replicas: i32,
    /// Which of [`Provider::pod_labels`] its pods carry, for autoscalers; `None` if they cannot be told apart.
    pub pod_label: Option<&'static str>,
}

/// An upstream object, as the provider wants it. Labels, annotations and the owner reference are added by the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// API version within the group, as `v1beta1`.
    pub version: String,
    /// Its name.
    pub name: String,
    /// Annotations it needs, beside ours.
    pub annotations: BTreeMap<String, String>,
    /// Everything beside `apiVersion`, `kind` and `metadata`.
    pub body: Value,
    /// What the upstream forbids to change, by a name that people understand. A difference recreates the object.
    pub immutable: BTreeMap<String, Value>,
    /// Changes that the upstream accepts and does not carry to the pods that run, by names as above. A difference recreates the
    /// object as well, unless it was made before this was recorded on it.
    pub not_rolled_out: BTreeMap<String, Value>,
}

/// Why a provider does not translate a ModelDeployment. It gives `ProviderCompatible=False` and phase Failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// CamelCase, stable.
    pub reason: &'static str,
    /// The field, the reason and the way out.
    pub message: String,
}

impl Refusal {
    /// The provider cannot do what is asked for.
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self {
            reason: ProviderReason::Incompatible.into(),
            message: message.into(),
        }
    }
}

/// What an upstream object says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Where it stands.
    pub phase: Phase,
    /// CamelCase, for the condition Ready.
    pub reason: String,
    /// What the upstream says, for people; empty if it says nothing worth reading.
    pub message: String,
    /// Workers that serve.
    pub ready: i32,
    /// Workers that have served for long enough, where the upstream tells; otherwise as `ready`.
    pub available: i32,
    /// When the upstream last said something new, in RFC 3339, if it tells.
    pub last_change: Option<jiff::Timestamp>,
}

impl Reading {
    /// The upstream has said nothing yet.
    pub fn silent() -> Self {
        Self {
            phase: Phase::Deploying,
            reason: "Deploying".to_owned(),
            message: String::new(),
            ready: 0,
            available: 0,
            last_change: None,
        }
    }
}
