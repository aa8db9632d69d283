//! Settings that a ModelDeployment does not contain: the release of Dynamo in the cluster.

use clap::Args;

use crate::runtime::{RuntimeVersion, default_version};
use crate::schema::Shape;

/// Settings of the Dynamo provider: arguments of its process.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamoConfig {
    /// Version of Dynamo's runtime images if a ModelDeployment has no spec.image, and the assumed version of an image whose tag
    /// contains none. Defaults to 0.9.1 if Dynamo's CRD is stored as v1alpha1, and to 1.3.1 with v1beta1. A change rolls out new
    /// pods
    #[arg(long, value_name = "VERSION")]
    pub runtime_version: Option<RuntimeVersion>,
}

impl DynamoConfig {
    pub(crate) fn runtime_version(&self, shape: Shape) -> RuntimeVersion {
        self.runtime_version.unwrap_or_else(|| default_version(shape))
    }
}
