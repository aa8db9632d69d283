//! The Helm chart: the same objects as `deploy/install.yaml`, with the places that differ from cluster to cluster left open.

mod hooks;
mod marks;
mod template;
mod values;

use anyhow::Result;
use runway_dev_release::yaml::{HEADER, document};
use runway_manifests::{Component, component, console, gateway, router, routes};
use serde_json::json;

const FOLDER: &str = "deploy/charts/kubeairunway";
/// Path of the reference page.
const PAGE: &str = "docs/reference/helm-values.md";

const NOTES: &str = "\
KubeAIRunway is installed. See what it is made of:

  kubeairunway controller status
  kubeairunway provider list

The providers' own operators (KAITO, Dynamo, KubeRay) are installed with their own charts. The provider direct needs none.
";

/// Every file of the chart, and the page about its values.
pub(crate) fn files(components: &[Component]) -> Result<Vec<(String, String)>> {
    let table = values::table(components);
    let schema = serde_json::to_string_pretty(&values::json_schema(&table))? + "\n";
    let mut files = vec![
        (PAGE.to_owned(), values::page(&table)?),
        (format!("{FOLDER}/Chart.yaml"), chart()?),
        (format!("{FOLDER}/values.yaml"), values::yaml(&table)?),
        (format!("{FOLDER}/values.schema.json"), schema),
        (format!("{FOLDER}/templates/NOTES.txt"), NOTES.to_owned()),
        (
            format!("{FOLDER}/templates/_helpers.tpl"),
            include_str!("helpers.tpl").to_owned(),
        ),
        (format!("{FOLDER}/templates/hooks.yaml"), hooks::template()?),
        (format!("{FOLDER}/templates/monitoring.yaml"), template::monitoring()?),
    ];
    for component in components {
        let path = format!("{FOLDER}/templates/{}.yaml", component.name);
        files.push((path, template::of_component(component)?));
    }
    Ok(files)
}

fn chart() -> Result<String> {
    let version = component::TAG.trim_start_matches('v');
    let chart = json!({
        "apiVersion": "v2",
        "name": "kubeairunway",
        "description": "One control plane for AI serving on Kubernetes",
        "type": "application",
        "version": version,
        "appVersion": component::TAG,
        "kubeVersion": ">=1.26.0-0",
    });
    Ok(format!("{HEADER}{}", document(&chart)?))
}

/// The name of the provider whose controller this is.
fn provider(component: &Component) -> Option<&str> {
    component.name.strip_suffix("-provider")
}

/// Whether a component is installed on request only.
fn is_on_request(component: &Component) -> bool {
    [console::NAME, gateway::NAME, router::NAME, routes::NAME].contains(&component.name.as_str())
}

/// Whether a component has one pod at most.
fn is_single(component: &Component) -> bool {
    [console::NAME, gateway::NAME].contains(&component.name.as_str())
}

/// Name of a component's values, if it is no provider: `kubeairunway-controller` is `controller`.
fn key(component: &Component) -> String {
    let name = component.name.trim_start_matches("kubeairunway-");
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| {
        let mut letters = word.chars();
        let head: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
        format!("{key}{head}{}", letters.as_str())
    })
}
