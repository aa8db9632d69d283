//! The status, computed from scratch: from the Deployment, its newest pod and the server's answer.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions as _, Draft, no, settle, yes};
use runway_api::labels::llama_stack as labels;
use runway_api::llama_stack_distribution::{
    DistributionConfig, DistributionPhase, ExternalProviderStatus, LlamaStackDistributionStatus, ProviderInfo,
    ProviderPhase, VersionInfo,
};
use runway_api::{CoreReason, DistributionReason, EventReason};
use runway_operator::kubelet::{self, Stage};
use runway_operator::plan::{Note, Plan, Rehearsal};
use serde_json::json;

use super::conditions;
use super::pod::{self, EXTRACT, MERGE};
use super::request::{Provider, Refusal, Request, named_providers};
use super::rollout::Rollout;
use super::startup::{self, PodNames, ProviderStart, Stages, Startup, Trouble};
use super::value_from;
use crate::kinds;
use crate::observe::{Answer, Observed, ServerInfo};

/// Most providers of the server in the status.
const MAX_SHOWN: usize = 256;
/// Most bytes of their configurations in the status.
const MAX_SHOWN_BYTES: usize = 128 * 1024;
/// Longest message about a provider, in bytes.
const MAX_MESSAGE: usize = 8 * 1024;

/// The new status, not yet compared with the present one.
struct Said {
    phase: DistributionPhase,
    /// Of the condition Ready.
    reason: DistributionReason,
    message: String,
    providers: Vec<ProviderStart>,
    conditions: Vec<Draft>,
}

/// The status of one that is being deleted.
pub(super) fn terminating(seen: &Observed) -> Plan {
    let said = Said {
        phase: DistributionPhase::Terminating,
        reason: DistributionReason::Terminating,
        message: "Its objects are deleted with it".to_owned(),
        providers: vec![untold(); seen.llsd.external_providers().len()],
        conditions: Vec::new(),
    };
    finish(seen, None, said)
}

/// Nothing changes but that it says so.
pub(super) fn paused(seen: &Observed) -> Plan {
    let paused = condition::paused(labels::PAUSED);
    let message = paused.message().to_owned();
    let before = seen.llsd.status.clone().unwrap_or_default();
    let is_news = !before.conditions.is_true(condition::PAUSED);
    let status = LlamaStackDistributionStatus {
        phase: before.phase.or(Some(DistributionPhase::Pending)),
        message: Some(message.clone()),
        conditions: condition::settle_paused(paused, &before.conditions, seen.llsd.metadata.generation, seen.now),
        ..before.clone()
    };
    Plan {
        events: is_news
            .then(|| Note::normal(CoreReason::Paused, message))
            .into_iter()
            .collect(),
        status: (status != before).then(|| json!(status)),
        ..Plan::default()
    }
}

/// The status where nothing is made or changed.
pub(super) fn refused(seen: &Observed, refusal: &Refusal) -> Plan {
    let providers = named_providers(&seen.llsd)
        .iter()
        .map(|provider| ProviderStart {
            phase: match (&refusal.provider, refusal.waits) {
                (Some(id), false) if *id == provider.id => ProviderPhase::Failed,
                _ if refusal.reason == DistributionReason::DuplicateProviderId
                    && refusal.message.contains(&format!("'{}'", provider.id)) =>
                {
                    ProviderPhase::Failed
                }
                _ => ProviderPhase::Pending,
            },
            trouble: Some(Trouble {
                reason: refusal.reason,
                message: refusal.message.clone(),
                resolution: None,
            }),
        })
        .collect();
    let mut conditions = Vec::new();
    if !refusal.waits {
        conditions.push(yes(condition::STALLED, refusal.reason, &refusal.message));
    }
    let said = Said {
        phase: if refusal.waits {
            DistributionPhase::Pending
        } else {
            DistributionPhase::Failed
        },
        reason: refusal.reason,
        message: refusal.message.clone(),
        providers,
        conditions,
    };
    finish(seen, None, said)
}

