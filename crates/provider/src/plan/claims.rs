//! PersistentVolumeClaims that are created for volumes. They do not depend on the provider, and hold data that outlives pods.

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::{ModelDeployment, labels};
use runway_operator::plan::{Apply, Edit};
use runway_operator::{object, quantity};
use serde_json::{Value, json};

use super::objects;
use crate::contract::{CLAIM, Object, Translation};
use crate::fields::fields;
use crate::observe::Observed;
use crate::request::Request;
use crate::volumes::{NewClaim, Volume};

/// The claims of a request, and what has no effect: volumes that the provider does not mount, and smaller sizes, since a claim
/// cannot shrink. An existing claim is kept even if nothing mounts it, because it may hold data.
pub(super) fn wanted(
    provider: &str,
    request: &Request,
    made: &Translation,
    seen: &Observed,
) -> (Vec<Object>, Vec<String>) {
    let mut ignored = Vec::new();
    let reported = made.ignored.iter().any(|reason| reason.contains("model.storage"));
    let claims = request.volumes.iter().filter_map(|volume| {
        let is_mounted = made.objects.iter().any(|object| is_used(volume, &object.body));
        if !is_mounted && !reported {
            ignored.push(format!(
                "spec.model.storage.volumes[{}] is ignored: provider '{provider}' does not mount it. Remove it, or use another provider",
                volume.name
            ));
        }
        let claim = volume.new_claim()?;
        if !is_mounted && seen.child(CLAIM, &claim.name).is_none() {
            return None;
        }
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

/// Whether a text of an object names the claim or the image of a volume.
fn is_used(volume: &Volume, value: &Value) -> bool {
    match value {
        Value::String(text) => volume.is_named_in(text),
        Value::Array(items) => items.iter().any(|item| is_used(volume, item)),
        Value::Object(fields) => fields.values().any(|field| is_used(volume, field)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
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
        reset: [].into(),
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

/// Removal of the owner reference of a claim that is to be retained. An apply without the reference removes it only if no other
/// field manager, such as that of the previous provider, has applied it too.
pub(super) fn released(md: &ModelDeployment, applied: &Apply, live: Option<&DynamicObject>) -> Option<Edit> {
    let live = live.filter(|live| {
        applied.unchanged && labels::is_set(&applied.object.metadata, labels::RETAIN) && object::is_ours(md, live)
    })?;
    let owners = live.owner_references().iter();
    let others: Vec<_> = owners.filter(|owner| owner.controller != Some(true)).collect();
    Some(Edit {
        resource: applied.resource.clone(),
        namespace: live.namespace().unwrap_or_default(),
        name: live.name_any(),
        patch: json!({"metadata": {"resourceVersion": live.resource_version(), "ownerReferences": others}}),
        note: None,
    })
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
