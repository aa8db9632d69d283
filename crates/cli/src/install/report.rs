//! Tables of `controller status` and `provider list`.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::{InferenceProviderConfig, labels};
use runway_operator::clock;

use super::survey::Survey;
use super::{Error, wait};
use crate::answer::Answer;
use crate::terminal::Terminal;
use runway_client::cluster::Cluster;
use runway_client::components::deployments;
use runway_client::text::{self, aligned, cell, table};
use runway_manifests::{self as manifests, NAMESPACE};

/// `controller status`: each component, in whatever namespace it is, its version, the namespaces that it watches and its pods. It fails unless the core is there
/// and all are ready.
///
/// # Errors
/// The control plane is not installed, or the cluster cannot be read.
pub async fn status(cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    Survey::of(cluster, terminal).await?;
    let found = deployments(cluster).await?;
    if !found.iter().any(|d| d.name_any() == labels::CORE_MANAGER) {
        return Err(missing(cluster).await);
    }
    let mut rows = table(&["COMPONENT", "VERSION", "NAMESPACES", "STATE"]);
    for deployment in &found {
        let state = wait::progress(deployment);
        let name = match deployment.namespace() {
            Some(namespace) if namespace != NAMESPACE => format!("{namespace}/{}", deployment.name_any()),
            _ => deployment.name_any(),
        };
        rows.add_row(vec![name, version(deployment), watched(deployment), cell(&state)]);
    }
    Ok(Answer {
        data: aligned(&rows),
        failed: !found.iter().all(wait::is_ready),
        ..Answer::default()
    })
}

/// Error for a cluster without a Deployment of the core. Providers that report to it all the same run elsewhere.
async fn missing(cluster: &Cluster) -> Error {
    let registered = cluster.configs().await.unwrap_or_default();
    let reports = |config: &InferenceProviderConfig| config.status.as_ref().is_some_and(|s| s.last_heartbeat.is_some());
    let outside: Vec<String> = registered
        .iter()
        .filter(|c| reports(c))
        .map(ResourceExt::name_any)
        .collect();
    if outside.is_empty() {
        Error::NotInstalled
    } else {
        Error::Outside(outside)
    }
}

/// `provider list`: built-in providers, installed or not, and registered third-party providers.
///
/// # Errors
/// The cluster cannot be read.
pub async fn providers(cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    Survey::of(cluster, terminal).await?;
    let found = deployments(cluster).await?;
    let configs = cluster.configs().await?;
    let mut names: Vec<String> = manifests::built_in_providers()
        .iter()
        .map(|p| p.name().to_owned())
        .collect();
    for config in &configs {
        if !names.contains(&config.name_any()) {
            names.push(config.name_any());
        }
    }
    let mut rows = table(&["PROVIDER", "INSTALLED", "READY", "HEARTBEAT", "UPSTREAM"]);
    for name in names {
        let component = labels::provider_manager(&name);
        let deployment = found.iter().find(|d| d.name_any() == component);
        let config = configs.iter().find(|c| c.name_any() == name);
        let status = config.and_then(|c| c.status.as_ref());
        let installed = match (deployment, config) {
            (Some(deployment), _) => version(deployment),
            (None, Some(_)) => status
                .and_then(|s| s.version.clone())
                .unwrap_or_else(|| "third party".to_owned()),
            (None, None) => "no".to_owned(),
        };
        let ready = status
            .and_then(|s| s.ready)
            .map_or("", |ready| if ready { "yes" } else { "no" });
        let heartbeat = status
            .and_then(|s| s.last_heartbeat.as_ref())
            .map_or_else(String::new, |at| format!("{} ago", text::since(at.0, clock::now())));
        rows.add_row(vec![
            name,
            installed,
            ready.to_owned(),
            heartbeat,
            cell(&upstream(config)),
        ]);
    }
    Ok(Answer {
        data: aligned(&rows),
        ..Answer::default()
    })
}

fn upstream(config: Option<&InferenceProviderConfig>) -> String {
    let status = config.and_then(|c| c.status.as_ref());
    let conditions = status.map(|s| s.conditions.as_slice()).unwrap_or_default();
    let invalid = conditions.when_false(condition::SETTINGS_VALID);
    let condition = invalid.or_else(|| conditions.get_condition(condition::UPSTREAM_READY));
    condition.map(|c| c.message.clone()).unwrap_or_default()
}

/// Namespaces that a component watches. A third party's provider that is not limited by the flag may have its own.
fn watched(deployment: &Deployment) -> String {
    let namespaces = manifests::watched_by(deployment);
    let name = deployment.name_any();
    if manifests::all_components().iter().any(|c| c.name == name && !c.watches) {
        "none".to_owned()
    } else if namespaces.are_all() {
        "all".to_owned()
    } else {
        namespaces.to_string()
    }
}

/// Version of a Deployment of the product, by its label.
pub fn version(deployment: &Deployment) -> String {
    deployment
        .labels()
        .get("app.kubernetes.io/version")
        .cloned()
        .unwrap_or_default()
}
