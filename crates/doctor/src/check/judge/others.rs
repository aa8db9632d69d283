//! AsyncActors and LlamaStackDistributions that are not as they should be.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::labels::{self, llama_stack};
use runway_api::llama_stack_distribution::{DistributionPhase, ProviderPhase};
use runway_api::{AsyncActor, LlamaStackDistribution};
use runway_asya_operator::plan;
use runway_client::target::Kind;

use super::pods;
use super::shared::{unless_none, unobserved};
use crate::check::Causes;
use crate::check::{Check, Finding, Observed};

/// Time after which a new object must have a status.
const UNSEEN: SignedDuration = SignedDuration::from_secs(60);
/// Finalizers of ours end by themselves.
const DELETION: SignedDuration = SignedDuration::from_mins(6);

pub(super) const ACTORS: &[Check] = &[
    Check {
        id: "actor-observed",
        title: "each AsyncActor is reconciled",
        looks_at: "No AsyncActor is without status one minute after its creation.",
        remedy: "kubeairunway asya install; kubectl -n kubeairunway-system logs deployment/asya-operator",
        judge: None,
    },
    Check {
        id: "actor-paused",
        title: "no AsyncActor is paused",
        looks_at: "No AsyncActor has the annotation asya.sh/reconcile-paused.",
        remedy: "kubeairunway resume asya/NAME",
        judge: None,
    },
    Check {
        id: "actor-transport",
        title: "each actor has a queue",
        looks_at: "The condition TransportReady is not False. Causes: unknown transport, unreachable broker, queue with other settings.",
        remedy: "transports are configured in the ConfigMap asya-transports in the namespace of the operator: docs/how-to/asya.md",
        judge: None,
    },
    Check {
        id: "actor-target",
        title: "each actor's target exists",
        looks_at: "The condition TargetResolved is not False. Causes: the workload does not exist, or its kind is not installed.",
        remedy: "kubectl describe asyncactor NAME",
        judge: None,
    },
    Check {
        id: "actor-binding",
        title: "each workload has one writer",
        looks_at: "The condition RuntimeInjected is not False. Causes: another actor with the same target, or a controller that removes the sidecar.",
        remedy: "delete one of the actors, or set spec.binding.onConflict: Proxy",
        judge: None,
    },
    Check {
        id: "actor-scaling",
        title: "each actor is scaled as requested",
        looks_at: "The condition ScalingReady is not False. Causes: KEDA is not installed, or rejects the ScaledObject.",
        remedy: "install KEDA (https://keda.sh/docs/latest/deploy), or set spec.scaling.enabled: false",
        judge: None,
    },
    Check {
        id: "actor-pods",
        title: "pods of each actor start",
        looks_at: "Pods and Events of actors, and the conditions WorkloadReady and RuntimeInjected: images, Secrets, handlers that cannot be loaded.",
        remedy: "kubectl describe asyncactor NAME",
        judge: None,
    },
    Check {
        id: "actor-deleted",
        title: "deleted actors are removed",
        looks_at: "No AsyncActor exists six minutes after its deletion.",
        remedy: "kubectl -n kubeairunway-system logs deployment/asya-operator",
        judge: None,
    },
];

pub(super) const DISTRIBUTIONS: &[Check] = &[
    Check {
        id: "llama-observed",
        title: "each LlamaStackDistribution is reconciled",
        looks_at: "No LlamaStackDistribution is without status one minute after its creation.",
        remedy: "kubeairunway llama-stack install; kubectl -n kubeairunway-system logs deployment/llama-stack-operator",
        judge: None,
    },
    Check {
        id: "llama-paused",
        title: "no LlamaStackDistribution is paused",
        looks_at: "No LlamaStackDistribution has the annotation llamastack.io/reconcile-paused.",
        remedy: "kubeairunway resume llsd/NAME",
        judge: None,
    },
    Check {
        id: "llama-providers",
        title: "external providers are installed",
        looks_at: "No entry of status.externalProviders is Failed. Causes: image pull errors, conflicting packages, configurations that cannot be merged.",
        remedy: "kubectl get llsd NAME -o yaml; docs/how-to/llama-stack-providers.md",
        judge: None,
    },
    Check {
        id: "llama-storage",
        title: "storage claims are bound",
        looks_at: "The condition StorageReady is not False. A common cause is a missing default StorageClass.",
        remedy: "kubectl get pvc,storageclass",
        judge: None,
    },
    Check {
        id: "llama-pods",
        title: "pods of each server start",
        looks_at: "Pods and Events of LlamaStackDistributions.",
        remedy: "kubectl describe llsd NAME",
        judge: None,
    },
    Check {
        id: "llama-ready",
        title: "each LlamaStackDistribution is ready",
        looks_at: "No LlamaStackDistribution has the phase Failed.",
        remedy: "kubectl describe llsd NAME",
        judge: None,
    },
    Check {
        id: "llama-deleted",
        title: "deleted distributions are removed",
        looks_at: "No LlamaStackDistribution exists six minutes after its deletion.",
        remedy: "kubectl get llsd NAME -o jsonpath={.metadata.finalizers}",
        judge: None,
    },
];

