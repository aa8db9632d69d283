//! A scenario is a value: controllers, and what users and others do while they run.

use anyhow::{Result, bail, ensure};
use kube::core::DynamicObject;
use runway_provider::Kind;
use serde_json::{Value, json};

use crate::controllers::Who;

pub(crate) const MODEL: Kind = Kind::new("kubeairunway.ai", "v1alpha1", "ModelDeployment", "modeldeployments");
pub(crate) const ACTOR: Kind = Kind::new("asya.sh", "v1alpha1", "AsyncActor", "asyncactors");
pub(crate) const STACK: Kind = Kind::new(
    "llamastack.io",
    "v1alpha1",
    "LlamaStackDistribution",
    "llamastackdistributions",
);

/// Controllers and steps.
#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) controllers: &'static [Who],
    pub(crate) steps: Vec<Step>,
    /// Whether the controllers end with an attempt to create what another owner has, and try again: the server refuses it.
    pub(crate) tries_again: bool,
}

impl Scenario {
    /// Whether it has this name, or a name that begins so if it ends in `-`.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name || name.ends_with('-') && self.name.starts_with(name)
    }

    pub(crate) fn trying_again(mut self) -> Self {
        self.tries_again = true;
        self
    }
}

/// A step of a user, or of another owner of objects.
#[derive(Clone)]
pub(crate) enum Step {
    /// Creates an object.
    Create(Kind, Value),
    /// Creates an object of another owner, which must not change until the end.
    Theirs(Kind, Value),
    /// Changes an object by a merge patch.
    Patch(Kind, &'static str, Value),
    /// Changes an object by a merge patch, which the API server may reject if it names the field, and waits until it is handled.
    Try(Kind, &'static str, Value),
    /// Replaces the spec, and waits until it is handled.
    Replace(Kind, &'static str, Value),
    Delete(Kind, &'static str),
    /// Waits.
    Until(Kind, &'static str, Until),
}

/// State of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// A condition of this type has this status or reason, for the current generation.
    Is(&'static str, &'static str),
    /// The status is of the current generation.
    Reported,
    /// The status says of the current generation why the object is ready, in progress or stalled.
    Handled,
    There,
    Gone,
}

impl Until {
    /// An error says what is not so.
    pub(crate) fn check(self, object: Option<&DynamicObject>) -> Result<()> {
        let Some(object) = object else {
            ensure!(matches!(self, Self::Gone), "there is none");
            return Ok(());
        };
        let status = &object.data["status"];
        let is_current = |seen: &Value| seen["observedGeneration"].as_i64() == object.metadata.generation;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let is_met = match self {
            Self::There => true,
            Self::Gone => false,
            Self::Reported => is_current(status),
            Self::Handled => is_current(status) && is_explained(&conditions, is_current),
            Self::Is(condition, value) => conditions
                .iter()
                .any(|c| c["type"] == condition && is_current(c) && (c["status"] == value || c["reason"] == value)),
        };
        if !is_met {
            bail!("not {self:?}: {status}");
        }
        Ok(())
    }
}

/// Whether `Ready` is current and has a reason and a message, and is not true if `Stalled` is.
fn is_explained(conditions: &[Value], is_current: impl Fn(&Value) -> bool) -> bool {
    let is_true = |condition: &Value| condition["status"] == "True";
    let has = |condition: &Value, part: &str| condition[part].as_str().is_some_and(|text| !text.is_empty());
    let find = |name: &str| conditions.iter().find(|condition| condition["type"] == name);
    let stalled = find("Stalled").filter(|stalled| is_true(stalled));
    find("Ready").is_some_and(|ready| {
        is_current(ready) && has(ready, "reason") && has(ready, "message") && !(is_true(ready) && stalled.is_some())
    }) && stalled.is_none_or(|stalled| is_current(stalled) && has(stalled, "reason"))
}

/// An AsyncActor with a workload of its own.
pub(crate) fn actor(name: &str) -> Value {
    let template = json!({ "spec": { "containers": [{ "name": "asya-runtime", "image": "registry.example/own:1" }] } });
    json!({ "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": { "name": name },
        "spec": { "transport": "rabbitmq", "workload": { "kind": "Deployment", "template": template } } })
}

/// A distribution with nothing but a name.
pub(crate) fn distribution(name: &str) -> Value {
    json!({ "apiVersion": "llamastack.io/v1alpha1", "kind": "LlamaStackDistribution", "metadata": { "name": name },
        "spec": { "server": { "distribution": { "name": "starter" } } } })
}

/// A ConfigMap of another owner.
pub(crate) fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "theirs": "1" } })
}

/// A Service of another owner.
pub(crate) fn service(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] } })
}
