//! Reports of whole deployments.

use kube::core::DynamicObject;
use serde_json::json;

use super::*;
use crate::groups;

fn deployment(strategy: &serde_json::Value, replicas: i64) -> DynamicObject {
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llama"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "llama"}},
            "strategy": strategy,
            "template": {
                "metadata": {"labels": {"app": "llama"}},
                "spec": {"containers": [{"name": "model", "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "24Gi"}}}]},
            },
        },
    });
    serde_json::from_value(object).unwrap()
}

fn md() -> ModelDeployment {
    let md = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": {"name": "llama", "namespace": "default"},
        "spec": {
            "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"type": "vllm", "contextLength": 8192},
            "resources": {"gpu": {"count": 1}},
        },
    });
    serde_json::from_value(md).unwrap()
}

fn node(name: &str, gpus: &str) -> Node {
    let node = json!({
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.memory": "24576"}},
        "status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    serde_json::from_value(node).unwrap()
}

fn planned(object: &DynamicObject) -> Vec<Planned> {
    groups(&[object], "default")
        .into_iter()
        .map(|group| Planned {
            seen: Seen::Complete(Box::new(group.pod.clone())),
            group,
        })
        .collect()
}

fn reported(planned: &[Planned], nodes: Vec<Node>, pods: Vec<Pod>) -> Report {
    let cluster = ClusterObjects {
        nodes,
        pods,
        ..ClusterObjects::default()
    };
    report(
        &md(),
        Some("direct".to_owned()),
        planned,
        Some("no pods are planned".to_owned()),
        &cluster,
    )
}

#[test]
fn a_report_counts_nodes_like_the_scheduler() {
    let planned = planned(&deployment(&json!({}), 2));
    let report = reported(&planned, vec![node("a", "1"), node("b", "0")], Vec::new());
    assert_eq!(report.verdict, Verdict::No);
    let group = &report.pods[0];
    assert_eq!((group.nodes, group.all_nodes, group.room), (1, 2, 1));
    assert_eq!(group.message, "1/2 nodes are available: 1 Insufficient nvidia.com/gpu");
    assert_eq!(
        reported(&planned, vec![node("a", "2")], Vec::new()).verdict,
        Verdict::Yes
    );
}

/// A node with GPUs of this kind and memory in MiB.
fn node_of(name: &str, kind: &str, memory: &str) -> Node {
    let mut node = node(name, "0");
    node.metadata.labels = Some([(format!("{kind}.memory"), memory.to_owned())].into());
    let allocatable = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
    allocatable.insert(kind.to_owned(), serde_json::from_value(json!("1")).unwrap());
    node
}

/// The comparison of the memory of [`md`] with GPUs of a kind, of which a pod requests one.
fn memory(kind: &str, nodes: Vec<Node>, pods: Vec<Pod>) -> MemoryReport {
    let mut md = md();
    md.spec.resources.as_mut().unwrap().gpu.as_mut().unwrap().kind = Some(kind.to_owned());
    let mut object = deployment(&json!({}), 1);
    object.data["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] =
        json!({kind: "1", "memory": "4Gi"});
    let cluster = ClusterObjects {
        nodes,
        pods,
        ..ClusterObjects::default()
    };
    report(&md, None, &planned(&object), None, &cluster).memory.unwrap()
}

#[test]
fn memory_is_compared_with_the_gpus_of_the_nodes_that_take_the_pod() {
    const GPU: &str = "nvidia.com/gpu";
    let within =
        |size: &str| format!("about 17.4 GiB are within 1 GPU(s) of {size} GiB (label {GPU}.memory), 90% of it usable");
    let exceed =
        |size: &str| format!("about 17.4 GiB exceed 1 GPU(s) of {size} GiB (label {GPU}.memory), 90% of it usable");
    let (small, large) = (node_of("small", GPU, "16384"), node_of("large", GPU, "81920"));
    let compared = |nodes: [&Node; 2], pods| {
        let found = memory(GPU, nodes.map(Clone::clone).to_vec(), pods);
        (found.findings, found.exceeds)
    };
    let mut tainted = large.clone();
    tainted.spec = serde_json::from_value(json!({"taints": [{"key": "dedicated", "effect": "NoSchedule"}]})).unwrap();
    assert_eq!(compared([&small, &tainted], vec![]), (vec![exceed("16.0")], true));
    let both = format!(
        "{}, and are within 1 GPU(s) of 80.0 GiB (label {GPU}.memory), 90% of it usable: select the nodes with spec.nodeSelector",
        exceed("16.0")
    );
    assert_eq!(compared([&small, &large], vec![]), (vec![both], true));

    // Another pod has the GPU of the large node, or of both.
    let busy = |name: &str| -> Pod {
        let container = json!({"name": "c", "resources": {"limits": {GPU: "1"}}});
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": name, "containers": [container]}});
        serde_json::from_value(pod).unwrap()
    };
    assert_eq!(
        compared([&small, &large], vec![busy("large")]),
        (vec![exceed("16.0")], true)
    );
    assert_eq!(
        compared([&tainted, &large], vec![busy("large")]),
        (vec![within("80.0")], false)
    );
}

#[test]
fn memory_of_slices_and_other_gpus_is_not_compared_with_that_of_the_host() {
    const SLICE: &str = "nvidia.com/mig-1g.10gb";
    let found = memory(
        SLICE,
        vec![node("whole", "1"), node_of("sliced", SLICE, "9856")],
        Vec::new(),
    );
    let finding = format!("about 17.4 GiB exceed 1 GPU(s) of 9.6 GiB (label {SLICE}.memory), 90% of it usable");
    assert_eq!((found.findings, found.exceeds), (vec![finding], true));
    let found = memory("amd.com/gpu", vec![node("a", "1")], Vec::new());
    assert_eq!((found.findings, found.exceeds), (vec![], false));
}

#[test]
fn current_pods_count_as_the_rollout_replaces_them() {
    let rolling =
        |surge: i64| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1}});
    for (strategy, replicas, expected) in [
        (json!({"type": "Recreate"}), 2, Verdict::Yes),
        (rolling(0), 1, Verdict::Yes),
        (rolling(0), 2, Verdict::Unknown),
        (rolling(1), 1, Verdict::Unknown),
        (json!({"type": "Recreate"}), 3, Verdict::No),
    ] {
        let planned = planned(&deployment(&strategy, replicas));
        let mut current = planned[0].group.pod.clone();
        current.spec.as_mut().unwrap().node_name = Some("a".to_owned());
        let report = reported(&planned, vec![node("a", "2")], vec![current.clone(), current]);
        assert_eq!(report.verdict, expected, "{strategy} {replicas}");
        assert!(
            report.notes[0].starts_with("2 pod(s) of this deployment"),
            "{:?}",
            report.notes
        );
    }
}