/// The status of one whose objects are made.
pub(super) fn serving(seen: &Observed, request: &Request, template: &str, deployment_is_current: bool) -> Plan {
    let rollout = Rollout::read(seen.child(kinds::DEPLOYMENT, &request.name), deployment_is_current);
    let noted = Telling::read(seen, request, template);
    let mut startup = noted.startup;
    let listed = if rollout.is_complete() && rollout.wanted > 0 {
        check_listed(seen, request, &mut startup)
    } else {
        None
    };
    let trouble = if rollout.is_complete() {
        listed
    } else {
        startup
            .trouble
            .clone()
            .or(noted.trouble)
            .or_else(|| rollout.trouble.clone())
    };
    let (phase, reason, message) = verdict(
        request,
        &rollout,
        trouble.as_ref(),
        noted.not_scheduled.clone(),
        &startup,
    );
    let mut drafts = vec![conditions::deployment(&rollout, trouble.as_ref(), &message)];
    drafts.push(conditions::service(seen, request));
    drafts.extend(conditions::storage(seen, request));
    drafts.push(conditions::health(seen, request, &rollout));
    drafts.extend(conditions::providers(request, &startup));
    if phase == DistributionPhase::Failed {
        drafts.push(yes(condition::STALLED, reason, message.clone()));
    }
    drafts.extend(conditions::remarks(request, &startup));
    let said = Said {
        phase,
        reason,
        message,
        providers: startup.providers,
        conditions: drafts,
    };
    finish(seen, Some(request), said)
}

/// The state of the pods of the current template.
struct Telling {
    startup: Startup,
    /// Failure of the pod as a whole.
    trouble: Option<Trouble>,
    /// Reason why the scheduler places no pod on a node.
    not_scheduled: Option<(DistributionReason, String)>,
}

impl Telling {
    fn read(seen: &Observed, request: &Request, template: &str) -> Self {
        let pods = pod::of_template(seen.pods.iter().map(AsRef::as_ref), template);
        let (ended, alive): (Vec<&Pod>, Vec<&Pod>) = pods.into_iter().partition(|pod| kubelet::has_ended(pod));
        let conditions = seen.llsd.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let evicted = ended
            .into_iter()
            .filter(|pod| kubelet::may_explain(kubelet::ended_at(pod), conditions, seen.now))
            .find_map(kubelet::evicted);
        let pod = kubelet::telling(&alive);
        let names = PodNames {
            providers: &request.providers,
            image: &request.image,
            operator_image: &request.operator_image,
            server_container: &request.container,
            service_account: &request.service_account,
            pull_secrets: pod.map(pull_secrets).unwrap_or_default(),
        };
        let init = |container: &str| pod.map_or(Stage::Waiting, |pod| kubelet::init_stage(pod, container));
        let stages = Stages {
            providers: request.providers.iter().map(|p| init(&p.container)).collect(),
            extract: Some(init(EXTRACT)),
            merge: init(MERGE),
            server: pod.map_or(Stage::Waiting, |pod| kubelet::server_stage(pod, &request.container)),
        };
        Self {
            startup: startup::diagnose(&names, &stages),
            trouble: evicted.map(|said| {
                Trouble::new(
                    DistributionReason::Evicted,
                    format!("The kubelet evicted a pod: {said}"),
                    "If a volume grew over its limit, use providers with smaller packages, or run the operator with a larger --provider-volume-size",
                )
            }),
            not_scheduled: pod.and_then(not_scheduled),
        }
    }
}

fn not_scheduled(pod: &Pod) -> Option<(DistributionReason, String)> {
    let unschedulable = || {
        let said = kubelet::unschedulable(pod)?;
        Some((
            DistributionReason::Unschedulable,
            format!("No node accepts the pod: {said}"),
        ))
    };
    let gated = || {
        let said = kubelet::gated(pod)?;
        Some((DistributionReason::SchedulingGated, format!("The pod waits for {said}")))
    };
    unschedulable().or_else(gated)
}

