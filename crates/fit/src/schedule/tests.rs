//! Verdicts on small clusters, one rule of the scheduler in each.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, json};

use super::*;
use crate::nodes::Devices;

fn node(name: &str, change: &Value) -> Node {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    merge(&mut node, change);
    serde_json::from_value(node).unwrap()
}

fn gpus(count: &str) -> Value {
    json!({"status": {"allocatable": {"nvidia.com/gpu": count}}})
}

fn pod(requests: &Value, change: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "default", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
    });
    merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

fn on(node: &str, pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
    pod
}

fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                merge(to.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (to, from) => *to = from.clone(),
    }
}

fn of(nodes: &[Node], pods: &[Pod], asked: &Pod, count: i64) -> Outcome {
    let snapshot = Snapshot::new(nodes, pods, Devices::default());
    let ask = Ask::new(asked, true);
    decide(&snapshot, &[(&ask, count)]).outcomes.remove(0)
}

fn reasons(outcome: &Outcome) -> Vec<String> {
    outcome
        .reasons
        .iter()
        .map(|(reason, nodes)| format!("{nodes} {reason}"))
        .collect()
}

#[test]
fn reasons_are_those_of_the_scheduler() {
    let nodes = [
        node(
            "small",
            &json!({"status": {"allocatable": {"cpu": "1", "memory": "1Gi"}}}),
        ),
        node("cordoned", &json!({"spec": {"unschedulable": true}})),
        node(
            "tainted",
            &json!({"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}),
        ),
        node(
            "soft",
            &json!({"spec": {"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]}, "status": {"allocatable": {"pods": "0"}}}),
        ),
        node("other", &json!({"metadata": {"labels": {"zone": "b"}}})),
    ];
    let asked = pod(
        &json!({"cpu": "2", "memory": "2Gi"}),
        &json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}]}}}}}),
    );
    let outcome = of(&nodes, &[], &asked, 1);
    assert_eq!((outcome.verdict, outcome.nodes), (Verdict::No, 0));
    assert_eq!(
        reasons(&outcome),
        [
            "1 Insufficient cpu",
            "1 Insufficient memory",
            "1 Too many pods",
            "1 node(s) didn't match Pod's node affinity/selector",
            "1 node(s) had untolerated taint {gpu: yes}",
            "1 node(s) were unschedulable",
        ]
    );
}

#[test]
fn replicas_need_room_for_each() {
    let nodes = [node("a", &gpus("8")), node("b", &gpus("4"))];
    let asked = pod(&json!({"nvidia.com/gpu": "4"}), &json!({}));
    let busy = [on("a", &pod(&json!({"nvidia.com/gpu": "1"}), &json!({})))];
    for (pods, count, verdict, room) in [
        (&[][..], 3, Verdict::Yes, 3),
        (&[][..], 4, Verdict::No, 3),
        (&busy[..], 2, Verdict::Yes, 2),
        (&busy[..], 3, Verdict::No, 2),
        (&[][..], 0, Verdict::Yes, 3),
    ] {
        let outcome = of(&nodes, pods, &asked, count);
        assert_eq!((outcome.verdict, outcome.room), (verdict, room), "{count}");
    }
}

#[test]
fn terminated_pods_use_nothing() {
    let nodes = [node("a", &gpus("1"))];
    let asked = pod(&json!({"nvidia.com/gpu": "1"}), &json!({}));
    for (phase, verdict) in [
        ("Running", Verdict::No),
        ("Succeeded", Verdict::Yes),
        ("Failed", Verdict::Yes),
    ] {
        let mut other = on("a", &asked);
        other.status.get_or_insert_default().phase = Some(phase.to_owned());
        assert_eq!(of(&nodes, &[other], &asked, 1).verdict, verdict, "{phase}");
    }
}

