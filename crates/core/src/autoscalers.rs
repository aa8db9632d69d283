//! Autoscalers of ModelDeployments: their kinds, and those that exist for one ModelDeployment. Pure.

use std::sync::Arc;

use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use runway_api::ModelDeployment;
pub use runway_operator::autoscaler::{HORIZONTAL_POD_AUTOSCALER, SCALED_OBJECT};
use runway_operator::object::{self, Kind};

/// Both kinds.
pub const KINDS: [Kind; 2] = [HORIZONTAL_POD_AUTOSCALER, SCALED_OBJECT];

/// Autoscalers that concern a ModelDeployment.
#[derive(Clone, Debug, Default)]
pub struct Autoscalers {
    /// Whether the CRD of ScaledObjects is not installed.
    pub without_keda: bool,
    /// Existing autoscalers that target the ModelDeployment, or have its name.
    pub found: Vec<Autoscaler>,
}

/// An existing autoscaler.
#[derive(Clone, Debug)]
pub struct Autoscaler {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub object: Arc<DynamicObject>,
}

impl Autoscaler {
    /// Whether it was created for this ModelDeployment.
    pub fn is_of(&self, md: &ModelDeployment) -> bool {
        object::is_ours(md, &self.object)
    }

    /// Whether its owner is a ScaledObject, which represents it.
    pub fn is_of_keda(&self) -> bool {
        object::controller(&self.object).is_some_and(|owner| owner.kind == SCALED_OBJECT.kind)
    }

    /// Whether it scales this ModelDeployment.
    pub fn targets(&self, md: &ModelDeployment) -> bool {
        target(&self.object) == Some(&md.name_any())
    }

    /// Whether it scales this ModelDeployment, or has the name of its own autoscaler.
    pub fn concerns(&self, md: &ModelDeployment) -> bool {
        self.targets(md) || self.object.name_any() == md.name_any()
    }

    /// Kind and name, for a message.
    pub fn text(&self) -> String {
        self.kind.named(&self.object.name_any())
    }
}

/// Name of the ModelDeployment that an autoscaler scales.
pub fn target(autoscaler: &DynamicObject) -> Option<&str> {
    let target = &autoscaler.data["spec"]["scaleTargetRef"];
    let group = target["apiVersion"].as_str()?.split_once('/')?.0;
    let is_model = target["kind"] == *ModelDeployment::kind(&()) && group == ModelDeployment::group(&());
    target["name"].as_str().filter(|_| is_model)
}
