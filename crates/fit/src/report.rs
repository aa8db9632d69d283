//! The report for users: a verdict for each group of pods, and the estimated memory.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use runway_api::ModelDeployment;
use runway_api::model_deployment::{DEFAULT_GPU, ModelDeploymentSpec};
use serde::Serialize;

use super::amount;
use super::groups::{Group, Rollout};
use super::memory::{self, Estimate};
use super::nodes::{Devices, Snapshot, memory_label};
use super::pod::Ask;
use super::schedule::{Outcome, Verdict, decide, takers};

/// Share of a GPU's memory that vLLM uses by default (`gpu-memory-utilization`).
const GPU_SHARE: f64 = 0.9;
/// One GiB.
const GIB: f64 = 1_073_741_824.0;

/// Objects read from a cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterObjects {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Pods of all namespaces that have not terminated.
    pub pods: Vec<Pod>,
    /// Devices of DRA drivers.
    pub devices: Devices,
    /// Remarks on what could not be read.
    pub notes: Vec<String>,
}

/// Answer of the API server to a dry run of a pod.
#[derive(Clone, Debug)]
pub enum Seen {
    /// The pod with defaults and changes of admission.
    Complete(Box<Pod>),
    /// The pod is rejected.
    Rejected(String),
    /// There was no dry run, for this reason.
    NotTried(String),
}

/// A group of pods, and the API server's answer to one of them.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The group.
    pub group: Group,
    /// The answer.
    pub seen: Seen,
}

/// Whether a deployment fits.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Namespace.
    pub namespace: String,
    /// Name of the ModelDeployment.
    pub name: String,
    /// Provider that would serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The worst verdict of the groups; unknown without groups.
    pub verdict: Verdict,
    /// Groups of pods.
    pub pods: Vec<GroupReport>,
    /// Estimated memory of a replica, if the number of parameters is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    /// Additional notes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Whether a group of pods fits.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupReport {
    /// Object that creates the pods, and part of it.
    pub name: String,
    /// Number of pods.
    pub replicas: i64,
    /// Requests of one pod, as quantities.
    pub requests: BTreeMap<String, String>,
    /// Verdict.
    pub verdict: Verdict,
    /// Nodes that take at least one pod.
    pub nodes: usize,
    /// Number of nodes of the cluster.
    pub all_nodes: usize,
    /// Pods that these nodes take together.
    pub room: i64,
    /// Message in the form of kube-scheduler: available nodes, and reasons against the others.
    pub message: String,
    /// Reasons for which the verdict is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// Estimated memory of a replica, compared with what a pod gets.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryReport {
    /// The estimate.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Sum, in bytes.
    pub total: u64,
    /// Comparisons with the pods' GPUs or memory limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
    /// Whether the estimate exceeds them.
    pub exceeds: bool,
}

/// Makes the report. `instead`: why there are no pods, if there are none.
pub fn report(
    md: &ModelDeployment,
    provider: Option<String>,
    planned: &[Planned],
    instead: Option<String>,
    cluster: &ClusterObjects,
) -> Report {
    let is_own = |pod: &Pod| planned.iter().any(|planned| planned.group.has(pod));
    let snapshot = Snapshot::new(&cluster.nodes, &cluster.pods, cluster.devices.clone());
    let asks: Vec<Ask> = planned.iter().map(ask).collect();
    let batches: Vec<(&Ask, i64)> = asks
        .iter()
        .zip(planned)
        .map(|(ask, a)| (ask, a.group.replicas))
        .collect();
    let decision = decide(&snapshot, &batches);
    let (mut outcomes, mut is_short) = (decision.outcomes, decision.is_short);
    let bound = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let own = cluster.pods.iter().filter(bound).filter(|pod| is_own(pod)).count();
    if own > 0 && outcomes.iter().any(|outcome| outcome.verdict != Verdict::Yes) {
        let others = cluster.pods.iter().filter(|pod| !is_own(pod));
        let without = Snapshot::new(&cluster.nodes, others, cluster.devices.clone());
        let after = decide(&without, &batches);
        is_short = after.is_short;
        for ((outcome, after), planned) in outcomes.iter_mut().zip(after.outcomes).zip(planned) {
            replace(outcome, after, planned);
        }
    }
    let pods: Vec<GroupReport> = planned
        .iter()
        .zip(&asks)
        .zip(&outcomes)
        .map(|((planned, ask), outcome)| of_group(planned, ask, outcome, snapshot.len()))
        .collect();
    let worst = pods.iter().map(|group| group.verdict).max();
    let worst = worst.unwrap_or(Verdict::Unknown);
    let verdict = if is_short { Verdict::No } else { worst };
    let mut notes = cluster.notes.clone();
    notes.extend(instead.filter(|_| pods.is_empty()));
    notes.extend(remarks(&snapshot, own, verdict, &outcomes));
    Report {
        namespace: md.namespace().unwrap_or_default(),
        name: md.name_any(),
        provider,
        verdict,
        memory: memory::estimate(md).map(|estimate| compared(md, estimate, &asks, &snapshot)),
        pods,
        notes,
    }
}

