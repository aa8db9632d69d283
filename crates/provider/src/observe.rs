//! What a plan is made from: read from watch caches, never by a live request.

use std::sync::Arc;

use jiff::Timestamp;
use kube::core::DynamicObject;
use runway_api::ModelDeployment;
use runway_operator::kubelet::Unready;

use crate::contract::{ChildRef, Kind};
use crate::upstream::Installed;

/// Everything known about one ModelDeployment at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The ModelDeployment.
    pub md: Arc<ModelDeployment>,
    /// Which upstream schemas are installed.
    pub installed: Installed,
    /// Those of the provider's possible children that exist, ours or not.
    pub children: Vec<Child>,
    /// Its pods that are not ready.
    pub unready: Vec<Unready>,
    /// What is known of its endpoint.
    pub verification: Verification,
    /// The time.
    pub now: Timestamp,
}

/// An object that exists.
#[derive(Clone, Debug)]
pub struct Child {
    /// Its kind.
    pub kind: Kind,
    /// The object.
    pub object: Arc<DynamicObject>,
}

/// What is known of the endpoint of a ModelDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Endpoints are not asked: `--verify-endpoints=false`.
    Off,
    /// Nothing can be asked here, such as in a preview: the endpoint is taken to answer.
    Assumed,
    /// Endpoints are asked; the latest answer, if there is one.
    On(Option<Answer>),
}

/// The answer of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The rollout that was asked: see [`Question::about`](crate::plan::Question::about).
    pub about: String,
    /// Whether the model answered, or the request and what came back.
    pub outcome: Result<(), String>,
    /// When the answer came.
    pub at: Timestamp,
    /// Which attempt this was, from 1.
    pub attempt: u32,
}

impl Observed {
    /// The child of this kind and name, if it exists.
    pub fn child(&self, kind: Kind, name: &str) -> Option<&DynamicObject> {
        self.children
            .iter()
            .find(|c| c.kind == kind && c.object.metadata.name.as_deref() == Some(name))
            .map(|c| c.object.as_ref())
    }
}

/// Something that can look up objects: the watch caches in production, the documents given to `render`.
pub trait Lookup {
    /// The object of this kind, namespace and name.
    fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>>;
}

/// Those of the possible children that exist.
pub fn children(lookup: &impl Lookup, namespace: &str, possible: Vec<ChildRef>) -> Vec<Child> {
    possible
        .into_iter()
        .filter_map(|child| {
            Some(Child {
                object: lookup.find(child.kind, namespace, &child.name)?,
                kind: child.kind,
            })
        })
        .collect()
}
