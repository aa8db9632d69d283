//! The plan of the routes controller for a ModelDeployment. Pure and deterministic: no client, no clock, no state.

mod pool;
mod route;
mod status;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_api::GatewayReason::{
    GatewayAPINotInstalled, GatewayAmbiguous, GatewayNotFound, ModelNameInvalid, ModelNameTaken, ModelNotServing,
    NameTaken, RouteAccepted, RouteNotFound, RoutePending, RouteRejected, RouteWithoutModel, RoutedToService,
};
use runway_api::ModelDeployment;
use runway_operator::object::{self, Kind};
use runway_operator::plan::{Delete, Plan};
use runway_operator::{apply, services::ServicePort};

use super::claims::{self, Claim, Claimant};
use super::kinds::{self, HTTP_ROUTE, INFERENCE_POOL};
use super::observe::Observed;
use super::settings::GatewayName;
use crate::model::{Model, State};
use pool::Backend;
use status::{Outcome, refused};

/// The plan for one ModelDeployment.
pub fn plan(seen: &Observed) -> Plan {
    let (md, settings) = (&seen.md, &seen.settings);
    if settings.gateways.is_empty() && !settings.delete {
        return Plan::default();
    }
    if md.is_deleting() {
        // The garbage collector would do the same, after the provider has deleted the model.
        return Plan {
            delete: ours(seen).collect(),
            ..Plan::default()
        };
    }
    if md.is_paused() || md.is_dry_run() {
        return Plan::default();
    }
    if settings.delete || !claims::is_enabled(md) {
        return Plan {
            delete: ours(seen).collect(),
            status: status::none(seen),
            ..Plan::default()
        };
    }
    let Some(gateway) = settings.gateway() else {
        return only(seen, ambiguous(&settings.gateways));
    };
    if !seen.has_routes {
        let message = "The Gateway API is not installed (no CRD gateways.gateway.networking.k8s.io or httproutes.gateway.networking.k8s.io in version v1): install its CRDs, or remove --gateway";
        return only(seen, refused(GatewayAPINotInstalled, message));
    }
    match claims::own_route(md) {
        Some(name) => of_the_user(seen, gateway, name),
        None => of_ours(seen, gateway),
    }
}

/// The status after the API server rejected an object that [`plan`] requested. Empty for other errors, after which a retry may
/// succeed.
pub fn after_failure(seen: &Observed, error: &apply::Error) -> Plan {
    if seen.md.is_deleting() {
        return Plan::default();
    }
    let outcome = match error {
        apply::Error::NameTaken {
            kind, name, manager, ..
        } => refused(NameTaken, taken(&format!("{kind} '{name}'"), manager)),
        _ => match error.refusal() {
            Some(message) => refused(RouteRejected, format!("{message}{}", pool::hint(seen, error))),
            None => return Plan::default(),
        },
    };
    only(seen, outcome)
}

/// A route of our own.
fn of_ours(seen: &Observed, gateway: &GatewayName) -> Plan {
    let md = &seen.md;
    let live = seen.route.as_deref();
    if let Some(other) = live.filter(|live| !is_made_for(md, live)) {
        let manager = object::manager_of(other);
        return only(
            seen,
            refused(NameTaken, taken(&HTTP_ROUTE.named(&md.name_any()), &manager)),
        );
    }
    let Some(model) = claims::model_name(md) else {
        return Plan::default();
    };
    if !is_header(&model) {
        let message = format!(
            "The model name '{model}' cannot be the value of a header: set spec.gateway.modelName to ASCII characters without spaces"
        );
        return only(seen, refused(ModelNameInvalid, message));
    }
    if let Some(holder) = holder(seen, &model) {
        return Plan {
            delete: ours(seen).collect(),
            ..only(seen, name_taken(md, &model, holder))
        };
    }
    if seen.gateway.is_none() {
        return only(seen, not_found(gateway));
    }
    let Some(service) = endpoint(md, live.is_some()) else {
        return only(seen, not_serving());
    };
    let backend = pool::backend(seen, &service);
    let wanted = route::wanted(md, &seen.settings, gateway, &model, &backend.reference, live);
    let mut apply: Vec<_> = backend.pool.iter().cloned().collect();
    apply.push(wanted);
    let is_deleting = live.is_some_and(|live| live.metadata.deletion_timestamp.is_some());
    if is_deleting {
        let message = format!("Waiting for {} to be deleted", HTTP_ROUTE.named(&md.name_any()));
        return only(seen, refused(RoutePending, message));
    }
    if apply.iter().any(|apply| !apply.unchanged) {
        // The Gateway's answer is about the routes as they were. The change of the objects triggers the next plan.
        return Plan {
            apply,
            ..Plan::default()
        };
    }
    let outcome = match live {
        Some(live) => accepted(seen, gateway, live, &backend, &model),
        None => refused(RoutePending, "The HTTPRoute is being created"),
    };
    Plan {
        delete: pool::leftover(seen, &backend, live).into_iter().collect(),
        ..only(seen, outcome)
    }
}

