//! The objects that KAITO makes of a Workspace. Pure: the Workspace in, manifests out.
//!
//! Sources: kaito-project/kaito 056b8280 (v0.12.0), `pkg/workspace/manifests/manifests.go`,
//! `pkg/workspace/inference/preset_inferences.go`, `pkg/workspace/inference/template_inference.go`.

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Map, Value, json};

use super::{CREATED_BY, WORKSPACE};

/// On a Workspace and on the StatefulSet of a preset: the number of the ControllerRevision that it is made from.
pub(super) const REVISION: &str = "workspace.kaito.io/revision";
/// The image of every preset; the real one comes from the registry that KAITO's chart names.
/// (`presets/workspace/models/supported_models.yaml`, `utils.GetPresetImageName`)
pub(super) const BASE_IMAGE: &str = "kaito-base:0.5.0";

/// Labels that select a workload and nothing else are for KAITO alone (`reservedSelectorLabelKeys`, `api/v1beta1/labels.go`).
const RESERVED_LABELS: [&str; 4] = [
    WORKSPACE,
    "kaito.sh/workspacenamespace",
    "kaito.sh/ragengine",
    "kaito.sh/ragenginenamespace",
];
/// Node labels of GPU feature discovery, which presets require (`GetGPUConfigFromNodeLabels`, `pkg/sku/helpers.go`).
const GPU_LABELS: [&str; 3] = [
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.memory",
];

/// The nodes that may be used, by label (`SanitizedMatchLabels`).
pub(super) fn node_labels(workspace: &DynamicObject) -> Vec<(&str, &str)> {
    let labels = workspace.data["resource"]["labelSelector"]["matchLabels"].as_object();
    let labels = labels.into_iter().flatten();
    labels
        .filter(|(key, _)| !RESERVED_LABELS.contains(&key.as_str()))
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect()
}

/// The endpoint. It selects the first pod alone, and sends requests there before the pod is ready
/// (`GenerateServiceManifest`).
pub(super) fn service(workspace: &DynamicObject) -> Value {
    let name = workspace.name_any();
    let has_load_balancer = workspace
        .annotations()
        .get("kaito.sh/enablelb")
        .is_some_and(|v| v == "True");
    let port = |name: &str, port: u16, target: u16| json!({"name": name, "protocol": "TCP", "port": port, "targetPort": target});
    let mut ports = vec![
        port("http", 80, 5000),
        port("ray", 6379, 6379),
        port("dashboard", 8265, 8265),
    ];
    if !has_load_balancer && is_vllm(workspace) {
        ports.push(port("kv-events", 5557, 5557));
    }
    json!({
        "metadata": {"name": name},
        "spec": {
            "type": if has_load_balancer { "LoadBalancer" } else { "ClusterIP" },
            "ports": ports,
            "selector": {WORKSPACE: name, "statefulset.kubernetes.io/pod-name": format!("{name}-0")},
            "publishNotReadyAddresses": true,
        },
    })
}

/// The names of pods for each other (`GenerateHeadlessServiceManifest`).
pub(super) fn headless_service(workspace: &DynamicObject) -> Value {
    json!({
        "metadata": {"name": headless_name(workspace)},
        "spec": {
            "clusterIP": "None",
            "selector": {WORKSPACE: workspace.name_any()},
            "publishNotReadyAddresses": true,
        },
    })
}

