//! PodMonitors for the engines of models, which the Prometheus Operator reads.
//!
//! Each series gets the label [`MODEL_LABEL`]. Pods that a provider marks with the name of their ModelDeployment are found by that
//! label; KAITO's pods carry the names of KAITO's own objects, which are those of the ModelDeployment.

use kube::core::DynamicObject;
use runway_api::labels;
use runway_engines::{ENGINES, PORT_NAMES, PORT_NUMBER};
use runway_provider::engine::METRICS_PATH;
use serde_json::{Value, json};

use super::metadata::{NAMESPACE, meta, object};

/// Label of the series of engines: the name of the ModelDeployment.
pub const MODEL_LABEL: &str = "modeldeployment";
/// Beginning of the names of the PodMonitors.
const NAME: &str = "kubeairunway-engines";

/// Pods of models that have labels in common.
pub(super) struct ModelPods {
    /// Suffix of the names of objects that select the pods, such as `-kaito`.
    pub(super) suffix: String,
    /// Expressions of a label selector.
    pub(super) selector: Value,
    /// Labels with the name of the ModelDeployment.
    labels: Vec<&'static str>,
}

/// The pods of all providers. Each pod is in one of these groups only.
pub(super) fn model_pods() -> Vec<ModelPods> {
    let ours = labels::DEPLOYMENT;
    let marked = ModelPods {
        suffix: String::new(),
        selector: json!([{ "key": ours, "operator": "Exists" }]),
        labels: vec![ours],
    };
    let others = super::built_in_providers().into_iter().filter_map(|provider| {
        let own = provider.pod_labels();
        let first = own.first().filter(|_| !own.contains(&ours))?;
        let selector = json!([
            { "key": ours, "operator": "DoesNotExist" },
            { "key": first, "operator": "Exists" },
        ]);
        Some(ModelPods {
            suffix: format!("-{}", provider.name()),
            selector,
            labels: own,
        })
    });
    [marked].into_iter().chain(others).collect()
}

/// The PodMonitors, for the pods of all namespaces.
pub(super) fn pod_monitors() -> Vec<DynamicObject> {
    let pods = model_pods();
    pods.iter()
        .map(|pods| pod_monitor(&format!("{NAME}{}", pods.suffix), &pods.selector, &pods.labels))
        .collect()
}

/// A PodMonitor for the pods of a selector. The last of `model_labels` that a pod has contains the name of its
/// ModelDeployment.
fn pod_monitor(name: &str, selector: &Value, model_labels: &[&str]) -> DynamicObject {
    let relabelings: Vec<Value> = model_labels.iter().map(|label| named_by(label)).collect();
    let endpoint = |port: Value| {
        let mut endpoint =
            json!({ "path": METRICS_PATH, "relabelings": relabelings, "metricRelabelings": [of_engines()] });
        if let (Some(endpoint), Value::Object(port)) = (endpoint.as_object_mut(), port) {
            endpoint.extend(port);
        }
        endpoint
    };
    let named = PORT_NAMES.map(|port| endpoint(json!({ "port": port })));
    // The field portNumber, which replaces targetPort, is unknown to releases of the operator before 0.80.
    let numbered = endpoint(json!({ "targetPort": PORT_NUMBER }));
    object(&json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": meta(labels::CORE_MANAGER, name, Some(NAMESPACE)),
        "spec": {
            "namespaceSelector": { "any": true },
            "selector": { "matchExpressions": selector },
            "podMetricsEndpoints": named.into_iter().chain([numbered]).collect::<Vec<_>>(),
        },
    }))
}

/// Copies a label of the pod to [`MODEL_LABEL`], if the pod has it.
fn named_by(label: &str) -> Value {
    let label = label.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    json!({
        "action": "replace",
        "sourceLabels": [format!("__meta_kubernetes_pod_label_{label}")],
        "regex": "(.+)",
        "targetLabel": MODEL_LABEL,
    })
}

/// Keeps the metrics of engines: Ray also exports thousands of series about its nodes and tasks.
fn of_engines() -> Value {
    let families: Vec<String> = ENGINES
        .iter()
        .map(|engine| format!("{}.+", engine.metrics.family))
        .collect();
    json!({
        "action": "keep",
        "sourceLabels": ["__name__"],
        "regex": families.join("|"),
    })
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use runway_api::model_deployment::Metric;

    use super::*;
    use crate::built_in_providers;

    #[test]
    fn pods_of_every_provider_are_selected_by_one_monitor() {
        let monitors = pod_monitors();
        let names: Vec<String> = monitors.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["kubeairunway-engines", "kubeairunway-engines-kaito"]);
        let kaito = &monitors[1].data["spec"];
        assert_eq!(
            kaito["selector"]["matchExpressions"],
            json!([
                { "key": "kubeairunway.ai/deployment", "operator": "DoesNotExist" },
                { "key": "kaito.sh/workspace", "operator": "Exists" },
            ])
        );
        // A pod of an InferenceSet has both labels, and its Workspace another name.
        let sources: Vec<&Value> = kaito["podMetricsEndpoints"][0]["relabelings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| &rule["sourceLabels"][0])
            .collect();
        assert_eq!(
            sources,
            [
                "__meta_kubernetes_pod_label_kaito_sh_workspace",
                "__meta_kubernetes_pod_label_inferenceset_kaito_sh_created_by",
            ]
        );
    }

    /// Autoscalers and this table name the same metrics.
    #[test]
    fn registrations_name_metrics_of_the_table() {
        let known: Vec<&str> = ENGINES
            .iter()
            .flat_map(|e| [e.metrics.running, e.metrics.waiting])
            .collect();
        let mut seen = 0;
        for provider in built_in_providers() {
            let capabilities = provider.registration().capabilities;
            for engine in capabilities.engine_names() {
                for metric in [Metric::RequestsInFlight, Metric::QueuedRequests] {
                    let Some(name) = capabilities.pod_metric(engine, metric) else {
                        continue;
                    };
                    assert!(known.contains(&name), "{}: {name}", provider.name());
                    seen += 1;
                }
            }
        }
        assert!(seen >= 6, "{seen} metrics");
    }
}
