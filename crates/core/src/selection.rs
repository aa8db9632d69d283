//! Selection of a provider for a ModelDeployment. Pure.
//!
//! Every provider gets a [`Verdict`]. The eligible provider with the highest priority wins; ties go to the first name.

use std::cmp::Reverse;

use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::model_deployment::{Candidate, ServingMode, Signal};
use runway_api::provider_config::{Capabilities, Health, SILENCE, SelectionPolicy};
use runway_api::{ModelDeployment, ModelDeploymentSpec};
use serde_json::{Value, json};

use crate::admission::defaults::apply_defaults;
use crate::providers::{Providers, Registered};
use crate::rules::Input;

/// Maximum candidates in a status.
const MAX_CANDIDATES: usize = 16;
/// Maximum length of a candidate's reason, in bytes.
const MAX_REASON: usize = 512;

/// Message if no provider is healthy.
pub const NO_HEALTHY_PROVIDERS: &str = "No healthy providers available";

/// Evaluation of one provider for one ModelDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Name of the provider.
    pub provider: String,
    /// Reason why the provider cannot be selected; `None` if it can.
    pub obstacle: Option<Obstacle>,
    /// Results of its rules.
    pub rules: Vec<RuleOutcome>,
    /// Highest priority of the rules that are true, or that cannot be evaluated and are below 0; 0 without such a rule.
    pub priority: i32,
}

/// Result of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOutcome {
    /// Condition as written.
    pub condition: String,
    /// Priority of the rule.
    pub priority: i32,
    /// Whether the condition is true, or why it cannot be evaluated.
    pub holds: Result<bool, String>,
}

/// Reason why a provider cannot be selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It does not support the spec, or must be named explicitly.
    Unsuitable(String),
    /// It supports the spec, but is not healthy.
    Unhealthy(String),
}

impl Obstacle {
    /// Reason for the user.
    pub fn reason(&self) -> &str {
        match self {
            Self::Unsuitable(reason) | Self::Unhealthy(reason) => reason,
        }
    }
}

/// Result of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Name of the selected provider, or why none is selected.
    pub winner: Result<String, NoProvider>,
    /// Evaluated providers, the selected one first.
    pub candidates: Vec<Candidate>,
}

/// Reason why no provider is selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProvider {
    /// No provider is healthy, or none of those that support the spec.
    NoneHealthy,
    /// No provider supports the spec.
    NoneSuitable(String),
}

/// Selects a provider for a ModelDeployment that names none.
pub fn select(md: &ModelDeployment, providers: &Providers, now: Timestamp) -> Selected {
    let input = input(md);
    let mut verdicts: Vec<Verdict> = providers
        .iter()
        .map(|(name, provider)| judge(name, provider, &md.spec, &input, now))
        .collect();
    verdicts.sort_by_key(|v| (v.obstacle.is_some(), Reverse(v.priority), v.provider.clone()));

    let winner = match verdicts.first() {
        Some(first) if first.obstacle.is_none() => Ok(first.provider.clone()),
        _ if verdicts
            .iter()
            .any(|v| matches!(v.obstacle, Some(Obstacle::Unhealthy(_)))) =>
        {
            Err(NoProvider::NoneHealthy)
        }
        _ if providers.iter().all(|(_, p)| p.health(now) != Health::Healthy) => Err(NoProvider::NoneHealthy),
        _ => Err(NoProvider::NoneSuitable(no_match(&md.spec, &verdicts))),
    };
    let candidates = verdicts
        .iter()
        .take(MAX_CANDIDATES)
        .map(|v| candidate(v, winner.as_deref().ok()))
        .collect();
    Selected { winner, candidates }
}

/// Evaluations of all providers by name, for `kubeairunway why`.
pub fn explain(md: &ModelDeployment, providers: &Providers, now: Timestamp) -> Vec<Verdict> {
    let input = input(md);
    providers
        .iter()
        .map(|(name, provider)| judge(name, provider, &md.spec, &input, now))
        .collect()
}

/// Names of the providers that support a spec, healthy or not.
pub(crate) fn suitable<'a>(md: &ModelDeployment, providers: &'a Providers) -> Vec<&'a str> {
    let input = input(md);
    let all = providers.iter();
    all.filter(|(_, provider)| lacks(provider, &md.spec, &input).is_none())
        .map(|(name, _)| name)
        .collect()
}

