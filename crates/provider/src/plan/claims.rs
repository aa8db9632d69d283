//! PersistentVolumeClaims that are created for volumes. They do not depend on the provider, and hold data that outlives pods.

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::{ModelDeployment, labels};
use runway_operator::{object, quantity};
use serde_json::json;

use super::objects;
use crate::contract::{CLAIM, Object};
use crate::fields::fields;
use crate::observe::Observed;
use crate::request::Request;
use crate::volumes::{NewClaim, Volume};

/// The claims of a request, and the sizes without effect: a claim cannot shrink, so the live size is kept.
pub(super) fn wanted(request: &Request, seen: &Observed) -> (Vec<Object>, Vec<String>) {
    let mut ignored = Vec::new();
    let claims = request.volumes.iter().filter_map(|volume| {
        let claim = volume.new_claim()?;
        let asked = quantity::canonical(&claim.size);
        let live = seen.child(CLAIM, &claim.name).and_then(size);
        let size = match live.filter(|live| quantity::is_less(&asked, live) == Some(true)) {
            Some(live) => {
                ignored.push(format!(
                    "{} is ignored: {} has {live}, and a claim cannot shrink. Set it to {live}",
                    volume.field("size"),
                    CLAIM.named(&claim.name)
                ));
                live.to_owned()
            }
            None => asked,
        };
        Some(wanted_claim(volume, claim, &size))
    });
    (claims.collect(), ignored)
}

fn wanted_claim(volume: &Volume, claim: &NewClaim, size: &str) -> Object {
    let spec = fields()
        .with("accessModes", json!([claim.access_mode]))
        .with("storageClassName", claim.storage_class.as_deref())
        .with("resources", json!({"requests": {"storage": size}}));
    Object {
        kind: CLAIM,
        version: CLAIM.version.to_owned(),
        name: claim.name.clone(),
        annotations: [(labels::RETAIN.to_owned(), claim.retain.to_string())].into(),
        body: fields().with("spec", spec).into(),
        immutable: [
            (volume.field("storageClassName"), json!(claim.storage_class)),
            (volume.field("accessMode"), json!(claim.access_mode)),
        ]
        .into(),
        not_rolled_out: [].into(),
    }
}

fn size(live: &DynamicObject) -> Option<&str> {
    live.data["spec"]["resources"]["requests"]["storage"].as_str()
}

/// Whether a live claim without an owner was retained for a ModelDeployment of this name.
pub(super) fn is_retained_for(md: &ModelDeployment, live: &DynamicObject) -> bool {
    labels::is_set(&live.metadata, labels::RETAIN)
        && object::controller(live).is_none()
        && live.labels().get(labels::DEPLOYMENT) == Some(&md.name_any())
}

/// Message about fields that Kubernetes does not allow to change. Deleting the claim to create another one would delete its data.
pub(super) fn immutable(live: &DynamicObject, wanted: &Object) -> Option<String> {
    let changed = objects::changed(live, &wanted.immutable);
    (!changed.is_empty()).then(|| {
        format!(
            "{}, and {} cannot be changed in this way: undo the change, or rename the volume for a new claim",
            changed.join("; "),
            CLAIM.named(&wanted.name)
        )
    })
}
