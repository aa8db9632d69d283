//! The conditions other than Ready and Stalled.

use runway_api::DistributionReason;
use runway_api::condition::{self, Draft, no, yes};
use runway_api::llama_stack_distribution::ProviderPhase;

use super::request::Request;
use super::rollout::Rollout;
use super::startup::{Startup, Trouble};
use super::{objects, pod};
use crate::kinds;
use crate::observe::{Answer, Observed};

pub(super) fn deployment(rollout: &Rollout, trouble: Option<&Trouble>, message: &str) -> Draft {
    match trouble {
        _ if rollout.is_complete() => yes(
            condition::DEPLOYMENT_READY,
            DistributionReason::DeploymentReady,
            "The Deployment is ready",
        ),
        Some(trouble) => no(
            condition::DEPLOYMENT_READY,
            DistributionReason::DeploymentFailed,
            format!("The pods do not become ready: {}", trouble.reason),
        ),
        None => no(
            condition::DEPLOYMENT_READY,
            DistributionReason::DeploymentPending,
            message,
        ),
    }
}

pub(super) fn service(seen: &Observed, request: &Request) -> Draft {
    let name = kinds::service(&request.name);
    match seen.child(kinds::SERVICE, &name) {
        Some(_) => yes(
            condition::SERVICE_READY,
            DistributionReason::ServiceReady,
            format!("Service '{name}' exists"),
        ),
        None => no(
            condition::SERVICE_READY,
            DistributionReason::ServicePending,
            format!("Service '{name}' is being created"),
        ),
    }
}

pub(super) fn storage(seen: &Observed, request: &Request) -> Option<Draft> {
    request.server().storage.as_ref()?;
    let name = kinds::claim(&request.name);
    if let Some((asked, there)) = objects::shrinking(seen) {
        let text = format!(
            "spec.server.storage.size requests {asked}, and PersistentVolumeClaim '{name}' has {there}: a claim cannot shrink, so it is left unchanged"
        );
        return Some(no(condition::STORAGE_READY, DistributionReason::CannotShrink, text));
    }
    let phase = seen
        .child(kinds::CLAIM, &name)
        .and_then(|claim| claim.data["status"]["phase"].as_str());
    Some(match phase {
        Some("Bound") => yes(
            condition::STORAGE_READY,
            DistributionReason::StorageReady,
            format!("PersistentVolumeClaim '{name}' is bound"),
        ),
        Some("Lost") => no(
            condition::STORAGE_READY,
            DistributionReason::StorageFailed,
            format!("PersistentVolumeClaim '{name}' has lost its volume"),
        ),
        _ => no(
            condition::STORAGE_READY,
            DistributionReason::StoragePending,
            format!("PersistentVolumeClaim '{name}' is not bound yet"),
        ),
    })
}

pub(super) fn health(seen: &Observed, request: &Request, rollout: &Rollout) -> Draft {
    match seen.server.as_deref() {
        Some(Answer::Said(server)) if server.providers.is_none() => yes(
            condition::HEALTH_CHECK,
            DistributionReason::AuthenticationRequired,
            format!(
                "The server answers, version {}; it requires authentication, so its providers are not listed",
                server.version
            ),
        ),
        Some(Answer::Said(server)) => yes(
            condition::HEALTH_CHECK,
            DistributionReason::Answered,
            format!("The server answers, version {}", server.version),
        ),
        Some(Answer::Silent(why)) => no(
            condition::HEALTH_CHECK,
            DistributionReason::NoAnswer,
            format!("The server did not report its version and providers: {why}"),
        ),
        None if request.transport.is_tls() && rollout.is_complete() => yes(
            condition::HEALTH_CHECK,
            DistributionReason::Probed,
            "The server uses TLS: the kubelet's probes succeed, and its version and providers are not read",
        ),
        None => no(
            condition::HEALTH_CHECK,
            DistributionReason::NotAsked,
            "The server is asked when its pods are ready",
        ),
    }
}

pub(super) fn providers(request: &Request, startup: &Startup) -> Option<Draft> {
    if request.providers.is_empty() {
        return None;
    }
    let type_ = condition::EXTERNAL_PROVIDERS_READY;
    let failed: Vec<&str> = request
        .providers
        .iter()
        .zip(&startup.providers)
        .filter(|(_, reported)| reported.phase == ProviderPhase::Failed)
        .map(|(provider, _)| provider.id.as_str())
        .collect();
    let ready = startup
        .providers
        .iter()
        .filter(|t| t.phase == ProviderPhase::Ready)
        .count();
    let count = format!("{ready} of {} external providers are ready", startup.providers.len());
    Some(if !failed.is_empty() {
        no(
            type_,
            DistributionReason::ProvidersFailed,
            format!("{count}; failed: {}", failed.join(", ")),
        )
    } else if ready == startup.providers.len() {
        yes(type_, DistributionReason::ProvidersReady, count)
    } else {
        no(
            type_,
            DistributionReason::ProvidersInstalling,
            "The external providers are being installed",
        )
    })
}

/// Warnings for the user, present only while they apply.
pub(super) fn remarks(request: &Request, startup: &Startup) -> Vec<Draft> {
    let mut all = Vec::new();
    if !startup.warnings.is_empty() {
        all.push(yes(
            condition::PROVIDER_OVERRIDES,
            DistributionReason::ConfigurationMerged,
            startup.warnings.join("\n"),
        ));
    }
    if request.has_own_command() && !request.providers.is_empty() {
        all.push(yes(
            condition::PREFLIGHT_BYPASSED,
            DistributionReason::OwnCommand,
            "spec.server.containerSpec.command or args replace the operator's: external providers are installed and merged, but not checked before the server starts",
        ));
    }
    let moving = pod::moving_images(request);
    if !moving.is_empty() {
        all.push(yes(
            condition::IMAGES_NOT_PINNED,
            DistributionReason::LatestTag,
            format!(
                "{}: pods that start later may run another release; name images by digest, or by a tag that does not move",
                moving.join(", ")
            ),
        ));
    }
    let ignored = pod::ignored_env(request);
    if !ignored.is_empty() {
        all.push(yes(
            condition::ENV_IGNORED,
            DistributionReason::SetByOperator,
            format!(
                "spec.server.containerSpec.env: {} not passed on, since the server must read the merged configuration: use spec.server.userConfig for one of your own",
                ignored.join(", ")
            ),
        ));
    }
    all
}
