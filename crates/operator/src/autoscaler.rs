//! Kinds of autoscalers, and the state that KEDA reports (KEDA v2.21.0, `apis/keda/v1alpha1/condition_types.go`).

use kube::core::DynamicObject;

use crate::object::{Condition, Kind, condition};

/// HorizontalPodAutoscaler.
pub const HORIZONTAL_POD_AUTOSCALER: Kind = Kind::new(
    "autoscaling",
    "v2",
    "HorizontalPodAutoscaler",
    "horizontalpodautoscalers",
);
/// KEDA's ScaledObject: the workload to scale, and by which metric.
pub const SCALED_OBJECT: Kind = Kind::new("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects");

/// Reason of `Ready` with the status Unknown, if some of several triggers fail.
const PARTIAL_ERROR: &str = "PartialTriggerError";

/// State of a ScaledObject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// KEDA has not reconciled it.
    Silent,
    /// KEDA scales the target.
    Ready,
    /// An annotation pauses scaling.
    Paused,
    /// KEDA rejects it, with the reason.
    Refused(String),
    /// KEDA accepts it, but a metric cannot be read, with the reason.
    Blind(String),
}

impl Reading {
    /// State of a ScaledObject, by its conditions. Since KEDA 2.20.2, `Ready` is True while the HorizontalPodAutoscaler cannot read a
    /// metric, and `HPAActive` is False (`pkg/scaling/executor/scale_scaledobjects.go`). At zero replicas it is True.
    pub fn of(object: &DynamicObject) -> Self {
        let status = &object.data["status"];
        if condition(status, "Paused").is_some_and(|c| c.is_true()) {
            return Self::Paused;
        }
        let text = |c: Condition<'_>| format!("{} ({})", c.message, c.reason);
        let unread = condition(status, "HPAActive").filter(Condition::is_false);
        match (condition(status, "Ready"), unread) {
            (Some(ready), _) if ready.is_false() => Self::Refused(text(ready)),
            (Some(ready), _) if ready.reason == PARTIAL_ERROR => Self::Blind(text(ready)),
            (Some(ready), None) if ready.is_true() => Self::Ready,
            (Some(_), Some(unread)) => Self::Blind(text(unread)),
            _ => Self::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn state_is_that_of_the_conditions() {
        let reported = |conditions: &[(&str, &str, &str)]| {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|(kind, status, reason)| json!({"type": kind, "status": status, "reason": reason, "message": "m"}))
                .collect();
            let object = json!({"metadata": {}, "status": {"conditions": conditions}});
            Reading::of(&serde_json::from_value(object).unwrap())
        };
        let unread = ("HPAActive", "False", "HPAMetricsUnavailable");
        assert_eq!(reported(&[]), Reading::Silent);
        assert_eq!(reported(&[("Ready", "Unknown", "")]), Reading::Silent);
        assert_eq!(reported(&[("Ready", "True", "ScaledObjectReady")]), Reading::Ready);
        let asleep = ("HPAActive", "True", "ScalingDisabled");
        assert_eq!(
            reported(&[("Ready", "True", "ScaledObjectReady"), asleep]),
            Reading::Ready
        );
        let refused = Reading::Refused("m (TriggerError)".to_owned());
        assert_eq!(reported(&[("Ready", "False", "TriggerError"), unread]), refused);
        let blind = Reading::Blind("m (HPAMetricsUnavailable)".to_owned());
        assert_eq!(reported(&[("Ready", "True", "ScaledObjectReady"), unread]), blind);
        let blind = Reading::Blind("m (PartialTriggerError)".to_owned());
        assert_eq!(reported(&[("Ready", "Unknown", "PartialTriggerError")]), blind);
        assert_eq!(
            reported(&[("Paused", "True", "ScaledObjectPaused"), unread]),
            Reading::Paused
        );
    }
}
