//! Providers: their registrations, their controllers here, and the operators upstream. The two are told apart.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use runway_api::provider_config::Health;
use runway_api::{InferenceProviderConfig, labels};
use runway_core::providers::Providers;
use runway_provider::Provider;
use runway_provider::upstream::{State, crd_name, detect};

use super::{Check, Finding, Observed};
use crate::check::{Judged, Skip};
use crate::manifests::{self, NAMESPACE};
use crate::text;

/// An upstream object that nobody has looked at for so long has no operator.
const UNSEEN: SignedDuration = SignedDuration::from_secs(120);

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "provider-registered",
        title: "a provider is registered",
        looks_at: "InferenceProviderConfigs: each provider's controller registers itself with one. Without any no model is served.",
        remedy: "kubeairunway provider install direct (or kaito, dynamo, kuberay, whose operators you install)",
        judge: Some(registered),
    },
    Check {
        id: "provider-heartbeat",
        title: "the controllers of the providers are alive",
        looks_at: "status.lastHeartbeat of each InferenceProviderConfig: a provider that is silent for 180 seconds is not chosen. This is our controller for the provider, not the provider's own operator.",
        remedy: "kubectl -n kubeairunway-system get pods; kubeairunway provider install NAME",
        judge: Some(heartbeat),
    },
    Check {
        id: "provider-rules",
        title: "the rules of the providers compile",
        looks_at: "selectionRules and validationRules (CEL) of each InferenceProviderConfig. A rule that does not compile is left out, the others count.",
        remedy: "kubectl edit inferenceproviderconfig NAME",
        judge: Some(rules),
    },
    Check {
        id: "provider-crd",
        title: "the upstream kinds are installed",
        looks_at: "The CRDs that each registered built-in provider writes. They come with the provider's own operator.",
        remedy: "install the provider's operator",
        judge: Some(crds),
    },
    Check {
        id: "provider-schema",
        title: "the upstream kinds have a schema that is known",
        looks_at: "Every field that our controller writes or reads, in the CRD that is installed, as the controller does it itself.",
        remedy: "upgrade the product, or bring the provider's operator to a version it knows",
        judge: Some(schemas),
    },
    Check {
        id: "provider-operator",
        title: "the upstream operators run",
        looks_at: "The Deployment of each provider's own operator, by its usual labels, and upstream objects that nobody has looked at for two minutes.",
        remedy: "install the provider's operator",
        judge: Some(operators),
    },
    Check {
        id: "provider-ready",
        title: "the providers are ready",
        looks_at: "status.ready and the condition UpstreamReady of each InferenceProviderConfig.",
        remedy: "kubectl describe inferenceproviderconfig NAME",
        judge: Some(ready),
    },
];

fn some_registered(observed: &Observed) -> Result<&[InferenceProviderConfig], Skip> {
    let configs = observed.configs()?;
    super::unless_none(configs, "registered providers")?;
    Ok(configs)
}

fn subject(config: &InferenceProviderConfig) -> String {
    format!("InferenceProviderConfig {}", config.name_any())
}

fn registered(observed: &Observed) -> Judged {
    let none = observed.configs()?.is_empty();
    Ok(none
        .then(|| Finding::error("Providers", "none is registered: no ModelDeployment can be served"))
        .into_iter()
        .collect())
}

/// How to get the controller of a provider going again.
fn restart(observed: &Observed, provider: &str) -> String {
    let component = labels::provider_manager(provider);
    let there = observed
        .deployments()
        .unwrap_or_default()
        .iter()
        .any(|d| d.name_any() == component);
    if there {
        return format!("kubectl -n {NAMESPACE} logs deployment/{component}");
    }
    if manifests::built_in_providers().iter().any(|p| p.name() == provider) {
        return format!("kubeairunway provider install {provider}");
    }
    "start its controller again, or: kubectl delete inferenceproviderconfig ".to_owned() + provider
}

/// Whether its controller is not heard of. The core, too, writes into the status: that is no sign of life.
fn is_silent(config: &InferenceProviderConfig, now: Timestamp) -> bool {
    let status = config.status.as_ref();
    let never = status.is_none_or(|s| s.last_heartbeat.is_none() && s.ready.is_none());
    never || config.health(now) == Health::Silent
}

