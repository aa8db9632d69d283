//! A model router between clients and engines, each of which can be killed at any time.
//!
//! The API server is a real one, and the router is a process. No provider runs: a [`Model`] writes the status that one would
//! write, and starts and ends the engine. The engine is a program without a model: it answers at once.
//!
//! | module | content |
//! |---|---|
//! | [`client`] | requests, one connection each or several on one |
//! | [`router`] | the router as a process |
//! | [`model`] | a ModelDeployment, its status and its engine |
//! | [`pods`] | pods of a model for engines that run on this machine |
//! | [`held`] | many requests that a router holds |
//! | [`load`] | steady requests while a model changes, and what their clients saw |
//! | [`tokens`] | streams that clients and engines end early, and what was counted |
//! | [`zero`] | cycles from zero and back to zero, with kills |

pub mod client;
pub mod held;
pub mod load;
pub mod model;
pub mod pods;
pub mod router;
pub mod tokens;
pub mod zero;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::fault::plan::mixed;
use crate::{ControlPlane, Options, apply};

pub use client::{Answer, Begun, Connection};
pub use load::Load;
pub use model::Model;
pub use router::Router;

/// User of the router, with the permissions that it declares.
pub const ROUTER: &str = "kubeairunway-gateway";
/// A bearer key that [`Bed::start`] writes, for all models of [`NAMESPACE`].
pub const KEY: &str = "the key of the shop, long";
/// Namespace of the models of that key.
pub const NAMESPACE: &str = "a";
/// Another namespace.
pub const OTHER_NAMESPACE: &str = "b";

/// The programs of the router, built for this machine.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `gateway-on-loopback`: the router, which finds every engine on this machine.
    pub router: PathBuf,
    /// `gateway-test-engine`.
    pub engine: PathBuf,
}

impl Programs {
    /// The programs of a folder.
    pub fn in_folder(path: impl Fn(&str) -> PathBuf) -> Self {
        Self {
            router: path("gateway-on-loopback"),
            engine: path("gateway-test-engine"),
        }
    }
}

/// A real API server for ModelDeployments, and what a router needs.
pub struct Bed {
    /// The control plane.
    pub cluster: ControlPlane,
    /// A user who may do anything.
    pub admin: Client,
    /// Folder of the keys of callers.
    pub keys: tempfile::TempDir,
}

impl Bed {
    /// Starts it, with the CRD of ModelDeployments and the permissions of a router.
    pub async fn start(models: CustomResourceDefinition, access: &[PolicyRule]) -> Result<Self> {
        let cluster = ControlPlane::start(Options {
            crds: vec![models],
            ..Options::default()
        })
        .await?;
        let admin = cluster.client("test-admin", &["system:masters"]).await?;
        let keys = tempfile::tempdir()?;
        let key = json!({ "key": KEY, "models": [format!("{NAMESPACE}/*")] });
        std::fs::write(keys.path().join("shop"), key.to_string())?;
        let bed = Self { cluster, admin, keys };
        for namespace in [NAMESPACE, OTHER_NAMESPACE] {
            let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            bed.apply(object).await?;
        }
        let rules = serde_json::to_value(access)?;
        bed.role(ROUTER, &rules, &json!({ "kind": "User", "name": ROUTER }))
            .await?;
        Ok(bed)
    }

    /// Applies an object.
    pub async fn apply(&self, object: Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(object)?;
        apply::apply(&self.admin, &object, "test").await?;
        Ok(())
    }

    /// Grants rules in all namespaces to a subject.
    pub async fn role(&self, name: &str, rules: &Value, subject: &Value) -> Result<()> {
        let group = "rbac.authorization.k8s.io";
        let version = format!("{group}/v1");
        self.apply(json!({
            "apiVersion": version, "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules,
        }))
        .await?;
        self.apply(json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name }, "subjects": [subject],
        }))
        .await
    }

    /// Creates a model with this served name and number of replicas. No provider runs: [`Self::serves`] replaces it.
    pub async fn model(&self, namespace: &str, name: &str, served: &str, replicas: i32) -> Result<()> {
        self.apply(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "model": { "id": format!("org/{served}") }, "engine": { "type": "llamacpp" },
                "scaling": { "replicas": replicas },
            },
        }))
        .await
    }

    /// Writes the status of a model with a ready replica at this port.
    pub async fn serves(&self, namespace: &str, name: &str, port: u16) -> Result<()> {
        let status = json!({ "endpoint": { "service": name, "port": port }, "replicas": { "ready": 1 } });
        self.status(namespace, name, status).await
    }

    /// Merges this into the status of a model.
    pub async fn status(&self, namespace: &str, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.objects(namespace)
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// The ModelDeployments of a namespace. The test bed does not depend on their type.
    pub(crate) fn objects(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("kubeairunway.ai", "v1alpha1", "ModelDeployment");
        let resource = ApiResource::from_gvk_with_plural(&kind, "modeldeployments");
        Api::namespaced_with(self.admin.clone(), namespace, &resource)
    }
}

/// Numbers of one part of a run. The same seed chooses the same for each part.
struct Random(u64);

impl Random {
    /// Numbers of the part with this number.
    fn of(seed: u64, number: usize) -> Self {
        let number = u64::try_from(number).unwrap_or(u64::MAX);
        Self(mixed(mixed(seed).wrapping_add(number)))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = mixed(self.0);
        self.0 % end
    }

    fn milliseconds(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most))
    }
}
