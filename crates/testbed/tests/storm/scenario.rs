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
pub(crate) enum Step {
    /// Creates an object.
    Create(Kind, Value),
    /// Creates an object of another owner, which must not change until the end.
    Theirs(Kind, Value),
    /// Changes an object by a merge patch.
    Patch(Kind, &'static str, Value),
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
