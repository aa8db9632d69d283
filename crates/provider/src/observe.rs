//! The input of a plan, read from watch caches and never by a live request.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::ModelDeployment;
use runway_operator::apply::Executor;
use runway_operator::clock;

use crate::answers::Answers;
pub use crate::answers::{Answer, Verification};
use crate::caches::Caches;
use crate::configured::Configured;
use crate::contract::{CLAIM, Kind, Provider, ReplicaObjects};
use crate::model_pods::ModelPod;
use crate::settings::InvalidSettings;
use crate::upstream::Installed;
use crate::volumes;

/// Inputs of every reconcile, and the executor of its plan, which remembers the provider's own writes.
pub(crate) struct Context {
    pub(crate) caches: Arc<Caches>,
    pub(crate) executor: Executor<ModelDeployment>,
    pub(crate) answers: Arc<Answers>,
}

/// Everything known about one ModelDeployment at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The ModelDeployment.
    pub md: Arc<ModelDeployment>,
    /// The installed upstream schemas.
    pub installed: Installed,
    /// Reason why the settings of the installation cannot be used.
    pub invalid_settings: Option<InvalidSettings>,
    /// Those of the provider's possible children that exist, ours or not, and the objects that the upstream creates for their
    /// replicas.
    pub children: Vec<Child>,
    /// Its pods; `None` if they are not known, such as in a preview.
    pub pods: Option<Vec<ModelPod>>,
    /// Reason why the upstream operator does not act, if it is known to be down.
    pub outage: Option<String>,
    /// Knowledge about its endpoint.
    pub verification: Verification,
    /// Time limit of the first request to its endpoint.
    pub answer_timeout: Duration,
    /// The time.
    pub now: Timestamp,
}

/// An object that exists.
#[derive(Clone, Debug)]
pub struct Child {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub object: Arc<DynamicObject>,
}

impl Observed {
    /// The child of this kind and name, if it exists.
    pub fn child(&self, kind: Kind, name: &str) -> Option<&DynamicObject> {
        self.children
            .iter()
            .find(|c| c.kind == kind && c.object.metadata.name.as_deref() == Some(name))
            .map(|c| c.object.as_ref())
    }

    /// The objects that the upstream created for the replicas.
    pub fn replicas(&self, objects: ReplicaObjects) -> impl Iterator<Item = &DynamicObject> {
        let name = self.md.name_any();
        self.children
            .iter()
            .filter(move |c| c.kind == objects.kind && c.object.labels().get(objects.label) == Some(&name))
            .map(|c| c.object.as_ref())
    }
}

/// Something that can look up objects: the watch caches in production, the documents given to `render`.
pub trait Lookup {
    /// The object of this kind, namespace and name.
    fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>>;

    /// Objects that the upstream created for the replicas of this ModelDeployment.
    fn replicas(&self, objects: ReplicaObjects, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>>;

    /// The PersistentVolumeClaims with the label of this ModelDeployment, whichever provider created them.
    fn claims(&self, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>>;
}

/// The children of a ModelDeployment that exist: those that the provider may create, claims of present and earlier volumes, and
/// what the upstream created for replicas.
pub fn children(lookup: &impl Lookup, provider: &dyn Provider, md: &ModelDeployment) -> Vec<Child> {
    let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
    let mut claims = lookup.claims(&namespace, &name);
    for claim in volumes::of(md).filter_map(|volume| Some(volume.new_claim()?.name.clone())) {
        if !claims.iter().any(|known| known.metadata.name.as_ref() == Some(&claim)) {
            claims.extend(lookup.find(CLAIM, &namespace, &claim));
        }
    }
    let made = provider.children(&name).into_iter().filter_map(|child| {
        let object = lookup.find(child.kind, &namespace, &child.name)?;
        Some(Child {
            kind: child.kind,
            object,
        })
    });
    let claims = claims.into_iter().map(|object| Child { kind: CLAIM, object });
    let replicas = provider.replica_objects().into_iter().flat_map(|objects| {
        let found = lookup.replicas(objects, &namespace, &name);
        found.into_iter().map(move |object| Child {
            kind: objects.kind,
            object,
        })
    });
    made.chain(claims).chain(replicas).collect()
}

/// Observes a ModelDeployment: the watch caches, and our own writes that they have not seen.
pub(crate) fn observe(context: &Context, configured: &Configured, md: Arc<ModelDeployment>) -> Observed {
    let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
    let md = context.executor.newest(md);
    Observed {
        installed: context.caches.installed(),
        invalid_settings: configured.invalid.clone(),
        children: children(context.caches.as_ref(), configured.provider.as_ref(), &md),
        pods: context.caches.pods(&namespace, &name),
        outage: context.caches.outages().borrow().clone(),
        verification: context.answers.of(&namespace, &name),
        answer_timeout: configured.answer_timeout,
        now: clock::now(),
        md,
    }
}

impl Lookup for Caches {
    fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        Self::find(self, kind, namespace, name)
    }

    fn replicas(&self, _: ReplicaObjects, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>> {
        Self::replicas(self, namespace, deployment)
    }

    fn claims(&self, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>> {
        Self::claims(self, namespace, deployment)
    }
}