#[test]
fn tolerations_match_as_in_the_scheduler() {
    let nodes = [node(
        "a",
        &json!({"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoExecute"}]}}),
    )];
    for (toleration, verdict) in [
        (json!({"operator": "Exists"}), Verdict::Yes),
        (json!({"key": "gpu", "operator": "Exists"}), Verdict::Yes),
        (
            json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}),
            Verdict::No,
        ),
        (json!({"key": "gpu", "value": "yes"}), Verdict::Yes),
        (json!({"key": "gpu", "operator": "Equal", "value": "no"}), Verdict::No),
        (json!({"key": "gpu", "operator": "Gt", "value": "1"}), Verdict::Unknown),
        (json!({"key": "other", "operator": "Exists"}), Verdict::No),
    ] {
        let asked = pod(&json!({}), &json!({"spec": {"tolerations": [toleration]}}));
        assert_eq!(of(&nodes, &[], &asked, 1).verdict, verdict, "{toleration}");
    }
    // Added by the API server to every pod.
    let not_ready = [node(
        "a",
        &json!({"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}}),
    )];
    assert_eq!(
        of(&not_ready, &[], &pod(&json!({}), &json!({})), 1).verdict,
        Verdict::Yes
    );
}

#[test]
fn node_affinity_has_all_operators() {
    let nodes = [node("a", &json!({"metadata": {"labels": {"zone": "x", "size": "10"}}}))];
    for (term, fits) in [
        (
            json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x", "y"]}]}),
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["x"]}]}),
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["x"]}]}),
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}),
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}),
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["9"]}]}),
            true,
        ),
        (
            json!({"matchExpressions": [{"key": "size", "operator": "Lt", "values": ["10"]}]}),
            false,
        ),
        (
            json!({"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["9"]}]}),
            false,
        ),
        (
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}),
            true,
        ),
        (
            json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}),
            false,
        ),
        (json!({}), false),
    ] {
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
        let asked = pod(&json!({}), &json!({"spec": {"affinity": affinity}}));
        let expected = if fits { Verdict::Yes } else { Verdict::No };
        assert_eq!(of(&nodes, &[], &asked, 1).verdict, expected, "{term}");
    }
}

