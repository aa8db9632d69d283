//! The autoscaler of `spec.scaling.autoscaling`. It scales the `scale` subresource of the ModelDeployment, so that it is the same
//! for every provider. The core never writes `spec.scaling.replicas`.

use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use runway_api::condition::{AUTOSCALER_READY, Draft, no, yes};
use runway_api::model_deployment::{Autoscaling, ServingMode, Signal, Trigger};
use runway_api::{CoreReason, ModelDeployment, labels};
use runway_operator::apply;
use runway_operator::autoscaler::Reading;
use runway_operator::object::{self, Condition, Kind, condition};
use runway_operator::plan::{Apply, Delete};
use serde_json::{Value, json};

use super::status;
use crate::autoscalers::{Autoscaler, HORIZONTAL_POD_AUTOSCALER, SCALED_OBJECT};
use crate::observe::Observed;
use crate::providers::Registered;

/// The part of a plan that concerns the autoscaler.
#[derive(Default)]
pub(super) struct Part {
    pub(super) apply: Option<Apply>,
    pub(super) delete: Vec<Delete>,
    pub(super) condition: Option<Draft>,
}

/// The autoscaler for a model of this provider.
pub(super) fn plan(seen: &Observed, provider: Option<&str>) -> Part {
    let md = &seen.md;
    let Some((autoscaling, signal)) = requested(md) else {
        return Part {
            delete: ours(seen).filter_map(deletion).collect(),
            ..Part::default()
        };
    };
    // Without a provider nothing is known about metrics; a dry run changes nothing.
    let registered = provider.and_then(|name| seen.providers.get(name));
    let (Some(registered), false) = (registered, md.is_dry_run()) else {
        return Part {
            condition: status::carried_over(seen, AUTOSCALER_READY),
            ..Part::default()
        };
    };
    let source = source(seen, registered, signal).and_then(|source| {
        is_free(seen, source.kind())?;
        Ok(source)
    });
    let source = match source {
        Ok(source) => source,
        Err((reason, message)) => return without(seen, reason, message),
    };
    let kind = source.kind();
    if let Some(former) = ours(seen).find(|found| found.kind != kind) {
        return Part {
            delete: deletion(former).into_iter().collect(),
            condition: Some(no(
                AUTOSCALER_READY,
                CoreReason::AutoscalerPending,
                format!("Waiting for {} to be deleted", former.text()),
            )),
            ..Part::default()
        };
    }
    let live = own(seen, kind).map(|live| live.object.as_ref());
    Part {
        apply: Some(wanted(md, kind, &source.spec(md, autoscaling), live)),
        condition: Some(source.state(md, autoscaling, live)),
        ..Part::default()
    }
}

/// Reason and message of the condition if there can be no autoscaler.
type Obstacle = (CoreReason, String);

/// Source for the autoscaler, if the provider has the metric, or the cluster has KEDA.
fn source<'a>(seen: &Observed, provider: &'a Registered, signal: Signal<'a>) -> Result<Source<'a>, Obstacle> {
    let engine = seen.md.spec.engine_type().unwrap_or_default();
    match signal {
        Signal::Pods(metric, target) => {
            let name = provider.config.spec.capabilities.pod_metric(engine, metric);
            let unknown = || {
                let message = format!(
                    "Provider '{}' has no pod metric for {} with {engine}: use another metric, or autoscaling.trigger",
                    provider.config.name_any(),
                    metric.field()
                );
                (CoreReason::MetricUnknown, message)
            };
            Ok(Source::Pods(name.ok_or_else(unknown)?, target))
        }
        Signal::Trigger(_) if seen.autoscalers.without_keda => {
            let message = "KEDA is not installed (no CRD scaledobjects.keda.sh): install it, or use requestsInFlight, queuedRequests or tokensPerSecond instead of trigger";
            Err((CoreReason::KedaNotInstalled, message.to_owned()))
        }
        Signal::Trigger(trigger) => Ok(Source::Trigger(trigger)),
    }
}

