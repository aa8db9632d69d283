//! Scaling changes neither the pods nor the loaded model.

use runway_provider::Provider;
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

use crate::{document, installed, request, serve_config};

/// Fields that KubeRay ignores when it compares clusters (rayservice_controller.go,
/// generateHashWithoutReplicasAndWorkersToDelete).
const EXEMPT: [&str; 3] = ["replicas", "minReplicas", "maxReplicas"];

fn made(replicas: i32) -> Value {
    let md = json!({"metadata": {"name": "md"}, "spec": {
        "model": {"id": "Org/Model"}, "engine": {"type": "vllm"},
        "resources": {"gpu": {"count": 2}}, "scaling": {"replicas": replicas},
    }});
    document(&KubeRay::default().translate(&request(&md), &installed(0)).unwrap())
}

fn made_in_parts(prefill: i32, decode: i32) -> Value {
    let part = |replicas: i32| json!({"replicas": replicas, "gpu": {"count": 1}, "memory": "8Gi"});
    let md = json!({"metadata": {"name": "md"}, "spec": {
        "model": {"id": "Org/Model"}, "engine": {"type": "vllm"}, "serving": {"mode": "disaggregated"},
        "scaling": {"prefill": part(prefill), "decode": part(decode)},
    }});
    document(&KubeRay::default().translate(&request(&md), &installed(0)).unwrap())
}

/// The part of a cluster by which KubeRay decides whether to create a new one.
fn compared(object: &Value) -> Value {
    let mut cluster = object["spec"]["rayClusterConfig"].clone();
    for group in cluster["workerGroupSpecs"].as_array_mut().unwrap() {
        group
            .as_object_mut()
            .unwrap()
            .retain(|field, _| !EXEMPT.contains(&field.as_str()));
    }
    cluster
}

/// The part of an application whose change makes Ray Serve reload the model.
fn loaded(object: &Value) -> Value {
    let mut application = serve_config(object)["applications"][0].clone();
    application.as_object_mut().unwrap().remove("deployments");
    application
}

fn replicas(object: &Value) -> Vec<i64> {
    let config = serve_config(object);
    let deployments = config["applications"][0]["deployments"].as_array().unwrap();
    deployments
        .iter()
        .map(|d| d["num_replicas"].as_i64().unwrap())
        .collect()
}

#[test]
fn no_number_of_replicas_starts_a_second_cluster_or_loads_the_model_anew() {
    let one = made(1);
    for other in [0, 2, 50] {
        assert_eq!(compared(&made(other)), compared(&one), "{other}");
        assert_eq!(loaded(&made(other)), loaded(&one), "{other}");
    }
    assert_eq!(replicas(&made(50)), [50]);

    let parts = made_in_parts(1, 1);
    for (prefill, decode) in [(0, 0), (3, 1), (1, 3)] {
        assert_eq!(compared(&made_in_parts(prefill, decode)), compared(&parts));
        assert_eq!(loaded(&made_in_parts(prefill, decode)), loaded(&parts));
    }
    assert_eq!(replicas(&made_in_parts(2, 5)), [2, 5]);
}

/// KubeRay does not update the limit of a running cluster, so that it must be high enough.
#[test]
fn the_autoscaler_limits_exceed_every_number_of_replicas() {
    for object in [made(1), made_in_parts(1, 1)] {
        let cluster = &object["spec"]["rayClusterConfig"];
        assert_eq!(cluster["enableInTreeAutoscaling"], true);
        for group in cluster["workerGroupSpecs"].as_array().unwrap() {
            assert_eq!(
                (&group["minReplicas"], &group["maxReplicas"]),
                (&json!(0), &json!(1_000_000))
            );
            // The autoscaler must not have to guess the resources of a worker.
            assert!(group["rayStartParams"]["num-cpus"].is_string() && group["rayStartParams"]["num-gpus"].is_string());
        }
    }
}

#[test]
fn zero_replicas_suspend_the_service() {
    assert_eq!(made(0)["spec"]["suspend"], true);
    assert_eq!(replicas(&made(0)), [1]);
    assert_eq!(made(1)["spec"].get("suspend"), None);
}
