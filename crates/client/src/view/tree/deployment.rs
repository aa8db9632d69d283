//! A ModelDeployment, its upstream object with all that it owns, and the endpoint.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, Phase, ServingState, Tone};
use runway_provider::Reading;

use super::{Belongings, Health, Node, Standing, Tree, Walk, generic, of_pod, service};
use crate::view::status::Upstream;

/// Documents.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// The ModelDeployment.
    pub md: ModelDeployment,
    /// State of its upstream object, as read by its provider.
    pub upstream: Upstream,
    /// The health of its provider, for people; `None` if it is well or not known.
    pub provider_trouble: Option<String>,
    /// Objects that may belong to it.
    pub found: Belongings,
    /// Labels of which a pod of its carries one, with its name.
    pub pod_labels: Vec<String>,
}

/// Puts the chain together.
pub fn tree(parts: &Parts) -> Tree {
    let mut root = deployment(parts);
    let upstream = upstream(parts, &Walk::new(&parts.found, &of_pod));
    let serves = parts.md.serving_state() == ServingState::Ready;
    root.children.extend(upstream);
    root.children.extend(endpoint(parts, serves));
    Tree::of(&parts.md, root, &parts.found.missing)
}

/// Node of the ModelDeployment, without the message that repeats its upstream object.
fn deployment(parts: &Parts) -> Node {
    let status = parts.md.status.clone().unwrap_or_default();
    let health = match status.phase.map_or(Tone::Unknown, Phase::tone).into() {
        // Phase and message are of an earlier generation.
        Health::Good if !parts.md.serving_state().is_as_desired() => Health::Open,
        health => health,
    };
    let provider = parts.md.selected_provider();
    let text = match (status.conditions.when_true(condition::STALLED), provider) {
        (Some(stalled), _) => stalled.message.clone(),
        _ if status.phase.is_none() => "no status yet (is the core controller running?)".to_owned(),
        (_, None) => status.message.clone().unwrap_or_else(|| "no provider yet".to_owned()),
        (_, Some(provider)) => match &parts.provider_trouble {
            Some(trouble) => format!("provider {provider} is {trouble}"),
            None => match &status.message {
                Some(message) if health != Health::Good => format!("provider {provider}: {message}"),
                _ => format!("provider {provider}"),
            },
        },
    };
    let state = status.phase.map_or("-", Phase::as_str);
    Node::new(
        "ModelDeployment",
        parts.md.name_any(),
        Standing::new(state, text, health),
    )
}

/// The upstream object, as the status names it, with all that it owns.
fn upstream(parts: &Parts, walk: &Walk<'_>) -> Option<Node> {
    let made = parts.md.status.as_ref()?.provider.as_ref()?;
    let (kind, name) = (made.resource_kind.as_deref()?, made.resource_name.as_deref()?);
    let Some(object) = parts.found.find(kind, name) else {
        let standing = match &parts.upstream {
            Upstream::Absent => Standing::new(
                "missing",
                "does not exist, but was created: the provider's controller recreates it",
                Health::Bad,
            ),
            _ => Standing::new("unknown", "cannot be read", Health::Open),
        };
        return Some(Node::new(kind, name, standing));
    };
    let mut children = walk.owned_by(object.as_ref());
    // Pods that carry its name, and whose owners cannot be seen.
    children.extend(walk.pods(|pod| is_named(pod, parts)));
    let standing = match &parts.upstream {
        Upstream::Says(reading) => reads(reading),
        _ => generic(object),
    };
    let mut node = Node::new(kind, name, standing).with(children);
    if node.children.is_empty() && node.health != Health::Good && node.text.is_empty() {
        "no pods created for it yet (is its operator running?)".clone_into(&mut node.text);
    }
    Some(node)
}

fn is_named(pod: &Pod, parts: &Parts) -> bool {
    let name = parts.md.name_any();
    parts
        .pod_labels
        .iter()
        .any(|label| pod.labels().get(label).is_some_and(|value| *value == name))
}

fn reads(reading: &Reading) -> Standing {
    let said = if reading.message.is_empty() && reading.reason != reading.phase.as_str() {
        &reading.reason
    } else {
        &reading.message
    };
    Standing::new(reading.phase.as_str(), said, reading.phase.tone().into())
}

/// The Service at which the model answers.
fn endpoint(parts: &Parts, serves: bool) -> Option<Node> {
    let endpoint = parts.md.status.as_ref()?.endpoint.as_ref()?;
    let name = endpoint.service.as_ref()?;
    let port = endpoint.port.map_or_else(String::new, |port| format!("port {port}"));
    Some(service(&parts.found, name, &port, serves, "the upstream operator"))
}
