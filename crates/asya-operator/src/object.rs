//! References to objects in an actor's namespace, and the lookup results. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kube::core::DynamicObject;
pub use runway_operator::autoscaler::SCALED_OBJECT;
use runway_operator::object::Kind;

/// ConfigMap.
pub const CONFIG_MAP: Kind = Kind::new("", "v1", "ConfigMap", "configmaps");
/// Pod.
pub const POD: Kind = Kind::new("", "v1", "Pod", "pods");
/// Secret.
pub const SECRET: Kind = Kind::new("", "v1", "Secret", "secrets");
/// KEDA's TriggerAuthentication: the credentials for the metric.
pub const TRIGGER_AUTHENTICATION: Kind =
    Kind::new("keda.sh", "v1alpha1", "TriggerAuthentication", "triggerauthentications");

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
