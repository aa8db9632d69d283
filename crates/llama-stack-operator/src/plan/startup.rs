//! Messages about a start, for each provider and the whole, for readers who do not know the operator.

use runway_api::DistributionReason;
use runway_api::llama_stack_distribution::ProviderPhase;
use runway_operator::kubelet::{Failure, Stage};

use super::pod::{EXTRACT, MERGE, PACKAGES};
use super::request::Provider;
use crate::pod::module_line;

/// Progress of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Startup {
    /// Progress of each provider, in order.
    pub(super) providers: Vec<ProviderStart>,
    /// Failure that keeps the server from starting.
    pub(super) trouble: Option<Trouble>,
    /// Warnings of merge-config.
    pub(super) warnings: Vec<String>,
}

/// Progress of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderStart {
    pub(super) phase: ProviderPhase,
    pub(super) trouble: Option<Trouble>,
}

/// A failure and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// Reason in CamelCase, part of the API.
    pub(super) reason: DistributionReason,
    pub(super) message: String,
    pub(super) resolution: Option<String>,
}

impl Trouble {
    pub(super) fn new(reason: DistributionReason, message: impl Into<String>, resolution: &str) -> Self {
        Self {
            reason,
            message: message.into(),
            resolution: Some(resolution.to_owned()),
        }
    }

    /// Message and remedy in one text.
    pub(super) fn whole(&self) -> String {
        match &self.resolution {
            Some(resolution) => format!("{}\nResolution: {resolution}", self.message),
            None => self.message.clone(),
        }
    }
}

/// Exit codes of a process that was stopped by SIGTERM or SIGKILL, as the kubelet does when a startup probe has failed too often.
const STOPPED: [i32; 2] = [143, 137];

/// The stages of one pod's start.
pub(super) struct Stages {
    /// Stage of each provider, in order.
    pub(super) providers: Vec<Stage>,
    pub(super) extract: Option<Stage>,
    pub(super) merge: Stage,
    pub(super) server: Stage,
}

/// Names for the messages.
pub(super) struct PodNames<'a> {
    pub(super) providers: &'a [Provider],
    pub(super) image: &'a str,
    pub(super) operator_image: &'a str,
    pub(super) server_container: &'a str,
    pub(super) service_account: &'a str,
    /// Secrets with credentials that the pod names, its own or those of its ServiceAccount.
    pub(super) pull_secrets: Vec<&'a str>,
}

/// Derives progress and failures from the stages.
pub(super) fn diagnose(names: &PodNames, stages: &Stages) -> Startup {
    let mut startup = Startup {
        providers: names
            .providers
            .iter()
            .zip(&stages.providers)
            .map(|(provider, stage)| provider_start(names, provider, stage))
            .collect(),
        trouble: None,
        warnings: match &stages.merge {
            Stage::Done(log) => warnings(log),
            _ => Vec::new(),
        },
    };
    let later = [
        stages
            .extract
            .as_ref()
            .and_then(|stage| failure(names, stage, &Container::Extract)),
        failure(names, &stages.merge, &Container::Merge),
        failure(names, &stages.server, &Container::Server),
    ];
    let later = later.into_iter().flatten().next();
    if let Some(trouble) = &later {
        let ended_in = ended_in(names, stages);
        for (provider, start) in names.providers.iter().zip(&mut startup.providers) {
            let own = if is_about(&trouble.message, &provider.id) {
                trouble.clone()
            } else if ended_in == Some(provider) {
                of_its_code(provider, trouble)
            } else {
                continue;
            };
            start.phase = ProviderPhase::Failed;
            start.trouble = Some(own);
        }
    }
    startup.trouble = startup.providers.iter().find_map(|t| t.trouble.clone()).or(later);
    startup
}