#[test]
fn answers_of_the_api_server_decide() {
    let mut planned = planned(&deployment(&json!({}), 1));
    planned[0].seen = Seen::NotTried("no dry run".to_owned());
    let nodes = vec![node("a", "1")];
    let report = reported(&planned, nodes.clone(), Vec::new());
    assert_eq!(
        (report.verdict, report.pods[0].unknown.as_slice()),
        (Verdict::Unknown, &["no dry run".to_owned()][..])
    );
    planned[0].seen = Seen::Rejected("exceeded quota".to_owned());
    let report = reported(&planned, nodes, Vec::new());
    assert_eq!(report.verdict, Verdict::No);
    assert_eq!(
        report.pods[0].message,
        "the API server rejects the pods: exceeded quota"
    );
    assert_eq!(reported(&[], Vec::new(), Vec::new()).verdict, Verdict::Unknown);
}

fn object(value: serde_json::Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

#[test]
fn upstream_pods_can_only_be_denied() {
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}});
    let template = json!({"spec": {"containers": [container]}});
    let metadata = json!({"name": "llama"});
    let dynamo = object(
        json!({"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": metadata,
        "spec": {"components": [{"name": "Worker", "replicas": 2, "podTemplate": template}]}}),
    );
    let alpha = object(
        json!({"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": metadata,
        "spec": {"services": {"Worker": {"replicas": 2, "resources": {"limits": {"gpu": "2"}}}}}}),
    );
    let ray = object(
        json!({"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata,
        "spec": {"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {"containers": []}}},
            "workerGroupSpecs": [{"groupName": "workers", "replicas": 2, "template": template}]}}}),
    );
    let kaito = object(
        json!({"apiVersion": "kaito.sh/v1beta1", "kind": "InferenceSet", "metadata": metadata,
        "spec": {"replicas": 2, "template": {"inference": {"template": template}}}}),
    );
    for (object, name) in [
        (&dynamo, "DynamoGraphDeployment/llama Worker"),
        (&alpha, "DynamoGraphDeployment/llama Worker"),
        (&ray, "RayService/llama workers"),
        (&kaito, "InferenceSet/llama"),
    ] {
        let planned = planned(object);
        let of = |gpus: &str| reported(&planned, vec![node("a", gpus)], Vec::new());
        let (enough, short) = (of("8"), of("3"));
        assert_eq!(enough.verdict, Verdict::Unknown, "{name}");
        assert_eq!(short.verdict, Verdict::No, "{name}");
        let group = short.pods.iter().find(|group| group.name == name).unwrap();
        assert_eq!(
            (group.verdict, group.requests["nvidia.com/gpu"].as_str()),
            (Verdict::No, "2")
        );
    }
}

