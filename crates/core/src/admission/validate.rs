//! Violations and warnings.
//!
//! Pure, so that the result is the same at admission, at reconcile and in `render`. All problems are found at once, in the order
//! of the spec. The path of the field is separate from the message.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::EnvVar;
use kube::ResourceExt;
use runway_api::condition::shorten;
use runway_api::model_deployment::{
    Autoscaling, Component, ModelDeployment, ModelDeploymentSpec, ModelSource, PodMetadata, ServingMode,
};
use runway_api::{autoscaling, engine_args, labels, overrides};
use runway_operator::json;

use runway_operator::quantity::{self, Amount, CPU_SUFFIXES, MEMORY_SUFFIXES};

use super::model_id;
use crate::providers::{Providers, Registered};
use crate::selection;
use runway_api::syntax;

/// Engines that are accepted even if no provider supports them.
pub const KNOWN_ENGINES: [&str; 4] = ["vllm", "sglang", "trtllm", "llamacpp"];

/// Maximum number of reported violations, and of warnings.
const MAX_FINDINGS: usize = 50;
/// Maximum length of a message, in bytes.
pub(super) const MAX_MESSAGE: usize = 1024;
/// Maximum size of all values of `env`, in bytes. A process gets little more for all of its variables and arguments.
const MAX_ENV: usize = 128 * 1024;
/// Maximum length of a quoted user value, in bytes.
const MAX_QUOTE: usize = 80;

/// Reason why a ModelDeployment is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, such as spec.engine.type.
    pub field: String,
    /// The problem and the remedy.
    pub message: String,
}

/// Result of the validation of a ModelDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Violations; empty if the ModelDeployment is valid.
    pub errors: Vec<Violation>,
    /// Warnings.
    pub warnings: Vec<String>,
}

impl Findings {
    /// Whether there is no violation.
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// All violations in one line.
    pub fn message(&self) -> String {
        let messages: Vec<_> = self.errors.iter().map(|violation| violation.message.as_str()).collect();
        messages.join("; ")
    }

    pub(super) fn refuse(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(Violation {
            field: field.into(),
            message: shorten(message.into(), MAX_MESSAGE),
        });
    }

    pub(super) fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(shorten(message.into(), MAX_MESSAGE));
    }

    /// Both, the same violation once.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let errors = other.errors.into_iter();
        let new: Vec<_> = errors.filter(|violation| !self.errors.contains(violation)).collect();
        self.errors.extend(new);
        self.warnings.extend(other.warnings);
        self.bounded()
    }

    /// The length is bounded: a spec may have any number of problems.
    fn bounded(mut self) -> Self {
        if self.errors.len() > MAX_FINDINGS {
            let more = self.errors.len() - (MAX_FINDINGS - 1);
            self.errors.truncate(MAX_FINDINGS - 1);
            self.refuse("spec", format!("and {more} more"));
        }
        self.warnings.truncate(MAX_FINDINGS);
        self
    }
}

/// Validates a ModelDeployment against the schema, the design's rules and the registered providers.
///
/// What a provider supports is not checked here: providers report it in the condition `ProviderCompatible`, and admission checks
/// [`capabilities`](super::capabilities()) in addition.
pub fn validate(deployment: &ModelDeployment, providers: &Providers) -> Findings {
    let spec = &deployment.spec;
    let mut findings = Findings::default();

    check_name(deployment, &mut findings);
    check_model(spec, &mut findings);
    check_provider(deployment, providers, &mut findings);
    check_engine(spec, providers, &mut findings);
    check_args(spec, &mut findings);
    match spec.mode() {
        ServingMode::Aggregated => check_aggregated(spec, &mut findings),
        ServingMode::Disaggregated => check_disaggregated(spec, &mut findings),
    }
    check_autoscaling(spec, &mut findings);
    check_sizes(spec, &mut findings);
    check_numbers(spec, &mut findings);
    check_quantities(spec, &mut findings);
    check_env(&spec.env, &mut findings);
    if let Some(metadata) = spec
        .pod_template
        .as_ref()
        .and_then(|template| template.metadata.as_ref())
    {
        check_pod_metadata(metadata, &mut findings);
    }
    check_labels("spec.nodeSelector", &spec.node_selector, &mut findings);

    findings.bounded()
}

