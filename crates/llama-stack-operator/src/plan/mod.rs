//! The desired objects, the deletions and the status. Pure and deterministic: no client, no clock, no state.

mod bundle;
mod conditions;
mod objects;
mod pod;
mod request;
mod rollout;
mod startup;
mod status;
mod value_from;

use runway_api::DistributionReason;
use runway_operator::apply;
use runway_operator::plan::Plan;

use crate::kinds;
use crate::observe::Observed;
use request::{Refusal, Request};

/// The plan for one LlamaStackDistribution. It has no finalizer: all created objects are owned, and deleted with it.
pub fn plan(seen: &Observed) -> Plan {
    if seen.llsd.is_deleting() {
        return status::terminating(seen);
    }
    if seen.llsd.is_paused() {
        return status::paused(seen);
    }
    let request = match prepare(seen) {
        Ok(request) => request,
        // Existing objects stay as they are.
        Err(refusal) => return status::refused(seen, &refusal),
    };
    let wanted = objects::wanted(seen, &request);
    if let Some(taken) = objects::taken(seen, &wanted) {
        return status::refused(seen, &Refusal::new(DistributionReason::NameTaken, taken));
    }
    let apply = objects::apply(seen, &wanted);
    let deployment = apply.iter().find(|a| a.resource.kind == kinds::DEPLOYMENT.kind);
    let template = wanted
        .iter()
        .find(|w| w.kind == kinds::DEPLOYMENT)
        .map_or("", |w| pod::template_hash(&w.body["spec"]["template"]));
    let is_current = deployment.is_some_and(|d| d.unchanged);
    let status = status::serving(seen, &request, template, is_current);
    Plan {
        delete: objects::delete(seen, &wanted),
        apply,
        ..status
    }
}

/// The plan after a write of [`plan`] failed: a status with the cause, or nothing if a retry may help.
pub fn after_failure(seen: &Observed, error: &apply::Error) -> Plan {
    let refusal = match error {
        apply::Error::NameTaken {
            kind, name, manager, ..
        } => Refusal::new(DistributionReason::NameTaken, objects::taken_text(kind, name, manager)),
        _ => match error.refusal() {
            Some(message) => Refusal::new(DistributionReason::Refused, message),
            None => return Plan::default(),
        },
    };
    status::refused(seen, &refusal)
}

fn prepare(seen: &Observed) -> Result<Request<'_>, Refusal> {
    let request = Request::new(seen)?;
    let overrides = seen.llsd.spec.server.pod_overrides.iter();
    let taken = overrides
        .flat_map(|o| &o.volumes)
        .find(|v| pod::VOLUMES.contains(&v.name.as_str()));
    match taken {
        Some(volume) => Err(Refusal::new(
            DistributionReason::InvalidSpec,
            format!(
                "spec.server.podOverrides.volumes: '{}' is the name of a volume of the operator: use another name",
                volume.name
            ),
        )),
        None => Ok(request),
    }
}