/// A route of the user's: it is checked, and not changed.
fn of_the_user(seen: &Observed, gateway: &GatewayName, name: &str) -> Plan {
    let md = &seen.md;
    let named = HTTP_ROUTE.named(name);
    let own = seen.route.as_deref().filter(|live| is_made_for(md, live));
    let delete: Vec<Delete> = own
        .and_then(|live| deletion(seen, HTTP_ROUTE, Some(live)))
        .into_iter()
        .collect();
    let with = |outcome: Outcome| Plan {
        delete: delete.clone(),
        ..only(seen, outcome)
    };
    let found = seen.referenced.as_deref().filter(|route| !is_made_for(md, route));
    let Some(route) = found else {
        let message = format!(
            "{named} of spec.gateway.httpRouteRef does not exist in this namespace: create it, or remove the field"
        );
        return with(refused(RouteNotFound, message));
    };
    let Some(service) = endpoint(md, true) else {
        return with(not_serving());
    };
    let backend = pool::backend(seen, &service);
    if backend.pool.as_ref().is_some_and(|pool| !pool.unchanged) {
        return Plan {
            delete,
            apply: backend.pool.into_iter().collect(),
            ..Plan::default()
        };
    }
    let possible = backend.names(md, &service);
    let leads_to_model = |&(kind, name): &(&str, &str)| possible.iter().any(|(k, n)| *k == kind && n == name);
    if !kinds::backends(route).iter().any(leads_to_model) {
        let listed: Vec<String> = possible.iter().map(|(kind, name)| format!("{kind} '{name}'")).collect();
        let message = format!(
            "{named} of spec.gateway.httpRouteRef has no backend of this model: add a backendRef to {}",
            listed.join(" or ")
        );
        return with(refused(RouteWithoutModel, message));
    }
    let model = claims::model_name(md).unwrap_or_default();
    // It may belong to another Gateway.
    let is_of_gateway = kinds::is_child_of(route, gateway);
    let outcome = if is_of_gateway && seen.gateway.is_none() {
        not_found(gateway)
    } else if is_of_gateway {
        accepted(seen, gateway, route, &backend, &model)
    } else {
        route::answered(route, None).unwrap_or_else(|| Outcome {
            reason: RouteAccepted,
            message: format!("{named} is accepted by its Gateway, which is not '{gateway}'"),
            endpoint: None,
            model: Some(model),
        })
    };
    Plan {
        delete: delete
            .into_iter()
            .chain(pool::leftover(seen, &backend, Some(route)))
            .collect(),
        ..only(seen, outcome)
    }
}

/// Outcome for a route with the named Gateway as its parent.
fn accepted(seen: &Observed, gateway: &GatewayName, route: &DynamicObject, backend: &Backend, model: &str) -> Outcome {
    let named = HTTP_ROUTE.named(&route.name_any());
    let refusal = route::refusal(route, gateway).or_else(|| pool::refusal(seen, gateway, backend));
    if let Some(refusal) = refusal {
        return refusal;
    }
    let address = match status::address(seen, gateway) {
        Ok(address) => address,
        Err(outcome) => return outcome,
    };
    if let Some(pending) = route::answered(route, Some(gateway)) {
        return pending;
    }
    let (reason, message) = match &backend.obstacle {
        None => {
            let remark = pool::remark(seen, backend).map_or_else(String::new, |remark| format!(". {remark}"));
            (RouteAccepted, format!("Gateway '{gateway}' accepted {named}{remark}"))
        }
        Some(why) => (
            RoutedToService,
            format!("Gateway '{gateway}' accepted {named}, which leads to the Service: {why}"),
        ),
    };
    Outcome {
        reason,
        message,
        endpoint: Some(address),
        model: Some(model.to_owned()),
    }
}