/// The workload of a template: the template as it is, with KAITO's labels and tolerations added and its affinity replaced;
/// ports, probes and command are the user's. It has no `serviceName` and no revision (`GenerateManifestWithPodTemplate`).
pub(super) fn of_template(workspace: &DynamicObject, pods: i64) -> Value {
    let selector = selector(workspace);
    let mut template = workspace.data["inference"]["template"].clone();
    let labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    template["metadata"]["labels"] = labels.into_iter().chain(selector.clone()).collect();
    template["spec"]["affinity"] = affinity(workspace);
    let mut all = template["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    all.extend(tolerations());
    template["spec"]["tolerations"] = all.into();
    json!({
        "metadata": {"name": workspace.name_any()},
        "spec": {"replicas": pods, "selector": {"matchLabels": selector}, "template": template},
    })
}

/// The workload of a preset (`GenerateStatefulSetManifest`, `GenerateInferencePodSpec`). Simplified: the command is without
/// its flags, and there are no adapters, no streaming of weights, no node-local caches and no prefill or decode roles.
pub(super) fn of_preset(workspace: &DynamicObject, pods: i64, revision: &str, gpus: u64) -> Value {
    let name = workspace.name_any();
    let selector = selector(workspace);
    let (volumes, mounts) = volumes(workspace);
    let mut ports = vec![json!({"name": "http", "containerPort": 5000})];
    if is_vllm(workspace) {
        ports.push(json!({"name": "kv-events", "containerPort": 5557}));
    }
    let container = json!({
        "name": name,
        "image": BASE_IMAGE,
        "command": ["/bin/sh", "-c", "python3 /workspace/vllm/inference_api.py"],
        "resources": {"requests": {"nvidia.com/gpu": gpus.to_string()}, "limits": {"nvidia.com/gpu": gpus.to_string()}},
        "ports": ports,
        "startupProbe": startup_probe(workspace),
        "livenessProbe": {"httpGet": {"path": "/health", "port": 5000}, "periodSeconds": 10, "failureThreshold": 3},
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": 5000},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
        },
        "env": env(workspace),
        "volumeMounts": mounts,
    });
    json!({
        "metadata": {"name": name, "annotations": {REVISION: revision}},
        "spec": {
            "replicas": pods,
            "serviceName": headless_name(workspace),
            "podManagementPolicy": "Parallel",
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain", "whenDeleted": "Delete"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": selector},
                "spec": {
                    "containers": [container],
                    "affinity": affinity(workspace),
                    "tolerations": tolerations(),
                    "volumes": volumes,
                },
            },
        },
    })
}

/// The GPUs of a node, as its labels tell (`GetGPUConfigFromNodeLabels`).
pub(super) fn gpus(node: &Node) -> Result<u64, String> {
    let name = node.name_any();
    let [Some(_), Some(count), Some(_)] = GPU_LABELS.map(|label| node.labels().get(label)) else {
        return Err(format!("missing required nvidia.com labels on node {name}"));
    };
    count
        .parse()
        .map_err(|_| format!("invalid nvidia.com/gpu.count value on node {name}: {count}"))
}

fn selector(workspace: &DynamicObject) -> Map<String, Value> {
    let mut labels = Map::new();
    labels.insert(WORKSPACE.to_owned(), workspace.name_any().into());
    if let Some(set) = workspace.labels().get(CREATED_BY) {
        labels.insert(CREATED_BY.to_owned(), set.clone().into());
    }
    labels
}

fn headless_name(workspace: &DynamicObject) -> String {
    format!("{}-headless", workspace.name_any())
}

fn affinity(workspace: &DynamicObject) -> Value {
    let expressions: Vec<_> = node_labels(workspace)
        .into_iter()
        .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
        .collect();
    if expressions.is_empty() {
        return Value::Null;
    }
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": expressions}],
    }}})
}

/// (`defaultTolerations`)
fn tolerations() -> [Value; 2] {
    [
        json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}),
        json!({"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}),
    ]
}

/// A preset is benchmarked before it is ready, unless its user says otherwise (`SetBenchmarkConfig`, `ShouldRunBenchmark`).
fn startup_probe(workspace: &DynamicObject) -> Value {
    let is_benchmarked = is_vllm(workspace)
        && workspace
            .annotations()
            .get("kaito.sh/disable-benchmark")
            .is_none_or(|value| value != "true");
    if is_benchmarked {
        let command = ["python3", "/workspace/vllm/benchmark_entrypoint.py"];
        json!({"exec": {"command": command}, "periodSeconds": 10, "timeoutSeconds": 600, "failureThreshold": 180})
    } else {
        json!({"httpGet": {"path": "/health", "port": 5000}, "periodSeconds": 10, "failureThreshold": 180})
    }
}

