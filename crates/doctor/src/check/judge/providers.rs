//! Providers: registrations, KubeAIRunway's controllers for them, and their own operators.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::provider_config::Health;
use runway_api::{InferenceProviderConfig, labels};
use runway_client::providers::is_unused;
use runway_client::text;
use runway_core::providers::Providers;
use runway_manifests::{self as manifests, NAMESPACE};
use runway_provider::Provider;
use runway_provider::upstream::{State, crd_name, detect};

use super::shared::{each, unless_none};
use crate::check::{Check, Finding, Observed};
use crate::check::{Judged, Skip};

/// Time after which an upstream object without status counts as not reconciled.
const UNSEEN: SignedDuration = SignedDuration::from_secs(120);

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "provider-registered",
        title: "a provider is registered",
        looks_at: "At least one InferenceProviderConfig exists. Each provider's controller registers itself with one; without any, no model is served.",
        remedy: "kubeairunway provider install direct (or kaito, dynamo, kuberay, which require their own operators)",
        judge: Some(registered),
    },
    Check {
        id: "provider-heartbeat",
        title: "provider controllers send heartbeats",
        looks_at: "The status.lastHeartbeat of each InferenceProviderConfig is at most 180 seconds old; older providers are not selected. The heartbeat comes from the KubeAIRunway controller for the provider, not from the provider's own operator.",
        remedy: "kubectl -n kubeairunway-system get pods; kubeairunway provider install NAME",
        judge: Some(heartbeat),
    },
    Check {
        id: "provider-rules",
        title: "provider rules compile",
        looks_at: "The selectionRules and validationRules (CEL) of each InferenceProviderConfig compile. A rule that does not compile is skipped; all others apply.",
        remedy: "kubectl edit inferenceproviderconfig NAME",
        judge: Some(rules),
    },
    Check {
        id: "provider-crd",
        title: "upstream CRDs are installed",
        looks_at: "The CRDs that each registered built-in provider writes exist. The provider's own operator installs them. A provider whose operator is not installed and that no ModelDeployment names is not used, which is not an error while another provider is registered.",
        remedy: "install the provider's operator",
        judge: Some(crds),
    },
    Check {
        id: "provider-schema",
        title: "upstream CRDs have a supported schema",
        looks_at: "The installed CRD has every field that the provider's controller reads or writes.",
        remedy: "upgrade KubeAIRunway, or install a supported version of the provider's operator",
        judge: Some(schemas),
    },
    Check {
        id: "provider-operator",
        title: "upstream operators are running",
        looks_at: "The Deployment of each provider's own operator, by its usual labels, is available; no upstream object is without status for two minutes.",
        remedy: "install the provider's operator",
        judge: Some(operators),
    },
    Check {
        id: "provider-ready",
        title: "providers are ready",
        looks_at: "The status.ready and the conditions UpstreamReady and SettingsValid of each InferenceProviderConfig are true.",
        remedy: "kubectl describe inferenceproviderconfig NAME",
        judge: Some(ready),
    },
];

fn some_registered(observed: &Observed) -> Result<&[InferenceProviderConfig], Skip> {
    let configs = observed.configs()?;
    unless_none(configs, "registered providers")?;
    Ok(configs)
}

fn subject(config: &InferenceProviderConfig) -> String {
    format!("InferenceProviderConfig {}", config.name_any())
}

fn registered(observed: &Observed) -> Judged {
    let none = observed.configs()?.is_empty();
    Ok(none
        .then(|| {
            Finding::error(
                "Providers",
                "no provider is registered: no ModelDeployment can be served",
            )
        })
        .into_iter()
        .collect())
}

/// Remedy for a provider whose controller does not run.
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
    "restart its controller, or: kubectl delete inferenceproviderconfig ".to_owned() + provider
}

/// Whether its controller sends no heartbeat. Status fields that the core writes do not count.
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
            Some(at) => format!("last heartbeat of its controller {} ago", text::since(at.0, now)),
            None => "no heartbeat from its controller yet".to_owned(),
        };
        Some(Finding::error(subject(config), text).remedy(restart(observed, &config.name_any())))
    };
    Ok(each(some_registered(observed)?, find))
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
                    format!("a rule is skipped: {problem}"),
                )
                .remedy(format!("kubectl edit inferenceproviderconfig {name}"))
            })
        })
        .collect())
}

