//! Metrics about ModelDeployments, computed from the watch cache at each scrape, so that nothing has to be
//! removed when an object is deleted. Only the leader reports them, so that replicas do not count objects twice.

use std::collections::BTreeMap;
use std::fmt;

use kube::runtime::reflector::Store;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use runway_api::ModelDeployment;
use runway_api::model_deployment::{Phase, ProviderStatus, Replicas};
use runway_operator::lease::Leadership;
use runway_operator::metrics::Metric;
use runway_operator::packed::Packed;
use runway_operator::watch::key;
use serde::Deserialize;

use crate::plan::EXPLICIT_REASON;

const TOTAL: Metric = Metric {
    name: "kubeairunway_modeldeployment_total",
    kind: "gauge",
    labels: &["namespace", "phase"],
    help: "Number of ModelDeployments. phase is Unknown without a status",
};
const SELECTION: Metric = Metric {
    name: "kubeairunway_provider_selection",
    kind: "gauge",
    labels: &["provider", "reason"],
    help: "ModelDeployments by the provider selected for them. reason is explicit, capabilities, or other for your own selector",
};
const REPLICAS: Metric = Metric {
    name: "kubeairunway_deployment_replicas",
    kind: "gauge",
    labels: &["name", "namespace", "state"],
    help: "Replicas of a ModelDeployment. state is desired, ready or available",
};
const PHASE: Metric = Metric {
    name: "kubeairunway_deployment_phase",
    kind: "gauge",
    labels: &["name", "namespace", "phase"],
    help: "1 for the current phase of a ModelDeployment",
};

/// Metrics about ModelDeployments.
pub const METRICS: [Metric; 4] = [TOTAL, SELECTION, REPLICAS, PHASE];

/// Collector for all ModelDeployments in a watch cache.
pub(crate) struct Deployments {
    store: Store<Packed<ModelDeployment>>,
    leadership: Leadership,
}

impl Deployments {
    pub(crate) fn new(store: Store<Packed<ModelDeployment>>, leadership: Leadership) -> Self {
        Self { store, leadership }
    }
}

impl fmt::Debug for Deployments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deployments").finish_non_exhaustive()
    }
}

impl Collector for Deployments {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if !self.leadership.is_leading() {
            return Ok(());
        }
        let deployments = self.store.state();
        let deployments = deployments
            .iter()
            .filter_map(|packed| Some((packed.as_ref(), packed.read().ok()?)));
        for (metric, values) in report(deployments) {
            family(&mut encoder, metric, &values)?;
        }
        Ok(())
    }
}

/// Fields of a ModelDeployment for the metrics: a scrape reads them from all objects.
#[derive(Deserialize)]
struct Reported {
    status: Option<ReportedStatus>,
}

#[derive(Deserialize)]
struct ReportedStatus {
    phase: Option<Phase>,
    provider: Option<ProviderStatus>,
    replicas: Option<Replicas>,
}

/// Values of a metric by its labels.
type Values = BTreeMap<Vec<String>, i64>;