fn pull_secrets(pod: &Pod) -> Vec<&str> {
    let secrets = pod
        .spec
        .iter()
        .flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    secrets.map(|secret| secret.name.as_str()).collect()
}

/// A provider that the running server does not list has not arrived, whatever its containers say.
fn check_listed(seen: &Observed, request: &Request, startup: &mut Startup) -> Option<Trouble> {
    let Some(Answer::Said(ServerInfo {
        providers: Some(listed),
        ..
    })) = seen.server.as_deref()
    else {
        return None;
    };
    let mut missing = None;
    for (provider, noted) in request.providers.iter().zip(&mut startup.providers) {
        if is_listed(listed, provider) {
            continue;
        }
        let trouble = Trouble::new(
            DistributionReason::ProviderNotListed,
            format!(
                "Provider '{}' (image: {}, init container: {}): the running server does not list it under the API {}",
                provider.id, provider.image, provider.container, provider.section.api
            ),
            "If spec.server.containerSpec.command or args are given, they must start the server with the file that LLAMA_STACK_CONFIG names",
        );
        noted.phase = ProviderPhase::Failed;
        noted.trouble = Some(trouble.clone());
        missing.get_or_insert(trouble);
    }
    missing
}

fn is_listed(listed: &[ProviderInfo], provider: &Provider) -> bool {
    listed
        .iter()
        .any(|p| p.provider_id == provider.id && p.api == provider.section.api)
}

/// Phase, reason and message.
fn verdict(
    request: &Request,
    rollout: &Rollout,
    trouble: Option<&Trouble>,
    not_scheduled: Option<(DistributionReason, String)>,
    startup: &Startup,
) -> (DistributionPhase, DistributionReason, String) {
    if let Some(trouble) = trouble {
        let serving = match rollout.available {
            0 => String::new(),
            n => format!("\nServers that still serve: {n}"),
        };
        return (
            DistributionPhase::Failed,
            trouble.reason,
            format!("{}{serving}", trouble.whole()),
        );
    }
    if !rollout.exists {
        return (
            DistributionPhase::Pending,
            DistributionReason::Creating,
            "Its objects are being created".to_owned(),
        );
    }
    if rollout.is_complete() {
        return match rollout.wanted {
            0 => (
                DistributionPhase::Ready,
                DistributionReason::ScaledToZero,
                "No server runs: spec.replicas is 0".to_owned(),
            ),
            n => (
                DistributionPhase::Ready,
                DistributionReason::Ready,
                format!("{n} of {n} servers are ready"),
            ),
        };
    }
    if let Some((reason, message)) = not_scheduled {
        return (DistributionPhase::Pending, reason, message);
    }
    (
        DistributionPhase::Initializing,
        DistributionReason::Initializing,
        progress(request, rollout, startup),
    )
}

/// Message about the progress, which changes once for each step.
fn progress(request: &Request, rollout: &Rollout, startup: &Startup) -> String {
    let installing = request
        .providers
        .iter()
        .zip(&startup.providers)
        .find(|(_, noted)| matches!(noted.phase, ProviderPhase::Pending | ProviderPhase::Installing))
        .map(|(provider, _)| provider);
    match installing {
        Some(provider) => format!("Waiting for provider '{}' to be installed", provider.id),
        None => format!("Waiting for {} servers to be ready", rollout.wanted),
    }
}

fn untold() -> ProviderStart {
    ProviderStart {
        phase: ProviderPhase::Pending,
        trouble: None,
    }
}