/// The problem of each AsyncActor, with the ID of its check.
pub(super) fn of_actors(observed: &Observed) -> Causes {
    let actors = observed.actors()?;
    unless_none(actors, "AsyncActors")?;
    let pods = pods::by_label(observed.pods().unwrap_or_default(), &[labels::ASYA_ACTOR]);
    let cause = |actor| cause_of_actor(observed, actor, pods::of(&pods, actor));
    Ok(actors.iter().filter_map(cause).collect())
}

fn cause_of_actor(observed: &Observed, actor: &AsyncActor, its_pods: &[&Pod]) -> Option<(&'static str, Finding)> {
    let now = observed.now();
    let (name, namespace) = (actor.name_any(), actor.namespace().unwrap_or_default());
    let subject = format!("AsyncActor {namespace}/{name}");
    let describe = format!("kubectl -n {namespace} describe asyncactor {name}");
    if let Some(since) = &actor.metadata.deletion_timestamp {
        let text = format!("deleted, but blocked by finalizers: {}", actor.finalizers().join(", "));
        return (now.duration_since(since.0) > DELETION).then(|| ("actor-deleted", Finding::error(subject, text)));
    }
    let age = actor
        .creation_timestamp()
        .map_or(SignedDuration::ZERO, |t| now.duration_since(t.0));
    let status = actor.status.clone().unwrap_or_default();
    if status.conditions.is_empty() {
        let finding = Finding::error(subject, "not reconciled by an operator yet");
        let finding = unobserved(observed, Kind::AsyncActor, &namespace, finding);
        return (age > UNSEEN).then_some(("actor-observed", finding));
    }
    if let Some(c) = paused(&status.conditions) {
        let resume = format!("kubeairunway resume -n {namespace} asya/{name}");
        return Some(("actor-paused", Finding::warning(subject, &c.message).remedy(resume)));
    }
    let broken = |type_: &str| status.conditions.when_false(type_);
    let error = |c: &Condition| Finding::error(subject.as_str(), format!("{}: {}", c.reason, c.message));
    if let Some(c) = broken("TransportReady").filter(|c| c.reason != "QueuePending") {
        return Some(("actor-transport", error(c)));
    }
    if let Some(c) = broken("TargetResolved") {
        return Some(("actor-target", error(c).remedy(describe)));
    }
    // What its pods say is said of the pods below.
    let of_pods = |c: &&Condition| plan::POD_TROUBLES.iter().any(|state| state.as_str() == c.reason);
    if let Some(c) = broken("RuntimeInjected").filter(|c| c.reason != "Leaving" && !of_pods(c)) {
        let conflict = ["ConflictDetected", "ConflictLoopDetected", "AlreadyManaged"].contains(&c.reason.as_str());
        return Some((
            "actor-binding",
            if conflict { error(c) } else { error(c).remedy(describe) },
        ));
    }
    if let Some(c) = broken("ScalingReady").filter(|c| c.reason != "ScaledObjectCreated") {
        let missing = c.reason == "KedaNotInstalled";
        return Some((
            "actor-scaling",
            if missing { error(c) } else { error(c).remedy(describe) },
        ));
    }
    let events = observed.events().unwrap_or_default();
    let of_its_pods = pods::trouble(&subject, &status.conditions, its_pods, now)
        .or_else(|| pods::not_made(&subject, &namespace, &name, events));
    if let Some(finding) = of_its_pods {
        return Some(("actor-pods", finding));
    }
    let workload = broken("WorkloadReady").filter(|c| c.reason != "WorkloadCreated");
    let workload = workload.or_else(|| broken("RuntimeInjected").filter(of_pods))?;
    Some(("actor-pods", error(workload).remedy(describe)))
}

