//! Tests of admission, with shared helpers.

#![allow(
    clippy::needless_pass_by_value,
    reason = "json! values are written where they are used"
)]

mod capabilities;
mod defaults;
mod handlers;
mod manifests;
mod validate;

use std::sync::Arc;

use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use runway_api::model_deployment::{
    Autoscaling, Component, Engine, Gpu, Model, ModelSource, Provider, Resources, Scaling, Serving, ServingMode,
};
use runway_api::{InferenceProviderConfig, ModelDeployment, ModelDeploymentSpec};
use serde_json::{Value, json};

use crate::providers::Providers;

/// A ModelDeployment with this spec.
fn deployment(spec: Value) -> ModelDeployment {
    let object = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "m", "namespace": "n"}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// Providers with these specs, by name.
fn providers(specs: Value) -> Providers {
    let config = |(name, spec)| {
        let object = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig", "metadata": {"name": name}, "spec": spec});
        Arc::new(serde_json::from_value::<InferenceProviderConfig>(object).unwrap())
    };
    let Value::Object(specs) = specs else {
        panic!("a map of specs")
    };
    Providers::compile(specs.into_iter().map(config), &Providers::default())
}

/// Any spec, likely or not.
fn any_spec() -> impl Strategy<Value = ModelDeploymentSpec> {
    let text = || option::of(prop_oneof![Just(String::new()), "[a-zA-Z0-9/ .-]{1,12}"]);
    let number = || option::of(prop_oneof![Just(0), Just(1), any::<i32>()]);
    let gpu = move || option::of((number(), text()).prop_map(|(count, kind)| Gpu { count, kind }));
    let component = move || {
        option::of((number(), gpu(), text()).prop_map(|(replicas, gpu, memory)| Component { replicas, gpu, memory }))
    };

    let source = option::of(prop_oneof![Just(ModelSource::Huggingface), Just(ModelSource::Custom)]);
    let model = (text(), text(), source).prop_map(|(id, served_name, source)| Model {
        id,
        served_name,
        source,
        storage: None,
    });
    let mode = option::of(prop_oneof![
        Just(ServingMode::Aggregated),
        Just(ServingMode::Disaggregated)
    ]);
    let serving = option::of(mode.prop_map(|mode| Serving { mode }));
    let autoscaling = option::of((number(), any::<i32>(), number(), number()).prop_map(
        |(min_replicas, max_replicas, requests_in_flight, queued_requests)| Autoscaling {
            min_replicas,
            max_replicas,
            requests_in_flight,
            queued_requests,
            ..Autoscaling::default()
        },
    ));
    let scaling = option::of((number(), component(), component(), autoscaling).prop_map(
        |(replicas, prefill, decode, autoscaling)| Scaling {
            replicas,
            prefill,
            decode,
            autoscaling,
        },
    ));
    let resources = option::of((gpu(), text(), text()).prop_map(|(gpu, memory, cpu)| Resources { gpu, memory, cpu }));
    let engine_type = option::of(prop_oneof![
        Just("vllm".to_owned()),
        Just("llamacpp".to_owned()),
        ".{0,8}"
    ]);
    let engine = option::of((engine_type, number(), option::of(any::<bool>())).prop_map(
        |(kind, context_length, trust_remote_code)| Engine {
            kind,
            context_length,
            trust_remote_code,
            args: std::collections::BTreeMap::new(),
        },
    ));
    let provider = option::of(text().prop_map(|name| Provider { name, overrides: None }));
    let labels = btree_map(".{0,6}", ".{0,6}", 0..3);

    (model, provider, engine, serving, scaling, resources, text(), labels).prop_map(
        |(model, provider, engine, serving, scaling, resources, image, node_selector)| ModelDeploymentSpec {
            model,
            provider,
            engine,
            serving,
            scaling,
            resources,
            image,
            node_selector,
            ..ModelDeploymentSpec::default()
        },
    )
}