/// Whether no object of another owner scales the model, or has the name of the autoscaler.
fn is_free(seen: &Observed, kind: Kind) -> Result<(), Obstacle> {
    let md = &seen.md;
    let is_rival = |found: &&Autoscaler| found.targets(md) && !found.is_of(md) && !found.is_of_keda();
    if let Some(rival) = seen.autoscalers.found.iter().find(is_rival) {
        let message = format!(
            "{} scales this ModelDeployment and was not created for it, so that {} is not created: delete it, or remove spec.scaling.autoscaling",
            rival.text(),
            kind.named(&md.name_any())
        );
        return Err((CoreReason::OtherAutoscaler, message));
    }
    match own(seen, kind).filter(|found| !found.is_of(md)) {
        Some(taken) => Err((
            CoreReason::NameTaken,
            taken_text(&taken.text(), &object::manager_of(&taken.object)),
        )),
        None => Ok(()),
    }
}

/// The object with the name of the autoscaler.
fn own(seen: &Observed, kind: Kind) -> Option<&Autoscaler> {
    let name = seen.md.name_any();
    let found = &seen.autoscalers.found;
    found
        .iter()
        .find(|found| found.kind == kind && found.object.name_any() == name)
}

/// Condition after the API server rejected the autoscaler; `None` for other errors.
pub(super) fn refused(error: &apply::Error) -> Option<Draft> {
    let (reason, message) = match error {
        apply::Error::NameTaken {
            kind, name, manager, ..
        } => (CoreReason::NameTaken, taken_text(&format!("{kind} '{name}'"), manager)),
        _ => (CoreReason::AutoscalerRejected, error.refusal()?),
    };
    Some(no(AUTOSCALER_READY, reason, message))
}

/// Autoscaling is rejected in disaggregated mode: the `scale` subresource has one number of replicas.
fn requested(md: &ModelDeployment) -> Option<(&Autoscaling, Signal<'_>)> {
    let autoscaling = md.spec.scaling.as_ref()?.autoscaling.as_ref()?;
    let is_aggregated = md.spec.mode() == ServingMode::Aggregated;
    Some((autoscaling, autoscaling.signal().filter(|_| is_aggregated)?))
}

fn ours(seen: &Observed) -> impl Iterator<Item = &Autoscaler> {
    let found = seen.autoscalers.found.iter();
    // Offline, objects of others have no uid to compare.
    found.filter(|found| found.is_of(&seen.md) && object::controller(&found.object).is_some())
}

fn deletion(autoscaler: &Autoscaler) -> Option<Delete> {
    let is_alive = autoscaler.object.metadata.deletion_timestamp.is_none();
    let delete = object::deletion(autoscaler.kind.resource(), &autoscaler.object);
    delete.filter(|_| is_alive)
}

/// No autoscaler, for this reason.
fn without(seen: &Observed, reason: CoreReason, message: String) -> Part {
    Part {
        delete: ours(seen).filter_map(deletion).collect(),
        condition: Some(no(AUTOSCALER_READY, reason, message)),
        ..Part::default()
    }
}

fn taken_text(object: &str, manager: &str) -> String {
    let taken = object::taken(object, "ModelDeployment", manager);
    format!("{taken}: rename the ModelDeployment, or delete the other object")
}