/// Reason why no registered provider could be selected for a spec, even if all were healthy.
pub(crate) fn unsuitable_for_all(md: &ModelDeployment, providers: &Providers) -> Option<String> {
    let input = input(md);
    let reasons: Option<Vec<String>> = providers
        .iter()
        .map(|(name, provider)| Some(format!("{name} {}", unsuitable(provider, &md.spec, &input)?)))
        .collect();
    reasons
        .filter(|reasons| !reasons.is_empty())
        .map(|reasons| no_provider(&md.spec, &reasons))
}

/// Reason for the selection.
pub fn matched(spec: &ModelDeploymentSpec) -> String {
    format!("matched capabilities: {}", asked_for(spec))
}

fn asked_for(spec: &ModelDeploymentSpec) -> String {
    format!(
        "engine={}, gpu={}, mode={}",
        spec.engine_type().unwrap_or("none"),
        spec.wants_gpu(),
        spec.mode().as_str()
    )
}

fn no_match(spec: &ModelDeploymentSpec, verdicts: &[Verdict]) -> String {
    let reasons: Vec<String> = verdicts
        .iter()
        .take(MAX_CANDIDATES)
        .filter_map(|v| Some(format!("{} {}", v.provider, v.obstacle.as_ref()?.reason())))
        .collect();
    no_provider(spec, &reasons)
}

fn no_provider(spec: &ModelDeploymentSpec, reasons: &[String]) -> String {
    format!("No provider supports {}: {}", asked_for(spec), reasons.join("; "))
}

fn judge(name: &str, provider: &Registered, spec: &ModelDeploymentSpec, input: &Input, now: Timestamp) -> Verdict {
    let rules: Vec<RuleOutcome> = provider
        .selection
        .iter()
        .map(|s| RuleOutcome {
            condition: s.rule.source().to_owned(),
            priority: s.priority,
            holds: s.rule.evaluate(input).map_err(|error| error.to_string()),
        })
        .collect();
    let priority = rules
        .iter()
        .filter(|r| counts(r))
        .map(|r| r.priority)
        .max()
        .unwrap_or(0);
    let obstacle = unsuitable(provider, spec, input)
        .map(Obstacle::Unsuitable)
        .or_else(|| unhealthy(provider, now).map(Obstacle::Unhealthy));
    Verdict {
        provider: name.to_owned(),
        obstacle,
        rules,
        priority,
    }
}

/// Whether a rule counts. One that cannot be evaluated, for example on a spec that is too large, must never favor its provider:
/// only a priority below 0 counts.
fn counts(rule: &RuleOutcome) -> bool {
    match rule.holds {
        Ok(holds) => holds,
        Err(_) => rule.priority < 0,
    }
}

fn unsuitable(provider: &Registered, spec: &ModelDeploymentSpec, input: &Input) -> Option<String> {
    let config = &provider.config;
    if config.policy() == SelectionPolicy::Explicit {
        return Some("is selected only if spec.provider.name names it".to_owned());
    }
    lacks(provider, spec, input)
}

/// Part of a spec that a provider does not support: a capability, or a value that one of its rules forbids.
fn lacks(provider: &Registered, spec: &ModelDeploymentSpec, input: &Input) -> Option<String> {
    let config = &provider.config;
    if let Some(gap) = gap(&config.spec.capabilities, spec) {
        return Some(gap.reason);
    }
    provider
        .validation
        .iter()
        .find(|v| v.rule.evaluate(input) == Ok(false))
        .map(|v| v.message.clone())
}

/// Something that a provider does not support.
pub(crate) struct Gap {
    /// Path of the field that requests it.
    pub(crate) field: &'static str,
    /// Predicate with the provider as its subject.
    pub(crate) reason: String,
}

