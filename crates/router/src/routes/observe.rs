//! The input of a plan, read from watch caches and never by a live request.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_api::ModelDeployment;
use runway_operator::apply::Executor;
use runway_operator::clock;

use super::caches::Caches;
use super::claims::{self, Claimant};
use super::kinds::{GATEWAY, HTTP_ROUTE, INFERENCE_POOL};
use super::pods::Pods;
use super::settings::Settings;

/// Inputs of every reconcile, and the executor of its plan.
pub(super) struct Context {
    pub(super) settings: Arc<Settings>,
    pub(super) caches: Arc<Caches>,
    pub(super) executor: Executor<ModelDeployment>,
}

/// Everything known about one ModelDeployment at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The ModelDeployment.
    pub md: Arc<ModelDeployment>,
    /// The settings.
    pub settings: Arc<Settings>,
    /// Whether the CRDs of Gateways and HTTPRoutes are installed in the version that is written.
    pub has_routes: bool,
    /// Whether the CRD of InferencePools is.
    pub has_pools: bool,
    /// The Gateway that the settings name.
    pub gateway: Option<Arc<DynamicObject>>,
    /// The HTTPRoute with the name of the ModelDeployment.
    pub route: Option<Arc<DynamicObject>>,
    /// The HTTPRoute of `spec.gateway.httpRouteRef`.
    pub referenced: Option<Arc<DynamicObject>>,
    /// The InferencePool with the name of the ModelDeployment.
    pub pool: Option<Arc<DynamicObject>>,
    /// The pods behind the Service of the endpoint.
    pub pods: Option<Pods>,
    /// The other ModelDeployments that claim its model name.
    pub rivals: Vec<Claimant>,
    /// The time.
    pub now: Timestamp,
}

/// Observes a ModelDeployment: the watch caches, and our own writes that the watch has not delivered yet.
pub(super) fn observe(context: &Context, md: Arc<ModelDeployment>) -> Observed {
    let md = context.executor.newest(md);
    let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
    let caches = &context.caches;
    let referenced = claims::own_route(&md);
    let endpoint = md.status.as_ref().and_then(|status| status.endpoint.clone());
    let endpoint = endpoint.and_then(|endpoint| Some((endpoint.service?, endpoint.port?)));
    let model = claims::model_name(&md);
    Observed {
        has_routes: caches.is_installed(GATEWAY) && caches.is_installed(HTTP_ROUTE),
        has_pools: caches.is_installed(INFERENCE_POOL),
        gateway: caches.gateway(),
        route: caches.newest(HTTP_ROUTE, &namespace, &name),
        referenced: referenced.and_then(|route| caches.newest(HTTP_ROUTE, &namespace, route)),
        pool: caches.newest(INFERENCE_POOL, &namespace, &name),
        pods: endpoint.and_then(|(service, port)| caches.pods(&namespace, &service, port)),
        rivals: model.map_or_else(Vec::new, |model| caches.rivals(&(namespace, name), &model)),
        md,
        settings: Arc::clone(&context.settings),
        now: clock::now(),
    }
}
