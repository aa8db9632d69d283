//! The webhooks that default and validate ModelDeployments.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use kube::ResourceExt;
use runway_client::text;
use runway_core::admission::manifests::{
    MUTATING_CONFIGURATION, MUTATING_WEBHOOK, VALIDATING_CONFIGURATION, VALIDATING_WEBHOOK,
};
use runway_manifests::{NAMESPACE, WEBHOOK_SECRET};
use x509_parser::pem::Pem;

use super::shared::{each, unless_none};
use crate::check::observed::Admission;
use crate::check::{Check, Finding, Observed};
use crate::check::{Judged, Skip};

const INSTALL: &str = "kubeairunway controller install";
/// The controller writes the bundle again when it starts.
const RESTART: &str = "kubectl -n kubeairunway-system rollout restart deployment kubeairunway-controller";
/// The controller renews long before that.
const SOON: Duration = Duration::from_hours(72);

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "webhook-installed",
        title: "webhooks are registered",
        looks_at: "The MutatingWebhookConfiguration and ValidatingWebhookConfiguration of the core controller exist. Without them, defaults and errors appear only after an object is created.",
        remedy: INSTALL,
        judge: Some(installed),
    },
    Check {
        id: "webhook-policy",
        title: "unavailable webhooks do not block requests",
        looks_at: "The failurePolicy of each webhook is Ignore. The controllers set defaults and validate again.",
        remedy: "kubeairunway controller install --force-conflicts",
        judge: Some(policy),
    },
    Check {
        id: "webhook-service",
        title: "webhook Service has endpoints",
        looks_at: "The Service kubeairunway-webhook has an EndpointSlice with a ready pod. Without one, the API server cannot call the webhooks.",
        remedy: "kubectl -n kubeairunway-system get pods,endpointslices",
        judge: Some(service),
    },
    Check {
        id: "webhook-ca",
        title: "API server trusts the webhook certificate",
        looks_at: "The caBundle of each webhook contains certificates that match ca.crt of the Secret kubeairunway-webhook-ca (only this key is read, and only if you may read it).",
        remedy: RESTART,
        judge: Some(bundle),
    },
    Check {
        id: "webhook-expiry",
        title: "webhook certificates are valid",
        looks_at: "The certificates in caBundle are not expired. The core controller renews them automatically.",
        remedy: RESTART,
        judge: Some(expiry),
    },
    Check {
        id: "webhook-answers",
        title: "admission responds",
        looks_at: "Admission rejects a ModelDeployment without an engine, submitted as a dry run. Nothing is created.",
        remedy: "kubectl -n kubeairunway-system logs deployment/kubeairunway-controller; NetworkPolicies must allow the API server to reach port 9443",
        judge: Some(answers),
    },
];

/// A webhook of ours as it is registered.
struct Webhook<'a> {
    name: &'a str,
    config: &'a WebhookClientConfig,
    policy: Option<&'a str>,
}

fn registered(observed: &Observed) -> Result<Vec<Webhook<'_>>, Skip> {
    let mutating = observed.mutating()?.iter().flat_map(|c| c.webhooks.iter().flatten());
    let mutating = mutating.map(|w| Webhook {
        name: &w.name,
        config: &w.client_config,
        policy: w.failure_policy.as_deref(),
    });
    let validating = observed.validating()?.iter().flat_map(|c| c.webhooks.iter().flatten());
    let validating = validating.map(|w| Webhook {
        name: &w.name,
        config: &w.client_config,
        policy: w.failure_policy.as_deref(),
    });
    Ok(mutating.chain(validating).collect())
}

fn some_registered(observed: &Observed) -> Result<Vec<Webhook<'_>>, Skip> {
    let found = registered(observed)?;
    unless_none(&found, "registered webhooks")?;
    Ok(found)
}

fn installed(observed: &Observed) -> Judged {
    let found = registered(observed)?;
    let wanted = [
        ("MutatingWebhookConfiguration", MUTATING_CONFIGURATION, MUTATING_WEBHOOK),
        (
            "ValidatingWebhookConfiguration",
            VALIDATING_CONFIGURATION,
            VALIDATING_WEBHOOK,
        ),
    ];
    let missing = wanted
        .iter()
        .filter(|(_, _, webhook)| found.iter().all(|w| w.name != *webhook));
    Ok(missing
        .map(|(kind, name, webhook)| Finding::error(format!("{kind} {name}"), format!("webhook {webhook} is missing")))
        .collect())
}

fn policy(observed: &Observed) -> Judged {
    let find = |webhook: &Webhook<'_>| {
        (webhook.policy != Some("Ignore")).then(|| {
            let text =
                "failurePolicy is Fail: while the core controller is unavailable, no ModelDeployment can be created or changed";
            Finding::warning(format!("webhook {}", webhook.name), text)
        })
    };
    Ok(each(&some_registered(observed)?, find))
}