/// Source of the desired number of replicas, in the terms of the autoscaler.
enum Source<'a> {
    /// A metric in the custom metrics API, and its average.
    Pods(&'a str, i32),
    /// A trigger of KEDA.
    Trigger(&'a Trigger),
}

impl Source<'_> {
    fn kind(&self) -> Kind {
        match self {
            Self::Pods(..) => HORIZONTAL_POD_AUTOSCALER,
            Self::Trigger(_) => SCALED_OBJECT,
        }
    }

    /// Condition by what the controller of the autoscaler reports.
    fn state(&self, md: &ModelDeployment, autoscaling: &Autoscaling, live: Option<&DynamicObject>) -> Draft {
        let object = self.kind().named(&md.name_any());
        let range = format!("{} to {} replicas", autoscaling.min(), autoscaling.max_replicas);
        match self {
            Self::Pods(metric, _) => autoscaler_state(&object, live, &range, metric),
            Self::Trigger(_) => scaled_object_state(&object, live, &range),
        }
    }

    fn spec(&self, md: &ModelDeployment, autoscaling: &Autoscaling) -> Value {
        let target = json!({
            "apiVersion": ModelDeployment::api_version(&()),
            "kind": ModelDeployment::kind(&()),
            "name": md.name_any(),
        });
        match self {
            Self::Pods(metric, average) => json!({
                "scaleTargetRef": target,
                "minReplicas": autoscaling.min(),
                "maxReplicas": autoscaling.max_replicas,
                "metrics": [{ "type": "Pods", "pods": {
                    "metric": { "name": metric },
                    "target": { "type": "AverageValue", "averageValue": average.to_string() },
                } }],
            }),
            Self::Trigger(trigger) => {
                let own = Trigger {
                    polling_interval: None,
                    cooldown_period: None,
                    ..Trigger::clone(trigger)
                };
                let mut spec = json!({
                    "scaleTargetRef": target,
                    "minReplicaCount": autoscaling.min(),
                    "maxReplicaCount": autoscaling.max_replicas,
                    "triggers": [own],
                });
                for (field, seconds) in [
                    ("pollingInterval", trigger.polling_interval),
                    ("cooldownPeriod", trigger.cooldown_period),
                ] {
                    if let Some(seconds) = seconds {
                        spec[field] = seconds.into();
                    }
                }
                spec
            }
        }
    }
}

fn wanted(md: &ModelDeployment, kind: Kind, spec: &Value, live: Option<&DynamicObject>) -> Apply {
    let desired = object::namesake(md, labels::DEPLOYMENT, kind, spec);
    object::wanted(
        kind.resource(),
        desired,
        live,
        labels::APPLIED_HASH,
        "The autoscaler of this ModelDeployment was changed directly, reverting it",
    )
}

fn active(message: String) -> Draft {
    yes(AUTOSCALER_READY, CoreReason::AutoscalerActive, message)
}

fn pending(object: &str, controller: &str) -> Draft {
    let message = format!("Waiting for {controller} to reconcile {object}");
    no(AUTOSCALER_READY, CoreReason::AutoscalerPending, message)
}

fn inactive(object: &str, why: &str) -> Draft {
    let message = format!("{object} does not scale: {why}");
    no(AUTOSCALER_READY, CoreReason::AutoscalerInactive, message)
}

fn scaled_object_state(object: &str, live: Option<&DynamicObject>, range: &str) -> Draft {
    match live.map(Reading::of) {
        None | Some(Reading::Silent) => pending(object, "KEDA"),
        Some(Reading::Ready) => active(format!("{object} scales from {range}")),
        Some(Reading::Paused) => inactive(object, "an annotation on it pauses scaling"),
        Some(Reading::Refused(why) | Reading::Blind(why)) => inactive(object, &why),
    }
}

/// A HorizontalPodAutoscaler scales while it can read the target (`AbleToScale`) and the metric (`ScalingActive`).
fn autoscaler_state(object: &str, live: Option<&DynamicObject>, range: &str, metric: &str) -> Draft {
    let of = |type_: &str| live.and_then(|live| condition(&live.data["status"], type_));
    let failed = ["AbleToScale", "ScalingActive"]
        .into_iter()
        .filter_map(of)
        .find(Condition::is_false);
    match (failed, of("ScalingActive")) {
        (Some(failed), _) => {
            let remedy = match failed.reason {
                // pkg/controller/podautoscaler/horizontal.go, Kubernetes 1.34.
                "FailedGetPodsMetric" => format!(
                    ". Prometheus must scrape the pods, and its adapter must serve pods/{metric} in custom.metrics.k8s.io"
                ),
                "ScalingDisabled" => ". Set spec.scaling.replicas to 1 or more to scale again".to_owned(),
                _ => String::new(),
            };
            inactive(object, &format!("{} ({}){remedy}", failed.message, failed.reason))
        }
        (None, Some(_)) => active(format!("{object} scales from {range} by {metric}")),
        (None, None) => pending(object, "the HorizontalPodAutoscaler controller"),
    }
}