/// (`buildMainContainerEnv`, `SetHFToken`)
fn env(workspace: &DynamicObject) -> Vec<Value> {
    let mut env = Vec::new();
    if is_vllm(workspace) {
        env.push(json!({"name": "VLLM_USE_FLASHINFER_SAMPLER", "value": "0"}));
        env.push(json!({"name": "VLLM_USE_DEEP_GEMM", "value": "0"}));
    }
    let secret = &workspace.data["inference"]["preset"]["presetOptions"]["modelAccessSecret"];
    if let Some(secret) = secret.as_str().filter(|secret| !secret.is_empty()) {
        let key = json!({"name": secret, "key": "HF_TOKEN", "optional": true});
        env.push(json!({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}));
    }
    env
}

/// The ConfigMap is mounted by name: what is in it rolls nothing out.
fn volumes(workspace: &DynamicObject) -> (Vec<Value>, Vec<Value>) {
    let mut volumes = vec![
        json!({"name": "model-weights-volume", "emptyDir": {}}),
        json!({"name": "dshm", "emptyDir": {"medium": "Memory"}}),
    ];
    let mut mounts = vec![
        json!({"name": "model-weights-volume", "mountPath": "/workspace/weights"}),
        json!({"name": "dshm", "mountPath": "/dev/shm"}),
    ];
    let config = workspace.data["inference"]["config"].as_str();
    if let Some(config) = config.filter(|config| !config.is_empty()) {
        volumes.push(json!({"name": "config-volume", "configMap": {"name": config}}));
        mounts.push(json!({"name": "config-volume", "mountPath": "/mnt/config"}));
    }
    (volumes, mounts)
}

/// (`GetWorkspaceRuntimeName`)
fn is_vllm(workspace: &DynamicObject) -> bool {
    let runtime = workspace.annotations().get("kaito.sh/runtime");
    runtime.is_none_or(|runtime| runtime != "transformers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(inference: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "w", "labels": {CREATED_BY: "set", "team": "a"}},
            "resource": {"labelSelector": {"matchLabels": {"gpu": "big", WORKSPACE: "another"}}},
            "inference": inference,
        }))
        .unwrap()
    }

    #[test]
    fn a_template_keeps_its_ports_and_labels_and_loses_its_affinity() {
        let ports = json!([{"containerPort": 8080}]);
        let workload = of_template(
            &workspace(&json!({"template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {
                    "affinity": {"podAntiAffinity": {}},
                    "tolerations": [{"key": "mine"}],
                    "containers": [{"name": "c", "image": "i", "ports": ports}],
                },
            }})),
            1,
        );
        let template = &workload["spec"]["template"];
        assert_eq!(
            template["metadata"]["labels"],
            json!({"app": "a", WORKSPACE: "w", CREATED_BY: "set"})
        );
        assert_eq!(
            workload["spec"]["selector"]["matchLabels"],
            json!({WORKSPACE: "w", CREATED_BY: "set"})
        );
        let expressions = json!([{"key": "gpu", "operator": "In", "values": ["big"]}]);
        let term = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
        assert_eq!(template.pointer(term).unwrap()["matchExpressions"], expressions);
        assert!(template["spec"]["affinity"]["podAntiAffinity"].is_null());
        assert_eq!(template["spec"]["tolerations"].as_array().unwrap().len(), 3);
        assert_eq!(template["spec"]["containers"][0]["ports"], ports);
        assert!(workload["spec"]["serviceName"].is_null());
        assert!(workload["metadata"]["annotations"].is_null());
    }

    #[test]
    fn a_preset_mounts_its_config_by_name_and_asks_for_the_gpus_of_the_node() {
        let preset = json!({"preset": {"name": "phi", "presetOptions": {"modelAccessSecret": "token"}}, "config": "c"});
        let workload = of_preset(&workspace(&preset), 1, "3", 2);
        assert_eq!(workload["spec"]["serviceName"], "w-headless");
        assert_eq!(workload["metadata"]["annotations"], json!({REVISION: "3"}));
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(
            pod["containers"][0]["resources"]["limits"],
            json!({"nvidia.com/gpu": "2"})
        );
        assert_eq!(pod["volumes"][2]["configMap"]["name"], "c");
        assert_eq!(
            pod["containers"][0]["env"][2]["valueFrom"]["secretKeyRef"]["name"],
            "token"
        );
    }
}