#[test]
fn pods_that_are_not_known_are_named() {
    let metadata = json!({"name": "llama"});
    for (body, reason) in [
        (
            json!({"inference": {"preset": {"name": "x"}}}),
            "KAITO's preset determines the requests of the pods",
        ),
        (
            json!({"inference": {"template": {}}, "resource": {"instanceType": "NC24"}}),
            "KAITO provisions a node of instance type NC24 for each replica",
        ),
    ] {
        let set = object(
            json!({"apiVersion": "kaito.sh/v1beta1", "kind": "InferenceSet", "metadata": metadata,
            "spec": {"replicas": 1, "template": body}}),
        );
        let report = reported(&planned(&set), vec![node("a", "8")], Vec::new());
        assert_eq!(
            (report.verdict, report.pods[0].unknown.as_slice()),
            (Verdict::Unknown, &[reason.to_owned()][..])
        );
    }
    let service = object(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}));
    assert!(groups(&[&service], "default").is_empty());
    let other = object(json!({"apiVersion": "a.io/v1", "kind": "Thing", "metadata": metadata}));
    assert_eq!(
        groups(&[&other], "default")[0].opaque,
        ["the pods of a Thing are not known"]
    );
}

/// Run by hand in a release build: `cargo test --release -p runway-fit fit_of_1000_nodes -- --ignored --nocapture`.
#[test]
#[ignore = "measures time"]
fn fit_of_1000_nodes() {
    let nodes: Vec<Node> = (0..1000).map(|i| node(&format!("node-{i}"), "8")).collect();
    let mut busy = planned(&deployment(&json!({}), 1))[0].group.pod.clone();
    busy.metadata.labels = None;
    let pods: Vec<Pod> = (0..30_000)
        .map(|i| {
            let mut pod = busy.clone();
            let spec = pod.spec.as_mut().unwrap();
            spec.node_name = Some(format!("node-{}", i % 1000));
            spec.containers[0].resources =
                serde_json::from_value(json!({"requests": {"cpu": "200m", "memory": "1Gi"}})).unwrap();
            pod
        })
        .collect();
    let planned = planned(&deployment(&json!({}), 100));
    let cluster = ClusterObjects {
        nodes,
        pods,
        ..ClusterObjects::default()
    };
    let mut times: Vec<_> = (0..11)
        .map(|_| {
            let start = std::time::Instant::now();
            assert_eq!(report(&md(), None, &planned, None, &cluster).verdict, Verdict::Yes);
            start.elapsed()
        })
        .collect();
    times.sort();
    eprintln!("median {:?}, longest {:?}", times[5], times[10]);
}
