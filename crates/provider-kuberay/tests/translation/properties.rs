//! Invariants for every spec.

use proptest::prelude::*;
use runway_provider::conformance::fields::{self, holds_null};
use runway_provider::{Provider, Refusal, Translation};
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

use crate::{crd, document, installed, request, serve_config};

/// Base spec.
const BASES: [&str; 4] = ["aggregated", "by image", "custom", "disaggregated"];

fn base(which: &str) -> Value {
    let part = json!({"gpu": {"count": 1}, "memory": "9Gi"});
    let spec = match which {
        "aggregated" => json!({"model": {"id": "Org/Base"}, "resources": {"gpu": {"count": 1}}}),
        "by image" => json!({"model": {"id": "Org/Base"}, "resources": {"gpu": {"count": 1}}, "image": "image:base"}),
        "custom" => {
            json!({"model": {"id": "/models/base", "source": "custom"}, "resources": {"gpu": {"count": 1}}, "image": "image:base"})
        }
        _ => {
            json!({"model": {"id": "Org/Base"}, "image": "image:base", "serving": {"mode": "disaggregated"}, "scaling": {"prefill": part, "decode": part}})
        }
    };
    let mut md = json!({"metadata": {"name": "md", "namespace": "default"}, "spec": spec});
    md["spec"]["engine"] = json!({"type": "vllm"});
    md
}

fn translate(md: &Value) -> Result<Translation, Refusal> {
    KubeRay::default().translate(&request(md), &installed(0))
}

#[test]
fn no_field_is_dropped() -> Result<(), String> {
    fields::check(&BASES.map(|which| (which, base(which))), |md| {
        let translation = translate(md)?;
        assert_eq!(crd::problems(&document(&translation)), Vec::<String>::new());
        assert!(serve_config(&document(&translation)).is_object());
        Ok(translation)
    })
}

proptest! {
    #[test]
    fn absent_and_zero_stay_different(
        replicas in proptest::option::of(0_i32..4),
        gpus in proptest::option::of(0_i32..4),
        memory in proptest::option::of(Just("0")),
        cpu in proptest::option::of(Just("0")),
        context in proptest::option::of(1_i32..9),
    ) {
        let mut md = base("aggregated");
        md["spec"]["resources"] = json!({});
        let fields = [
            ("scaling.replicas", json!(replicas)),
            ("resources.gpu.count", json!(gpus)),
            ("resources.memory", json!(memory)),
            ("resources.cpu", json!(cpu)),
            ("engine.contextLength", json!(context)),
        ];
        for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
            fields::put(&mut md["spec"], field, value);
        }
        let outcome = translate(&md);
        let Some(gpus) = gpus.filter(|n| *n > 0) else {
            prop_assert_eq!(outcome.unwrap_err().message, "KubeRay requires GPU (set resources.gpu.count > 0)");
            return Ok(());
        };
        let translation = outcome.unwrap();
        let object = document(&translation);
        prop_assert_eq!(translation.replicas, replicas.unwrap_or(1));
        prop_assert_eq!(object["spec"]["suspend"] == true, replicas == Some(0));
        let group = &object["spec"]["rayClusterConfig"]["workerGroupSpecs"][0];
        prop_assert_eq!(&group["replicas"], &json!(replicas.unwrap_or(1)));
        prop_assert_eq!(&group["rayStartParams"]["num-gpus"], &json!(gpus.to_string()));
        let resources = &group["template"]["spec"]["containers"][0]["resources"];
        prop_assert_eq!(&resources["limits"]["nvidia.com/gpu"], &json!(gpus.to_string()));
        prop_assert_eq!(&resources["requests"]["memory"], &json!(memory.unwrap_or("32Gi")));
        prop_assert_eq!(&resources["requests"]["cpu"], &json!(cpu));
        let config = serve_config(&object);
        let arguments = &config["applications"][0]["args"]["llm_configs"][0]["engine_kwargs"];
        prop_assert_eq!(&arguments["max_model_len"], &json!(context));
        prop_assert_eq!(&arguments["tensor_parallel_size"], &json!(gpus));
        prop_assert!(arguments.get("trust_remote_code").is_none());
        prop_assert!(!holds_null(&object), "{object}");
    }
}
