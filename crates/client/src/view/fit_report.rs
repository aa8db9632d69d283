//! The report on whether a ModelDeployment fits, as text.

use std::fmt::Write as _;

use runway_fit::{Report, Verdict, gib};

use crate::diagnostic::one_line;
use crate::text;

/// The report as text.
pub fn screen(report: &Report) -> String {
    let mut screen = format!("{}/{}: ", report.namespace, report.name);
    // Writing to a String does not fail.
    let _ = writeln!(
        screen,
        "{}",
        match report.verdict {
            Verdict::Yes => "the pods fit",
            Verdict::No => "the pods do not fit",
            Verdict::Unknown => "not known whether the pods fit",
        }
    );
    if !report.pods.is_empty() {
        let mut table = text::table(&["PODS", "REPLICAS", "REQUESTS", "FIT", "NODES", "ROOM"]);
        for group in &report.pods {
            let requests: Vec<String> = group
                .requests
                .iter()
                .map(|(name, amount)| format!("{name} {amount}"))
                .collect();
            table.add_row([
                text::cell(&group.name),
                group.replicas.to_string(),
                if requests.is_empty() {
                    "none".to_owned()
                } else {
                    text::cell(&requests.join(", "))
                },
                group.verdict.as_str().to_owned(),
                format!("{}/{}", group.nodes, group.all_nodes),
                group.room.to_string(),
            ]);
        }
        screen.push_str(&text::aligned(&table));
    }
    for group in &report.pods {
        if !group.message.is_empty() {
            let _ = writeln!(screen, "{}: {}", one_line(&group.name), one_line(&group.message));
        }
        for reason in &group.unknown {
            let _ = writeln!(screen, "{}: unknown: {}", one_line(&group.name), one_line(reason));
        }
    }
    if let Some(memory) = &report.memory {
        let estimate = &memory.estimate;
        let _ = writeln!(
            screen,
            "memory: about {} for each replica: weights {}, KV cache {}, overhead {}",
            gib(memory.total),
            gib(estimate.weights),
            gib(estimate.kv_cache),
            gib(estimate.overhead)
        );
        for input in &estimate.inputs {
            let _ = writeln!(
                screen,
                "  {}: {} ({})",
                input.input,
                one_line(&input.value),
                input.source
            );
        }
        for finding in &memory.findings {
            let mark = if memory.exceeds { "warning" } else { "note" };
            let _ = writeln!(screen, "{mark}: {}", one_line(finding));
        }
    }
    for note in &report.notes {
        let _ = writeln!(screen, "note: {}", one_line(note));
    }
    screen
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::core::DynamicObject;
    use runway_api::ModelDeployment;
    use runway_fit::{ClusterObjects, Planned, Seen, groups, report};
    use serde_json::json;

    use super::*;

    fn planned() -> Vec<Planned> {
        let limits = json!({"nvidia.com/gpu": "1", "memory": "24Gi"});
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llama"},
            "spec": {
                "replicas": 2,
                "template": {"spec": {"containers": [{"name": "model", "resources": {"limits": limits}}]}},
            },
        });
        let deployment: DynamicObject = serde_json::from_value(deployment).unwrap();
        let ask = |group: runway_fit::Group| Planned {
            seen: Seen::Complete(Box::new(group.pod.clone())),
            group,
        };
        groups(&[&deployment], "default").into_iter().map(ask).collect()
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

    #[test]
    fn a_report_reads_like_the_scheduler() {
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "llama", "namespace": "default"},
            "spec": {
                "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
                "engine": {"type": "vllm", "contextLength": 8192},
                "resources": {"gpu": {"count": 1}},
            },
        });
        let md: ModelDeployment = serde_json::from_value(md).unwrap();
        let cluster = ClusterObjects {
            nodes: vec![node("a", "1"), node("b", "0")],
            ..ClusterObjects::default()
        };
        let report = report(&md, Some("direct".to_owned()), &planned(), None, &cluster);
        assert_eq!(
            screen(&report),
            "\
default/llama: the pods do not fit
PODS              REPLICAS  REQUESTS                       FIT  NODES  ROOM
Deployment/llama  2         memory 24Gi, nvidia.com/gpu 1  no   1/2    1
Deployment/llama: 1/2 nodes are available: 1 Insufficient nvidia.com/gpu
memory: about 17.4 GiB for each replica: weights 14.9 GiB, KV cache 1.0 GiB, overhead 1.5 GiB
  parameters: 8 billion (from the model's name)
  weights: bf16, 16 bits each (default)
  context length: 8192 tokens, 1 request (from the spec)
  KV cache: 16 bits (default)
note: about 17.4 GiB are within 1 GPU(s) of 24.0 GiB (label nvidia.com/gpu.memory), 90% of it usable
note: only existing nodes are considered: a cluster autoscaler may add others
"
        );
    }
}