#[test]
fn host_ports_allow_one_pod_for_each_node() {
    let nodes = [node("a", &json!({})), node("b", &json!({}))];
    let asked = pod(
        &json!({}),
        &json!({"spec": {"containers": [
        {"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}}),
    );
    assert_eq!(of(&nodes, &[], &asked, 2).verdict, Verdict::Yes);
    assert_eq!(of(&nodes, &[], &asked, 3).verdict, Verdict::No);
    let outcome = of(&nodes, &[on("a", &asked)], &asked, 2);
    assert_eq!(outcome.verdict, Verdict::No);
    assert_eq!(
        reasons(&outcome),
        ["1 node(s) didn't have free ports for the requested pod ports"]
    );
}

#[test]
fn anti_affinity_of_existing_pods_excludes_nodes() {
    let nodes = [node("a", &json!({})), node("b", &json!({}))];
    let term = |extra: Value| {
        let mut term = json!({"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"});
        merge(&mut term, &extra);
        let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        on("a", &pod(&json!({}), &json!({"spec": {"affinity": anti}})))
    };
    let asked = pod(&json!({}), &json!({}));
    for (existing, nodes_left, unknown) in [
        (term(json!({})), 1, false),
        (term(json!({"labelSelector": {"matchLabels": {"app": "b"}}})), 2, false),
        (term(json!({"namespaces": ["other"]})), 2, false),
        (term(json!({"namespaceSelector": {}})), 1, false),
        (
            term(json!({"namespaceSelector": {"matchLabels": {"team": "x"}}})),
            1,
            true,
        ),
    ] {
        let outcome = of(&nodes, &[existing], &asked, 20);
        assert_eq!(outcome.nodes, nodes_left);
        assert_eq!(outcome.reasons.is_empty(), nodes_left == 2 || unknown);
    }
}

#[test]
fn lower_priority_makes_a_no_unknown() {
    let nodes = [node("a", &gpus("1"))];
    let low = on(
        "a",
        &pod(&json!({"nvidia.com/gpu": "1"}), &json!({"spec": {"priority": -1}})),
    );
    let asked = |spec: Value| pod(&json!({"nvidia.com/gpu": "1"}), &json!({"spec": spec}));
    for (spec, verdict) in [
        (json!({}), Verdict::Unknown),
        (json!({"priority": -1}), Verdict::No),
        (json!({"preemptionPolicy": "Never"}), Verdict::No),
    ] {
        assert_eq!(of(&nodes, std::slice::from_ref(&low), &asked(spec), 1).verdict, verdict);
    }
}

#[test]
fn eviction_counts_on_nodes_with_room_too() {
    let nodes = [node("a", &gpus("2"))];
    let low = on("a", &pod(&json!({"nvidia.com/gpu": "1"}), &json!({})));
    let asked = pod(&json!({"nvidia.com/gpu": "1"}), &json!({"spec": {"priority": 1}}));
    for (count, verdict) in [(1, Verdict::Yes), (2, Verdict::Unknown), (3, Verdict::No)] {
        let outcome = of(&nodes, std::slice::from_ref(&low), &asked, count);
        assert_eq!(
            (outcome.verdict, outcome.room, outcome.possible),
            (verdict, 1, 1),
            "{count}"
        );
    }
}

#[test]
fn resources_served_by_dra_are_unknown() {
    let class: DeviceClass = serde_json::from_value(
        json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}),
    )
    .unwrap();
    let asked = Ask::new(&pod(&json!({"nvidia.com/gpu": "1"}), &json!({})), true);
    for (node, verdict) in [
        (node("a", &json!({})), Verdict::Unknown),
        (node("a", &gpus("0")), Verdict::Unknown),
    ] {
        for devices in [Devices::new(&[], std::slice::from_ref(&class)), Devices::unread()] {
            let snapshot = Snapshot::new(std::slice::from_ref(&node), &[], devices);
            assert_eq!(decide(&snapshot, &[(&asked, 1)]).verdict(), verdict);
        }
    }
}

#[test]
fn groups_that_compete_are_not_promised() {
    let big = Ask::new(&pod(&json!({"cpu": "6"}), &json!({})), true);
    let small = Ask::new(&pod(&json!({"cpu": "3"}), &json!({})), true);
    let decided = |names: &[&str], batches: &[Batch<'_>]| {
        let nodes: Vec<Node> = names.iter().map(|name| node(name, &json!({}))).collect();
        let decision = decide(&Snapshot::new(&nodes, &[], Devices::default()), batches);
        let verdicts: Vec<Verdict> = decision.outcomes.iter().map(|outcome| outcome.verdict).collect();
        (decision.verdict(), verdicts)
    };
    // The small pods may take both nodes first.
    let (whole, verdicts) = decided(&["a", "b"], &[(&big, 1), (&small, 2)]);
    assert_eq!((whole, verdicts[0]), (Verdict::Unknown, Verdict::Unknown));
    let (whole, _) = decided(&["a", "b", "c"], &[(&big, 1), (&small, 2)]);
    assert_eq!(whole, Verdict::Yes);
    // 2 × 6 + 2 × 3 of 16 CPUs: whatever the order, some do not fit.
    let (whole, verdicts) = decided(&["a", "b"], &[(&big, 2), (&small, 2)]);
    assert_eq!((whole, verdicts), (Verdict::No, vec![Verdict::Unknown; 2]));
}

#[test]
fn pods_of_higher_priority_make_others_unknown() {
    let nodes = [node("a", &json!({}))];
    let high = Ask::new(&pod(&json!({"cpu": "9"}), &json!({"spec": {"priority": 10}})), true);
    let low = Ask::new(&pod(&json!({"cpu": "1"}), &json!({})), true);
    let decision = decide(
        &Snapshot::new(&nodes, &[], Devices::default()),
        &[(&high, 1), (&low, 1)],
    );
    assert_eq!(decision.outcomes[1].verdict, Verdict::Unknown);
    assert_eq!(decision.outcomes[0].verdict, Verdict::No);
}

#[test]
fn anti_affinity_of_another_group_makes_unknown() {
    let nodes = [node("a", &json!({})), node("b", &json!({}))];
    let term = json!({"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"});
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let shy = Ask::new(&pod(&json!({}), &json!({"spec": {"affinity": anti}})), true);
    let plain = Ask::new(&pod(&json!({}), &json!({})), true);
    let decision = decide(
        &Snapshot::new(&nodes, &[], Devices::default()),
        &[(&shy, 1), (&plain, 1)],
    );
    assert_eq!(decision.outcomes[1].verdict, Verdict::Unknown);
}