/// The provider in whose code the server ended: the last one whose files the server's last lines name.
fn ended_in<'a>(names: &PodNames<'a>, stages: &Stages) -> Option<&'a Provider> {
    let (Stage::Failed(Failure::Exit { message, .. }), Stage::Done(merged)) = (&stages.server, &stages.merge) else {
        return None;
    };
    let folder = |provider: &Provider| {
        let line = module_line(&provider.id, "");
        let module = merged
            .lines()
            .find_map(|l| l.strip_prefix(line.trim_end_matches('\n')))?;
        Some(format!("{PACKAGES}/{}/", module.replace('.', "/")))
    };
    let place = |provider: &Provider| message.rfind(&folder(provider)?);
    let found = names
        .providers
        .iter()
        .filter_map(|provider| Some((place(provider)?, provider)));
    found.max_by_key(|(place, _)| *place).map(|(_, provider)| provider)
}

/// The failure of a server as that of the provider in whose code it ended.
fn of_its_code(provider: &Provider, trouble: &Trouble) -> Trouble {
    let Provider {
        id, image, container, ..
    } = provider;
    Trouble {
        message: format!(
            "The server ended in the code of provider '{id}' (image: {image}, init container: {container})\n{}",
            trouble.message
        ),
        ..trouble.clone()
    }
}

/// A provider whose init container has ended is ready, unless a later failure names it.
fn provider_start(names: &PodNames, provider: &Provider, stage: &Stage) -> ProviderStart {
    ProviderStart {
        phase: match stage {
            Stage::Failed(_) => ProviderPhase::Failed,
            Stage::Waiting => ProviderPhase::Pending,
            Stage::Running => ProviderPhase::Installing,
            Stage::Done(_) => ProviderPhase::Ready,
        },
        trouble: failure(names, stage, &Container::Provider(provider)),
    }
}

/// The container that failed.
enum Container<'a> {
    Provider(&'a Provider),
    Extract,
    Merge,
    Server,
}

impl Container<'_> {
    fn name(&self, names: &PodNames) -> String {
        match self {
            Self::Provider(provider) => provider.container.clone(),
            Self::Extract => EXTRACT.to_owned(),
            Self::Merge => MERGE.to_owned(),
            Self::Server => names.server_container.to_owned(),
        }
    }

    fn image(&self, names: &PodNames) -> String {
        match self {
            Self::Provider(provider) => provider.image.clone(),
            Self::Extract | Self::Server => names.image.to_owned(),
            Self::Merge => names.operator_image.to_owned(),
        }
    }

    /// As in `provider image`.
    fn noun(&self) -> &'static str {
        match self {
            Self::Provider(_) => "provider",
            Self::Extract | Self::Server => "distribution",
            Self::Merge => "operator",
        }
    }

    /// Reason if the container's own message does not name one.
    fn reason(&self) -> DistributionReason {
        match self {
            Self::Provider(_) => DistributionReason::InstallFailed,
            Self::Extract => DistributionReason::NoBaseConfig,
            Self::Merge => DistributionReason::MergeFailed,
            Self::Server => DistributionReason::ServerFailed,
        }
    }

    fn way_out(&self) -> &'static str {
        match self {
            Self::Provider(_) => "Check the log of this init container and the provider image",
            Self::Extract => {
                "Provide a user ConfigMap with run.yaml (spec.server.userConfig), or use a distribution image that includes run.yaml"
            }
            Self::Merge => "Check the log of this init container and the configuration that it merges",
            Self::Server => {
                "Check the log of this container. If the provider's configuration is refused, correct it in spec.server.externalProviders"
            }
        }
    }
}