/// The condition Paused, if it is True. Other conditions of a paused object may be out of date.
fn paused(conditions: &[Condition]) -> Option<&Condition> {
    conditions.when_true(condition::PAUSED)
}

/// The problem of each LlamaStackDistribution, with the ID of its check.
pub(super) fn of_distributions(observed: &Observed) -> Causes {
    let all = observed.distributions()?;
    unless_none(all, "LlamaStackDistributions")?;
    let pods = pods::by_label(observed.pods().unwrap_or_default(), &[llama_stack::INSTANCE]);
    let cause = |llsd| cause_of_distribution(observed, llsd, pods::of(&pods, llsd));
    Ok(all.iter().filter_map(cause).collect())
}

fn cause_of_distribution(
    observed: &Observed,
    llsd: &LlamaStackDistribution,
    its_pods: &[&Pod],
) -> Option<(&'static str, Finding)> {
    let now = observed.now();
    let (name, namespace) = (llsd.name_any(), llsd.namespace().unwrap_or_default());
    let subject = format!("LlamaStackDistribution {namespace}/{name}");
    let describe = format!("kubectl -n {namespace} describe llsd {name}");
    if let Some(since) = &llsd.metadata.deletion_timestamp {
        let text = format!("deleted, but blocked by finalizers: {}", llsd.finalizers().join(", "));
        return (now.duration_since(since.0) > DELETION).then(|| ("llama-deleted", Finding::error(subject, text)));
    }
    let age = llsd
        .creation_timestamp()
        .map_or(SignedDuration::ZERO, |t| now.duration_since(t.0));
    let Some(status) = llsd.status.as_ref().filter(|s| s.phase.is_some()) else {
        let finding = Finding::error(subject, "not reconciled by an operator yet");
        let finding = unobserved(observed, Kind::LlamaStackDistribution, &namespace, finding);
        return (age > UNSEEN).then_some(("llama-observed", finding));
    };
    if let Some(c) = paused(&status.conditions) {
        let resume = format!("kubeairunway resume -n {namespace} llsd/{name}");
        return Some(("llama-paused", Finding::warning(subject, &c.message).remedy(resume)));
    }
    if let Some(failed) = status
        .external_providers
        .iter()
        .find(|p| p.phase == ProviderPhase::Failed)
    {
        let message = failed.message.clone().unwrap_or_default();
        let text = format!(
            "provider {} ({}): {}: {message}",
            failed.provider_id,
            failed.image,
            failed.reason.as_deref().unwrap_or("Failed")
        );
        let remedy = failed.resolution.clone().unwrap_or(describe);
        return Some(("llama-providers", Finding::error(subject, text).remedy(remedy)));
    }
    if status.phase == Some(DistributionPhase::Ready) {
        return None;
    }
    let broken = |type_: &str| status.conditions.when_false(type_);
    if let Some(c) = broken(condition::STORAGE_READY) {
        let default = |class: &k8s_openapi::api::storage::v1::StorageClass| {
            let annotation = class.annotations().get("storageclass.kubernetes.io/is-default-class");
            annotation.is_some_and(|value| value == "true")
        };
        let classes = observed.storage_classes().ok();
        let remedy = match classes {
            Some(classes) if !classes.iter().any(default) => {
                "set a default StorageClass: kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true".to_owned()
            }
            _ => format!("kubectl -n {namespace} describe pvc"),
        };
        let text = format!("{}: {}", c.reason, c.message);
        return Some(("llama-storage", Finding::error(subject, text).remedy(remedy)));
    }
    let events = observed.events().unwrap_or_default();
    let of_pods = pods::trouble(&subject, &status.conditions, its_pods, now)
        .or_else(|| pods::not_made(&subject, &namespace, &name, events));
    if let Some(finding) = of_pods {
        return Some(("llama-pods", finding));
    }
    if status.phase == Some(DistributionPhase::Failed) {
        let text = status.message.clone().unwrap_or_else(|| "failed".to_owned());
        return Some(("llama-ready", Finding::error(subject, text).remedy(describe)));
    }
    None
}
