//! Models of real engines: each generation has a name of its own, under which the engine lists it.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use runway_api::{ModelDeployment, labels};
use runway_operator::services::ServicePort;
use runway_testbed::Node;
use runway_testbed::engine::MODEL;
use serde_json::{Value, json};

use crate::{Bed, NAMESPACE};

/// A model of an image with llama-server. KAITO's Service targets port 5000, which its llama-server does not choose itself.
pub fn model(name: &str, provider: &str, image: &str) -> Value {
    let mut args = json!({"model": MODEL, "alias": alias(name, 1), "threads": "1"});
    if provider == "kaito" {
        json_patch::merge(&mut args, &json!({"host": "0.0.0.0", "port": "5000"}));
    }
    with_args(name, provider, image, &args)
}

/// A model of an image with these arguments.
pub fn with_args(name: &str, provider: &str, image: &str, args: &Value) -> Value {
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "provider": { "name": provider },
            "model": { "source": "custom" },
            "engine": { "type": "llamacpp", "args": args },
            "image": image,
            "resources": { "memory": "256Mi", "cpu": "10m" },
        },
    })
}

/// Name of a model in a generation.
pub fn alias(name: &str, generation: i64) -> String {
    format!("{name}-g{generation}")
}

/// The port that the status gives as the endpoint.
pub fn endpoint(md: &ModelDeployment) -> Option<ServicePort> {
    let endpoint = md.status.as_ref()?.endpoint.as_ref()?;
    Some(ServicePort {
        namespace: NAMESPACE.parse().ok()?,
        service: endpoint.service.as_deref()?.parse().ok()?,
        port: u16::try_from(endpoint.port?).ok()?,
    })
}

impl Bed<Node> {
    /// Changes the spec, and with it the name of the model. Returns the generation.
    pub async fn change_engine(&self, name: &str, mut spec: Value) -> Result<i64> {
        let md = self.deployments().get(name).await?;
        let generation = md.metadata.generation.unwrap_or_default() + 1;
        spec["engine"]["args"]["alias"] = json!(alias(name, generation));
        let changed = self.patch(name, json!({ "spec": spec })).await?;
        ensure!(
            changed.metadata.generation == Some(generation),
            "another writer of {name}"
        );
        Ok(generation)
    }

    /// Deletes the pods of a model at once.
    pub async fn remove_pods(&self, name: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let ours = ListParams::default().labels(&format!("{}={name}", labels::DEPLOYMENT));
        let now = DeleteParams::default().grace_period(0);
        for pod in pods.list(&ours).await?.items {
            match pods.delete(&pod.name_any(), &now).await {
                // One of an earlier rollout was on its way out.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}
