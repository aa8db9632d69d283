//! Problems of ModelDeployments. Each ModelDeployment is reported once, with its root cause.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeployment, ProviderReason, labels};
use runway_client::target::Kind;
use runway_manifests as manifests;

use super::nodes::subject;
use super::pods;
use super::shared::{unless_none, unobserved};
use crate::check::Causes;
use crate::check::{Check, Finding, Observed};

/// Time after which a deletion counts as blocked; controllers remove their finalizer after at most 5 minutes.
const DELETION: SignedDuration = SignedDuration::from_mins(6);
/// Time after which a new object must have a status.
const UNSEEN: SignedDuration = SignedDuration::from_secs(60);
/// Longest start of a model, the same as in the alert KubeAIRunwayDeploymentStuck.
const STUCK: SignedDuration = SignedDuration::from_mins(45);

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "model-observed",
        title: "each ModelDeployment is reconciled",
        looks_at: "No ModelDeployment is without status, or has the status of an older generation, for more than a minute.",
        remedy: "kubectl -n kubeairunway-system logs deployment/kubeairunway-controller",
        judge: None,
    },
    Check {
        id: "model-valid",
        title: "each ModelDeployment is valid",
        looks_at: "The condition Validated is not False. While admission is unavailable, the API server accepts invalid objects.",
        remedy: "kubectl edit modeldeployment NAME",
        judge: None,
    },
    Check {
        id: "model-provider",
        title: "each ModelDeployment has an active provider",
        looks_at: "The conditions ProviderSelected and ProviderUnavailable report no problem, and the provider is still registered.",
        remedy: "kubeairunway why NAME",
        judge: None,
    },
    Check {
        id: "model-compatible",
        title: "each provider supports the spec",
        looks_at: "The condition ProviderCompatible is not False. Causes: missing or unsupported upstream CRD, unsupported engine or field.",
        remedy: "kubeairunway why NAME shows other eligible providers",
        judge: None,
    },
    Check {
        id: "model-upstream",
        title: "each upstream object is created",
        looks_at: "The condition ResourceCreated is not False. Causes: an object of that name with another owner, a field conflict, rejection by an upstream webhook or schema.",
        remedy: "kubeairunway status NAME",
        judge: None,
    },
    Check {
        id: "model-pods",
        title: "pods of each model start",
        looks_at: "Pods and Events: image pull errors, missing Secrets, crash loops, memory, GPUs, quota, storage.",
        remedy: "kubeairunway status NAME",
        judge: None,
    },
    Check {
        id: "model-ready",
        title: "each ModelDeployment is ready",
        looks_at: "No ModelDeployment has the phase Failed or the condition Stalled, or has been starting for more than 45 minutes.",
        remedy: "kubeairunway status NAME",
        judge: None,
    },
    Check {
        id: "model-stale",
        title: "upstream operators report progress",
        looks_at: "The condition StaleStatus is not True. It means that the upstream object has reported no progress for five minutes.",
        remedy: "check that the provider's own operator is running",
        judge: None,
    },
    Check {
        id: "model-ignored",
        title: "no fields are ignored",
        looks_at: "The conditions OverridesIgnored and FieldsIgnored are not True.",
        remedy: "remove the fields; docs/reference/fields/README.md lists the fields that each provider supports",
        judge: None,
    },
    Check {
        id: "model-paused",
        title: "no ModelDeployment is paused",
        looks_at: "No ModelDeployment has the annotation kubeairunway.ai/reconcile-paused or kubeairunway.ai/dry-run.",
        remedy: "kubeairunway resume NAME; kubectl annotate modeldeployment NAME kubeairunway.ai/dry-run-",
        judge: None,
    },
    Check {
        id: "model-deleted",
        title: "deleted ModelDeployments are removed",
        looks_at: "No ModelDeployment exists six minutes after its deletion. Its finalizers block the deletion.",
        remedy: "kubectl get modeldeployment NAME -o jsonpath={.metadata.finalizers}",
        judge: None,
    },
];

/// The problem of each ModelDeployment, with the ID of its check.
pub(super) fn causes(observed: &Observed) -> Causes {
    let models = observed.models()?;
    unless_none(models, "ModelDeployments")?;
    let providers = manifests::built_in_providers();
    let mut its_labels = vec![labels::DEPLOYMENT];
    its_labels.extend(providers.iter().flat_map(|p| p.pod_labels()));
    let pods = pods::by_label(observed.pods().unwrap_or_default(), &its_labels);
    let cause = |md| cause(observed, md, pods::of(&pods, md));
    Ok(models.iter().filter_map(cause).collect())
}