/// The CRD has the same rule; this check is for manifests that were not sent to an API server.
fn check_name(deployment: &ModelDeployment, findings: &mut Findings) {
    if deployment.name_any().len() > 63 {
        findings.refuse(
            "metadata.name",
            "metadata.name must be at most 63 characters: names of Services and labels are derived from it",
        );
    }
}

/// Limits that a schema cannot express.
fn check_sizes(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    let overrides = spec.provider.as_ref().and_then(|provider| provider.overrides.as_ref());
    let found = overrides.map_or(0, json::size);
    if found > overrides::MAX_SIZE {
        findings.refuse(
            "spec.provider.overrides",
            format!(
                "provider.overrides is {} KiB of JSON, and at most {} KiB are accepted: give the documented keys of the provider only",
                found.div_ceil(1024),
                overrides::MAX_SIZE / 1024
            ),
        );
    }
    let values = spec.env.iter().filter_map(|variable| variable.value.as_ref());
    let found: usize = values.map(String::len).sum();
    if found > MAX_ENV {
        findings.refuse(
            "spec.env",
            format!(
                "the values of env are {} KiB together, and at most {} KiB are accepted: put large ones into a ConfigMap, and name it in valueFrom",
                found.div_ceil(1024),
                MAX_ENV / 1024
            ),
        );
    }
}

fn check_model(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    match spec.source() {
        ModelSource::Huggingface => match spec.model_id() {
            None => findings.refuse("spec.model.id", "model.id is required when source is huggingface"),
            Some(id) if id.contains(|c: char| c.is_whitespace() || c.is_control()) => findings.refuse(
                "spec.model.id",
                "model.id must not contain spaces or control characters: use the ID on the hub, such as org/model",
            ),
            Some(id) => {
                if let Some(remedy) = model_id::instead_of_url(id) {
                    findings.refuse("spec.model.id", format!("model.id must not be a URL: {remedy}"));
                }
            }
        },
        ModelSource::Custom => {
            if spec.model.served_name.as_ref().is_some_and(|name| !name.is_empty()) {
                findings.warn("servedName is ignored for custom source");
            }
        }
    }
}

fn check_provider(deployment: &ModelDeployment, providers: &Providers, findings: &mut Findings) {
    let Some(name) = deployment.spec.provider_name() else {
        return;
    };
    match providers.get(name) {
        Some(provider) => {
            check_rules(deployment, name, provider, findings);
            check_overrides(&deployment.spec, provider, findings);
        }
        None => findings.refuse(
            "spec.provider.name",
            format!("Provider '{}' CRD not installed in cluster", quote(name)),
        ),
    }
}

/// Rules of the provider. A rule that cannot be evaluated is the provider's error, not the user's.
pub(super) fn check_rules(deployment: &ModelDeployment, name: &str, provider: &Registered, findings: &mut Findings) {
    if provider.validation.is_empty() {
        return;
    }
    let input = selection::input(deployment);
    for validation in &provider.validation {
        match validation.rule.evaluate(&input) {
            Ok(true) => {}
            Ok(false) => findings.refuse("spec", validation.message.clone()),
            Err(error) => findings.warn(format!("a validation rule of provider '{name}' was skipped: {error}")),
        }
    }
}

/// Only warnings: invalid overrides fail the reconcile, where the provider's own version decides. Nothing is known
/// about the keys of a provider that documents none.
fn check_overrides(spec: &ModelDeploymentSpec, provider: &Registered, findings: &mut Findings) {
    let given = spec.provider.as_ref().and_then(|provider| provider.overrides.as_ref());
    let (Some(given), Some(documented)) = (given, &provider.config.spec.overrides) else {
        return;
    };
    for finding in overrides::check(given, documented) {
        findings.warn(finding.to_string());
    }
}

/// Message about a missing engine, with those of the registered providers.
fn engine_required(offered: &BTreeSet<&str>) -> String {
    let mut text = "engine.type is required".to_owned();
    for (index, engine) in offered.iter().enumerate() {
        text += if index == 0 {
            ": registered providers offer "
        } else {
            ", "
        };
        text += engine;
    }
    text
}