/// Counts these ModelDeployments.
fn report<'a>(
    deployments: impl Iterator<Item = (&'a Packed<ModelDeployment>, Reported)>,
) -> [(&'static Metric, Values); 4] {
    let [mut total, mut selection, mut replicas, mut phases] = [const { Values::new() }; 4];
    for (md, reported) in deployments {
        let (namespace, name) = key(md);
        let status = reported.status.as_ref();
        let phase = status
            .and_then(|status| status.phase)
            .map_or("Unknown", |phase| phase.as_str())
            .to_owned();
        *total.entry(vec![namespace.clone(), phase.clone()]).or_default() += 1;
        phases.insert(vec![name.clone(), namespace.clone(), phase], 1);

        if let Some(provider) = status.and_then(|status| status.provider.as_ref())
            && let Some(chosen) = &provider.name
        {
            let reason = reason(provider.selected_reason.as_deref().unwrap_or_default());
            *selection.entry(vec![chosen.clone(), reason.to_owned()]).or_default() += 1;
        }
        if let Some(counts) = status.and_then(|status| status.replicas.as_ref()) {
            for (state, count) in [
                ("desired", counts.desired),
                ("ready", counts.ready),
                ("available", counts.available),
            ] {
                if let Some(count) = count {
                    replicas.insert(vec![name.clone(), namespace.clone(), state.to_owned()], count.into());
                }
            }
        }
    }
    [
        (&TOTAL, total),
        (&SELECTION, selection),
        (&REPLICAS, replicas),
        (&PHASE, phases),
    ]
}

/// The reason as a label value. Any text may be in a status.
fn reason(said: &str) -> &'static str {
    match said {
        EXPLICIT_REASON => "explicit",
        _ if said.starts_with("matched capabilities") => "capabilities",
        _ => "other",
    }
}

fn family(encoder: &mut DescriptorEncoder<'_>, metric: &Metric, values: &Values) -> fmt::Result {
    let mut encoder = encoder.encode_descriptor(metric.name, metric.help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .copied()
            .zip(labels.iter().map(String::as_str))
            .collect();
        ConstGauge::new(*value).encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use runway_operator::metrics::Metrics;
    use serde_json::{Value, json};

    fn deployment(name: &str, status: &Value) -> ModelDeployment {
        serde_json::from_value(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": name, "namespace": "ns" },
            "spec": { "model": { "id": "a/b" }, "engine": { "type": "vllm" } },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn metrics_of_a_deleted_object_disappear() {
        let (store, mut writer) = reflector::store();
        let metrics = Metrics::new("core", Leadership::always());
        metrics.collect(Deployments::new(store, Leadership::always()));
        let reported = |text: String| -> Vec<String> {
            let ours = |l: &&str| METRICS.iter().any(|m| l.starts_with(m.name));
            text.lines().filter(ours).map(str::to_owned).collect()
        };
        let running = deployment(
            "a",
            &json!({ "phase": "Running", "replicas": { "desired": 2, "ready": 1 },
                "provider": { "name": "kaito", "selectedReason": "matched capabilities: engine=vllm, gpu=true, mode=aggregated" } }),
        );
        writer.apply_watcher_event(&Event::Apply(running.clone().into()));
        writer.apply_watcher_event(&Event::Apply(
            deployment(
                "b",
                &json!({ "phase": "Running", "provider": { "name": "kaito", "selectedReason": "anything \"at\" all" } }),
            )
            .into(),
        ));
        writer.apply_watcher_event(&Event::Apply(deployment("c", &json!({})).into()));
        assert_eq!(
            reported(metrics.text()),
            [
                r#"kubeairunway_modeldeployment_total{namespace="ns",phase="Running"} 2"#,
                r#"kubeairunway_modeldeployment_total{namespace="ns",phase="Unknown"} 1"#,
                r#"kubeairunway_provider_selection{provider="kaito",reason="capabilities"} 1"#,
                r#"kubeairunway_provider_selection{provider="kaito",reason="other"} 1"#,
                r#"kubeairunway_deployment_replicas{name="a",namespace="ns",state="desired"} 2"#,
                r#"kubeairunway_deployment_replicas{name="a",namespace="ns",state="ready"} 1"#,
                r#"kubeairunway_deployment_phase{name="a",namespace="ns",phase="Running"} 1"#,
                r#"kubeairunway_deployment_phase{name="b",namespace="ns",phase="Running"} 1"#,
                r#"kubeairunway_deployment_phase{name="c",namespace="ns",phase="Unknown"} 1"#,
            ]
        );
        writer.apply_watcher_event(&Event::Delete(running.into()));
        let left = reported(metrics.text());
        assert!(left.iter().all(|line| !line.contains(r#"name="a""#)), "{left:?}");
    }
}
