//! A LlamaStackDistribution: its storage, its Deployment down to the init containers of each pod, and its Service.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use runway_api::LlamaStackDistribution;
use runway_api::llama_stack_distribution::{DistributionPhase, ExternalProviderStatus, LlamaStackDistributionStatus};
use runway_llama_stack_operator::kinds;

use super::{Belongings, Health, Node, Standing, Tree, Walk, generic, of_pod, service};
use crate::view::pods;

/// Owned objects that are not part of the chain.
const ASIDE: [kinds::Kind; 2] = [kinds::SERVICE_ACCOUNT, kinds::CONFIG_MAP];

/// Puts the chain together, in the order in which its links are made.
pub fn tree(llsd: &LlamaStackDistribution, found: &Belongings) -> Tree {
    let status = llsd.status.clone().unwrap_or_default();
    let of_pod = |pod: &Pod| of_pod(pod).with(init_containers(pod, &status));
    let walk = Walk::new(found, &of_pod);
    let name = llsd.name_any();
    let links = kinds::children(&name)
        .into_iter()
        .filter(|(kind, _)| !ASIDE.contains(kind));
    let mut children: Vec<Node> = links
        .filter_map(|(kind, name)| link(kind, &name, &status, &walk))
        .collect();
    // Pods whose owners cannot be seen.
    children.extend(walk.pods(|_| true));
    let root = Node::new("LlamaStackDistribution", name, standing(&status)).with(children);
    Tree::of(llsd, root, &found.missing)
}

fn standing(status: &LlamaStackDistributionStatus) -> Standing {
    let Some(phase) = status.phase else {
        return Standing::new("-", "no status yet (is llama-stack-operator running?)", Health::Open);
    };
    let message = status.message.as_deref().unwrap_or_default();
    Standing::new(phase.as_str(), message, phase.tone().into())
}

/// Node of an owned object. Every server has a Deployment and a Service; other objects are optional.
fn link(kind: kinds::Kind, name: &str, status: &LlamaStackDistributionStatus, walk: &Walk<'_>) -> Option<Node> {
    let made = status.phase.is_some();
    let serves = status.phase == Some(DistributionPhase::Ready);
    match walk.found.find(kind.kind, name) {
        Some(_) if kind == kinds::SERVICE => Some(service(walk.found, name, &port(status), serves, "the operator")),
        Some(object) => Some(Node::new(kind.kind, name, generic(object)).with(walk.owned_by(object.as_ref()))),
        None if made && [kinds::DEPLOYMENT, kinds::SERVICE].contains(&kind) => {
            let unread = walk.found.missing.iter().any(|m| m.contains(kind.plural));
            let standing = if unread {
                Standing::new("unknown", "cannot be read", Health::Open)
            } else {
                Standing::new("missing", "not created yet", Health::Open)
            };
            Some(Node::new(kind.kind, name, standing))
        }
        None => None,
    }
}

/// The port of the URL in the status.
fn port(status: &LlamaStackDistributionStatus) -> String {
    let url = status.service_url.as_deref().unwrap_or_default();
    url.rsplit_once(':')
        .map_or_else(|| url.to_owned(), |(_, port)| format!("port {port}"))
}

/// Init containers, with the provider that each installs.
fn init_containers(pod: &Pod, status: &LlamaStackDistributionStatus) -> Vec<Node> {
    let all = pod
        .status
        .iter()
        .flat_map(|s| s.init_container_statuses.iter().flatten());
    all.map(|container| {
        let provider = status
            .external_providers
            .iter()
            .find(|p| p.init_container_name.as_ref() == Some(&container.name));
        Node::new("InitContainer", &container.name, init_container(container, provider))
    })
    .collect()
}

fn init_container(container: &ContainerStatus, provider: Option<&ExternalProviderStatus>) -> Standing {
    let installs = provider.map(|p| {
        let api = p.api.as_deref().unwrap_or("unknown");
        format!("provider {} of {api}", p.provider_id)
    });
    let state = container.state.as_ref();
    let ended_well = state
        .and_then(|s| s.terminated.as_ref())
        .is_some_and(|end| end.exit_code == 0);
    if ended_well {
        return Standing::new("done", installs.unwrap_or_default(), Health::Good);
    }
    let Some(stopped) = pods::stopped_container(container) else {
        return Standing::new("running", installs.unwrap_or_default(), Health::Open);
    };
    if stopped.is_starting() && container.restart_count == 0 {
        return Standing::new("waiting", installs.unwrap_or_default(), Health::Open);
    }
    // What to do about it, the operator knows best.
    let way_out = provider.and_then(|p| p.resolution.clone());
    let text = [installs, Some(stopped.to_string()), way_out];
    let text: Vec<String> = text.into_iter().flatten().collect();
    Standing::new("failed", text.join("; "), Health::Bad)
}
