//! An AsyncActor, what it works for or made, its queue, and what scales it.

use kube::ResourceExt;
use runway_api::async_actor::{SCALING_READY, ScalingMode, TRANSPORT_READY};
use runway_api::condition::{self, Conditions};
use runway_api::{AsyncActor, AsyncActorStatus};
use runway_asya_operator::names;

use super::{Belongings, Health, Node, Standing, Tree, Walk, generic, has_owner, kind, of_pod};
use crate::view::depth::Depth;

/// Puts the chain together.
pub fn tree(actor: &AsyncActor, found: &Belongings, depth: &Depth) -> Tree {
    let status = actor.status.clone().unwrap_or_default();
    let walk = Walk::new(found, &of_pod);
    let mut children = workloads(actor, &status, &walk);
    children.push(queue(actor, &status, depth));
    children.extend(scalers(actor, &status, &walk));
    let root = Node::new("AsyncActor", actor.name_any(), standing(&status)).with(children);
    Tree::of(actor, root, &found.missing)
}

fn standing(status: &AsyncActorStatus) -> Standing {
    let Some(word) = &status.status else {
        return Standing::new("-", "no status yet (is asya-operator running?)", Health::Open);
    };
    let health = if status.conditions.is_true(condition::READY) {
        Health::Good
    } else if status.conditions.is_true(condition::STALLED) {
        Health::Bad
    } else {
        Health::Open
    };
    Standing::new(word, status.message.as_deref().unwrap_or_default(), health)
}

/// Target, the workloads that it resolves to, and the actor's own workload, each once, with its pods.
fn workloads(actor: &AsyncActor, status: &AsyncActorStatus, walk: &Walk<'_>) -> Vec<Node> {
    let asked = actor
        .spec
        .workload_ref
        .as_ref()
        .map(|r| (r.kind.as_str(), r.name.as_str()));
    let made = [&status.resolved_target, &status.workload_ref];
    let made = made.into_iter().flatten().map(|r| (r.kind.as_str(), r.name.as_str()));
    let mut nodes: Vec<Node> = Vec::new();
    for (kind, name) in asked.into_iter().chain(made) {
        let is_new = match walk.found.find(kind, name) {
            Some(object) => walk.first_time(object.as_ref()),
            None => !nodes.iter().any(|node| node.kind == kind && node.name == name),
        };
        if is_new {
            nodes.push(workload(kind, name, walk));
        }
    }
    // Pods with its containers whose owners cannot be seen.
    let name = actor.name_any();
    let strays = walk.pods(|pod| {
        let label = pod.labels().get(runway_api::labels::ASYA_ACTOR);
        label.is_some_and(|actor| *actor == name)
    });
    match nodes.last_mut() {
        Some(node) => node.children.extend(strays),
        None => nodes = strays,
    }
    nodes
}

fn workload(kind: &str, name: &str, walk: &Walk<'_>) -> Node {
    if let Some(object) = walk.found.find(kind, name) {
        return Node::new(kind, name, generic(object)).with(walk.owned_by(object.as_ref()));
    }
    let standing = if walk.found.missing.is_empty() {
        Standing::new("missing", "does not exist", Health::Bad)
    } else {
        Standing::new("unknown", "cannot be read", Health::Open)
    };
    Node::new(kind, name, standing)
}

/// The queue and its length.
fn queue(actor: &AsyncActor, status: &AsyncActorStatus, depth: &Depth) -> Node {
    let name = status
        .queue
        .clone()
        .unwrap_or_else(|| names::queue(&actor.namespace().unwrap_or_default(), &actor.name_any()));
    let transport = format!("transport {}", actor.spec.transport);
    let ready = status.conditions.get_condition(TRANSPORT_READY);
    let standing = match (ready, depth) {
        (Some(ready), _) if ready.status != "True" => {
            let waits = ready.reason == "QueuePending";
            let health = if waits { Health::Open } else { Health::Bad };
            Standing::new("not ready", &ready.message, health)
        }
        (None, _) => Standing::new("unknown", transport, Health::Open),
        (_, Depth::Messages(_)) => Standing::new(depth.to_string(), transport, Health::Good),
        (_, Depth::Unknown(why)) => {
            let text = format!("{transport}; queue length unknown: {why}");
            Standing::new("ready", text, Health::Good)
        }
    };
    Node::new("Queue", name, standing)
}

/// The ScaledObject and its HorizontalPodAutoscaler.
fn scalers(actor: &AsyncActor, status: &AsyncActorStatus, walk: &Walk<'_>) -> Vec<Node> {
    let uid = actor.uid().unwrap_or_default();
    let is_its = |o: &&std::sync::Arc<kube::core::DynamicObject>| {
        kind(o) == "ScaledObject" && has_owner(o.owner_references(), &uid)
    };
    let mut nodes: Vec<Node> = walk
        .found
        .objects
        .iter()
        .filter(is_its)
        .map(|object| walk.node(object))
        .collect();
    let wanted = status.scaling_mode == Some(ScalingMode::Keda);
    if wanted && nodes.is_empty() && walk.found.missing.is_empty() {
        let name = names::scaler(&actor.name_any());
        let said = status.conditions.get_condition(SCALING_READY);
        let text = said.map_or("does not exist", |c| c.message.as_str());
        nodes.push(Node::new(
            "ScaledObject",
            name,
            Standing::new("missing", text, Health::Bad),
        ));
    }
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}