/// The plan with the status, if it differs from the present one, and its Events.
fn finish(seen: &Observed, request: Option<&Request>, said: Said) -> Plan {
    let before = seen.llsd.status.clone().unwrap_or_default();
    let generation = seen.llsd.metadata.generation;
    let ready = match said.phase {
        DistributionPhase::Ready => yes(condition::READY, said.reason, said.message.clone()),
        _ => no(condition::READY, said.reason, said.message.clone()),
    };
    let drafts = std::iter::once(ready).chain(said.conditions).collect();
    let server = server_info(seen, &before, said.phase);
    let (service_url, route_url) = match request {
        Some(request) => (
            Some(request.service_url(&seen.settings.cluster_domain)),
            route_url(seen, request),
        ),
        // The objects of an earlier spec are left as they are, and may serve.
        None if has_service(seen) => (before.service_url.clone(), before.route_url.clone()),
        None => (None, None),
    };
    let status = LlamaStackDistributionStatus {
        phase: Some(said.phase),
        message: Some(shortened(&said.message)),
        observed_generation: generation,
        version: Some(version(seen, &before, server.as_ref())),
        distribution_config: Some(DistributionConfig {
            active_distribution: Some(asked_for(seen)),
            available_distributions: seen.settings.distributions.clone(),
            providers: without_secrets(seen, server.and_then(|s| s.providers).unwrap_or_default()),
        }),
        available_replicas: Some(available(seen)),
        service_url,
        route_url,
        external_providers: provider_statuses(seen, &before, &said.providers),
        conditions: settle(drafts, &before.conditions, generation, seen.now),
    };
    Plan {
        events: events(&before, &status, said.reason),
        status: (status != before).then(|| json!(status)),
        rehearsal: Rehearsal::None,
        ..Plan::default()
    }
}

fn asked_for(seen: &Observed) -> String {
    let name = seen.llsd.spec.server.distribution.name.clone();
    name.filter(|n| !n.is_empty()).unwrap_or_else(|| "custom".to_owned())
}

fn has_service(seen: &Observed) -> bool {
    let name = kinds::service(&seen.llsd.name_any());
    seen.child(kinds::SERVICE, &name).is_some()
}

fn available(seen: &Observed) -> i32 {
    seen.child(kinds::DEPLOYMENT, &seen.llsd.name_any())
        .and_then(|d| i32::try_from(d.data["status"]["availableReplicas"].as_i64()?).ok())
        .unwrap_or(0)
}

fn route_url(seen: &Observed, request: &Request) -> Option<String> {
    let expose = request
        .llsd
        .spec
        .network
        .as_ref()
        .and_then(|n| n.expose_route)
        .unwrap_or(false);
    if !expose {
        return None;
    }
    let ingress = seen.child(kinds::INGRESS, &format!("{}-ingress", request.name));
    let address = ingress.and_then(|i| {
        let first = &i.data["status"]["loadBalancer"]["ingress"][0];
        first["hostname"].as_str().or_else(|| first["ip"].as_str())
    });
    let own = request.ingress();
    // A wildcard is not an address.
    let host = own.host.as_deref().filter(|host| !host.starts_with('*'));
    let scheme = if own.tls_secret_name.is_some() { "https" } else { "http" };
    Some(
        address
            .map(|address| format!("{scheme}://{}", host.unwrap_or(address)))
            .unwrap_or_default(),
    )
}

/// The server's answer. Until a ready server has answered again, such as after a restart of the operator, the previous one.
fn server_info(seen: &Observed, before: &LlamaStackDistributionStatus, phase: DistributionPhase) -> Option<ServerInfo> {
    match seen.server.as_deref() {
        Some(Answer::Said(server)) => Some(ServerInfo {
            version: server.version.clone(),
            providers: server.providers.as_deref().map(bounded),
        }),
        None if phase == DistributionPhase::Ready => Some(ServerInfo {
            version: before.version.as_ref()?.llama_stack_server_version.clone()?,
            providers: before
                .distribution_config
                .as_ref()
                .map(|config| config.providers.clone()),
        }),
        Some(Answer::Silent(_)) | None => None,
    }
}

