//! Any JSON as an object of one of our kinds, through its type and the plan of its controllers: no panic, the same plan twice, and
//! nothing left to do once it is carried out.

use std::sync::{Arc, LazyLock};

use kube::core::ObjectMeta;
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment};
use runway_client::render::plans;
use runway_client::state::State;
use runway_core::providers::Providers;
use runway_core::selection::select;
use runway_golden::reported;
use runway_llama_stack_operator::plan::plan as plan_of_distribution;
use runway_manifests::built_in_providers;
use runway_provider::Provider;
use runway_worlds::{actor, distribution};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{admission_review, overrides};

pub fn run(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    match object["kind"].as_str() {
        Some("ModelDeployment") => deployment(object),
        Some("InferenceProviderConfig") => registration(object),
        Some("AsyncActor") => actor(object),
        Some("LlamaStackDistribution") => distribution(object),
        _ => {}
    }
}

/// The object as its type, with the metadata that the API server gives and checks.
fn read<T: DeserializeOwned>(mut object: Value) -> Option<T> {
    let given: ObjectMeta = serde_json::from_value(object["metadata"].take()).ok()?;
    object["metadata"] = json!(ObjectMeta {
        name: Some("md".to_owned()),
        namespace: Some("here".to_owned()),
        uid: Some("uid-of-md".to_owned()),
        generation: Some(1),
        resource_version: Some("1".to_owned()),
        labels: given.labels,
        annotations: given.annotations,
        ..ObjectMeta::default()
    });
    object.as_object_mut()?.remove("status");
    serde_json::from_value(object).ok()
}

fn deployment(object: Value) {
    static STATE: LazyLock<State> = LazyLock::new(|| State::with_providers(Arc::new(admission_review::registered())));
    static PROVIDERS: LazyLock<Vec<Arc<dyn Provider>>> = LazyLock::new(built_in_providers);
    let Some(md) = read::<ModelDeployment>(object) else {
        return;
    };
    let planned = plans(md.clone(), &STATE, crate::NOW).unwrap();
    let again = plans(md.clone(), &STATE, crate::NOW).unwrap();
    assert_eq!(json!(planned.md), json!(again.md));
    let settled = plans(planned.md.clone(), &STATE, crate::NOW).unwrap();
    assert_eq!(
        json!(planned.md.status),
        json!(settled.md.status),
        "the status is not at rest"
    );
    for provider in PROVIDERS.iter() {
        let plan = overrides::plan_of(provider.as_ref(), md.clone());
        assert_eq!(
            overrides::reported(&plan),
            overrides::reported(&overrides::plan_of(provider.as_ref(), md.clone()))
        );
        overrides::contained(provider.as_ref(), &plan);
    }
}

fn registration(object: Value) {
    let Some(mut config) = read::<InferenceProviderConfig>(object) else {
        return;
    };
    config.status = serde_json::from_value(json!({"ready": true, "lastHeartbeat": crate::NOW})).unwrap();
    let config = Arc::new(config);
    let compiled = || Providers::compile([config.clone()], &Providers::default());
    let md = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "md", "namespace": "here"},
        "spec": {"model": {"id": "a/b"}, "engine": {"type": "vllm"}, "resources": {"gpu": {"count": 1}}},
    });
    let md: ModelDeployment = serde_json::from_value(md).unwrap();
    let judged = |providers: &Providers| {
        let status: Vec<_> = providers.iter().map(|(_, p)| p.status_to_write(crate::NOW)).collect();
        (select(&md, providers, crate::NOW), status)
    };
    assert_eq!(judged(&compiled()), judged(&compiled()));
    assert_eq!(
        judged(&Providers::compile([config.clone()], &compiled())),
        judged(&compiled())
    );
}

fn actor(object: Value) {
    let Some(actor) = read::<AsyncActor>(object) else {
        return;
    };
    let mut world = actor::World::new(actor, crate::NOW);
    let plan = || actor::reported(&runway_asya_operator::plan::plan(&world.observed()));
    assert_eq!(plan(), plan());
    world.rest();
}

fn distribution(object: Value) {
    let Some(llsd) = read::<LlamaStackDistribution>(object) else {
        return;
    };
    let given = serde_json::from_value(json!({"now": crate::NOW})).unwrap();
    let mut world = distribution::World::new(llsd, given);
    let first = plan_of_distribution(&world.observed());
    assert_eq!(
        reported::plan(&first),
        reported::plan(&plan_of_distribution(&world.observed()))
    );
    world.carry_out(&first);
    // That the objects are there is news.
    let second = plan_of_distribution(&world.observed());
    world.carry_out(&second);
    let third = plan_of_distribution(&world.observed());
    assert!(third.is_silent(), "{}", reported::plan(&third));
}