/// The check that has something to say, and what: the first link of the chain that is broken.
fn cause(observed: &Observed, md: &ModelDeployment, its_pods: &[&Pod]) -> Option<(&'static str, Finding)> {
    let now = observed.now();
    let status = md.status.clone().unwrap_or_default();
    let conditions = status.conditions.as_slice();
    let (name, namespace) = (md.name_any(), md.namespace().unwrap_or_default());
    let place = format!("-n {namespace} {name}");
    let error = |text: String| Finding::error(subject(md), text);
    let warning = |text: String| Finding::warning(subject(md), text);
    if let Some(since) = &md.metadata.deletion_timestamp {
        let late = now.duration_since(since.0) > DELETION;
        return late.then(|| ("model-deleted", stuck(md)));
    }
    let holds = |type_: &str| conditions.when_true(type_);
    let broken = |type_: &str| conditions.when_false(type_);
    if let Some(paused) = [condition::PAUSED, condition::DRY_RUN].into_iter().find_map(holds) {
        let annotation = if paused.type_ == condition::PAUSED {
            labels::PAUSED
        } else {
            labels::DRY_RUN
        };
        let finding = warning(format!("{}: {}", paused.type_, paused.message));
        return Some((
            "model-paused",
            finding.remedy(format!("kubectl annotate modeldeployment {place} {annotation}-")),
        ));
    }
    let age = md
        .creation_timestamp()
        .map_or(SignedDuration::ZERO, |t| now.duration_since(t.0));
    if status.phase.is_none() || status.conditions.is_empty() {
        let finding = error("not reconciled by a controller yet".to_owned());
        let finding = unobserved(observed, Kind::ModelDeployment, &namespace, finding);
        return (age > UNSEEN).then_some(("model-observed", finding));
    }
    let why = format!("kubeairunway why {place}");
    let edit = format!("kubectl edit modeldeployment {place}");
    let show = format!("kubeairunway status {place}");
    if let Some(c) = broken(condition::VALIDATED) {
        return Some(("model-valid", error(c.message.clone()).remedy(edit)));
    }
    if let Some(c) = holds(condition::PROVIDER_UNAVAILABLE).or_else(|| broken(condition::PROVIDER_SELECTED)) {
        return Some(("model-provider", error(said(c)).remedy(why)));
    }
    if let (Some(provider), Ok(configs)) = (md.selected_provider(), observed.configs())
        && configs.iter().all(|c| c.name_any() != provider)
    {
        let text = format!("provider '{provider}' is no longer registered");
        return Some((
            "model-provider",
            error(text).remedy(format!("kubeairunway provider install {provider}")),
        ));
    }
    if let Some(c) = broken(condition::PROVIDER_COMPATIBLE) {
        return Some(("model-compatible", error(said(c)).remedy(why)));
    }
    if let Some(c) = broken(condition::RESOURCE_CREATED)
        && (!is_being_created(c) || now.duration_since(c.last_transition_time.0) > UNSEEN)
    {
        let (kind, object) = made(md);
        let remedy = if c.reason == ProviderReason::NameTaken || c.message.contains("conflict") {
            format!(
                "kubectl -n {namespace} get {kind} {object} -o yaml --show-managed-fields shows its other field managers"
            )
        } else {
            show
        };
        return Some(("model-upstream", error(said(c)).remedy(remedy)));
    }
    not_serving(observed, md, its_pods)
}

fn is_being_created(created: &Condition) -> bool {
    created.reason == ProviderReason::Creating || created.reason == ProviderReason::Recreating
}