/// Removes configurations that refer to Secrets: the server reports the values, and masks only those whose names tell.
fn without_secrets(seen: &Observed, mut listed: Vec<ProviderInfo>) -> Vec<ProviderInfo> {
    for (_, own) in seen.llsd.external_providers() {
        if own.config.as_ref().is_some_and(value_from::is_used) {
            let reported = listed.iter_mut().filter(|p| p.provider_id == own.provider_id);
            reported.for_each(|provider| provider.config = None);
        }
    }
    listed
}

/// Shortens a status that is too large: configurations are removed first.
fn bounded(providers: &[ProviderInfo]) -> Vec<ProviderInfo> {
    let mut shown: Vec<ProviderInfo> = providers.iter().take(MAX_SHOWN).cloned().collect();
    if json!(shown).to_string().len() > MAX_SHOWN_BYTES {
        for provider in &mut shown {
            provider.config = None;
        }
    }
    shown
}

fn version(seen: &Observed, before: &LlamaStackDistributionStatus, server: Option<&ServerInfo>) -> VersionInfo {
    let mut version = VersionInfo {
        operator_version: Some(seen.settings.operator_version.clone()),
        llama_stack_server_version: server.map(|s| s.version.clone()),
        last_updated: before.version.as_ref().and_then(|v| v.last_updated.clone()),
    };
    if version.last_updated.is_none() || before.version.as_ref() != Some(&version) {
        version.last_updated = Some(Time(seen.now));
    }
    version
}

fn provider_statuses(
    seen: &Observed,
    before: &LlamaStackDistributionStatus,
    noted: &[ProviderStart],
) -> Vec<ExternalProviderStatus> {
    let since = |id: &str, phase: ProviderPhase| {
        let same = before
            .external_providers
            .iter()
            .find(|p| p.provider_id == id && p.phase == phase);
        same.and_then(|p| p.last_transition_time.clone())
            .unwrap_or(Time(seen.now))
    };
    named_providers(&seen.llsd)
        .into_iter()
        .zip(noted)
        .map(|(provider, noted)| ExternalProviderStatus {
            phase: noted.phase,
            reason: noted.trouble.as_ref().map(|t| t.reason.into()),
            message: noted.trouble.as_ref().map(|t| shortened(&t.message)),
            resolution: noted.trouble.as_ref().and_then(|t| t.resolution.clone()),
            last_transition_time: Some(since(&provider.id, noted.phase)),
            provider_id: provider.id,
            api: Some(provider.section.field.to_owned()),
            image: provider.image,
            init_container_name: Some(provider.container),
        })
        .collect()
}

fn shortened(text: &str) -> String {
    if text.len() <= MAX_MESSAGE {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_MESSAGE - '…'.len_utf8());
    format!("{}…", text.get(..end).unwrap_or_default())
}

/// Events, once per change: when it becomes ready, and when another failure occurs.
fn events(
    before: &LlamaStackDistributionStatus,
    now: &LlamaStackDistributionStatus,
    reason: DistributionReason,
) -> Vec<Note> {
    let same = before.phase == now.phase && before.message == now.message;
    let message = now.message.clone().unwrap_or_default();
    match now.phase {
        Some(DistributionPhase::Failed) if !same => vec![failed(reason, message)],
        Some(DistributionPhase::Ready) if before.phase != now.phase => vec![Note::new(EventReason::Ready, message)],
        _ => Vec::new(),
    }
}

/// Event of a failure. Only a few reasons are those of Events, too: the details are in the message.
fn failed(reason: DistributionReason, message: String) -> Note {
    match reason {
        DistributionReason::ImagePullFailed
        | DistributionReason::DependencyConflict
        | DistributionReason::DuplicateProviderId => Note::warning(reason, message),
        _ => Note::new(EventReason::Failed, message),
    }
}