fn failure(names: &PodNames, stage: &Stage, container: &Container) -> Option<Trouble> {
    let Stage::Failed(failure) = stage else { return None };
    let (name, image) = (container.name(names), container.image(names));
    Some(match failure {
        Failure::Image(said) => Trouble::new(
            DistributionReason::ImagePullFailed,
            named(
                container,
                names,
                &format!("Failed to pull {} image {image}: {said}", container.noun()),
            ),
            &match container {
                Container::Merge => "This is the operator's own image, which pods of this namespace pull too: name a Secret with credentials for its registry in spec.server.podOverrides.imagePullSecrets, or run the operator with --operator-image and an image that nodes can pull".to_owned(),
                _ => credentials(names, &image),
            },
        ),
        Failure::Start(said) if let Some(provider) = referring(names, said) => Trouble::new(
            DistributionReason::StartFailed,
            named(
                &Container::Provider(provider),
                names,
                &format!("config refers to a value that cannot be read: {said}"),
            ),
            "Create the Secret or ConfigMap that the message names, or correct valueFrom in config of the provider; the kubelet tries again by itself",
        ),
        Failure::Start(said) if said.contains("runAsNonRoot") => Trouble::new(
            DistributionReason::StartFailed,
            named(
                container,
                names,
                &format!("Container {name} (image {image}) cannot be started: {said}"),
            ),
            "Use an image whose USER is a number other than 0, or set runAsUser in spec.server.podOverrides.securityContext",
        ),
        Failure::Start(said) if said.contains("python3") => Trouble::new(
            DistributionReason::NoPython,
            named(
                container,
                names,
                &format!("The {} image {image} has no python3: {said}", container.noun()),
            ),
            "Build the provider image on one that has python3 and pip, such as python:3.12-slim or UBI",
        ),
        Failure::Start(said) if said.contains("/bin/sh") => Trouble::new(
            DistributionReason::NoShell,
            named(
                container,
                names,
                &format!("The {} image {image} has no /bin/sh: {said}", container.noun()),
            ),
            "Use a distribution image that has a shell, or give spec.server.containerSpec.command",
        ),
        Failure::Start(said) => Trouble::new(
            DistributionReason::StartFailed,
            named(
                container,
                names,
                &format!("Container {name} (image {image}) cannot be started: {said}"),
            ),
            "Correct the cause in the message; the kubelet retries",
        ),
        Failure::OutOfMemory => Trouble::new(
            DistributionReason::OutOfMemory,
            named(
                container,
                names,
                &format!("Container {name} (image {image}) exceeded its memory limit and was killed"),
            ),
            match container {
                Container::Server => "Raise its memory limit in spec.server.containerSpec.resources.limits",
                _ => "Raise the memory limit of init containers in spec.server.podOverrides.initResources.limits, or use a provider with smaller packages",
            },
        ),
        Failure::Exit { code, message } => exit(container, names, *code, message),
    })
}

/// Remedy for an image that cannot be pulled, with the names of the Secrets that were tried.
fn credentials(names: &PodNames, image: &str) -> String {
    let registry = registry(image);
    let check = format!("Check that {image} exists, and");
    match names.pull_secrets.as_slice() {
        [] => format!(
            "{check} whether {registry} requires credentials: the pod has none. Name a Secret of the type kubernetes.io/dockerconfigjson in spec.server.podOverrides.imagePullSecrets, or in imagePullSecrets of ServiceAccount '{}'",
            names.service_account
        ),
        secrets => {
            let names: Vec<String> = secrets.iter().map(|name| format!("'{name}'")).collect();
            let noun = if names.len() == 1 {
                "Secret"
            } else {
                "one of the Secrets"
            };
            format!(
                "{check} that {noun} {} exists and holds credentials for {registry} that may read it",
                names.join(", ")
            )
        }
    }
}

/// Host of an image's registry. As for container runtimes, a first part without '.' and ':' is a part of the name.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

/// The provider whose `config` refers to the Secret or ConfigMap that the kubelet did not find.
fn referring<'a>(names: &PodNames<'a>, said: &str) -> Option<&'a Provider> {
    names.providers.iter().find(|provider| {
        provider.env.iter().any(|variable| {
            let sources = variable["valueFrom"].as_object().into_iter().flat_map(|m| m.values());
            let mut names = sources.filter_map(|source| source["name"].as_str());
            // The kubelet (pkg/kubelet/kuberuntime): `secret "NAME" not found`, `couldn't find key KEY in Secret NAMESPACE/NAME`.
            names.any(|name| said.contains(&format!("\"{name}\"")) || said.ends_with(&format!("/{name}")))
        })
    })
}

