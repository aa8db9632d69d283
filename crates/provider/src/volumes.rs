//! Volumes of a ModelDeployment, as fields of a pod spec and of a container.

use runway_api::model_deployment as api;
use runway_api::model_deployment::VolumePurpose;
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
    /// PersistentVolumeClaim of this name.
    Claim(String),
    /// OCI image.
    Image(api::ImageVolume),
}

impl Volume {
    /// The volume in narrow types; `None` if it has no content or no directory, which the CRD does not allow.
    pub(crate) fn of(volume: &api::Volume) -> Option<Self> {
        let purpose = volume.purpose.unwrap_or_default();
        let source = match (&volume.claim_name, &volume.image) {
            (Some(claim), None) => VolumeSource::Claim(claim.clone()),
            (None, Some(image)) => VolumeSource::Image(image.clone()),
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

    /// Entry of `volumes` in a pod spec.
    pub fn source(&self) -> Value {
        let named = fields().with("name", format!("{VOLUME_PREFIX}{}", self.name));
        match &self.source {
            VolumeSource::Claim(claim) => named.with("persistentVolumeClaim", json!({"claimName": claim})),
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

    /// Path of a field of this volume, for messages.
    pub fn field(&self, field: &str) -> String {
        format!("spec.model.storage.volumes[{}].{field}", self.name)
    }
}
