//! A real API server for the operator, which runs with its own identity and RBAC rules.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "helpers of tests are tests, and each uses a part of them"
)]

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleRef, Subject};
use kube::api::{DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use runway_api::{AsyncActor, AsyncActorStatus, ModelDeployment, labels};
use runway_asya_operator::{ActorArgs, Args, SecretsArgs, TransportArgs};
use runway_operator::process::Process;
pub(crate) use runway_testbed::PATIENCE;
use runway_testbed::{ControlPlane, Options, RabbitMq, RabbitMqOptions, crds, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const NAMESPACE: &str = "default";
const TRANSPORTS: &str = r#"{"transports": {"rabbitmq": {"type": "rabbitmq", "config": {"host": "rabbitmq", "username": "asya",
    "passwordSecretRef": {"name": "rabbitmq", "key": "password"}}}}}"#;

pub(crate) struct Bed {
    pub(crate) cluster: ControlPlane,
    pub(crate) admin: Client,
}

pub(crate) struct Running {
    task: JoinHandle<()>,
    shutdown: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.task.abort();
    }
}

impl Bed {
    pub(crate) async fn start() -> Result<Self> {
        let mut all = vec![AsyncActor::crd(), ModelDeployment::crd()];
        all.extend(crds::upstream_crds(&[
            crds::KEDA_SCALED_OBJECTS,
            crds::KEDA_TRIGGER_AUTHENTICATIONS,
            crds::KSERVE_INFERENCE_SERVICES,
        ])?);
        let options = Options {
            crds: all,
            ..Options::default()
        };
        let cluster = ControlPlane::start(options).await?;
        let admin = cluster.client("test-admin", &["system:masters"]).await?;
        let bed = Self { cluster, admin };
        bed.grant(labels::ASYA_MANAGER, runway_asya_operator::access()).await?;
        Ok(bed)
    }

    pub(crate) async fn grant(&self, user: &str, rules: Vec<k8s_openapi::api::rbac::v1::PolicyRule>) -> Result<()> {
        let metadata = ObjectMeta {
            name: Some(user.to_owned()),
            ..ObjectMeta::default()
        };
        let role = ClusterRole {
            metadata: metadata.clone(),
            rules: Some(rules),
            ..ClusterRole::default()
        };
        let binding = ClusterRoleBinding {
            metadata,
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".to_owned(),
                kind: "ClusterRole".to_owned(),
                name: user.to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "User".to_owned(),
                name: user.to_owned(),
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                namespace: None,
            }]),
        };
        Api::all(self.admin.clone())
            .create(&PostParams::default(), &role)
            .await?;
        Api::all(self.admin.clone())
            .create(&PostParams::default(), &binding)
            .await?;
        Ok(())
    }

    /// Starts the operator with the rules of its role only. Sidecars manage the queues, because no broker runs here.
    pub(crate) async fn operator(&self) -> Result<Running> {
        self.operator_with(Args {
            disable_queue_management: true,
            ..arguments(TRANSPORTS, "/nowhere".into())
        })
        .await
    }

    pub(crate) async fn operator_with(&self, args: Args) -> Result<Running> {
        let client = self.cluster.client(labels::ASYA_MANAGER, &[]).await?;
        let shutdown = CancellationToken::new();
        let process = Process::alone(client, shutdown.clone());
        let task = tokio::spawn(async move {
            runway_asya_operator::run(process, args).await.unwrap();
        });
        Ok(Running { task, shutdown })
    }

    pub(crate) fn actors(&self) -> Api<AsyncActor> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) fn dynamic(&self, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        Api::namespaced_with(self.admin.clone(), NAMESPACE, &resource)
    }

    pub(crate) fn scaled_objects(&self) -> Api<DynamicObject> {
        self.dynamic("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> Result<()> {
        create_as(&self.admin, name, spec).await
    }

    pub(crate) async fn status(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&AsyncActorStatus) -> bool,
    ) -> Result<AsyncActorStatus> {
        eventually(PATIENCE, async || {
            let status = self.actors().get(name).await?.status.unwrap_or_default();
            if wanted(&status) {
                return Ok(status);
            }
            bail!("{name} is not {what}: {}", serde_json::to_string_pretty(&status)?)
        })
        .await
    }

    pub(crate) async fn word(&self, name: &str, word: &str) -> Result<AsyncActorStatus> {
        self.status(name, word, |s| s.status.as_deref() == Some(word)).await
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.actors().delete(name, &DeleteParams::background()).await?;
        self.gone(name).await
    }

    pub(crate) async fn gone(&self, name: &str) -> Result<()> {
        eventually(PATIENCE, async || match self.actors().get_opt(name).await? {
            None => Ok(()),
            Some(actor) => bail!("{name} is still there: {}", serde_json::to_string_pretty(&actor)?),
        })
        .await
    }

    pub(crate) async fn model_server(&self, name: &str) -> Result<Value> {
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"team": "a"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "model", "image": "vllm:1", "ports": [{"containerPort": 8000}],
                    "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}}}]}}},
        });
        self.deployments()
            .create(&PostParams::default(), &serde_json::from_value(deployment)?)
            .await?;
        let observed = eventually(PATIENCE, async || {
            let live = self.deployments().get(name).await?;
            let status = live.status.clone().unwrap_or_default();
            ensure!(status.observed_generation == live.metadata.generation && status.replicas >= Some(2));
            Ok(live)
        })
        .await?;
        Ok(likeness(&observed))
    }
}

/// A cluster, and a broker with a management API; the operator's transports with these settings of the queues.
pub(crate) async fn with_management(queues: Value) -> Result<(Bed, RabbitMq, String)> {
    let options = RabbitMqOptions {
        management: true,
        ..RabbitMqOptions::default()
    };
    let (bed, rabbit) = tokio::join!(Bed::start(), RabbitMq::start(options));
    let (bed, rabbit) = (bed?, rabbit?);
    let (host, port) = rabbit.address();
    let transports = json!({"transports": {"rabbitmq": {"type": "rabbitmq", "config": {
        "host": host, "port": port, "managementPort": rabbit.management_port(), "queues": queues}}}});
    Ok((bed, rabbit, transports.to_string()))
}

/// Arguments of the operator, without a wait after a conflict.
pub(crate) fn arguments(transports: &str, secrets_dir: PathBuf) -> Args {
    Args {
        actors: ActorArgs {
            transports: TransportArgs {
                transport_config: transports.to_owned(),
            },
            sidecar_image: "asya-sidecar:1".to_owned(),
        },
        gateway_url: None,
        disable_queue_management: false,
        conflict_wait: 0,
        secrets: SecretsArgs { secrets_dir },
    }
}

/// The object without fields that the API server maintains, and without the Deployment controller's revision.
pub(crate) fn likeness(deployment: &Deployment) -> Value {
    let mut annotations = deployment.annotations().clone();
    annotations.remove("deployment.kubernetes.io/revision");
    json!({
        "spec": deployment.spec, "annotations": annotations, "labels": deployment.labels(),
        "owners": deployment.owner_references(), "finalizers": deployment.finalizers(), "uid": deployment.uid(),
    })
}

pub(crate) async fn create_as(client: &Client, name: &str, spec: Value) -> Result<()> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::erase::<AsyncActor>(&()));
    let actor =
        json!({"apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": name}, "spec": spec});
    api.create(&PostParams::default(), &serde_json::from_value(actor)?)
        .await?;
    Ok(())
}
