//! What a plan is made from: read from watch caches, never by a live request.

use std::sync::Arc;

use jiff::Timestamp;
use runway_api::ModelDeployment;

use crate::providers::Providers;

/// Everything known about one ModelDeployment at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The ModelDeployment.
    pub md: Arc<ModelDeployment>,
    /// The registered providers.
    pub providers: Arc<Providers>,
    /// Whether providers are chosen here, or by a selector of the user's own.
    pub selector_enabled: bool,
    /// The time.
    pub now: Timestamp,
}