fn check_engine(spec: &ModelDeploymentSpec, providers: &Providers, findings: &mut Findings) {
    let Some(engine) = spec.engine_type() else {
        return findings.refuse("spec.engine.type", engine_required(&providers.engines()));
    };
    let registered = providers.engines();
    // Without any provider the engine cannot be checked: one that is installed later may support it.
    if !KNOWN_ENGINES.contains(&engine) && !registered.is_empty() && !registered.contains(engine) {
        let mut known = KNOWN_ENGINES.to_vec();
        known.extend(registered.iter().filter(|name| !KNOWN_ENGINES.contains(name)));
        findings.refuse(
            "spec.engine.type",
            format!(
                "engine.type '{}' is supported by no registered provider (known: {}): correct it, or install a provider that supports it",
                quote(engine),
                known.join(", ")
            ),
        );
    }
    let options = spec.engine.as_ref();
    if engine == "trtllm" && options.is_some_and(|options| options.context_length.is_some()) {
        findings.warn("contextLength is ignored for trtllm: it is fixed when the engine is built, so use an image built for the length you need");
    }
    if options.and_then(|options| options.trust_remote_code) == Some(true) {
        findings.warn(
            "trustRemoteCode runs code that comes with the model: enable it only for models whose authors you trust",
        );
    }
}

/// Flags of engines that take several values, none of which contains a space.
const SEVERAL: [&str; 9] = [
    "cuda-graph-bs",
    "cuda-graph-sizes",
    "cudagraph-capture-sizes",
    "ignore-patterns",
    "logits-processors",
    "lora-modules",
    "lora-paths",
    "lora-target-modules",
    "served-model-name",
];

/// Lists of values. Options of TensorRT-LLM, whose names have underscores, are any JSON.
fn check_args(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    const EXAMPLE: &str = r#"'["a=org/a", "b=org/b"]'"#;
    let is_option = |key: &str| spec.engine_type() == Some("trtllm") && key.contains('_');
    for (key, text) in spec.engine.iter().flat_map(|engine| &engine.args) {
        match engine_args::values(key, text) {
            Err(why) if !is_option(key) => findings.refuse(
                format!("spec.engine.args[{key}]"),
                format!(
                    "engine.args.{key} is {why}: for several values, set it to a list of texts, such as {EXAMPLE}; \
                     for one value that is a list, write it as the only text of a list"
                ),
            ),
            Ok(values) if is_words(key, &values) => findings.warn(format!(
                "engine.args.{key} is passed as one value: for several values, set it to a list of texts, such as {EXAMPLE}"
            )),
            _ => {}
        }
    }
}

/// Whether the only value looks like several.
fn is_words(key: &str, values: &[String]) -> bool {
    let takes_several = SEVERAL.contains(&key.replace('_', "-").as_str());
    takes_several && matches!(values, [one] if !one.starts_with('{') && one.trim().contains(char::is_whitespace))
}

fn check_aggregated(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    let needs_gpu = match spec.engine_type() {
        Some("vllm") => Some("vLLM"),
        Some("sglang") => Some("SGLang"),
        Some("trtllm") => Some("TensorRT-LLM"),
        _ => None,
    };
    if let Some(engine) = needs_gpu.filter(|_| spec.gpu_count() == 0) {
        findings.refuse(
            "spec.resources.gpu.count",
            format!("{engine} engine requires GPU (set resources.gpu.count > 0)"),
        );
    }
    if spec
        .scaling
        .as_ref()
        .is_some_and(|scaling| scaling.prefill.is_some() || scaling.decode.is_some())
    {
        findings.warn("scaling.prefill and scaling.decode are ignored in aggregated mode: set serving.mode to disaggregated to use them");
    }
}

/// Whether GPUs are required depends on prefill and decode, for any engine.
fn check_disaggregated(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    if spec.resources.as_ref().is_some_and(|resources| resources.gpu.is_some()) {
        findings.refuse(
            "spec.resources.gpu",
            "Cannot specify both resources.gpu and scaling.prefill/decode",
        );
    }
    if spec.scaling.as_ref().is_some_and(|scaling| scaling.replicas.is_some()) {
        findings.warn("scaling.replicas is ignored in disaggregated mode: set scaling.prefill.replicas and scaling.decode.replicas");
    }
    let resources = spec.resources.as_ref();
    if resources.is_some_and(|resources| resources.memory.is_some()) {
        findings.warn(
            "resources.memory is ignored in disaggregated mode: set scaling.prefill.memory and scaling.decode.memory",
        );
    }
    if resources.is_some_and(|resources| resources.cpu.is_some()) {
        findings.warn("resources.cpu is ignored in disaggregated mode, where spec.resources does not apply: remove it");
    }
    let [prefill, decode] = components(spec);
    if prefill.1.is_none() || decode.1.is_none() {
        findings.refuse(
            "spec.scaling",
            "Disaggregated mode requires scaling.prefill and scaling.decode",
        );
    }
    for (name, component) in [prefill, decode] {
        let gpus = |component: &Component| component.gpu.as_ref().and_then(|gpu| gpu.count).unwrap_or(0);
        if component.is_some_and(|component| gpus(component) == 0) {
            findings.refuse(
                format!("spec.scaling.{name}.gpu.count"),
                format!("Disaggregated mode requires scaling.{name}.gpu.count"),
            );
        }
        if component.is_some_and(|component| component.memory.is_none()) {
            findings.refuse(
                format!("spec.scaling.{name}.memory"),
                format!("Disaggregated mode requires scaling.{name}.memory"),
            );
        }
    }
}