/// The Service of the endpoint: while the model serves, and also afterwards, so that a route stays.
fn endpoint(md: &ModelDeployment, has_route: bool) -> Option<ServicePort> {
    if let State::Serving(service) = Model::of(md)?.state {
        return Some(service);
    }
    let endpoint = md.status.as_ref()?.endpoint.as_ref().filter(|_| has_route)?;
    Some(ServicePort {
        namespace: md.namespace()?.parse().ok()?,
        service: endpoint.service.as_deref()?.parse().ok()?,
        port: endpoint.port?.try_into().ok()?,
    })
}

/// The other ModelDeployment that has the model name at the Gateway, if this one does not.
fn holder<'a>(seen: &'a Observed, model: &str) -> Option<&'a Claimant> {
    let md = &seen.md;
    let own = Claimant {
        key: (md.namespace().unwrap_or_default(), md.name_any()),
        claim: Claim::of(md)?,
        standing: claims::standing(seen.route.as_deref(), model, seen.settings.gateway()),
    };
    let rivals = seen.rivals.iter().filter(|rival| rival.counts());
    rivals
        .filter(|rival| rival.rank() < own.rank())
        .min_by_key(|rival| rival.rank())
}

fn name_taken(md: &ModelDeployment, model: &str, holder: &Claimant) -> Outcome {
    let (namespace, name) = &holder.key;
    // Its name is not for users of other namespaces.
    let other = if md.namespace().as_ref() == Some(namespace) {
        format!("ModelDeployment '{name}'")
    } else {
        "a ModelDeployment of another namespace".to_owned()
    };
    let message = format!(
        "The model name '{model}' belongs to {other} at the Gateway: set spec.gateway.modelName to another name, such as {}-{}",
        md.namespace().unwrap_or_default(),
        md.name_any()
    );
    refused(ModelNameTaken, message)
}

fn ambiguous(gateways: &[GatewayName]) -> Outcome {
    let names: Vec<String> = gateways.iter().map(|gateway| format!("'{gateway}'")).collect();
    let message = format!(
        "Several Gateways are named ({}): an administrator must start the routes controller with one --gateway",
        names.join(", ")
    );
    refused(GatewayAmbiguous, message)
}

fn not_found(gateway: &GatewayName) -> Outcome {
    let message = format!(
        "Gateway '{gateway}' does not exist: an administrator must create it, or correct --gateway of the routes controller"
    );
    refused(GatewayNotFound, message)
}

fn not_serving() -> Outcome {
    refused(
        ModelNotServing,
        "The HTTPRoute is created as soon as the model serves: see the condition Ready",
    )
}

fn taken(object: &str, manager: &str) -> String {
    let taken = object::taken(object, "ModelDeployment", manager);
    format!(
        "{taken}: rename the ModelDeployment, delete the other object, or set spec.gateway.httpRouteRef to a route of your own"
    )
}

/// Whether a text can be the value of a header match, without a change on the way.
fn is_header(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// No change of objects, and this outcome in the status.
fn only(seen: &Observed, outcome: Outcome) -> Plan {
    Plan {
        status: status::status(seen, outcome),
        ..Plan::default()
    }
}

/// Deletions of the objects that were created for the ModelDeployment.
fn ours(seen: &Observed) -> impl Iterator<Item = Delete> {
    let objects = [
        (HTTP_ROUTE, seen.route.as_deref()),
        (INFERENCE_POOL, seen.pool.as_deref()),
    ];
    objects
        .into_iter()
        .filter_map(|(kind, live)| deletion(seen, kind, live))
}

/// Deletion of an object, if it was created for the ModelDeployment and is not being deleted.
fn deletion(seen: &Observed, kind: Kind, live: Option<&DynamicObject>) -> Option<Delete> {
    let live = live.filter(|live| is_made_for(&seen.md, live) && live.metadata.deletion_timestamp.is_none())?;
    object::deletion(kind.resource(), live)
}

fn is_made_for(md: &ModelDeployment, live: &DynamicObject) -> bool {
    object::is_ours(md, live) && object::controller(live).is_some()
}
