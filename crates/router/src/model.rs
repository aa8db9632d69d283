//! The fields of a ModelDeployment that the router keeps. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};
use runway_api::condition::{self, Conditions as _, shorten};
use runway_api::model_deployment::{ModelSource, Phase, ServingMode};
use runway_api::{ModelDeployment, Name, Namespace, ServingState, labels};
use runway_operator::services::ServicePort;

/// Longest part of a status message, in bytes.
const SHOWN: usize = 300;

/// A ModelDeployment, as far as the router needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Namespace.
    pub namespace: Namespace,
    /// Name of the ModelDeployment.
    pub name: Name,
    /// Unique id.
    pub uid: String,
    /// Generation of the spec. The engine may know the model by another name in another generation.
    pub generation: i64,
    /// Time of creation, in seconds since 1970.
    pub created: i64,
    /// Name in client requests: the served name, or the name of the ModelDeployment if the image decides.
    pub served: String,
    /// Name at the Gateway of the cluster, if a route there has it.
    pub at_gateway: Option<String>,
    /// Whether it serves.
    pub state: State,
    /// The engine is one of those that report the tokens of a stream if it is requested. Any other may refuse the request.
    pub reports_usage: bool,
    /// Model of its namespace that gets its requests while that one serves.
    pub stand_in: Option<Name>,
    /// Model of its namespace that it stands in for. Then it is found by its full name only.
    pub stands_in_for: Option<Name>,
    /// The model that it is a canary of. Then it is found by its full name only.
    pub canary: Option<Canary>,
}

/// A model that gets a part of the requests for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// The other model, of the same namespace.
    pub of: Name,
    /// Part of its requests, in percent.
    pub weight: u8,
}

/// Whether a model serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// At least one replica is ready behind this Service.
    Serving(ServicePort),
    /// Scaled to zero with `spec.scaling.replicas`.
    Asleep,
    /// No replica is ready yet. With the message of the status.
    Starting(String),
    /// It cannot serve without a change. With the message of the status.
    Failed(String),
}

impl Model {
    /// The model of a ModelDeployment; `None` while that is being deleted.
    pub fn of(md: &ModelDeployment) -> Option<Self> {
        if md.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let (namespace, name): (Namespace, Name) = (md.namespace()?.parse().ok()?, md.name_any().parse().ok()?);
        Some(Self {
            uid: md.uid().unwrap_or_default(),
            generation: md.metadata.generation.unwrap_or_default(),
            created: md.creation_timestamp().map_or(0, |time| time.0.as_second()),
            served: served_name(md).unwrap_or(&name).to_owned(),
            at_gateway: gateway_name(md).map(str::to_owned),
            state: state(md, &namespace),
            reports_usage: md.spec.source() != ModelSource::Custom,
            stand_in: named(md, labels::STAND_IN),
            stands_in_for: named(md, labels::STAND_IN_FOR),
            canary: named(md, labels::CANARY_FOR).map(|of| Canary {
                of,
                weight: labels::canary_weight(&md.metadata),
            }),
            namespace,
            name,
        })
    }

    /// Whether it has no name but its full name, because it takes requests for another model.
    pub fn is_behind_another(&self) -> bool {
        self.stands_in_for.is_some() || self.canary.is_some()
    }

    /// Part of the requests for another model that it gets as a canary, in percent.
    pub fn weight(&self) -> u8 {
        self.canary.as_ref().map_or(0, |canary| canary.weight)
    }

    /// The model that metrics and use have for its response to a request for `requested`: a stand-in has the numbers of its model; a
    /// canary and a fallback have their own.
    pub fn counted_as<'a>(self: &'a Arc<Self>, requested: &'a Arc<Self>) -> &'a Arc<Self> {
        if self.stands_in_for.is_some() { requested } else { self }
    }