fn service(observed: &Observed) -> Judged {
    let webhooks = some_registered(observed)?;
    let Some(service) = webhooks.iter().find_map(|w| w.config.service.as_ref()) else {
        return Err(Skip("the webhooks are called by URL, not through a Service".to_owned()));
    };
    let subject = format!("Service {}/{}", service.namespace, service.name);
    if service.namespace != NAMESPACE {
        return Err(Skip(format!(
            "the webhook Service is in namespace {}, which is not checked",
            service.namespace
        )));
    }
    if observed.services()?.iter().all(|s| s.name_any() != service.name) {
        return Ok(vec![Finding::error(subject, "does not exist").remedy(INSTALL)]);
    }
    let slices = observed.slices()?.iter().filter(|slice| {
        slice
            .labels()
            .get("kubernetes.io/service-name")
            .is_some_and(|name| *name == service.name)
    });
    let ready = slices.flat_map(|s| &s.endpoints).any(|endpoint| {
        // Absent means ready, as the API says.
        endpoint.conditions.as_ref().is_none_or(|c| c.ready != Some(false))
    });
    Ok(if ready {
        Vec::new()
    } else {
        vec![Finding::error(
            subject,
            "no ready endpoints: the API server cannot call the webhooks",
        )]
    })
}

/// The certificates of a bundle.
fn certificates(bundle: &[u8]) -> Result<Vec<(Timestamp, Timestamp)>, String> {
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(bundle) {
        let pem = pem.map_err(|e| e.to_string())?;
        let certificate = pem.parse_x509().map_err(|e| e.to_string())?;
        let at = |time: i64| Timestamp::from_second(time).unwrap_or_default();
        let validity = certificate.validity();
        found.push((at(validity.not_before.timestamp()), at(validity.not_after.timestamp())));
    }
    Ok(found)
}

fn bundle(observed: &Observed) -> Judged {
    let find = |webhook: &Webhook<'_>| {
        let subject = format!("webhook {}", webhook.name);
        let Some(ByteString(bundle)) = webhook.config.ca_bundle.as_ref().filter(|b| !b.0.is_empty()) else {
            return Some(Finding::error(
                subject,
                "caBundle is empty: the API server does not trust the webhook",
            ));
        };
        match certificates(bundle) {
            Err(error) => {
                return Some(Finding::error(
                    subject,
                    format!("caBundle is not a certificate: {error}"),
                ));
            }
            Ok(found) if found.is_empty() => {
                return Some(Finding::error(subject, "caBundle contains no certificate"));
            }
            Ok(_) => {}
        }
        let authority = observed.facts.authority.as_deref()?;
        let trusted = String::from_utf8_lossy(bundle);
        let known = blocks(authority).iter().any(|block| blocks(&trusted).contains(block));
        (!known).then(|| {
            Finding::error(
                subject,
                format!("caBundle does not match the CA in the Secret {NAMESPACE}/{WEBHOOK_SECRET}"),
            )
        })
    };
    Ok(each(&some_registered(observed)?, find))
}

/// The base64 text of each certificate, without line breaks.
fn blocks(pem: &str) -> Vec<String> {
    let begins = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
    begins
        .filter_map(|rest| rest.split("-----END").next())
        .map(|block| block.split_whitespace().collect())
        .collect()
}

fn expiry(observed: &Observed) -> Judged {
    let now = observed.now();
    let find = |webhook: &Webhook<'_>| {
        let subject = format!("webhook {}", webhook.name);
        let found = certificates(&webhook.config.ca_bundle.as_ref()?.0).ok()?;
        // While an authority is replaced, both are there.
        let last = found.iter().map(|(_, until)| *until).max()?;
        let first = found.iter().map(|(from, _)| *from).min()?;
        if last < now {
            let ago = text::since(last, now);
            return Some(Finding::error(
                subject,
                format!("the certificates in caBundle expired {ago} ago"),
            ));
        }
        if first > now {
            return Some(Finding::error(
                subject,
                format!("the certificates in caBundle are valid only from {first}"),
            ));
        }
        let left = Duration::try_from(last.duration_since(now)).unwrap_or_default();
        (left < SOON).then(|| {
            Finding::warning(
                subject,
                format!("the certificates in caBundle expire in {}", text::age(left)),
            )
        })
    };
    Ok(each(&some_registered(observed)?, find))
}

fn answers(observed: &Observed) -> Judged {
    observed.answers()?;
    let subject = "admission of ModelDeployments";
    Ok(match &observed.facts.admission {
        Admission::NotAsked => {
            return Err(Skip(
                "not checked: the CRD is not installed, or you may not create ModelDeployments".to_owned(),
            ));
        }
        Admission::Answers => Vec::new(),
        Admission::Silent => vec![Finding::error(
            subject,
            "a ModelDeployment without an engine was accepted: the webhook does not respond",
        )],
        Admission::Refused(message) => vec![Finding::warning(
            subject,
            format!("the dry run was rejected for another reason: {message}"),
        )],
    })
}
