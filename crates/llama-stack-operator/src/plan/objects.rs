//! The desired objects in the order of creation: the Deployment comes after the objects that it refers to.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use runway_api::LlamaStackDistribution;
use runway_api::labels::llama_stack as labels;
use runway_operator::plan::{Apply, Delete};
use runway_operator::{json, object, quantity};
use serde_json::{Value, json};

use super::pod;
use super::request::Request;
use crate::kinds::{self, Kind};
use crate::observe::Observed;
use crate::pod::{EXTRACT_CONFIG, INSTALL_PROVIDER};
use crate::settings::Settings;

/// Size of the claim when none is given (public operator).
const DEFAULT_SIZE: &str = "10Gi";

/// Time in seconds until a Deployment is reported as not progressing, in addition to the start of the server.
const PULL_SECONDS: i32 = 15 * 60;

/// A desired object without most of its metadata, not yet compared with the live one.
pub(super) struct Wanted {
    pub(super) kind: Kind,
    pub(super) name: String,
    annotations: Option<BTreeMap<String, String>>,
    pub(super) body: Value,
}

/// The desired objects.
pub(super) fn wanted(seen: &Observed, request: &Request) -> Vec<Wanted> {
    let scripts = scripts(request);
    let scripts_hash = scripts.as_ref().map(|body| json::hash(&body["data"]));
    let template = pod::template(request, &seen.settings, scripts_hash.as_deref());
    let body = |kind: Kind, name: &str| match (kind.kind, name) {
        ("ServiceAccount", own) if own == request.service_account => Some(json!({})),
        ("ConfigMap", own) if own == kinds::scripts(&request.name) => scripts.clone(),
        ("ConfigMap", _) => ca_bundle(request),
        ("PersistentVolumeClaim", own) => claim(request, seen.child(kind, own)),
        ("Service", _) => Some(service(request)),
        ("NetworkPolicy", _) => network_policy(request, &seen.settings),
        ("Ingress", _) => ingress(request),
        ("PodDisruptionBudget", _) => disruption_budget(request),
        ("Deployment", _) => Some(deployment(request, &template)),
        ("HorizontalPodAutoscaler", _) => autoscaler(request),
        _ => None,
    };
    kinds::children(&request.name)
        .into_iter()
        .filter_map(|(kind, name)| {
            Some(Wanted {
                body: body(kind, &name)?,
                annotations: (kind.kind == "Ingress").then(|| request.ingress().annotations.clone()),
                kind,
                name,
            })
        })
        .collect()
}

/// The desired objects, compared with the live ones.
pub(super) fn apply(seen: &Observed, wanted: &[Wanted]) -> Vec<Apply> {
    wanted
        .iter()
        .map(|object| {
            object::wanted(
                object.kind.resource(),
                dress(&seen.llsd, object),
                seen.child(object.kind, &object.name),
                labels::APPLIED_HASH,
                "An object of this LlamaStackDistribution was changed directly, reverting it",
            )
        })
        .collect()
}

/// Our objects that are no longer desired. The claim stays, because it holds the user's data.
pub(super) fn delete(seen: &Observed, wanted: &[Wanted]) -> Vec<Delete> {
    seen.children
        .iter()
        .filter(|live| {
            let name = live.object.name_any();
            live.kind != kinds::CLAIM
                && live.object.metadata.deletion_timestamp.is_none()
                && object::is_ours(seen.llsd.as_ref(), &live.object)
                && !wanted.iter().any(|w| w.kind == live.kind && w.name == name)
        })
        .filter_map(|live| object::deletion(live.kind.resource(), &live.object))
        .collect()
}

/// The message about a wanted object whose name is taken by one that is not ours.
pub(super) fn taken(seen: &Observed, wanted: &[Wanted]) -> Option<String> {
    wanted.iter().find_map(|w| {
        let live = seen.child(w.kind, &w.name)?;
        (!object::is_ours(seen.llsd.as_ref(), live))
            .then(|| taken_text(w.kind.kind, &w.name, &object::manager_of(live)))
    })
}