/// The problem of a ModelDeployment whose upstream object exists.
fn not_serving(observed: &Observed, md: &ModelDeployment, its_pods: &[&Pod]) -> Option<(&'static str, Finding)> {
    let now = observed.now();
    let status = md.status.clone().unwrap_or_default();
    let conditions = status.conditions.as_slice();
    let (name, namespace) = (md.name_any(), md.namespace().unwrap_or_default());
    let error = |text: String| Finding::error(subject(md), text);
    let warning = |text: String| Finding::warning(subject(md), text);
    let holds = |type_: &str| conditions.when_true(type_);
    let broken = |type_: &str| conditions.when_false(type_);
    let edit = format!("kubectl edit modeldeployment -n {namespace} {name}");
    let show = format!("kubeairunway status -n {namespace} {name}");
    let age = md
        .creation_timestamp()
        .map_or(SignedDuration::ZERO, |t| now.duration_since(t.0));
    let behind = md.metadata.generation > status.observed_generation;
    if md.serving_state().is_as_desired() {
        return ignored(conditions).map(|c| ("model-ignored", warning(said(c)).remedy(edit)));
    }
    let events = observed.events().unwrap_or_default();
    let of_pods = pods::trouble(&subject(md), conditions, its_pods, now);
    if let Some(finding) = of_pods.or_else(|| pods::not_made(&subject(md), &namespace, &name, events)) {
        return Some(("model-pods", finding));
    }
    let settled =
        holds(condition::STALLED).or_else(|| broken(condition::READY).filter(|_| status.phase == Some(Phase::Failed)));
    if let Some(c) = settled {
        let remedy = in_words(&c.message, &namespace).unwrap_or(show);
        return Some(("model-ready", error(said(c)).remedy(remedy)));
    }
    if let Some(c) = broken(condition::READY).filter(|c| in_words(&c.message, &namespace).is_some()) {
        let remedy = in_words(&c.message, &namespace).unwrap_or(show);
        return Some(("model-ready", error(said(c)).remedy(remedy)));
    }
    if let Some(c) = holds(condition::STALE_STATUS) {
        return Some(("model-stale", warning(c.message.clone())));
    }
    if behind && age > UNSEEN {
        let text = "the status belongs to an older generation: the change is not reconciled yet".to_owned();
        return Some(("model-observed", warning(text)));
    }
    let since = conditions
        .get_condition(condition::READY)
        .map(|c| c.last_transition_time.0);
    if since.is_some_and(|since| now.duration_since(since) > STUCK) {
        let message = status.message.unwrap_or_default();
        return Some((
            "model-ready",
            warning(format!("starting for more than 45 minutes: {message}")).remedy(show),
        ));
    }
    ignored(conditions).map(|c| ("model-ignored", warning(said(c)).remedy(edit)))
}

fn said(c: &Condition) -> String {
    if c.message.contains(&c.reason) {
        c.message.clone()
    } else {
        format!("{}: {}", c.reason, c.message)
    }
}

fn ignored(conditions: &[Condition]) -> Option<&Condition> {
    [condition::OVERRIDES_IGNORED, condition::FIELDS_IGNORED]
        .into_iter()
        .find_map(|type_| conditions.when_true(type_))
}

/// Kind and name of the upstream object, existing or expected.
fn made(md: &ModelDeployment) -> (String, String) {
    let status = md.status.as_ref().and_then(|s| s.provider.as_ref());
    let name = status
        .and_then(|p| p.resource_name.clone())
        .unwrap_or_else(|| md.name_any());
    let recorded = status.and_then(|p| p.resource_kind.clone());
    let main = || {
        let provider = manifests::built_in_providers()
            .into_iter()
            .find(|p| md.selected_provider() == Some(p.name()))?;
        Some(provider.upstreams().first()?.kind.kind.to_owned())
    };
    (
        recorded
            .or_else(main)
            .unwrap_or_else(|| "all".to_owned())
            .to_lowercase(),
        name,
    )
}

/// Remedy for a message of an upstream operator.
fn in_words(message: &str, namespace: &str) -> Option<String> {
    let lower = message.to_lowercase();
    if lower.contains("exceeded quota") {
        return Some(format!(
            "kubectl -n {namespace} describe quota; raise the quota, or reduce spec.resources"
        ));
    }
    if lower.contains("secret") && lower.contains("not found") {
        let name = message.split(['\'', '"']).nth(1).unwrap_or("NAME");
        return Some(format!(
            "kubectl -n {namespace} create secret generic {name} --from-literal=HF_TOKEN=VALUE"
        ));
    }
    if lower.contains("insufficient memory") || lower.contains("out of memory") {
        return Some("add a node with more memory, or reduce spec.resources.memory".to_owned());
    }
    if lower.contains("/gpu") || lower.contains("insufficient gpu") {
        return Some("add a node with free GPUs, or reduce spec.resources.gpu".to_owned());
    }
    None
}

fn stuck(md: &ModelDeployment) -> Finding {
    let finalizers = md.finalizers();
    let (name, namespace) = (md.name_any(), md.namespace().unwrap_or_default());
    let ours = finalizers.iter().any(|f| f == labels::FINALIZER);
    let others: Vec<&str> = finalizers
        .iter()
        .map(String::as_str)
        .filter(|f| *f != labels::FINALIZER)
        .collect();
    if ours {
        let text = "deleted, but blocked by the KubeAIRunway finalizer: the core controller does not reconcile it";
        return Finding::error(subject(md), text).remedy(format!(
            "kubectl -n {} logs deployment/{}",
            manifests::NAMESPACE,
            labels::CORE_MANAGER
        ));
    }
    let text = format!(
        "deleted, but blocked by the finalizer of another controller: {}",
        others.join(", ")
    );
    Finding::error(subject(md), text).remedy(format!(
        "start the controller that removes the finalizer; if it no longer exists: kubectl -n {namespace} patch modeldeployment {name} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"
    ))
}