/// The built-in providers that are registered.
fn built_in(observed: &Observed) -> Result<Vec<Arc<dyn Provider>>, Skip> {
    let configs = some_registered(observed)?;
    let found: Vec<_> = manifests::built_in_providers()
        .into_iter()
        .filter(|provider| configs.iter().any(|c| c.name_any() == provider.name()))
        .collect();
    unless_none(&found, "registered built-in providers")?;
    Ok(found)
}

/// A provider, and what is installed of each CRD that it writes.
type Written = (Arc<dyn Provider>, Vec<(String, State)>);

/// Installed schema of each upstream kind.
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

/// Providers without an operator that no ModelDeployment names; none if no other provider could serve a model.
fn unused(observed: &Observed) -> Vec<String> {
    let (Ok(configs), Ok(models)) = (observed.configs(), observed.models()) else {
        return Vec::new();
    };
    let is_unused = |config: &&InferenceProviderConfig| is_unused(config, models, observed.now());
    let unused: Vec<String> = configs.iter().filter(is_unused).map(ResourceExt::name_any).collect();
    if unused.len() == configs.len() {
        return Vec::new();
    }
    unused
}

fn crds(observed: &Observed) -> Judged {
    let mut findings = Vec::new();
    let unused = unused(observed);
    if !unused.is_empty() {
        let text = "not used: the operator is not installed, and no ModelDeployment names the provider";
        let remedy = format!("kubeairunway provider uninstall {}", unused.join(" "));
        findings.push(Finding::note(format!("Provider {}", unused.join(", ")), text).remedy(remedy));
    }
    let leaving = |name: &str| {
        let is_it = |crd: &&CustomResourceDefinition| crd.name_any() == name;
        let crd = observed.crds().ok()?.iter().find(is_it)?;
        crd.metadata.deletion_timestamp.as_ref()
    };
    for (provider, states) in upstreams(observed)? {
        for (crd, _) in states.iter().filter(|(crd, _)| leaving(crd).is_some()) {
            let text = format!(
                "being deleted, waiting for its objects: provider {} cannot create new objects",
                provider.name()
            );
            let remedy = format!(
                "kubectl get {crd} -A shows the remaining objects; the upstream operator must remove their finalizers"
            );
            findings.push(Finding::error(format!("CustomResourceDefinition {crd}"), text).remedy(remedy));
        }
        if unused.iter().any(|name| name == provider.name()) {
            continue;
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
                    format!("not installed: provider {name} cannot serve any model without its operator"),
                )
            } else {
                Finding::warning(
                    subject,
                    format!("not installed: provider {name} can serve only some models"),
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
                "unsupported schema (served versions: {}): {}",
                served.join(", "),
                problems.join("; ")
            );
            let remedy = format!(
                "install a supported version of the operator of {}, or: kubeairunway controller upgrade",
                provider.name()
            );
            findings.push(Finding::error(format!("CustomResourceDefinition {crd}"), text).remedy(remedy));
        }
    }
    Ok(findings)
}

/// Key in the facts for Deployments of upstream operators that cannot be listed.
pub(in crate::check) const OPERATORS: &str = "Deployments of upstream operators";

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
        let names = provider.operator_labels();
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
                    let text = format!(
                        "the operator of {name} has no ready pod (it is separate from the KubeAIRunway controller for {name})"
                    );
                    let remedy = format!("kubectl -n {namespace} describe deployment {}", deployment.name_any());
                    findings.push(Finding::error(subject, text).remedy(remedy));
                }
            }
            (None, Some(object)) => {
                let text = format!(
                    "the operator of {name} is missing: {object} is not reconciled (the KubeAIRunway controller for {name} is separate)"
                );
                findings.push(Finding::error(format!("Provider {name}"), text).remedy(installation(provider.as_ref())));
            }
            (None, None) => {
                let text = format!(
                    "no Deployment has the usual labels of the operator of {name}; it may be installed in another way"
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
        let name = config.name_any();
        let conditions = config.status.as_ref().map(|status| status.conditions.as_slice());
        let remedy = match conditions.unwrap_or_default().when_false(condition::SETTINGS_VALID) {
            Some(_) => format!("kubectl edit inferenceproviderconfig {name}"),
            None => restart(observed, &name),
        };
        Some(Finding::error(subject(config), format!("not ready: {why}")).remedy(remedy))
    };
    Ok(each(some_registered(observed)?, find))
}
