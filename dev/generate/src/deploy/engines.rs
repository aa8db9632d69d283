//! Recording rules over the metrics of all engines: one series for each ModelDeployment, whatever its engine is. Dashboard and
//! alerts use them.

use runway_api::labels::{MANAGED_BY, MANAGED_BY_VALUE};
use runway_engines::ENGINES;
use runway_manifests::NAMESPACE;
use runway_manifests::engines::MODEL_LABEL;
use runway_provider::engine::Metrics;
use serde_json::{Value, json};

/// The PrometheusRule.
pub(crate) fn rules() -> Value {
    let by = format!("namespace, {MODEL_LABEL}");
    let all = [
        rule(
            "modeldeployment:engine_requests_running:sum",
            &format!("sum by ({by}) ({})", selector(|metrics| vec![metrics.running])),
        ),
        rule(
            "modeldeployment:engine_requests_waiting:sum",
            &format!("sum by ({by}) ({})", selector(|metrics| vec![metrics.waiting])),
        ),
        rule(
            "modeldeployment:engine_generated_tokens:rate5m",
            &format!("sum by ({by}) (rate({}[5m]))", selector(|metrics| vec![metrics.tokens])),
        ),
        rule(
            "modeldeployment:engine_kv_cache_usage:max",
            &format!("max by ({by}) ({})", selector(|metrics| metrics.kv_cache.to_vec())),
        ),
        rule(
            "modeldeployment_le:engine_first_token_seconds_bucket:rate5m",
            &format!("sum by ({by}, le) (rate({}[5m]))", selector(buckets)),
        ),
    ];
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "kubeairunway-engines",
            "namespace": NAMESPACE,
            "labels": { MANAGED_BY: MANAGED_BY_VALUE },
        },
        "spec": { "groups": [{ "name": "kubeairunway-engine-metrics", "rules": all }] },
    })
}

fn rule(record: &str, expression: &str) -> Value {
    json!({ "record": record, "expr": expression })
}

/// Series of these names that the PodMonitors have scraped. Dynamo's own monitors scrape its pods too, without the label.
fn selector<N: AsRef<str>>(names: impl Fn(&Metrics) -> Vec<N>) -> String {
    let all: Vec<String> = ENGINES
        .iter()
        .flat_map(|engine| names(&engine.metrics))
        .map(|name| name.as_ref().to_owned())
        .collect();
    format!("{{__name__=~\"{}\",{MODEL_LABEL}!=\"\"}}", all.join("|"))
}

fn buckets(metrics: &Metrics) -> Vec<String> {
    metrics
        .first_token
        .iter()
        .map(|name| format!("{name}_bucket"))
        .collect()
}
