//! The InferencePool of a ModelDeployment, and the backend of its route.

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_api::GatewayReason::RouteNotResolved;
use runway_api::{ModelDeployment, labels};
use runway_operator::plan::{Apply, Delete};
use runway_operator::services::ServicePort;
use runway_operator::{apply, object};
use serde_json::{Value, json};

use super::status::{Outcome, refused};
use super::{deletion, is_made_for};
use crate::routes::kinds::{self, INFERENCE_POOL, Verdict};
use crate::routes::observe::Observed;
use crate::routes::pods;
use crate::routes::settings::{GatewayName, OWN_PICKER};

/// Labels of a pod with the engine whose metrics the endpoint picker reads. Those without one count as vLLM (inference extension 1.5
/// and llm-d-router; the second is that of llm-d-router alone).
const ENGINE_LABELS: [&str; 2] = ["inference.networking.k8s.io/engine-type", "llm-d.ai/engine-type"];

/// Backend of a route.
pub(super) struct Backend {
    /// Entry of `backendRefs`.
    pub(super) reference: Value,
    /// The InferencePool, if it is the backend.
    pub(super) pool: Option<Apply>,
    /// Reason why there is no InferencePool although one is configured, with the remedy.
    pub(super) obstacle: Option<String>,
}

impl Backend {
    fn service(service: &ServicePort, obstacle: Option<String>) -> Self {
        Self {
            reference: json!({ "kind": "Service", "name": service.service.to_string(), "port": service.port }),
            pool: None,
            obstacle,
        }
    }

    /// Kind and name of the objects by which a route leads to the model.
    pub(super) fn names(&self, md: &ModelDeployment, service: &ServicePort) -> Vec<(&'static str, String)> {
        let mut names = vec![("Service", service.service.to_string())];
        if self.pool.is_some() {
            names.push((INFERENCE_POOL.kind, md.name_any()));
        }
        names
    }
}

/// The InferencePool of the model if it can have one, else its Service.
pub(super) fn backend(seen: &Observed, service: &ServicePort) -> Backend {
    if !seen.settings.pools {
        return Backend::service(service, None);
    }
    match wanted(seen, service) {
        Ok(pool) => Backend {
            reference: json!({
                "group": INFERENCE_POOL.group,
                "kind": INFERENCE_POOL.kind,
                "name": seen.md.name_any(),
            }),
            pool: Some(pool),
            obstacle: None,
        },
        Err(obstacle) => Backend::service(service, Some(obstacle)),
    }
}

/// The desired pool, or why there is none.
fn wanted(seen: &Observed, service: &ServicePort) -> Result<Apply, String> {
    let md: &ModelDeployment = &seen.md;
    let named = INFERENCE_POOL.named(&md.name_any());
    if !seen.has_pools {
        return Err("no CRD inferencepools.inference.networking.k8s.io is installed in version v1. An administrator must install it, or remove --endpoint-picker and --inference-pools".to_owned());
    }
    let live = seen.pool.as_deref();
    if let Some(other) = live.filter(|live| !is_made_for(md, live)) {
        let taken = object::taken(&named, "ModelDeployment", &object::manager_of(other));
        return Err(format!("{taken}. Rename one of them"));
    }
    if live.is_some_and(|live| live.metadata.deletion_timestamp.is_some()) {
        return Err(format!("{named} is being deleted"));
    }
    let selector = md.status.as_ref().and_then(|status| status.selector.as_deref());
    let found = seen.pods.as_ref();
    let found = found.filter(|pods| selector.is_some_and(|selector| pods::is_narrower(&pods.labels, selector)));
    let Some(found) = found else {
        return Err(format!(
            "Service '{}' does not select the pods of status.selector, so that they may not serve HTTP themselves",
            service.service
        ));
    };
    // Without pods, a port that has a name is not known: the pool keeps the one that it has.
    let before = live.and_then(|live| live.data.pointer("/spec/targetPorts/0/number")?.as_i64());
    let Some(port) = found.port.map(i64::from).or(before) else {
        return Err(format!(
            "the port of the pods behind Service '{}' is not known yet",
            service.service
        ));
    };
    let mut spec = json!({
        "selector": { "matchLabels": found.labels },
        "targetPorts": [{ "number": port }],
    });
    if let Some(picker) = &seen.settings.picker {
        spec["endpointPickerRef"] = json!({
            "group": "",
            "kind": "Service",
            "name": picker.name.of(&md.name_any()),
            "port": { "number": picker.port },
            // While the picker does not answer, the Gateway chooses a pod itself. Envoy 1.40 fails requests whose body it has sent.
            "failureMode": "FailOpen",
        });
    }
    let drift = "The InferencePool of this ModelDeployment was changed directly, reverting it";
    let desired = object::namesake(md, labels::DEPLOYMENT, INFERENCE_POOL, &spec);
    Ok(object::wanted(
        INFERENCE_POOL.resource(),
        desired,
        live,
        labels::APPLIED_HASH,
        drift,
    ))
}