/// Same rules as in the CRD, and one that spans fields.
fn check_autoscaling(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    const FIELD: &str = "spec.scaling.autoscaling";
    let scaling = spec.scaling.as_ref();
    let Some(autoscaling) = scaling.and_then(|scaling| scaling.autoscaling.as_ref()) else {
        return;
    };
    if spec.mode() == ServingMode::Disaggregated {
        findings.refuse(
            FIELD,
            "scaling.autoscaling is not supported in disaggregated mode, because an autoscaler sets one number of replicas: remove it, and set scaling.prefill.replicas and scaling.decode.replicas",
        );
    }
    let Autoscaling {
        requests_in_flight,
        queued_requests,
        tokens_per_second,
        trigger,
        ..
    } = autoscaling;
    let metrics = [requests_in_flight, queued_requests, tokens_per_second];
    if metrics.into_iter().flatten().count() + usize::from(trigger.is_some()) != 1 {
        findings.refuse(FIELD, autoscaling::messages::ONE_METRIC);
    }
    if autoscaling.min() > autoscaling.max_replicas {
        findings.refuse(format!("{FIELD}.minReplicas"), autoscaling::messages::MIN_ABOVE_MAX);
    }
    if autoscaling.min() == 0 && trigger.is_none() {
        findings.refuse(
            format!("{FIELD}.minReplicas"),
            autoscaling::messages::ZERO_WITHOUT_TRIGGER,
        );
    }
}

