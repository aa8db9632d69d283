//! The part of the status that the routes controller writes: computed from scratch each time, written only if it differs.

use runway_api::condition::{self, GATEWAY_READY, Owner, no, yes};
use runway_api::model_deployment::GatewayStatus;
use runway_api::{GatewayReason, ModelDeploymentStatus};
use runway_operator::object::{self, Condition};
use serde_json::Value;

use crate::routes::kinds::Answer;
use crate::routes::observe::Observed;
use crate::routes::settings::GatewayName;

/// Outcome for a ModelDeployment.
pub(super) struct Outcome {
    pub(super) reason: GatewayReason,
    pub(super) message: String,
    /// Address of the Gateway, if the model is reached there.
    pub(super) endpoint: Option<String>,
    /// Name of the model at the Gateway, if it is reached there.
    pub(super) model: Option<String>,
}

/// The model is not reached through the Gateway, for this reason.
pub(super) fn refused(reason: GatewayReason, message: impl Into<String>) -> Outcome {
    Outcome {
        reason,
        message: message.into(),
        endpoint: None,
        model: None,
    }
}

/// The status with an outcome, if it differs from what is there.
pub(super) fn status(seen: &Observed, outcome: Outcome) -> Option<Value> {
    let Outcome {
        reason,
        message,
        endpoint,
        model,
    } = outcome;
    let make = match reason {
        GatewayReason::RouteAccepted | GatewayReason::RoutedToService => yes,
        _ => no,
    };
    let message = condition::shorten(message, condition::MAX_STATUS_MESSAGE);
    let drafts = vec![make(GATEWAY_READY, String::from(reason), message)];
    let md = &seen.md;
    write(
        seen,
        &ModelDeploymentStatus {
            gateway: (endpoint.is_some() || model.is_some()).then_some(GatewayStatus {
                endpoint,
                model_name: model,
            }),
            conditions: condition::settle(drafts, md.conditions(), md.metadata.generation, seen.now),
            ..ModelDeploymentStatus::default()
        },
    )
}

/// The status of a ModelDeployment that is not reached through a Gateway: none.
pub(super) fn none(seen: &Observed) -> Option<Value> {
    write(seen, &ModelDeploymentStatus::default())
}

fn write(seen: &Observed, wanted: &ModelDeploymentStatus) -> Option<Value> {
    let before = seen.md.status.as_ref().map(owned).unwrap_or_default();
    (before != *wanted).then(|| serde_json::to_value(wanted).unwrap_or_default())
}

/// The part of a status that belongs to the routes controller.
fn owned(status: &ModelDeploymentStatus) -> ModelDeploymentStatus {
    ModelDeploymentStatus {
        gateway: status.gateway.clone(),
        conditions: condition::owned_by(&status.conditions, &[Owner::Gateway]),
        ..ModelDeploymentStatus::default()
    }
}

/// The address of the Gateway, or why it has none.
pub(super) fn address(seen: &Observed, gateway: &GatewayName) -> Result<String, Outcome> {
    let status = seen.gateway.as_ref().map(|gateway| &gateway.data["status"]);
    let not_ready = |why: &str| {
        let message =
            format!("Gateway '{gateway}' is not ready: {why}. An administrator must examine it and its controller");
        refused(GatewayReason::GatewayNotReady, message)
    };
    let status = status.unwrap_or(&Value::Null);
    let failed = ["Accepted", "Programmed"]
        .into_iter()
        .filter_map(|type_| object::condition(status, type_))
        .find(Condition::is_false);
    if let Some(failed) = failed {
        return Err(not_ready(&Answer::of(failed).to_string()));
    }
    let addresses = status["addresses"].as_array();
    let mut values = addresses.into_iter().flatten().filter_map(|a| a["value"].as_str());
    match values.find(|value| !value.is_empty()) {
        Some(address) => Ok(address.to_owned()),
        None => Err(not_ready("it has no address yet")),
    }
}
