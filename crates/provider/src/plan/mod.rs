//! Desired objects, objects to delete, and the status. Pure and deterministic: no client, no clock, no state.

mod census;
mod claims;
mod objects;
mod pods;
mod prepare;
mod removal;
mod serve;
mod status;
mod verify;

use kube::core::ObjectMeta;
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, ModelDeploymentSpec};
use runway_operator::plan::Plan;
use runway_operator::{apply, trace};

use crate::contract::{CLAIM, Provider};
use crate::observe::Observed;
use crate::probe::ProbeDecision;
use crate::volumes::{self, Volume, VolumeSource};

pub use status::owned;

/// Decision for one ModelDeployment.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The writes.
    pub plan: Plan,
    /// The request to send to the endpoint afterwards.
    pub probe: ProbeDecision,
}

impl From<Plan> for Decision {
    fn from(plan: Plan) -> Self {
        Self {
            plan,
            probe: ProbeDecision::Forget,
        }
    }
}

/// The writes for one ModelDeployment.
///
/// The result depends on `seen` alone. Once it is carried out, the next plan is silent.
pub fn plan(provider: &dyn Provider, seen: &Observed) -> Plan {
    decide(provider, seen).plan
}

/// The writes for one ModelDeployment, and the request to its endpoint.
pub fn decide(provider: &dyn Provider, seen: &Observed) -> Decision {
    let md = &seen.md;
    if md.selected_provider() != Some(provider.name()) {
        return removal::of_leftovers(provider, seen).into();
    }
    // Deletion takes precedence over pause: nothing may block it.
    if md.is_deleting() {
        return removal::for_deletion(provider, seen).into();
    }
    if md.is_paused() {
        return Decision::default();
    }
    // Applies to handovers too: nothing is deleted for a successor that the core does not know.
    match validation(seen) {
        Some(Ok(())) => {}
        Some(Err(message)) => return status::invalid(provider, seen, message).into(),
        None => return Decision::default(),
    }
    if let Some(successor) = successor(provider, md) {
        return removal::for_hand_over(provider, seen, successor).into();
    }
    serve::decide(provider, seen)
}

/// The provider that the spec names, if it is another one.
fn successor<'a>(provider: &dyn Provider, md: &'a ModelDeployment) -> Option<&'a str> {
    md.spec.provider_name().filter(|name| *name != provider.name())
}

/// The least of a ModelDeployment from which [`decide`] makes the same decision. Every provider keeps all ModelDeployments, and
/// only names, uid and finalizers of those of other providers.
pub fn least(provider: &dyn Provider, md: ModelDeployment) -> ModelDeployment {
    if md.selected_provider() == Some(provider.name()) {
        return md;
    }
    ModelDeployment {
        metadata: ObjectMeta {
            annotations: trace::carried(&md.metadata),
            namespace: md.metadata.namespace,
            name: md.metadata.name,
            uid: md.metadata.uid,
            resource_version: md.metadata.resource_version,
            finalizers: md.metadata.finalizers,
            ..ObjectMeta::default()
        },
        spec: ModelDeploymentSpec::default(),
        status: None,
    }
}

/// The status after the API server rejected what [`plan`] requested. Empty if a retry may succeed.
pub fn after_failure(provider: &dyn Provider, seen: &Observed, error: &apply::Error) -> Plan {
    match error {
        apply::Error::NameTaken {
            kind, name, manager, ..
        } => status::failed(provider, seen, &prepare::Blocked::name_taken(kind, name, manager)),
        apply::Error::Delete { .. } => {
            let refused = |message| removal::refused(provider, seen, message);
            error.refusal().map_or_else(Plan::default, refused)
        }
        _ => error.refusal().map_or_else(Plan::default, |mut message| {
            message.push_str(&hint(&seen.md, error, &message));
            status::failed(provider, seen, &prepare::Blocked::rejected(message))
        }),
    }
}

/// Remedy for a refusal whose message names none.
fn hint(md: &ModelDeployment, error: &apply::Error, message: &str) -> String {
    if matches!(error, apply::Error::Apply { kind, .. } if kind == CLAIM.kind) {
        return ". Correct the volume in spec.model.storage.volumes, or rename it for a new claim".to_owned();
    }
    let volume = image_volume(md).filter(|_| message.contains("volumes["));
    volume.map_or_else(String::new, |volume| {
        format!(
            ". {} requires image volumes (Kubernetes 1.36, or the feature gate ImageVolume): use claimName instead if the cluster has none",
            volume.field("image")
        )
    })
}

/// The first volume with an OCI image.
fn image_volume(md: &ModelDeployment) -> Option<Volume> {
    volumes::of(md).find(|volume| matches!(volume.source, VolumeSource::Image(_)))
}

/// Whether the core controller accepts the current generation, or its message; `None` until it has decided. Nothing is done for a
/// rejected one, even if admission was bypassed.
fn validation(seen: &Observed) -> Option<Result<(), &str>> {
    let validated = seen.md.conditions().get_condition(condition::VALIDATED)?;
    if validated.observed_generation != seen.md.metadata.generation {
        return None;
    }
    match validated.status.as_str() {
        "True" => Some(Ok(())),
        "False" => Some(Err(&validated.message)),
        _ => None,
    }
}
