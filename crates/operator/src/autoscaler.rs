//! Kinds of autoscalers, and the state that KEDA reports (KEDA v2.21.0, `apis/keda/v1alpha1/condition_types.go`).

use kube::core::DynamicObject;
use serde_json::Value;

use crate::object::Kind;

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
        if condition(object, "Paused").is_some_and(|c| c["status"] == "True") {
            return Self::Paused;
        }
        match condition(object, "Ready") {
            Some(ready) if ready["status"] == "True" => Self::Ready,
            Some(ready) if ready["status"] == "False" => {
                let said = |key: &str| ready[key].as_str().unwrap_or_default();
                Self::Refused(format!("{} ({})", said("message"), said("reason")))
            }
            _ => Self::Silent,
        }
    }
}

/// The condition of this type in the status of an object.
pub fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == type_)
}