/// The message about a name that is taken.
pub(super) fn taken_text(kind: &str, name: &str, manager: &str) -> String {
    let taken = object::taken(&format!("{kind} '{name}'"), "LlamaStackDistribution", manager);
    format!("{taken}: rename the LlamaStackDistribution, or delete the other object")
}

fn dress(llsd: &LlamaStackDistribution, object: &Wanted) -> DynamicObject {
    let labels: BTreeMap<String, String> = [
        (labels::APP, labels::APP_VALUE),
        (labels::INSTANCE, &llsd.name_any()),
        (labels::MANAGED_BY, labels::MANAGER),
        (labels::PART_OF, labels::APP_VALUE),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    DynamicObject {
        types: Some(TypeMeta {
            api_version: object.kind.resource().api_version,
            kind: object.kind.kind.to_owned(),
        }),
        metadata: ObjectMeta {
            name: Some(object.name.clone()),
            namespace: llsd.namespace(),
            labels: Some(labels),
            annotations: object.annotations.clone().filter(|all| !all.is_empty()),
            owner_references: Some(vec![object::owner(llsd)]),
            ..ObjectMeta::default()
        },
        data: object.body.clone(),
    }
}

fn deployment(request: &Request, template: &Value) -> Value {
    let storage = request.server().storage.is_some();
    let mut deployment = json!({ "spec": {
        "selector": { "matchLabels": pod::selector(&request.name) },
        // Both fields of a strategy are ours, so that a change of the type takes the other one away.
        "strategy": if storage {
            // A claim that one node mounts cannot go from an old pod to a new one while both are there.
            json!({ "type": "Recreate" })
        } else {
            json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } })
        },
        // The default of ten minutes would call a server failed that may still start; images are pulled in the rest.
        "progressDeadlineSeconds": request.startup_seconds() + PULL_SECONDS,
        "template": template,
    } });
    if request.server().autoscaling.is_none() {
        deployment["spec"]["replicas"] = request.replicas.into();
    }
    deployment
}

fn service(request: &Request) -> Value {
    json!({ "spec": {
        "type": "ClusterIP",
        "selector": pod::selector(&request.name),
        "ports": [{ "name": "http", "port": request.port, "targetPort": "http", "protocol": "TCP" }],
    } })
}

/// The scripts that run in other images.
fn scripts(request: &Request) -> Option<Value> {
    (!request.providers.is_empty()).then(|| {
        json!({ "data": {
            "install_provider.py": INSTALL_PROVIDER,
            "extract_config.sh": EXTRACT_CONFIG,
        } })
    })
}

fn ca_bundle(request: &Request) -> Option<Value> {
    let bundle = request.ca_bundle.as_ref()?;
    Some(json!({ "data": { pod::CA_BUNDLE_KEY: bundle.pem } }))
}

/// The desired size of the claim. A claim cannot shrink, so a size below the live one is not applied.
fn claim(request: &Request, live: Option<&DynamicObject>) -> Option<Value> {
    let storage = request.server().storage.as_ref()?;
    let asked = storage
        .size
        .as_ref()
        .map_or_else(|| DEFAULT_SIZE.to_owned(), ToString::to_string);
    let mut size = quantity::canonical(&asked);
    let there = live.and_then(|l| l.data["spec"]["resources"]["requests"]["storage"].as_str());
    if let Some(there) = there.filter(|there| quantity::is_less(&size, there) == Some(true)) {
        there.clone_into(&mut size);
    }
    Some(json!({ "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": size } },
    } }))
}

/// Desired and live size, if the claim stays larger than desired.
pub(super) fn shrinking(seen: &Observed) -> Option<(String, String)> {
    let asked = seen.llsd.spec.server.storage.as_ref()?.size.as_ref()?.to_string();
    let live = seen.child(kinds::CLAIM, &kinds::claim(&seen.llsd.name_any()))?;
    let there = live.data["spec"]["resources"]["requests"]["storage"].as_str()?;
    (quantity::is_less(&asked, there) == Some(true)).then(|| (asked, there.to_owned()))
}

