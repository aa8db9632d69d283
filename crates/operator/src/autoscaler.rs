//! Kinds of autoscalers, and the state that KEDA reports (KEDA v2.21.0, `apis/keda/v1alpha1/condition_types.go`).

use kube::core::DynamicObject;

use crate::object::{Kind, condition};

/// HorizontalPodAutoscaler.
pub const HORIZONTAL_POD_AUTOSCALER: Kind = Kind::new(
    "autoscaling",
    "v2",
    "HorizontalPodAutoscaler",
    "horizontalpodautoscalers",
);
/// KEDA's ScaledObject: the workload to scale, and by which metric.
pub const SCALED_OBJECT: Kind = Kind::new("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects");

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
}

impl Reading {
    /// State of a ScaledObject, by its conditions.
    pub fn of(object: &DynamicObject) -> Self {
        let status = &object.data["status"];
        if condition(status, "Paused").is_some_and(|c| c.is_true()) {
            return Self::Paused;
        }
        match condition(status, "Ready") {
            Some(ready) if ready.is_true() => Self::Ready,
            Some(ready) if ready.is_false() => Self::Refused(format!("{} ({})", ready.message, ready.reason)),
            _ => Self::Silent,
        }
    }
}
