//! Alerts, recorded series and dashboards: files of `deploy/monitoring`, and objects for the chart and kustomize.

use std::fs;

use anyhow::{Context, Result};
use kube::core::DynamicObject;
use runway_api::labels;
use runway_dev_release::yaml::documents;
use runway_dev_support::shell;
use runway_manifests::{COMPONENT_LABEL, NAMESPACE};
use serde_json::{Value, json};

use super::engines;

const FOLDER: &str = "deploy/monitoring";
/// Address of the page with a section for each alert.
const RUNBOOKS: &str = "https://github.com/kubeairunway/kubeairunway/blob/main/docs/operate/runbooks.md";
/// Dashboards of [`FOLDER`], which are written by hand.
const DASHBOARDS: [&str; 2] = ["dashboard", "engines"];

/// Labels by which the sidecar of Grafana's chart finds dashboards (kube-prometheus-stack: `grafana.sidecar.dashboards.label`).
pub(crate) fn dashboard_labels() -> Value {
    json!({ "grafana_dashboard": "1" })
}

/// The files of rules.
pub(crate) fn files() -> Result<Vec<(String, String)>> {
    Ok(vec![
        (format!("{FOLDER}/rules.yaml"), documents(&[alerts()?])?),
        (format!("{FOLDER}/engines.yaml"), documents(&[engines::rules()])?),
    ])
}

/// The PrometheusRules.
pub(crate) fn rules() -> Result<Vec<DynamicObject>> {
    [alerts()?, engines::rules()]
        .into_iter()
        .map(|rules| Ok(serde_json::from_value(rules)?))
        .collect()
}

/// ConfigMaps with the dashboards.
pub(crate) fn dashboards() -> Result<Vec<DynamicObject>> {
    DASHBOARDS.into_iter().map(dashboard).collect()
}

/// The alerts, each with the address of its runbook.
fn alerts() -> Result<Value> {
    let mut rules: Value = serde_saphyr::from_str(include_str!("alerts.yaml"))?;
    let groups = rules["spec"]["groups"].as_array_mut().context("no groups")?;
    for rule in groups
        .iter_mut()
        .filter_map(|group| group["rules"].as_array_mut())
        .flatten()
    {
        let name = rule["alert"]
            .as_str()
            .context("an alert without a name")?
            .to_lowercase();
        rule["annotations"]["runbook_url"] = json!(format!("{RUNBOOKS}#{name}"));
    }
    Ok(rules)
}

fn dashboard(name: &str) -> Result<DynamicObject> {
    let path = format!("{FOLDER}/{name}.json");
    let content = fs::read_to_string(shell::root().join(&path)).with_context(|| format!("cannot read {path}"))?;
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": format!("kubeairunway-{name}"),
            "namespace": NAMESPACE,
            "labels": {
                "app.kubernetes.io/name": "kubeairunway",
                COMPONENT_LABEL: labels::CORE_MANAGER,
                labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
            },
        },
        "data": { format!("kubeairunway-{name}.json"): content },
    });
    for (label, value) in dashboard_labels().as_object().into_iter().flatten() {
        object["metadata"]["labels"][label] = value.clone();
    }
    Ok(serde_json::from_value(object)?)
}