fn network_policy(request: &Request, settings: &Settings) -> Option<Value> {
    let network = request.llsd.spec.network.as_ref();
    let allowed = network.and_then(|n| n.allowed_from.as_ref());
    if !settings.network_policies && allowed.is_none() {
        return None;
    }
    let namespace_of = |labels: Value| json!({ "namespaceSelector": { "matchLabels": labels } });
    let named = |name: &str| namespace_of(json!({ "kubernetes.io/metadata.name": name }));
    let mut from = vec![json!({ "podSelector": {} })];
    from.extend(settings.operator_namespace.as_deref().map(named));
    for name in allowed.iter().flat_map(|a| &a.namespaces) {
        from.push(match name.as_str() {
            "*" => json!({ "namespaceSelector": {} }),
            name => named(name),
        });
    }
    for key in allowed.iter().flat_map(|a| &a.labels) {
        from.push(json!({ "namespaceSelector": { "matchExpressions": [{ "key": key, "operator": "Exists" }] } }));
    }
    if exposes_route(request) {
        // OpenShift's routers; other Ingress controllers are named with allowedFrom.
        from.push(namespace_of(json!({ "network.openshift.io/policy-group": "ingress" })));
    }
    Some(json!({ "spec": {
        "podSelector": { "matchLabels": pod::selector(&request.name) },
        "policyTypes": ["Ingress"],
        "ingress": [{ "from": from, "ports": [{ "port": request.port, "protocol": "TCP" }] }],
    } }))
}

fn exposes_route(request: &Request) -> bool {
    request
        .llsd
        .spec
        .network
        .as_ref()
        .and_then(|n| n.expose_route)
        .unwrap_or(false)
}

fn ingress(request: &Request) -> Option<Value> {
    if !exposes_route(request) {
        return None;
    }
    let own = request.ingress();
    let mut rule = json!({ "http": { "paths": [{
        "path": "/",
        "pathType": "Prefix",
        "backend": { "service": { "name": kinds::service(&request.name), "port": { "name": "http" } } },
    }] } });
    let mut spec = json!({});
    if let Some(host) = &own.host {
        rule["host"] = host.as_str().into();
        if let Some(secret) = &own.tls_secret_name {
            spec["tls"] = json!([{ "hosts": [host], "secretName": secret }]);
        }
    }
    spec["rules"] = json!([rule]);
    if let Some(class) = &own.class_name {
        spec["ingressClassName"] = class.as_str().into();
    }
    Some(json!({ "spec": spec }))
}

fn disruption_budget(request: &Request) -> Option<Value> {
    let own = request.server().pod_disruption_budget.as_ref();
    if own.is_none() && request.replicas <= 1 {
        return None;
    }
    let mut spec = json!({ "selector": { "matchLabels": pod::selector(&request.name) } });
    let own = own.cloned().unwrap_or_default();
    match (own.min_available, own.max_unavailable) {
        (Some(min), _) => spec["minAvailable"] = json!(min),
        (None, Some(max)) => spec["maxUnavailable"] = json!(max),
        (None, None) => spec["maxUnavailable"] = 1.into(),
    }
    Some(json!({ "spec": spec }))
}

fn autoscaler(request: &Request) -> Option<Value> {
    let own = request.server().autoscaling.as_ref()?;
    let target = |resource: &str, percent: i32| {
        json!({
            "type": "Resource",
            "resource": { "name": resource, "target": { "type": "Utilization", "averageUtilization": percent } },
        })
    };
    let memory = own.target_memory_utilization_percentage;
    let cpu = own
        .target_cpu_utilization_percentage
        .or_else(|| memory.is_none().then_some(80));
    let metrics: Vec<Value> = [("cpu", cpu), ("memory", memory)]
        .into_iter()
        .filter_map(|(name, percent)| Some(target(name, percent?)))
        .collect();
    Some(json!({ "spec": {
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": request.name },
        "minReplicas": request.replicas,
        "maxReplicas": own.max_replicas,
        "metrics": metrics,
    } }))
}
