//! Checks before any object is created: the request in narrow types with its translation, or the reason why there is none.

use kube::ResourceExt;
use runway_api::ProviderReason;
use runway_api::condition;
use runway_api::model_deployment::Phase;
use runway_api::overrides::{self, Finding};
use runway_operator::object;

use super::{claims, objects};
use crate::contract::{CLAIM, Kind, Object, Provider, Refusal, Translation};
use crate::observe::Observed;
use crate::request::{Invalid, Request};
use crate::upstream::State;

/// A valid request with its translation.
pub(super) struct Prepared {
    pub(super) request: Request,
    pub(super) translation: Translation,
    pub(super) unknown_overrides: Vec<String>,
}

impl Prepared {
    /// The object whose status is read.
    pub(super) fn main(&self) -> Option<&Object> {
        self.translation.objects.last()
    }
}

/// Reason why no object can be created.
pub(super) struct Blocked {
    pub(super) phase: Phase,
    /// The first step that failed: [`condition::PROVIDER_COMPATIBLE`] or [`condition::RESOURCE_CREATED`].
    pub(super) step: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Blocked {
    /// The provider does not support the spec.
    pub(super) fn refused(refusal: &Refusal) -> Self {
        Self {
            phase: Phase::Failed,
            step: condition::PROVIDER_COMPATIBLE,
            reason: refusal.reason,
            message: refusal.message.clone(),
        }
    }

    /// The upstream is not installed. Resolved when its CRD appears.
    pub(super) fn missing(message: String) -> Self {
        Self {
            phase: Phase::Pending,
            step: condition::PROVIDER_COMPATIBLE,
            reason: ProviderReason::CRDNotInstalled.into(),
            message,
        }
    }

    /// The settings of the installation are invalid. Resolved when an administrator corrects them.
    pub(super) fn by_settings(message: String) -> Self {
        Self {
            phase: Phase::Pending,
            step: condition::PROVIDER_COMPATIBLE,
            reason: ProviderReason::SettingsInvalid.into(),
            message,
        }
    }

    /// An object with a required name has another owner.
    pub(super) fn name_taken(kind: &str, name: &str, manager: &str) -> Self {
        let remedy = if kind == CLAIM.kind {
            "rename the volume in spec.model.storage.volumes, or set claimName instead of size to use the existing claim"
        } else {
            "rename the ModelDeployment, or delete the other object"
        };
        Self {
            phase: Phase::Failed,
            step: condition::RESOURCE_CREATED,
            reason: ProviderReason::NameTaken.into(),
            message: format!(
                "{}: {remedy}",
                object::taken(&format!("{kind} '{name}'"), "ModelDeployment", manager)
            ),
        }
    }

    /// The API server rejected the object.
    pub(super) fn rejected(message: String) -> Self {
        Self {
            phase: Phase::Failed,
            step: condition::RESOURCE_CREATED,
            reason: ProviderReason::ResourceRejected.into(),
            message,
        }
    }
}

/// Every check that can refuse the ModelDeployment.
pub(super) fn prepare(provider: &dyn Provider, seen: &Observed) -> Result<Prepared, Blocked> {
    upstream_is_usable(provider, seen)?;
    let mut request =
        request(provider, seen).map_err(|invalid| Blocked::refused(&Refusal::incompatible(invalid.to_string())))?;
    let documented = provider.registration().overrides;
    let findings = documented.map_or_else(Vec::new, |documented| overrides::check(&request.overrides, &documented));
    let (wrong, unknown): (Vec<_>, Vec<_>) = findings.into_iter().partition(Finding::is_error);
    if !wrong.is_empty() {
        return Err(Blocked::refused(&Refusal {
            reason: ProviderReason::InvalidOverrides.into(),
            message: joined(&wrong),
        }));
    }
    let mut translation = translate(provider, &request, seen)?;
    if is_outgrown(provider, seen, &translation) {
        // Nothing is gained by another object of an earlier release.
        request.present.retain(|(kind, _)| !is_upstream(provider, *kind));
        translation = translate(provider, &request, seen)?;
    }
    let (claims, ignored) = claims::wanted(provider.name(), &request, &translation, seen);
    translation.objects.splice(..0, claims);
    translation.ignored.extend(ignored);
    Ok(Prepared {
        request,
        translation,
        unknown_overrides: unknown.iter().map(ToString::to_string).collect(),
    })
}

/// The request, with the objects that exist.
pub(super) fn request(provider: &dyn Provider, seen: &Observed) -> Result<Request, Invalid> {
    Ok(Request {
        present: present(provider, seen),
        ..Request::try_from(seen.md.as_ref())?
    })
}

fn translate(provider: &dyn Provider, request: &Request, seen: &Observed) -> Result<Translation, Blocked> {
    provider
        .translate(request, &seen.installed)
        .map_err(|refusal| Blocked::refused(&refusal))
}

/// The objects of the provider that exist and are not being deleted.
fn present(provider: &dyn Provider, seen: &Observed) -> Vec<(Kind, String)> {
    let known = provider.children(&seen.md.name_any());
    known
        .into_iter()
        .filter(|child| {
            seen.child(child.kind, &child.name).is_some_and(|live| {
                object::is_ours(seen.md.as_ref(), live) && live.metadata.deletion_timestamp.is_none()
            })
        })
        .map(|child| (child.kind, child.name))
        .collect()
}

/// Whether an upstream object has to be recreated for this translation.
fn is_outgrown(provider: &dyn Provider, seen: &Observed, translation: &Translation) -> bool {
    translation.objects.iter().any(|wanted| {
        is_upstream(provider, wanted.kind)
            && seen.child(wanted.kind, &wanted.name).is_some_and(|live| {
                object::is_ours(seen.md.as_ref(), live) && !objects::outgrown(&seen.md, live, wanted).is_empty()
            })
    })
}

/// Whether the kind has a status. Others, such as ConfigMaps, are created and deleted at any time.
pub(super) fn is_upstream(provider: &dyn Provider, kind: Kind) -> bool {
    provider.upstreams().iter().any(|u| u.kind == kind)
}

fn joined(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn upstream_is_usable(provider: &dyn Provider, seen: &Observed) -> Result<(), Blocked> {
    let Some(main) = provider.upstreams().first().map(|u| u.kind) else {
        return Ok(());
    };
    match seen.installed.state(main) {
        State::Known { .. } => Ok(()),
        State::Missing => Err(Blocked::missing(format!(
            "Provider '{}' CRD not installed in cluster",
            provider.name()
        ))),
        State::Unknown { served, problems } => Err(Blocked::refused(&Refusal {
            reason: ProviderReason::UnknownUpstreamSchema.into(),
            message: format!(
                "The installed {} (served: {}) has a schema that {} does not know: {}. Update the provider controller, or install a release it knows",
                main.crd_name(),
                served.join(", "),
                provider.version(),
                if problems.is_empty() {
                    "no known version is served".to_owned()
                } else {
                    problems.join("; ")
                },
            ),
        })),
    }
}