/// Requirements of a group's pods.
fn ask(planned: &Planned) -> Ask {
    let mut ask = match &planned.seen {
        Seen::Complete(pod) => Ask::new(pod, true),
        _ => Ask::new(&planned.group.pod, false),
    };
    if let Some(operator) = planned.group.operator {
        ask.may_tolerate = true;
        let text = format!("{operator} adds to the pods: containers, requests, tolerations");
        ask.limits.push(text);
    } else if let Seen::NotTried(reason) = &planned.seen {
        ask.limits.push(reason.clone());
    }
    ask.opaque.extend(planned.group.opaque.iter().cloned());
    ask
}

/// Replaces a verdict by that without the current pods of the deployment, as far as its rollout terminates them first.
fn replace(outcome: &mut Outcome, after: Outcome, planned: &Planned) {
    if outcome.verdict == Verdict::Yes || outcome.verdict == after.verdict {
        return;
    }
    let frees = match planned.group.rollout {
        Rollout::Recreate => true,
        // One pod after the other: with several, where they go depends on the order.
        Rollout::InPlace => planned.group.replicas == 1,
        Rollout::Other => false,
    };
    if frees {
        *outcome = after;
    } else if outcome.verdict == Verdict::No {
        outcome.verdict = Verdict::Unknown;
        let text = "the pods fit only in place of the current ones, and these are not all replaced first";
        outcome.unknown.push(text.to_owned());
    }
}

fn of_group(planned: &Planned, ask: &Ask, outcome: &Outcome, all: usize) -> GroupReport {
    let requests = ask.requests.iter().filter(|(_, amount)| **amount != 0);
    let mut group = GroupReport {
        name: planned.group.name.clone(),
        replicas: planned.group.replicas,
        requests: requests
            .map(|(name, amount)| (name.clone(), amount::text(name, *amount)))
            .collect(),
        verdict: outcome.verdict,
        nodes: outcome.nodes,
        all_nodes: all,
        room: outcome.room,
        message: message(outcome, all),
        unknown: outcome.unknown.clone(),
    };
    if planned.group.replicas == 0 {
        group.verdict = Verdict::Yes;
        "no pods are requested".clone_into(&mut group.message);
        group.unknown.clear();
    } else if let Seen::Rejected(reason) = &planned.seen {
        group.verdict = Verdict::No;
        group.message = format!("the API server rejects the pods: {reason}");
        group.unknown.clear();
    } else if !ask.opaque.is_empty() {
        group.message.clear();
    }
    group
}

/// The message of kube-scheduler: `0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) were unschedulable`.
fn message(outcome: &Outcome, all: usize) -> String {
    let mut reasons: Vec<String> = outcome
        .reasons
        .iter()
        .map(|(reason, nodes)| format!("{nodes} {reason}"))
        .collect();
    reasons.sort();
    let available = format!("{}/{all} nodes are available", outcome.nodes);
    if reasons.is_empty() {
        available
    } else {
        format!("{available}: {}", reasons.join(", "))
    }
}

fn remarks(snapshot: &Snapshot, own: usize, verdict: Verdict, outcomes: &[Outcome]) -> Vec<String> {
    let mut found = Vec::new();
    if snapshot.is_empty() {
        found.push("the cluster has no nodes".to_owned());
    }
    if own > 0 {
        found.push(format!("{own} pod(s) of this deployment are on nodes already"));
    }
    if snapshot.waiting > 0 {
        let text = format!(
            "{} pod(s) of the cluster wait for a node, and may take the room first",
            snapshot.waiting
        );
        found.push(text);
    }
    let scarce: BTreeSet<&str> = outcomes
        .iter()
        .flat_map(|outcome| outcome.reasons.keys())
        .filter_map(|reason| reason.strip_prefix("Insufficient ").filter(|name| name.contains('/')))
        .collect();
    for name in scarce.into_iter().filter(|name| !snapshot.devices.serves(name)) {
        for (driver, (devices, nodes)) in snapshot.devices.drivers() {
            found.push(format!(
                "{devices} device(s) of driver {driver} on {nodes} node(s) are offered by DRA; requests for {name} use them only through a DeviceClass with this extendedResourceName"
            ));
        }
    }
    if verdict == Verdict::No {
        found.push("only existing nodes are considered: a cluster autoscaler may add others".to_owned());
    }
    found
}

