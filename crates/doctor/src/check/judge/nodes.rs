//! Nodes, and whether they have what models ask for.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use runway_api::model_deployment::DEFAULT_GPU;
use runway_api::{ModelDeployment, model_deployment};
use runway_client::quantity;

use super::shared::{each, unless_none};
use crate::check::{Check, Finding, Observed};
use crate::check::{Judged, Skip};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nodes-ready",
        title: "a node is ready",
        looks_at: "At least one node is Ready and schedulable.",
        remedy: "kubectl get nodes; kubectl uncordon NODE",
        judge: Some(some_ready),
    },
    Check {
        id: "nodes-gpu",
        title: "a node has the requested GPUs",
        looks_at: "A node has the GPUs (allocatable) that each ModelDeployment requests that is not running yet. If a provider provisions nodes, they are added later.",
        remedy: "add a node with these GPUs and a device plugin (the NVIDIA GPU Operator provides nvidia.com/gpu), or reduce spec.resources.gpu",
        judge: Some(gpus),
    },
    Check {
        id: "nodes-memory",
        title: "a node has the requested memory",
        looks_at: "The largest node (allocatable) has the memory that each ModelDeployment requests that is not running yet.",
        remedy: "add a larger node, or reduce spec.resources.memory",
        judge: Some(memory),
    },
];

fn usable(observed: &Observed) -> Result<Vec<&Node>, Skip> {
    let ready = |node: &&Node| {
        let unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        !unschedulable
            && conditions
                .into_iter()
                .flatten()
                .any(|c| c.type_ == "Ready" && c.status == "True")
    };
    Ok(observed.nodes()?.iter().filter(ready).collect())
}

pub(super) fn some_ready(observed: &Observed) -> Judged {
    let all = observed.nodes()?.len();
    if !usable(observed)?.is_empty() {
        return Ok(Vec::new());
    }
    let text = match all {
        0 => "no nodes: no pod can run".to_owned(),
        _ => format!("none of {all} is Ready and schedulable"),
    };
    Ok(vec![Finding::error("Nodes", text)])
}

/// ModelDeployments that may be waiting for a node.
fn waiting(observed: &Observed) -> Result<Vec<&ModelDeployment>, Skip> {
    let runs = |md: &&ModelDeployment| md.serving_state().is_as_desired();
    let found: Vec<_> = observed
        .models()?
        .iter()
        .filter(|md| !runs(md) && md.metadata.deletion_timestamp.is_none())
        .collect();
    unless_none(&found, "ModelDeployments waiting for a node")?;
    Ok(found)
}

/// GPUs requested for one pod: resource name and count.
fn gpu(md: &ModelDeployment) -> Option<(String, i32)> {
    let of = |gpu: Option<&model_deployment::Gpu>| {
        let count = gpu.and_then(|g| g.count).filter(|count| *count > 0)?;
        let name = gpu.and_then(|g| g.kind.clone()).filter(|name| !name.is_empty());
        Some((name.unwrap_or_else(|| DEFAULT_GPU.to_owned()), count))
    };
    let scaling = md.spec.scaling.as_ref();
    let workers = [
        scaling.and_then(|s| s.prefill.as_ref()),
        scaling.and_then(|s| s.decode.as_ref()),
    ];
    of(md.spec.resources.as_ref().and_then(|r| r.gpu.as_ref())).or_else(|| {
        let all = workers.into_iter().flatten();
        all.filter_map(|worker| of(worker.gpu.as_ref()))
            .max_by_key(|(_, count)| *count)
    })
}

fn largest(nodes: &[&Node], resource: &str) -> f64 {
    let amounts = nodes.iter().filter_map(|node| {
        let quantity = node.status.as_ref()?.allocatable.as_ref()?.get(resource)?;
        quantity::number(&quantity.0)
    });
    amounts.fold(0.0, f64::max)
}

pub(super) fn subject(md: &ModelDeployment) -> String {
    format!(
        "ModelDeployment {}/{}",
        md.namespace().unwrap_or_default(),
        md.name_any()
    )
}

fn gpus(observed: &Observed) -> Judged {
    let (nodes, waiting) = (usable(observed)?, waiting(observed)?);
    let find = |md: &&ModelDeployment| {
        let (name, count) = gpu(md)?;
        let most = largest(&nodes, &name);
        if most >= f64::from(count) {
            return None;
        }
        let text = if most == 0.0 {
            format!("requests {count} {name}, but no node has any")
        } else {
            format!("requests {count} {name} in one pod, but no node has more than {most}")
        };
        Some(Finding::warning(subject(md), text))
    };
    Ok(each(&waiting, find))
}

fn memory(observed: &Observed) -> Judged {
    let (nodes, waiting) = (usable(observed)?, waiting(observed)?);
    unless_none(&nodes, "ready nodes")?;
    let most = largest(&nodes, "memory");
    let find = |md: &&ModelDeployment| {
        let asked = md.spec.resources.as_ref()?.memory.clone()?;
        let needed = quantity::number(&asked)?;
        (needed > most).then(|| {
            let text = format!(
                "requests {asked} of memory, but the largest node has {:.1}Gi",
                most / 1_073_741_824.0
            );
            Finding::warning(subject(md), text)
        })
    };
    Ok(each(&waiting, find))
}