fn heartbeat(observed: &Observed) -> Judged {
    let now = observed.now();
    let find = |config: &InferenceProviderConfig| {
        if !is_silent(config, now) {
            return None;
        }
        let beat = config.status.as_ref().and_then(|s| s.last_heartbeat.as_ref());
        let text = match beat {
            Some(at) => format!("its controller was last heard of {} ago", text::since(at.0, now)),
            None => "its controller has never been heard of".to_owned(),
        };
        Some(Finding::error(subject(config), text).remedy(restart(observed, &config.name_any())))
    };
    Ok(super::each(some_registered(observed)?, find))
}

fn rules(observed: &Observed) -> Judged {
    let configs = some_registered(observed)?.iter().cloned().map(Arc::new);
    let compiled = Providers::compile(configs, &Providers::default());
    Ok(compiled
        .iter()
        .flat_map(|(name, provider)| {
            provider.problems.iter().map(move |problem| {
                Finding::error(
                    format!("InferenceProviderConfig {name}"),
                    format!("a rule is left out: {problem}"),
                )
                .remedy(format!("kubectl edit inferenceproviderconfig {name}"))
            })
        })
        .collect())
}

/// The built-in providers that are registered.
fn built_in(observed: &Observed) -> Result<Vec<Box<dyn Provider>>, Skip> {
    let configs = some_registered(observed)?;
    let found: Vec<_> = manifests::built_in_providers()
        .into_iter()
        .filter(|provider| configs.iter().any(|c| c.name_any() == provider.name()))
        .collect();
    super::unless_none(&found, "built-in providers registered")?;
    Ok(found)
}

/// A provider, and what is installed of each CRD that it writes.
type Written = (Box<dyn Provider>, Vec<(String, State)>);

/// What is installed of each upstream kind.
fn upstreams(observed: &Observed) -> Result<Vec<Written>, Skip> {
    let crds = observed.crds()?;
    Ok(built_in(observed)?
        .into_iter()
        .map(|provider| {
            let kinds = provider.upstreams().into_iter().filter(|u| !u.kind.is_built_in());
            let states = kinds
                .map(|upstream| {
                    let name = crd_name(upstream.kind);
                    let crd = crds.iter().find(|crd| crd.name_any() == name);
                    (name, detect(&upstream, crd))
                })
                .collect();
            (provider, states)
        })
        .collect())
}

fn installation(provider: &dyn Provider) -> String {
    provider.registration().installation.unwrap_or_default()
}

fn crds(observed: &Observed) -> Judged {
    let mut findings = Vec::new();
    let leaving = |name: &str| {
        let is_it = |crd: &&CustomResourceDefinition| crd.name_any() == name;
        let crd = observed.crds().ok()?.iter().find(is_it)?;
        crd.metadata.deletion_timestamp.as_ref()
    };
    for (provider, states) in upstreams(observed)? {
        for (crd, _) in states.iter().filter(|(crd, _)| leaving(crd).is_some()) {
            let text = format!(
                "it is being deleted, and waits for its objects: provider {} can make no new ones",
                provider.name()
            );
            let remedy = format!(
                "kubectl get {crd} -A shows what it waits for; the operator upstream must take its finalizers away"
            );
            findings.push(Finding::error(format!("CustomResourceDefinition {crd}"), text).remedy(remedy));
        }
        for (index, (crd, _)) in states
            .iter()
            .enumerate()
            .filter(|(_, (_, state))| *state == State::Missing)
        {
            let subject = format!("CustomResourceDefinition {crd}");
            let name = provider.name();
            // The first kind is what a provider is about; it may get along without the others.
            let finding = if index == 0 {
                Finding::error(
                    subject,
                    format!("it is not installed, so provider {name} can serve nothing: its operator is missing"),
                )
            } else {
                Finding::warning(
                    subject,
                    format!("it is not installed, so provider {name} can serve only part of what it knows"),
                )
            };
            findings.push(finding.remedy(installation(provider.as_ref())));
        }
    }
    Ok(findings)
}