    /// The object, for Events.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(ModelDeployment::api_version(&()).into_owned()),
            kind: Some(ModelDeployment::kind(&()).into_owned()),
            namespace: Some(self.namespace.to_string()),
            name: Some(self.name.to_string()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// `namespace/name`, which is unique.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The other model that an annotation names.
fn named(md: &ModelDeployment, annotation: &str) -> Option<Name> {
    let other: Name = md.annotations().get(annotation)?.parse().ok()?;
    (*other != *md.name_any()).then_some(other)
}

/// The name that the routes controller reports.
fn gateway_name(md: &ModelDeployment) -> Option<&str> {
    md.status.as_ref()?.gateway.as_ref()?.model_name.as_deref()
}

/// The name that the provider gives to the engine; `None` if the image decides.
fn served_name(md: &ModelDeployment) -> Option<&str> {
    if md.spec.source() == ModelSource::Custom {
        return None;
    }
    let given = md.spec.model.served_name.as_deref().filter(|name| !name.is_empty());
    given.or_else(|| md.spec.model_id()?.rsplit('/').next())
}

fn state(md: &ModelDeployment, namespace: &Namespace) -> State {
    let scaling = md.spec.scaling.as_ref();
    if md.spec.mode() == ServingMode::Aggregated && scaling.is_some_and(|scaling| scaling.replicas == Some(0)) {
        return State::Asleep;
    }
    let status = md.status.clone().unwrap_or_default();
    let engine = status.endpoint.as_ref().and_then(|endpoint| {
        Some(ServicePort {
            namespace: namespace.clone(),
            service: endpoint.service.as_deref()?.parse().ok()?,
            port: endpoint.port?.try_into().ok()?,
        })
    });
    // During a rollout, replicas of the previous generation serve.
    let serves = matches!(md.serving_state(), ServingState::Ready | ServingState::Partly);
    if let Some(engine) = engine.filter(|_| serves) {
        return State::Serving(engine);
    }
    let is_of_this_spec = status.observed_generation == md.metadata.generation;
    let has_failed = status.phase == Some(Phase::Failed) || status.conditions.is_true(condition::STALLED);
    let message = status.message.unwrap_or_else(|| "no status yet".to_owned());
    let message = shorten(message, SHOWN);
    if has_failed && is_of_this_spec {
        State::Failed(message)
    } else {
        State::Starting(message)
    }
}

#[cfg(test)]
impl Model {
    /// A model that is scaled to zero, by its full name and served name.
    pub(crate) fn asleep(full_name: &str, served: &str) -> Self {
        let (namespace, name) = full_name.split_once('/').unwrap();
        Self {
            namespace: namespace.parse().unwrap(),
            name: name.parse().unwrap(),
            uid: full_name.to_owned(),
            generation: 1,
            created: 0,
            served: served.to_owned(),
            at_gateway: None,
            state: State::Asleep,
            reports_usage: true,
            stand_in: None,
            stands_in_for: None,
            canary: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn model(spec: &Value, status: &Value) -> Option<Model> {
        let object = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "gemma", "namespace": "team", "uid": "1", "generation": 2 },
            "spec": spec, "status": status,
        });
        Model::of(&serde_json::from_value(object).unwrap())
    }

    fn state(replicas: &Value, status: &Value) -> State {
        let spec = json!({ "model": { "id": "org/gemma" }, "scaling": { "replicas": replicas } });
        model(&spec, status).unwrap().state
    }

    fn engine() -> Value {
        json!({ "service": "gemma", "port": 8000 })
    }

    #[test]
    fn name_in_requests_is_the_served_name_or_that_of_the_object() {
        let name = |model_spec: Value| model(&json!({ "model": model_spec }), &json!({})).unwrap().served;
        assert_eq!(name(json!({ "id": "org/Gemma-2b" })), "Gemma-2b");
        assert_eq!(name(json!({ "id": "org/Gemma-2b", "servedName": "chat" })), "chat");
        assert_eq!(name(json!({ "id": "org/Gemma-2b", "servedName": "" })), "Gemma-2b");
        assert_eq!(name(json!({ "source": "custom", "servedName": "ignored" })), "gemma");
    }

    #[test]
    fn model_serves_while_a_replica_is_ready() {
        let serving = State::Serving(ServicePort {
            namespace: "team".parse().unwrap(),
            service: "gemma".parse().unwrap(),
            port: 8000,
        });
        let ready = json!([{ "type": "Ready", "status": "True", "reason": "A", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        assert_eq!(
            state(&json!(1), &json!({ "endpoint": engine(), "conditions": ready })),
            serving
        );
        // A rollout: some replicas are ready, the new ones are not.
        let rollout =
            json!({ "endpoint": engine(), "replicas": { "ready": 1 }, "phase": "Deploying", "observedGeneration": 2 });
        assert_eq!(state(&json!(2), &rollout), serving);
        // The status of the previous generation says nothing about the pods, which serve on.
        let before = json!({ "endpoint": engine(), "replicas": { "ready": 1 }, "observedGeneration": 1 });
        assert_eq!(state(&json!(1), &before), serving);
    }

    #[test]
    fn model_without_an_endpoint_or_a_ready_replica_starts() {
        let starting = |message: &str| State::Starting(message.to_owned());
        assert_eq!(state(&json!(1), &json!({})), starting("no status yet"));
        let loading = json!({ "endpoint": engine(), "replicas": { "ready": 0 }, "message": "loading" });
        assert_eq!(state(&json!(1), &loading), starting("loading"));
        assert_eq!(
            state(&json!(1), &json!({ "replicas": { "ready": 1 }, "message": "odd" })),
            starting("odd")
        );
        let wrong =
            json!({ "endpoint": { "service": "a/b", "port": 8000 }, "replicas": { "ready": 1 }, "message": "odd" });
        assert_eq!(state(&json!(1), &wrong), starting("odd"));
    }

    #[test]
    fn zero_replicas_are_asleep_whatever_the_status_says() {
        let serves = json!({ "endpoint": engine(), "replicas": { "ready": 1 } });
        assert_eq!(state(&json!(0), &serves), State::Asleep);
        // Absent is one replica.
        assert!(matches!(state(&Value::Null, &serves), State::Serving(_)));
        let spec = json!({
            "model": { "id": "a/b" }, "serving": { "mode": "disaggregated" }, "scaling": { "replicas": 0 },
        });
        let disaggregated = model(&spec, &json!({})).unwrap();
        assert!(
            matches!(disaggregated.state, State::Starting(_)),
            "the number is that of prefill and decode"
        );
    }

    #[test]
    fn failure_counts_for_the_spec_that_it_is_about() {
        let failed =
            |generation: i64| json!({ "phase": "Failed", "message": "no GPU", "observedGeneration": generation });
        assert_eq!(state(&json!(1), &failed(2)), State::Failed("no GPU".to_owned()));
        assert_eq!(state(&json!(1), &failed(1)), State::Starting("no GPU".to_owned()));
    }

    #[test]
    fn annotations_name_other_models() {
        let model = |annotations: Value| {
            let object = json!({
                "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
                "metadata": { "name": "gemma", "namespace": "team", "annotations": annotations },
                "spec": { "model": { "id": "a/b" } },
            });
            Model::of(&serde_json::from_value(object).unwrap()).unwrap()
        };
        let stand_in = |name: &str| model(json!({ "kubeairunway.ai/stand-in": name })).stand_in;
        assert_eq!(stand_in("other").as_deref(), Some("other"));
        let stands_in_for = |name: &str| model(json!({ "kubeairunway.ai/stand-in-for": name })).stands_in_for;
        assert_eq!(stands_in_for("other").as_deref(), Some("other"));
        for none in ["", "gemma", "no name"] {
            assert_eq!((stand_in(none), stands_in_for(none)), (None, None), "{none}");
        }
    }

    #[test]
    fn models_that_are_being_deleted_are_gone() {
        let object = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "gemma", "namespace": "team", "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "model": { "id": "a/b" } },
        });
        assert_eq!(Model::of(&serde_json::from_value(object).unwrap()), None);
    }
}
