//! Defaults: the documented values, and nothing else.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{any_spec, deployment};
use crate::admission::apply_defaults;

fn defaulted(spec: Value) -> Value {
    let mut spec = deployment(spec).spec;
    apply_defaults(&mut spec);
    serde_json::to_value(spec).unwrap()
}

#[test]
fn a_minimal_spec_gets_all_defaults() {
    assert_eq!(
        defaulted(json!({"model": {"id": "org/model"}, "engine": {"type": "vllm"}})),
        json!({
            "model": {"id": "org/model", "source": "huggingface"},
            "engine": {"type": "vllm"},
            "serving": {"mode": "aggregated"},
            "scaling": {"replicas": 1},
        })
    );
}

#[test]
fn zero_stays_zero() {
    assert_eq!(
        defaulted(json!({"model": {}, "scaling": {"replicas": 0}}))["scaling"],
        json!({"replicas": 0})
    );
    let scaling = json!({"prefill": {"replicas": 0}, "decode": {"replicas": 2}});
    assert_eq!(
        defaulted(json!({"model": {}, "serving": {"mode": "disaggregated"}, "scaling": scaling}))["scaling"],
        scaling
    );
}

#[test]
fn autoscaling_starts_with_the_minimum() {
    let first = |scaling: Value| defaulted(json!({"model": {}, "scaling": scaling}))["scaling"]["replicas"].clone();
    assert_eq!(first(json!({"autoscaling": {"minReplicas": 3, "maxReplicas": 5}})), 3);
    assert_eq!(first(json!({"autoscaling": {"minReplicas": 0, "maxReplicas": 5}})), 0);
    assert_eq!(first(json!({"autoscaling": {"maxReplicas": 5}})), 1);
    assert_eq!(
        first(json!({"autoscaling": {"minReplicas": 3, "maxReplicas": 5}, "replicas": 4})),
        4
    );
}

#[test]
fn in_disaggregated_mode_only_the_parts_that_are_there_get_replicas() {
    let spec = |scaling: Value| json!({"model": {}, "serving": {"mode": "disaggregated"}, "scaling": scaling});
    assert_eq!(
        defaulted(spec(json!({"prefill": {}})))["scaling"],
        json!({"prefill": {"replicas": 1}})
    );
    assert_eq!(defaulted(spec(json!({})))["scaling"], json!({}));
    assert_eq!(
        defaulted(json!({"model": {}, "serving": {"mode": "disaggregated"}})).get("scaling"),
        None
    );
}

#[test]
fn a_gpu_gets_a_type_and_never_a_count() {
    let spec = json!({"model": {}, "resources": {"gpu": {}}, "scaling": {"prefill": {"gpu": {"count": 0}}, "decode": {"gpu": {"type": "amd.com/gpu"}}}});
    let defaulted = defaulted(spec);
    assert_eq!(defaulted["resources"]["gpu"], json!({"type": "nvidia.com/gpu"}));
    assert_eq!(
        defaulted["scaling"]["prefill"]["gpu"],
        json!({"count": 0, "type": "nvidia.com/gpu"})
    );
    assert_eq!(defaulted["scaling"]["decode"]["gpu"], json!({"type": "amd.com/gpu"}));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn applying_defaults_twice_changes_nothing(spec in any_spec()) {
        let mut once = spec;
        apply_defaults(&mut once);
        let mut twice = once.clone();
        apply_defaults(&mut twice);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn given_fields_stay_and_only_documented_fields_appear(spec in any_spec()) {
        let before = serde_json::to_value(&spec).unwrap();
        let minimum = before["scaling"]["autoscaling"]["minReplicas"].clone();
        let mut after = spec;
        apply_defaults(&mut after);
        let after = serde_json::to_value(after).unwrap();
        for operation in json_patch::diff(&before, &after).0 {
            let json_patch::PatchOperation::Add(added) = operation else { panic!("{operation} does not only add a field") };
            let (path, value) = (added.path.to_string(), added.value.to_string());
            let documented = matches!(
                (path.as_str(), value.as_str()),
                ("/model/source", r#""huggingface""#)
                    | ("/serving", r#"{"mode":"aggregated"}"#)
                    | ("/serving/mode", r#""aggregated""#)
                    | ("/scaling", r#"{"replicas":1}"#)
                    | ("/scaling/replicas" | "/scaling/prefill/replicas" | "/scaling/decode/replicas", "1")
                    | ("/resources/gpu/type" | "/scaling/prefill/gpu/type" | "/scaling/decode/gpu/type", r#""nvidia.com/gpu""#)
            );
            let is_minimum = path == "/scaling/replicas" && added.value == minimum;
            prop_assert!(documented || is_minimum, "{} = {}", path, value);
        }
    }
}