fn schemas(observed: &Observed) -> Judged {
    let mut findings = Vec::new();
    for (provider, states) in upstreams(observed)? {
        for (crd, state) in states {
            let State::Unknown { served, problems } = state else {
                continue;
            };
            let text = format!(
                "its schema (served: {}) is not known: {}",
                served.join(", "),
                problems.join("; ")
            );
            let remedy = format!(
                "bring {}'s operator to a version that is known, or: kubeairunway controller upgrade",
                provider.name()
            );
            findings.push(Finding::error(format!("CustomResourceDefinition {crd}"), text).remedy(remedy));
        }
    }
    Ok(findings)
}

/// What is noted as unread if Deployments of other namespaces cannot be looked for.
pub(in crate::check) const OPERATORS: &str = "Deployments of upstream operators";

/// The label `app.kubernetes.io/name` of each upstream operator's Deployment, as its chart sets it.
pub(in crate::check) fn operator_labels(provider: &str) -> &'static [&'static str] {
    match provider {
        "kaito" => &["workspace", "kaito-workspace", "ai-toolchain-operator"],
        "dynamo" => &["dynamo-operator"],
        "kuberay" => &["kuberay-operator"],
        _ => &[],
    }
}

fn operators(observed: &Observed) -> Judged {
    let (deployments, now) = (observed.deployments()?, observed.now());
    observed.readable(OPERATORS)?;
    let mut findings = Vec::new();
    for (provider, states) in upstreams(observed)? {
        if states.first().is_none_or(|(_, state)| *state == State::Missing) {
            // That is another check's finding.
            continue;
        }
        let name = provider.name();
        let names = operator_labels(name);
        let is_its = |label: &String| names.contains(&label.as_str());
        let found = deployments
            .iter()
            .find(|d| d.labels().get("app.kubernetes.io/name").is_some_and(is_its));
        let ignored = provider.upstreams().iter().find_map(|upstream| {
            let mut objects = observed.others(upstream.kind.kind).ok()?;
            objects.find_map(|object| {
                let age = now.duration_since(object.creation_timestamp()?.0);
                let unseen = object
                    .data
                    .get("status")
                    .is_none_or(|s| s.as_object().is_none_or(serde_json::Map::is_empty));
                (unseen && age > UNSEEN && object.metadata.deletion_timestamp.is_none()).then(|| {
                    format!(
                        "{} {}/{}",
                        upstream.kind.kind,
                        object.namespace().unwrap_or_default(),
                        object.name_any()
                    )
                })
            })
        });
        match (found, ignored) {
            (Some(deployment), _) => {
                let ready = deployment
                    .status
                    .as_ref()
                    .and_then(|s| s.available_replicas)
                    .unwrap_or(0);
                if ready == 0 {
                    let namespace = deployment.namespace().unwrap_or_default();
                    let subject = format!("Deployment {namespace}/{}", deployment.name_any());
                    let text =
                        format!("{name}'s operator has no pod that is ready (our controller for it is another one)");
                    let remedy = format!("kubectl -n {namespace} describe deployment {}", deployment.name_any());
                    findings.push(Finding::error(subject, text).remedy(remedy));
                }
            }
            (None, Some(object)) => {
                let text = format!(
                    "{name}'s operator is missing: nobody looks at {object} (our controller for {name} is there, and is another one)"
                );
                findings.push(Finding::error(format!("Provider {name}"), text).remedy(installation(provider.as_ref())));
            }
            (None, None) => {
                let text = format!(
                    "no Deployment has the usual labels of {name}'s operator; it may be installed in another way"
                );
                findings
                    .push(Finding::warning(format!("Provider {name}"), text).remedy(installation(provider.as_ref())));
            }
        }
    }
    Ok(findings)
}

fn ready(observed: &Observed) -> Judged {
    let (now, known) = (observed.now(), upstreams(observed).unwrap_or_default());
    let explained = |name: &str| {
        let states = known.iter().find(|(provider, _)| provider.name() == name);
        states.is_some_and(|(_, states)| states.iter().any(|(_, s)| !matches!(s, State::Known { .. })))
    };
    let find = |config: &InferenceProviderConfig| {
        let Health::NotReady(why) = config.health(now) else {
            return None;
        };
        if is_silent(config, now) || explained(&config.name_any()) {
            return None;
        }
        Some(
            Finding::error(subject(config), format!("it is not ready: {why}"))
                .remedy(restart(observed, &config.name_any())),
        )
    };
    Ok(super::each(some_registered(observed)?, find))
}
