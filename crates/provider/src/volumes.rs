//! Volumes of a ModelDeployment, as fields of a pod spec and of a container.

use kube::ResourceExt;
use runway_api::ModelDeployment;
use runway_api::model_deployment as api;
use runway_api::model_deployment::{AccessMode, VolumePurpose};
use serde_json::{Value, json};

use crate::fields::fields;

/// Prefix of the names of the user's volumes in a pod, which keeps them apart from those of providers and upstreams.
const VOLUME_PREFIX: &str = "storage-";

/// A volume of the containers that run the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Name in the spec.
    pub name: String,
    /// Use of the volume.
    pub purpose: VolumePurpose,
    /// Directory in the container.
    pub path: String,
    /// Whether the container can only read it.
    pub read_only: bool,
    /// Content.
    pub source: VolumeSource,
}

/// Content of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// Existing PersistentVolumeClaim of this name.
    Claim(String),
    /// PersistentVolumeClaim that the loop creates.
    NewClaim(NewClaim),
    /// OCI image.
    Image(api::ImageVolume),
}

/// A PersistentVolumeClaim that the loop creates, before the objects of the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClaim {
    /// Name of the claim, in the namespace of the ModelDeployment.
    pub name: String,
    /// Size, such as `100Gi`.
    pub size: String,
    /// Storage class; `None` for the default class of the cluster.
    pub storage_class: Option<String>,
    /// Access mode.
    pub access_mode: AccessMode,
    /// Whether the claim outlives the volume and the ModelDeployment.
    pub retain: bool,
}

/// The volumes of a ModelDeployment in narrow types.
pub(crate) fn of(md: &ModelDeployment) -> impl Iterator<Item = Volume> {
    let storage = md.spec.model.storage.iter();
    let volumes = storage.flat_map(|storage| &storage.volumes);
    volumes.filter_map(|volume| Volume::of(volume, &md.name_any()))
}

impl Volume {
    /// The volume in narrow types; `None` if it has no content or no directory, which the CRD does not allow.
    fn of(volume: &api::Volume, deployment: &str) -> Option<Self> {
        let purpose = volume.purpose.unwrap_or_default();
        let source = match (&volume.claim_name, &volume.image, &volume.size) {
            (Some(claim), None, None) => VolumeSource::Claim(claim.clone()),
            (None, Some(image), None) => VolumeSource::Image(image.clone()),
            (None, None, Some(size)) => VolumeSource::NewClaim(NewClaim {
                name: format!("{deployment}-{}", volume.name),
                size: size.clone(),
                storage_class: volume.storage_class_name.clone(),
                access_mode: volume.access_mode.unwrap_or_default(),
                retain: volume.retain.unwrap_or(false),
            }),
            _ => return None,
        };
        Some(Self {
            name: volume.name.clone(),
            purpose,
            path: volume
                .mount_path
                .clone()
                .or_else(|| purpose.mount_path().map(str::to_owned))?,
            read_only: volume.read_only.unwrap_or(false) || matches!(source, VolumeSource::Image(_)),
            source,
        })
    }

    /// The claim that the loop creates for the volume.
    pub fn new_claim(&self) -> Option<&NewClaim> {
        match &self.source {
            VolumeSource::NewClaim(claim) => Some(claim),
            VolumeSource::Claim(_) | VolumeSource::Image(_) => None,
        }
    }

    /// Whether a pod may have to end before its successor on another node, or on any node, can use the volume. The access mode of an
    /// existing claim is not known here: if pods write to it, it counts as ReadWriteOnce.
    pub fn is_exclusive(&self) -> bool {
        match &self.source {
            VolumeSource::Claim(_) => !self.read_only,
            VolumeSource::NewClaim(claim) => claim.access_mode != AccessMode::ReadWriteMany,
            VolumeSource::Image(_) => false,
        }
    }

    /// Whether only one pod at a time can use the volume.
    pub fn is_for_one_pod(&self) -> bool {
        self.new_claim()
            .is_some_and(|claim| claim.access_mode == AccessMode::ReadWriteOncePod)
    }

    /// Entry of `volumes` in a pod spec.
    pub fn source(&self) -> Value {
        let named = fields().with("name", format!("{VOLUME_PREFIX}{}", self.name));
        match &self.source {
            VolumeSource::Claim(claim) | VolumeSource::NewClaim(NewClaim { name: claim, .. }) => {
                named.with("persistentVolumeClaim", json!({"claimName": claim}))
            }
            VolumeSource::Image(image) => named.with("image", json!(image)),
        }
        .into()
    }

    /// Entry of `volumeMounts` in a container.
    pub fn mount(&self) -> Value {
        fields()
            .with("name", format!("{VOLUME_PREFIX}{}", self.name))
            .with("mountPath", self.path.as_str())
            .with("readOnly", self.read_only.then_some(true))
            .into()
    }

    /// Whether a text is the claim or the image of the volume, or names it among other words.
    pub(crate) fn is_named_in(&self, text: &str) -> bool {
        let name = match &self.source {
            VolumeSource::Claim(claim) | VolumeSource::NewClaim(NewClaim { name: claim, .. }) => claim,
            VolumeSource::Image(image) => &image.reference,
        };
        let is_of_names = |c: char| c.is_alphanumeric() || "-._/:@".contains(c);
        text == name || text.split(|c| !is_of_names(c)).any(|word| word == name)
    }

    /// Path of a field of this volume, for messages.
    pub fn field(&self, field: &str) -> String {
        format!("spec.model.storage.volumes[{}].{field}", self.name)
    }
}