/// Compares the estimate with the GPUs of the nodes that take a pod, or with its memory if the deployment has no GPUs.
fn compared(md: &ModelDeployment, estimate: Estimate, asks: &[Ask], snapshot: &Snapshot) -> MemoryReport {
    let total = estimate.total();
    let (mut findings, mut exceeds) = (BTreeSet::new(), false);
    let kinds = gpu_kinds(&md.spec);
    let gpus = |ask: &Ask| {
        let count = |kind: &&str| Some((*ask.requests.get(*kind)?).unsigned_abs()).filter(|count| *count > 0);
        kinds.iter().find_map(|kind| Some((*kind, count(kind)?)))
    };
    let has_gpus = asks.iter().any(|ask| gpus(ask).is_some());
    for ask in asks {
        // Size and what has it, from the smallest.
        let have: Vec<(u64, String)> = if let Some((kind, count)) = gpus(ask) {
            let label = memory_label(kind);
            let sizes = takers(snapshot, ask);
            let sizes: BTreeSet<u64> = sizes.iter().filter_map(|place| place.gpu_memory(&label)).collect();
            let usable = |size: &u64| {
                let what = format!("{count} GPU(s) of {} (label {label}), 90% of it usable", gib(*size));
                (scale(size.saturating_mul(count), GPU_SHARE), what)
            };
            sizes.iter().map(usable).collect()
        } else {
            let memory = ask.requests.get("memory").filter(|memory| **memory > 0 && !has_gpus);
            let memory = memory.map(|memory| memory.unsigned_abs());
            let what = |memory| (memory, format!("the request of {} of memory", gib(memory)));
            memory.map(what).into_iter().collect()
        };
        let (Some((smallest, least)), Some((largest, most))) = (have.first(), have.last()) else {
            continue;
        };
        exceeds |= total > *smallest;
        findings.insert(if total > *largest {
            format!("about {} exceed {most}", gib(total))
        } else if total > *smallest {
            format!(
                "about {} exceed {least}, and are within {most}: select the nodes with spec.nodeSelector",
                gib(total)
            )
        } else {
            format!("about {} are within {least}", gib(total))
        });
    }
    MemoryReport {
        estimate,
        total,
        findings: findings.into_iter().collect(),
        exceeds,
    }
}

/// Resources that are the GPUs of a ModelDeployment.
fn gpu_kinds(spec: &ModelDeploymentSpec) -> BTreeSet<&str> {
    let scaling = spec.scaling.as_ref();
    let parts = [
        scaling.and_then(|s| s.prefill.as_ref()),
        scaling.and_then(|s| s.decode.as_ref()),
    ];
    let parts = parts.into_iter().flatten().filter_map(|part| part.gpu.as_ref());
    let gpus = spec.resources.as_ref().and_then(|resources| resources.gpu.as_ref());
    let kinds = gpus.into_iter().chain(parts).filter_map(|gpu| gpu.kind.as_deref());
    kinds.chain([DEFAULT_GPU]).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, whose conversion saturates"
)]
fn scale(bytes: u64, by: f64) -> u64 {
    (bytes as f64 * by) as u64
}

/// Bytes as text, in GiB.
pub fn gib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let amount = bytes as f64 / GIB;
    format!("{amount:.1} GiB")
}

/// Reasons why a deployment will not start on the present nodes, or run out of memory.
pub fn obstacles(report: &Report) -> Vec<String> {
    let unfit = report.pods.iter().filter(|group| group.verdict == Verdict::No);
    let pods = unfit.map(|group| format!("the pods of {} do not fit: {}", group.name, group.message));
    let memory = report.memory.iter().filter(|memory| memory.exceeds);
    pods.chain(memory.flat_map(|memory| memory.findings.clone())).collect()
}

#[cfg(test)]
mod tests;