/// The container's own message, in the formats of the specification.
fn exit(container: &Container, names: &PodNames, code: i32, said: &str) -> Trouble {
    let way_out = match container {
        Container::Server if STOPPED.contains(&code) => {
            "If the server takes longer until it is healthy, raise spec.server.podOverrides.startupTimeoutSeconds; otherwise check the log of this container"
        }
        _ => container.way_out(),
    };
    if said.is_empty() {
        let text = format!(
            "Container {} exited with code {code} without a message",
            container.name(names)
        );
        return Trouble::new(container.reason(), named(container, names, &text), way_out);
    }
    let (message, resolution) = match said.rsplit_once("Resolution:") {
        Some((message, resolution)) => (message.trim(), resolution.trim()),
        None => (said, way_out),
    };
    let message = message.strip_prefix("ERROR:").unwrap_or(message).trim();
    Trouble::new(
        known_reason(message).unwrap_or_else(|| container.reason()),
        named(container, names, message),
        resolution,
    )
}

/// FR-030: every message carries the provider's id, the image and the init container.
fn named(container: &Container, names: &PodNames, message: &str) -> String {
    let (name, image) = (container.name(names), container.image(names));
    let id = match container {
        Container::Provider(provider) => provider.id.as_str(),
        _ => "",
    };
    if message.contains(id) && message.contains(&name) && message.contains(&image) {
        return message.to_owned();
    }
    match container {
        Container::Provider(_) => {
            format!("Provider '{id}' (image: {image}, init container: {name}): {message}")
        }
        _ => format!("Container {name} (image: {image}): {message}"),
    }
}

/// Reasons for the messages of the scripts and merge-config.
fn known_reason(message: &str) -> Option<DistributionReason> {
    const KNOWN: [(&str, DistributionReason); 11] = [
        ("due to dependency conflict", DistributionReason::DependencyConflict),
        ("API type mismatch", DistributionReason::ApiMismatch),
        (
            "Missing /lls-provider/lls-provider-spec.yaml",
            DistributionReason::MetadataMissing,
        ),
        ("Missing /lls-provider/packages", DistributionReason::PackagesMissing),
        (
            "No wheels in /lls-provider/packages",
            DistributionReason::PackagesMissing,
        ),
        ("uplicate provider", DistributionReason::DuplicateProviderId),
        ("No run.yaml found", DistributionReason::NoBaseConfig),
        ("lls-provider-spec.yaml", DistributionReason::MetadataInvalid),
        ("has no Python", DistributionReason::NoPython),
        ("Provider validation failed", DistributionReason::ValidationFailed),
        ("Preflight", DistributionReason::ValidationFailed),
    ];
    // One of several reasons that preflight gives further down.
    if message.contains("Native extension architecture mismatch") {
        return Some(DistributionReason::ArchitectureMismatch);
    }
    let reason = message.lines().find_map(|line| line.strip_prefix("Reason: "));
    if reason == Some("Invalid config") {
        return Some(DistributionReason::ConfigInvalid);
    }
    let first = message.lines().next().unwrap_or_default();
    let in_first = KNOWN.iter().find(|(words, _)| first.contains(words));
    in_first
        .or_else(|| KNOWN.iter().find(|(words, _)| message.contains(words)))
        .map(|(_, reason)| *reason)
}

/// Whether a text names a provider.
fn is_about(text: &str, id: &str) -> bool {
    let quoted = format!("'{id}'");
    text.contains(&quoted)
        || text.lines().any(|line| {
            line.trim()
                .strip_prefix("Provider:")
                .is_some_and(|rest| rest.trim() == id)
        })
}

/// The warnings in a merge log: what follows the word, with the indented lines below.
fn warnings(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut inside = false;
    for line in log.lines() {
        if let Some(text) = line.strip_prefix("WARNING:") {
            found.push(text.trim().to_owned());
            inside = true;
        } else if inside && line.starts_with(' ') {
            if let Some(last) = found.last_mut() {
                last.push_str("; ");
                last.push_str(line.trim());
            }
        } else {
            inside = false;
        }
    }
    found
}
