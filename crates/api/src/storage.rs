//! Volumes of a ModelDeployment: caches that outlive a pod, and models in OCI images.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Volumes of the containers that run the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Volumes, at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = Rule::new("self.filter(v, has(v.purpose) && v.purpose == 'modelCache').size() <= 1 && self.filter(v, has(v.purpose) && v.purpose == 'compilationCache').size() <= 1").message("model.storage.volumes: at most one volume may have purpose modelCache, and at most one compilationCache"))]
    #[x_kube(validation = Rule::new("self.filter(v, has(v.mountPath)).all(v, self.filter(w, has(w.mountPath) && w.mountPath == v.mountPath).size() == 1)").message("model.storage.volumes: each volume needs a mountPath of its own"))]
    pub volumes: Vec<Volume>,
}

/// A volume: an existing PersistentVolumeClaim, an OCI image, or a PersistentVolumeClaim that is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.claimName), has(self.image), has(self.size)].filter(given, given).size() == 1").message("a volume has either claimName, the name of a PersistentVolumeClaim, or image, an OCI image, or size, that of a PersistentVolumeClaim to create: set one of them"),
    validation = Rule::new("has(self.size) || !has(self.storageClassName) && !has(self.accessMode) && !has(self.retain)").message("storageClassName, accessMode and retain describe a PersistentVolumeClaim to create: set size, or remove them"),
    validation = Rule::new("!has(self.size) || !has(self.readOnly) || !self.readOnly").message("a PersistentVolumeClaim that is created is empty, so readOnly is of no use: remove readOnly, or set claimName instead of size"),
    validation = Rule::new("has(self.mountPath) || has(self.purpose) && self.purpose != 'custom'").message("mountPath is required unless purpose is modelCache or compilationCache"),
    validation = Rule::new("!has(self.image) || !has(self.purpose) || self.purpose == 'custom'").message("an image volume is read-only and cannot be a cache: use purpose custom")
)]
pub struct Volume {
    /// Name of the volume, unique in the list.
    #[schemars(length(min = 1, max = 54))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("the name of a volume must be lower case letters, digits and '-', at most 54 characters"))]
    pub name: String,
    /// Use of the volume. modelCache: the engine keeps downloaded models in it. compilationCache: the engine keeps compiled kernels
    /// in it. custom (default): it is only mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<VolumePurpose>,
    /// Name of a PersistentVolumeClaim in the same namespace. Several replicas on different nodes need a claim with access mode
    /// ReadWriteMany, or ReadOnlyMany with readOnly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("claimName must be the name of a PersistentVolumeClaim: lower case letters, digits, '-' and '.'"))]
    pub claim_name: Option<String>,
    /// OCI image whose files are mounted read-only, such as the files of a model. Requires image volumes (Kubernetes 1.36, or the
    /// feature gate ImageVolume).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageVolume>,
    /// Size of a PersistentVolumeClaim, such as 100Gi, which the provider's controller creates with the name NAME-VOLUME: the name
    /// of the ModelDeployment, and that of the volume. It can grow if the storage class supports that, but never shrink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[+]?[0-9]+([.][0-9]+)?(k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$') && self.matches('[1-9]')").message("size must be a quantity greater than zero, such as 100Gi"))]
    pub size: Option<String>,
    /// Storage class of the created claim. Defaults to the default class of the cluster. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("storageClassName must be the name of a StorageClass: lower case letters, digits, '-' and '.'"))]
    pub storage_class_name: Option<String>,
    /// Access mode of the created claim. Defaults to ReadWriteOnce: all replicas run on one node. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,
    /// Keep the created claim when the volume or the ModelDeployment is deleted; a later ModelDeployment of this name with this
    /// volume uses it again. Defaults to false: the claim and its data are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
    /// Directory in the containers of the model. Defaults to /model-cache and /compilation-cache for the caches; required
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^/[^:[:cntrl:]]*[^:/[:cntrl:]]$') && !self.matches('/[.][.](/|$)')").message("mountPath must be an absolute path without ':' and '..', such as /models"))]
    #[x_kube(validation = Rule::new("!self.matches('^/(dev|proc|sys)(/|$)') && !(self in ['/bin', '/boot', '/etc', '/lib', '/lib64', '/sbin', '/usr', '/var'])").message("mountPath must not hide a directory of the system: use a directory of its own, such as /models"))]
    pub mount_path: Option<String>,
    /// Mount the volume read-only. Defaults to false; image volumes are always read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// Use of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VolumePurpose {
    /// The engine keeps downloaded models in it.
    ModelCache,
    /// The engine keeps compiled kernels in it.
    CompilationCache,
    /// The volume is only mounted.
    #[default]
    Custom,
}

impl VolumePurpose {
    /// Text in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ModelCache => "modelCache",
            Self::CompilationCache => "compilationCache",
            Self::Custom => "custom",
        }
    }

    /// Default directory; `None` if the user must set one.
    pub fn mount_path(self) -> Option<&'static str> {
        match self {
            Self::ModelCache => Some("/model-cache"),
            Self::CompilationCache => Some("/compilation-cache"),
            Self::Custom => None,
        }
    }
}

/// Access mode of a PersistentVolumeClaim that is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// Pods of one node can use it.
    #[default]
    ReadWriteOnce,
    /// Pods of all nodes can use it.
    ReadWriteMany,
    /// One pod can use it.
    ReadWriteOncePod,
}

/// An OCI image as a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageVolume {
    /// Reference of the image, such as registry.example.com/models/phi-4:1.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches('[[:space:][:cntrl:]]')").message("image.reference must not contain spaces or control characters"))]
    pub reference: String,
    /// Always, IfNotPresent or Never. Defaults to Always for the tag latest, and to IfNotPresent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Whenever a pod starts.
    Always,
    /// If the node does not have it.
    IfNotPresent,
    /// Never; the node must have it.
    Never,
}