fn components(spec: &ModelDeploymentSpec) -> [(&'static str, Option<&Component>); 2] {
    let scaling = spec.scaling.as_ref();
    [
        ("prefill", scaling.and_then(|s| s.prefill.as_ref())),
        ("decode", scaling.and_then(|s| s.decode.as_ref())),
    ]
}

/// Same limits as in the CRD.
fn check_numbers(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    let mut within = |path: &str, number: Option<i32>, min: i32, max: i32| match number {
        Some(number) if !(min..=max).contains(&number) => {
            findings.refuse(
                format!("spec.{path}"),
                format!("{path} must be between {min} and {max}, not {number}"),
            );
        }
        _ => {}
    };
    within(
        "engine.contextLength",
        spec.engine.as_ref().and_then(|e| e.context_length),
        1,
        100_000_000,
    );
    within(
        "scaling.replicas",
        spec.scaling.as_ref().and_then(|s| s.replicas),
        0,
        1000,
    );
    if let Some(autoscaling) = spec.scaling.as_ref().and_then(|s| s.autoscaling.as_ref()) {
        let mut number =
            |name: &str, number, min, max| within(&format!("scaling.autoscaling.{name}"), number, min, max);
        number("minReplicas", autoscaling.min_replicas, 0, 1000);
        number("maxReplicas", Some(autoscaling.max_replicas), 1, 1000);
        number("requestsInFlight", autoscaling.requests_in_flight, 1, 1_000_000);
        number("queuedRequests", autoscaling.queued_requests, 1, 1_000_000);
        number("tokensPerSecond", autoscaling.tokens_per_second, 1, 100_000_000);
    }
    for (name, component) in components(spec) {
        within(
            &format!("scaling.{name}.replicas"),
            component.and_then(|c| c.replicas),
            0,
            1000,
        );
        within(
            &format!("scaling.{name}.gpu.count"),
            component.and_then(|c| c.gpu.as_ref()?.count),
            0,
            1024,
        );
    }
    within(
        "resources.gpu.count",
        spec.resources.as_ref().and_then(|r| r.gpu.as_ref()?.count),
        0,
        1024,
    );
}

fn check_quantities(spec: &ModelDeploymentSpec, findings: &mut Findings) {
    let mut positive = |path: &str, text: Option<&String>, suffixes: &[&str], example: &str| {
        let Some(text) = text else { return };
        let complaint = match quantity::amount(text, suffixes) {
            Amount::Positive => return,
            Amount::Zero => format!("{path} must be greater than 0, such as {example}: omit it to request nothing"),
            Amount::Unreadable => format!("{path} must be a quantity such as {example}, not '{}'", quote(text)),
        };
        findings.refuse(format!("spec.{path}"), complaint);
    };
    for (name, component) in components(spec) {
        positive(
            &format!("scaling.{name}.memory"),
            component.and_then(|c| c.memory.as_ref()),
            MEMORY_SUFFIXES,
            "64Gi",
        );
    }
    let resources = spec.resources.as_ref();
    positive(
        "resources.memory",
        resources.and_then(|r| r.memory.as_ref()),
        MEMORY_SUFFIXES,
        "32Gi",
    );
    positive(
        "resources.cpu",
        resources.and_then(|r| r.cpu.as_ref()),
        CPU_SUFFIXES,
        "4 or 500m",
    );
}

fn check_env(env: &[EnvVar], findings: &mut Findings) {
    for (index, variable) in env.iter().enumerate() {
        if variable.name.is_empty() {
            findings.refuse(
                format!("spec.env[{index}].name"),
                format!("env[{index}] has no name: name the variable, or remove the entry"),
            );
        }
        // Otherwise the API server would reject the pods, where the user does not see it.
        let is_printable = |c: char| matches!(c, ' '..='~') && c != '=';
        if !variable.name.chars().all(is_printable) {
            findings.refuse(
                format!("spec.env[{index}].name"),
                format!(
                    "env[{index}]: invalid variable name '{}': use letters, digits, '_', '-' and '.'",
                    quote(&variable.name)
                ),
            );
        }
        // As in Kubernetes: an empty value next to valueFrom is allowed.
        if variable.value.as_ref().is_some_and(|value| !value.is_empty()) && variable.value_from.is_some() {
            findings.refuse(
                format!("spec.env[{index}]"),
                format!(
                    "env[{index}] ('{}') has both value and valueFrom: keep one of them",
                    quote(&variable.name)
                ),
            );
        }
    }
}

fn check_pod_metadata(metadata: &PodMetadata, findings: &mut Findings) {
    check_labels("spec.podTemplate.metadata.labels", &metadata.labels, findings);
    for key in metadata.annotations.keys() {
        check_key("spec.podTemplate.metadata.annotations", key, findings);
    }
    for (kind, map) in [("labels", &metadata.labels), ("annotations", &metadata.annotations)] {
        for key in map.keys().filter(|key| key.starts_with(labels::PREFIX)) {
            findings.refuse(
                format!("spec.podTemplate.metadata.{kind}[{}]", quote(key)),
                format!("podTemplate.metadata.{kind}: '{}' is reserved, every key under {} is set by the controllers: use your own prefix", quote(key), labels::PREFIX),
            );
        }
    }
}

fn check_labels(path: &str, labels: &BTreeMap<String, String>, findings: &mut Findings) {
    for (key, value) in labels {
        check_key(path, key, findings);
        if !syntax::is_label_value(value) {
            findings.refuse(
                format!("{path}[{}]", quote(key)),
                format!(
                    "{}: invalid value '{}' of '{}': use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
                    path.trim_start_matches("spec."),
                    quote(value),
                    quote(key)
                ),
            );
        }
    }
}

fn check_key(path: &str, key: &str, findings: &mut Findings) {
    if !syntax::is_key(key) {
        findings.refuse(
            format!("{path}[{}]", quote(key)),
            format!(
                "{}: invalid key '{}': use at most 63 letters, digits, '-', '_' and '.', optionally after a domain and '/', such as example.com/team",
                path.trim_start_matches("spec."),
                quote(key)
            ),
        );
    }
}

/// A user's value for a message: bounded, on one line.
pub(super) fn quote(text: &str) -> String {
    let line = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .take(MAX_QUOTE + 1)
        .collect();
    shorten(line, MAX_QUOTE)
}
