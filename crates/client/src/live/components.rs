//! The programs of the product that are installed in a cluster.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::labels;
use runway_manifests::{COMPONENT_LABEL, NAMESPACE};

use super::cluster::{Cluster, Error};
use crate::diagnostic::{Diagnostic, Level};
use crate::target::Kind;

/// The Deployments of the product in all namespaces, the core first. A user who may not list those gets those of the namespace of an
/// installation by the command.
///
/// # Errors
/// The cluster cannot be reached, or rejects the request.
pub async fn deployments(cluster: &Cluster) -> Result<Vec<Deployment>, Error> {
    let ours = format!("{}={},{COMPONENT_LABEL}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE);
    let params = ListParams::default().labels(&ours);
    let found = match Api::<Deployment>::all(cluster.client()).list(&params).await {
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            Api::namespaced(cluster.client(), NAMESPACE).list(&params).await
        }
        found => found,
    };
    let found = found.map_err(|e| cluster.explain(e, format!("list Deployments in {NAMESPACE}"), "Deployments"))?;
    let mut found = found.items;
    found.sort_by_key(|d| (d.name_any() != labels::CORE_MANAGER, d.name_any()));
    Ok(found)
}

/// Remark on a kind whose controller is not installed, if one of the objects has never been reconciled.
pub async fn absent(cluster: &Cluster, kind: Kind, objects: &[DynamicObject]) -> Option<Diagnostic> {
    let is_new = |object: &DynamicObject| {
        object
            .data
            .get("status")
            .is_none_or(|status| status == &serde_json::json!({}))
    };
    let (component, install) = kind.controller()?;
    if !objects.iter().any(is_new) {
        return None;
    }
    // A user who may not read Deployments gets no remark.
    let installed = deployments(cluster).await.ok()?;
    installed.iter().all(|deployment| deployment.name_any() != component).then(|| Diagnostic {
        level: Level::Warning,
        subject: None,
        text: format!(
            "no controller for {}s is installed, so nothing happens to these objects: to install it, run: kubeairunway {install}",
            kind.as_str()
        ),
    })
}
