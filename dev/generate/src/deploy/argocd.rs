//! Configuration of Argo CD: one ConfigMap with the health scripts of the project's kinds.

use std::fs;

use anyhow::{Context, Result, ensure};
use runway_dev_release::yaml::{HEADER, document};
use runway_dev_support::shell;
use serde_json::{Map, json};

/// Path of the ConfigMap.
pub(crate) const PATH: &str = "deploy/argocd/argocd-cm.yaml";
/// Scripts, as `GROUP/KIND/health.lua`: the layout of Argo CD's own repository.
const FOLDER: &str = "deploy/argocd";

/// The ConfigMap, to be merged into the one of an installation.
///
/// # Errors
///
/// If a kind of the project has no script.
pub(crate) fn config_map() -> Result<String> {
    let mut data = Map::new();
    for crd in runway_manifests::components().iter().flat_map(|c| &c.crds) {
        let (group, kind) = (&crd.spec.group, &crd.spec.names.kind);
        let path = format!("{FOLDER}/{group}/{kind}/health.lua");
        let script = fs::read_to_string(shell::root().join(&path)).with_context(|| format!("cannot read {path}"))?;
        data.insert(format!("resource.customizations.health.{group}_{kind}"), script.into());
    }
    ensure!(!data.is_empty(), "no CRD found");
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "argocd-cm",
            "namespace": "argocd",
            "labels": { "app.kubernetes.io/name": "argocd-cm", "app.kubernetes.io/part-of": "argocd" },
        },
        "data": data,
    });
    Ok(format!("{HEADER}{}", document(&object)?))
}