/// The first capability that a provider lacks for a spec.
pub(crate) fn gap(capabilities: &Capabilities, spec: &ModelDeploymentSpec) -> Option<Gap> {
    let engine = spec.engine_type().unwrap_or_default();
    let Some(support) = capabilities.for_engine(engine) else {
        return Some(Gap {
            field: "spec.engine.type",
            reason: format!("does not support engine {engine}"),
        });
    };
    let (wants_gpu, mode) = (spec.wants_gpu(), spec.mode());
    let (field, reason) = if wants_gpu && !support.gpu {
        ("spec.resources.gpu", format!("does not run {engine} on GPUs"))
    } else if !wants_gpu && !support.cpu {
        ("spec.resources.gpu", format!("does not run {engine} without a GPU"))
    } else if !support.serving_modes.contains(&mode) {
        let reason = format!("does not support serving mode {} with {engine}", mode.as_str());
        ("spec.serving.mode", reason)
    } else {
        let autoscaling = spec.scaling.as_ref()?.autoscaling.as_ref()?;
        let Signal::Pods(metric, _) = autoscaling.signal()? else {
            return None;
        };
        if capabilities.pod_metric(engine, metric).is_some() {
            return None;
        }
        let field = metric.field();
        let reason = format!("has no pod metric for {field} with {engine}, only autoscaling.trigger");
        ("spec.scaling.autoscaling", reason)
    };
    Some(Gap { field, reason })
}

fn unhealthy(provider: &Registered, now: Timestamp) -> Option<String> {
    match provider.health(now) {
        Health::Healthy => None,
        Health::NotReady(why) => Some(format!("is not ready: {why}")),
        Health::Silent => Some(SILENCE.to_owned()),
    }
}

fn candidate(verdict: &Verdict, winner: Option<&str>) -> Candidate {
    let rule = verdict
        .rules
        .iter()
        .find(|r| r.holds == Ok(true) && r.priority == verdict.priority);
    let by_rule = rule.map_or_else(
        || "no rule holds".to_owned(),
        |r| format!("rule holds: {}", r.condition),
    );
    let reason = match &verdict.obstacle {
        Some(obstacle) => obstacle.reason().to_owned(),
        None if winner == Some(&verdict.provider) => format!("chosen, {by_rule}"),
        None => format!("lower priority or later name, {by_rule}"),
    };
    Candidate {
        name: verdict.provider.clone(),
        eligible: verdict.obstacle.is_none(),
        priority: verdict.obstacle.is_none().then_some(verdict.priority),
        reason: runway_api::condition::shorten(reason, MAX_REASON),
    }
}

/// Input of the rules for a ModelDeployment.
pub fn input(md: &ModelDeployment) -> Input {
    let metadata = json!({
        "name": md.name_any(),
        "namespace": md.namespace().unwrap_or_default(),
        "labels": md.labels(),
    });
    Input::new(&normalized(&md.spec), &metadata)
}

/// The spec as rules see it: every documented object present, absent numbers 0, absent switches false. `gpu`, `prefill` and
/// `decode` are present only if the user set them, so that `has()` works.
pub fn normalized(spec: &ModelDeploymentSpec) -> Value {
    let mut spec = spec.clone();
    apply_defaults(&mut spec);
    let given = serde_json::to_value(&spec).unwrap_or_default();
    let mut whole = json!({
        "model": { "id": "", "storage": { "volumes": [] } },
        "provider": { "overrides": {} },
        "engine": { "type": "", "contextLength": 0, "trustRemoteCode": false, "args": {} },
        "serving": { "mode": ServingMode::default().as_str() },
        "scaling": { "replicas": 0 },
        "resources": {},
        "env": [],
        "podTemplate": { "metadata": { "labels": {}, "annotations": {} }, "spec": {} },
        "secrets": {},
        "nodeSelector": {},
        "tolerations": [],
        "imagePullSecrets": [],
    });
    merge(&mut whole, &given);
    for gpu in ["/resources/gpu", "/scaling/prefill/gpu", "/scaling/decode/gpu"] {
        fill(&mut whole, gpu, "count");
    }
    for part in ["/scaling/prefill", "/scaling/decode"] {
        fill(&mut whole, part, "replicas");
    }
    whole
}

fn fill(whole: &mut Value, pointer: &str, number: &str) {
    if let Some(Value::Object(object)) = whole.pointer_mut(pointer) {
        object.entry(number).or_insert_with(|| 0.into());
    }
}

fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => base.clone_from(over),
    }
}
