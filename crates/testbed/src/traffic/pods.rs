//! Pods of a model, as a kubelet would report them, for engines that run on this machine. The controller of EndpointSlices lists them.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::Bed;
use crate::{PATIENCE, eventually};

/// Node of the pods. No kubelet runs.
const NODE: &str = "node";
/// Label of an EndpointSlice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

impl Bed {
    /// Creates the Service of a model, with this label of its own, and a ready pod for each engine, in place of the pods of before.
    /// Waits until they are listed in EndpointSlices: a pod that is ready after others would begin with a small share.
    pub async fn pods(&self, namespace: &str, model: &str, label: &str, engines: &[SocketAddr]) -> Result<()> {
        self.apply(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }))
            .await?;
        self.apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": model, "namespace": namespace, "labels": { label: model } },
            "spec": {
                "selector": { "app": model }, "ports": [{ "name": "http", "port": 8000, "targetPort": "http" }],
            },
        }))
        .await?;
        let (pods, of_model): (Api<Pod>, _) = (
            Api::namespaced(self.admin.clone(), namespace),
            ListParams::default().labels(&format!("app={model}")),
        );
        for pod in pods.list(&of_model).await? {
            pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
                .await?;
        }
        for (number, engine) in engines.iter().enumerate() {
            self.pod(namespace, &pod(model, number), ("app", model), *engine)
                .await?;
        }
        let slices: Api<EndpointSlice> = Api::namespaced(self.admin.clone(), namespace);
        let of_model = ListParams::default().labels(&format!("{SERVICE_NAME}={model}"));
        let mut wanted: Vec<_> = engines.iter().map(ToString::to_string).collect();
        wanted.sort();
        eventually(PATIENCE, async || {
            let listed = slices.list(&of_model).await?;
            let mut ready: Vec<_> = listed.iter().flat_map(ready).collect();
            ready.sort();
            ensure!(ready == wanted, "{ready:?} are ready, and not {wanted:?}");
            Ok(())
        })
        .await
    }

    /// Creates a ready pod with this label for an engine.
    pub async fn pod(&self, namespace: &str, name: &str, label: (&str, &str), engine: SocketAddr) -> Result<()> {
        let ports = json!([{ "name": "http", "containerPort": engine.port() }]);
        // The ServiceAccount of the namespace is created by a controller.
        eventually(PATIENCE, async || {
            self.apply(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": namespace, "labels": { label.0: label.1 } },
                "spec": { "nodeName": NODE, "containers": [{ "name": "engine", "image": "engine", "ports": ports }] },
            }))
            .await
        })
        .await?;
        let status = json!({
            "phase": "Running", "podIP": engine.ip(), "podIPs": [{ "ip": engine.ip() }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        });
        let patch = Patch::Merge(json!({ "status": status }));
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), namespace);
        pods.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// Name of a pod of [`Bed::pods`].
pub fn pod(model: &str, number: usize) -> String {
    format!("{model}-{number}")
}

/// Addresses of the ready endpoints.
fn ready(slice: &EndpointSlice) -> Vec<String> {
    let port = slice
        .ports
        .iter()
        .flatten()
        .find_map(|port| port.port)
        .unwrap_or_default();
    let endpoints = slice.endpoints.iter();
    let ready = endpoints.filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.ready == Some(true)));
    ready
        .flat_map(|endpoint| endpoint.addresses.iter().map(|address| format!("{address}:{port}")))
        .collect()
}
