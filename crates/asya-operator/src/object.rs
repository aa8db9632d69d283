//! References to objects in an actor's namespace: their kinds, names, and the lookup results. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};

/// A kind of the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Name in `kind`, such as `Deployment`.
    pub kind: &'static str,
    /// Name in URLs, such as `deployments`.
    pub plural: &'static str,
    /// Version to use if the installed version is unknown.
    pub version: &'static str,
}

impl Kind {
    /// A kind of this group, name, plural and version.
    pub const fn new(group: &'static str, kind: &'static str, plural: &'static str, version: &'static str) -> Self {
        Self {
            group,
            kind,
            plural,
            version,
        }
    }

    /// Whether every cluster has the kind, without a CRD.
    pub fn is_built_in(self) -> bool {
        matches!(self.group, "" | "apps")
    }

    /// `apiVersion` in this version, such as `apps/v1`.
    pub fn api_version(self, version: &str) -> String {
        if self.group.is_empty() {
            version.to_owned()
        } else {
            format!("{}/{version}", self.group)
        }
    }

    /// API resource in this version.
    pub fn resource(self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.to_owned(),
            version: version.to_owned(),
            api_version: self.api_version(version),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
        }
    }
}

/// ConfigMap.
pub const CONFIG_MAP: Kind = Kind::new("", "ConfigMap", "configmaps", "v1");
/// KEDA's ScaledObject: the workload to scale, and by which metric.
pub const SCALED_OBJECT: Kind = Kind::new("keda.sh", "ScaledObject", "scaledobjects", "v1alpha1");
/// KEDA's TriggerAuthentication: the credentials for the metric.
pub const TRIGGER_AUTHENTICATION: Kind =
    Kind::new("keda.sh", "TriggerAuthentication", "triggerauthentications", "v1alpha1");

/// Kind and name of an object in the actor's namespace. Displayed as `Deployment 'x'`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object.
    pub name: String,
}

impl Key {
    /// A key of this kind and name.
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self {
            kind,
            name: name.into(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}'", self.kind.kind, self.name)
    }
}

/// Result of the lookup of one object.
#[derive(Clone, Debug)]
pub enum Found {
    /// The CRD of its kind is not installed.
    NotInstalled,
    /// The kind is installed, and the object does not exist.
    Absent {
        /// Installed version of the kind.
        version: String,
    },
    /// The object exists.
    Here {
        /// Installed version of the kind.
        version: String,
        /// The live object, including managed fields.
        object: Arc<DynamicObject>,
    },
}

impl Found {
    /// The live object, if it exists.
    pub fn object(&self) -> Option<&DynamicObject> {
        match self {
            Self::Here { object, .. } => Some(object),
            _ => None,
        }
    }

    /// Installed version of the kind, if it is installed.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Here { version, .. } | Self::Absent { version } => Some(version),
            Self::NotInstalled => None,
        }
    }
}

/// Lookup results by object.
pub type Objects = BTreeMap<Key, Found>;