/// Remark about pods whose metrics the endpoint picker reads as those of vLLM, because they have no label with their engine. The
/// label is the user's to set: one that the provider added to existing templates would restart all pods.
pub(super) fn remark(seen: &Observed, backend: &Backend) -> Option<String> {
    // Engines that the picker knows by these names (llm-d-router, plugin core-metrics-extractor).
    let known = match seen.md.spec.engine_type()? {
        "vllm" => return None,
        "trtllm" => "trtllm-serve",
        other => other,
    };
    let template = seen.md.spec.pod_template.as_ref();
    let labels = template.and_then(|template| Some(&template.metadata.as_ref()?.labels));
    let is_reported = labels.is_some_and(|labels| ENGINE_LABELS.iter().any(|key| labels.contains_key(*key)));
    // The model router reads no metrics.
    let picker = seen.settings.picker.as_ref();
    let reads_metrics = picker.is_some_and(|picker| picker.name.of(&seen.md.name_any()) != OWN_PICKER);
    if is_reported || backend.pool.is_none() || !reads_metrics {
        return None;
    }
    Some(format!(
        "Its endpoint picker reads the metrics of the pods as those of vLLM: set spec.podTemplate.metadata.labels to '{}: {known}'",
        ENGINE_LABELS[0]
    ))
}

/// Deletion of a pool that is not wanted any more, once the route does not lead to it.
pub(super) fn leftover(seen: &Observed, backend: &Backend, route: Option<&DynamicObject>) -> Option<Delete> {
    let name = seen.md.name_any();
    let is_used = route.is_some_and(|route| kinds::backends(route).contains(&(INFERENCE_POOL.kind, name.as_str())));
    if backend.pool.is_some() || is_used {
        return None;
    }
    deletion(seen, INFERENCE_POOL, seen.pool.as_deref())
}

/// Remedy for a pool without an endpoint picker that the API server rejects.
pub(super) fn hint(seen: &Observed, error: &apply::Error) -> &'static str {
    match error {
        apply::Error::Apply { kind, .. } if kind == INFERENCE_POOL.kind && seen.settings.picker.is_none() => {
            ". If endpointPickerRef is required, an administrator must install the inference extension 1.6 or newer, or set --endpoint-picker"
        }
        _ => "",
    }
}

/// The refusal of the pool by the controller of the Gateway.
pub(super) fn refusal(seen: &Observed, gateway: &GatewayName, backend: &Backend) -> Option<Outcome> {
    backend.pool.as_ref()?;
    let live = seen.pool.as_deref()?;
    let named = INFERENCE_POOL.named(&live.name_any());
    let message = match kinds::verdict(live, Some(gateway)) {
        Verdict::Pending | Verdict::Accepted => return None,
        Verdict::Refused(answer) => format!("{named} is not accepted by Gateway '{gateway}': {answer}"),
        Verdict::Unresolved(answer) => {
            let picker = live
                .data
                .pointer("/spec/endpointPickerRef/name")
                .and_then(Value::as_str);
            format!(
                "{named} refers to something that Gateway '{gateway}' cannot resolve: {answer}. Create Service '{}' of its endpoint picker, or remove --endpoint-picker of the routes controller",
                picker.unwrap_or_default()
            )
        }
    };
    Some(refused(RouteNotResolved, message))
}
