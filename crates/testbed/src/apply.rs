//! Applies objects of any kind, as a user would.

use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{self, Scope};
use kube::{Api, Client, ResourceExt};

/// Namespace of objects that need one and name none.
const DEFAULT_NAMESPACE: &str = "default";

/// Applies an object of any kind by force, as `manager`.
pub async fn apply(client: &Client, object: &DynamicObject, manager: &str) -> Result<DynamicObject> {
    let api = api_of(client, object).await?;
    let name = object.name_any();
    let params = PatchParams::apply(manager).force();
    let applied = api.patch(&name, &params, &Patch::Apply(object)).await;
    applied.with_context(|| {
        let kind = object.types.as_ref().map_or("object", |types| &types.kind);
        format!("cannot apply {kind} '{name}'")
    })
}

/// Namespaced API for objects of this kind, as the cluster defines it.
pub async fn api_of(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.clone().context("an object without kind")?;
    let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
    let (resource, capabilities) = discovery::pinned_kind(client, &GroupVersionKind::gvk(group, version, &types.kind))
        .await
        .with_context(|| format!("the cluster does not know {}", types.kind))?;
    let namespace = object.namespace().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    Ok(match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), &namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    })
}
