//! Injection of each fault, and its end if no controller ends it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::ModelDeployment;
use runway_api::condition::{self, Conditions as _};
use runway_api::labels::{self, CORE_MANAGER};
use runway_dev_cluster::installed::{NAME, deployment, has_ended};
use runway_manifests::{NAMESPACE, WEBHOOK_SECRET};
use runway_testbed::traffic::client::post;
use runway_testbed::{PATIENCE, eventually, node};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{CONTROLLERS, Campaign, PROVIDER, invalid};

/// An image that no registry has.
const ABSENT: &str = "registry.invalid/engine:1";
/// A program that no image has.
const MISSING: &str = "/missing";
/// Models that are created at once, and the share of those that are invalid.
const MANY: usize = 1000;
const INVALID_ONE_IN: usize = 10;
/// Requests at the same time.
const PARALLEL: usize = 16;
/// A finalizer of another controller.
const FOREIGN: &str = "example.org/block";
/// Time of a fault that is taken back.
const OUTAGE: Duration = Duration::from_secs(20);
/// Configurations of the admission webhooks.
const WEBHOOKS: [&str; 2] = [
    "mutatingwebhookconfiguration/kubeairunway-mutating",
    "validatingwebhookconfiguration/kubeairunway-validating",
];

impl Campaign {
    pub(super) async fn pod_kill(&mut self) -> Result<()> {
        let all = [
            "delete",
            "pods",
            "-n",
            NAMESPACE,
            "--all",
            "--grace-period=0",
            "--force",
        ];
        self.installed.kubectl(&all).await
    }

    pub(super) async fn deployment_scale_zero(&mut self) -> Result<()> {
        self.scale([0, 0]).await?;
        self.no_pods("").await?;
        self.change_arguments(256).await?;
        self.scale([2, 1]).await
    }

    pub(super) async fn leader_election_disrupt(&mut self) -> Result<()> {
        let all = ["delete", "leases", "-n", NAMESPACE, "--all"];
        self.installed.kubectl(&all).await
    }

    pub(super) async fn network_partition(&mut self) -> Result<()> {
        self.partition("-I").await?;
        self.change_arguments(512).await?;
        tokio::time::sleep(OUTAGE).await;
        self.partition("-D").await
    }

    pub(super) async fn api_server_outage(&mut self) -> Result<()> {
        self.installed.node.stop_apiserver().await;
        tokio::time::sleep(OUTAGE).await;
        self.installed.node.start_apiserver().await
    }

    pub(super) async fn etcd_outage(&mut self) -> Result<()> {
        self.installed.node.kill_etcd().await?;
        tokio::time::sleep(OUTAGE).await;
        self.installed.node.start_etcd().await
    }

    pub(super) async fn disk_full(&mut self) -> Result<()> {
        self.disk_alarm("ACTIVATE").await?;
        let killed = self.kill_engine().await;
        tokio::time::sleep(OUTAGE).await;
        self.disk_alarm("DEACTIVATE").await?;
        self.installed.restarted(&killed?).await
    }

    pub(super) async fn node_loss(&mut self) -> Result<()> {
        self.installed.node.pause("kubelet")?;
        let lost = async {
            self.kill_engine().await?;
            self.is_not_ready().await
        };
        let lost = lost.await;
        self.installed.node.resume("kubelet")?;
        lost
    }

    pub(super) async fn memory_loss(&mut self) -> Result<()> {
        self.installed.node.take_memory()?;
        let rejected = self.is_unschedulable().await;
        self.installed.node.give_memory()?;
        rejected
    }

    pub(super) async fn image_corrupt(&mut self) -> Result<()> {
        self.template(&json!({ "image": ABSENT })).await
    }

    pub(super) async fn crash_loop_inject(&mut self) -> Result<()> {
        self.template(&json!({ "command": [MISSING] })).await
    }

    pub(super) async fn secret_deletion(&mut self) -> Result<()> {
        let delete = ["delete", "secret", WEBHOOK_SECRET, "-n", NAMESPACE];
        self.installed.kubectl(&delete).await
    }

    pub(super) async fn config_drift(&mut self) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.installed.client(), NAMESPACE);
        let data = secrets.get(WEBHOOK_SECRET).await?.data.unwrap_or_default();
        let data: serde_json::Map<_, _> = data.into_keys().map(|key| (key, json!("AAAA"))).collect();
        let name = format!("secret/{WEBHOOK_SECRET}");
        self.patch(&name, NAMESPACE, &json!({ "data": data })).await
    }

    pub(super) async fn webhook_disrupt(&mut self) -> Result<()> {
        self.webhooks(&json!({ "clientConfig/caBundle": null, "failurePolicy": "Fail" }))
            .await?;
        self.works().await.context("with failurePolicy Fail")?;
        self.webhooks(&json!({ "failurePolicy": "Ignore" })).await
    }

    /// Creates models while no core runs. Once it runs again, each has its Deployment, or a status that says why not.
    pub(super) async fn webhook_away(&mut self) -> Result<()> {
        self.scale([0, 1]).await?;
        self.no_pods(CORE_MANAGER).await?;
        let models = self.installed.models();
        let created = (0..MANY).map(async |number| {
            let model = if number % INVALID_ONE_IN == 0 {
                invalid(&format!("invalid-{number}"))?
            } else {
                self.sleeper(&format!("sleeper-{number}"))?
            };
            anyhow::Ok(models.create(&PostParams::default(), &model).await?.name_any())
        });
        let names: Vec<String> = stream::iter(created).buffered(PARALLEL).try_collect().await?;
        self.scale([2, 1]).await?;
        let deployments: Api<Deployment> = Api::default_namespaced(self.installed.client());
        eventually(PATIENCE, async || {
            let all = deployments.list_metadata(&ListParams::default()).await?;
            let deployed: BTreeSet<String> = all.iter().map(ResourceExt::name_any).collect();
            for model in models.list(&ListParams::default()).await? {
                is_judged(&model, deployed.contains(&model.name_any()))?;
            }
            Ok(())
        })
        .await?;
        let deleted = names
            .iter()
            .map(async |name| models.delete(name, &DeleteParams::default()).await.map(drop));
        stream::iter(deleted).buffered(PARALLEL).try_collect::<()>().await?;
        eventually(PATIENCE, async || {
            let left = models.list_metadata(&ListParams::default()).await?.items.len();
            let of_deployments = deployments.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(
                left == 1 && of_deployments == 1,
                "{left} models, {of_deployments} Deployments are left"
            );
            Ok(())
        })
        .await
    }

    pub(super) async fn webhook_latency(&mut self) -> Result<()> {
        // Accepts connections and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}/", silent.local_addr()?);
        self.create(&slow_webhook(&url)).await?;
        self.change_arguments(768).await?;
        self.installed.settled().await?;
        let delete = ["delete", "validatingwebhookconfiguration", "slow"];
        self.installed.kubectl(&delete).await
    }

    pub(super) async fn crd_mutation(&mut self) -> Result<()> {
        let set = ["set", "image", &deployment(NAME), &format!("*={ABSENT}")];
        self.installed.kubectl(&set).await?;
        self.model(|spec| {
            let image = &spec["spec"]["template"]["spec"]["containers"][0]["image"];
            ensure!(image != ABSENT, "the image is {image}");
            Ok(())
        })
        .await
    }

    pub(super) async fn label_stomping(&mut self) -> Result<()> {
        let (owner, provider) = (labels::MANAGED_BY, labels::PROVIDER);
        let stomp = [
            "label",
            "--overwrite",
            &deployment(NAME),
            &format!("{owner}=another"),
            &format!("{provider}-"),
        ];
        self.installed.kubectl(&stomp).await?;
        self.model(|object| {
            let labels = &object["metadata"]["labels"];
            ensure!(labels[owner] == labels::MANAGED_BY_VALUE, "{labels}");
            ensure!(labels[provider] == PROVIDER, "{labels}");
            Ok(())
        })
        .await
    }

    pub(super) async fn owner_ref_orphan(&mut self) -> Result<()> {
        let deployments: Api<Deployment> = Api::default_namespaced(self.installed.client());
        let owners = deployments.get(NAME).await?.metadata.owner_references;
        let set = |owners: Value| json!({ "metadata": { "ownerReferences": owners } });
        self.patch(&deployment(NAME), "default", &set(Value::Null)).await?;
        self.says(NAME, "was not created for this ModelDeployment").await?;
        self.patch(&deployment(NAME), "default", &set(json!(owners))).await
    }

    pub(super) async fn resource_deletion(&mut self) -> Result<()> {
        let services: Api<Service> = Api::default_namespaced(self.installed.client());
        let before = services.get(NAME).await?.uid();
        services.delete(NAME, &DeleteParams::default()).await?;
        eventually(PATIENCE, async || {
            ensure!(services.get(NAME).await?.uid() != before, "still the old one");
            Ok(())
        })
        .await
    }

    pub(super) async fn finalizer_block(&mut self) -> Result<()> {
        const NAME: &str = "blocked";
        self.asleep(NAME).await?;
        let finalizers = |names: &[&str]| json!({ "metadata": { "finalizers": names } });
        self.patch(&deployment(NAME), "default", &finalizers(&[FOREIGN]))
            .await?;
        let delete = DeleteParams::default();
        self.installed.models().delete(NAME, &delete).await?;
        self.says(NAME, FOREIGN).await?;
        self.works().await.context("with the finalizer")?;
        self.patch(&deployment(NAME), "default", &finalizers(&[])).await?;
        self.is_gone(NAME).await
    }

    pub(super) async fn quota_exhaustion(&mut self) -> Result<()> {
        self.installed
            .kubectl(&["create", "quota", "none", "--hard=pods=1"])
            .await?;
        self.installed.patch(json!({ "scaling": { "replicas": 2 } })).await?;
        self.says(NAME, "exceeded quota").await?;
        self.installed.kubectl(&["delete", "quota", "none"]).await?;
        self.installed.settled().await?;
        self.installed.change(json!({ "scaling": { "replicas": 1 } })).await
    }

    pub(super) async fn rbac_revoke(&mut self) -> Result<()> {
        let bindings = CONTROLLERS.map(|name| format!("clusterrolebinding/{name}"));
        let before = self.subjects(&bindings).await?;
        for name in &bindings {
            self.patch(name, "", &json!({ "subjects": [] })).await?;
        }
        self.change_arguments(256).await?;
        tokio::time::sleep(OUTAGE).await;
        for (name, subjects) in bindings.iter().zip(before) {
            self.patch(name, "", &json!({ "subjects": subjects })).await?;
        }
        Ok(())
    }

    pub(super) async fn pdb_block(&mut self) -> Result<()> {
        let budget = ["create", "pdb", "none", "-n", NAMESPACE, "--max-unavailable=0"];
        let selector = format!("--selector=kubeairunway.ai/managed-by={}", labels::MANAGED_BY_VALUE);
        self.installed.kubectl(&[&budget[..], &[&selector]].concat()).await?;
        self.works().await.context("with the budget")?;
        self.installed
            .kubectl(&["delete", "pdb", "none", "-n", NAMESPACE])
            .await
    }

    pub(super) async fn namespace_deletion(&mut self) -> Result<()> {
        let installed = &self.installed;
        installed.kubectl(&["delete", "namespace", NAMESPACE]).await?;
        let namespaces: Api<Namespace> = Api::all(installed.client());
        ensure!(namespaces.get_opt(NAMESPACE).await?.is_none(), "it is still there");
        self.load.is_answered().await?;
        installed.kubeairunway(&["controller", "install", "--yes"]).await?;
        installed
            .kubeairunway(&["provider", "install", PROVIDER, "--yes"])
            .await
    }

    /// Waits until the message of a model contains this text.
    async fn says(&self, name: &str, text: &str) -> Result<()> {
        eventually(PATIENCE, async || {
            let status = self.installed.models().get(name).await?.status.unwrap_or_default();
            let message = status.message.unwrap_or_default();
            ensure!(message.contains(text), "'{text}' is not in the message: {message}");
            Ok(())
        })
        .await
    }

    /// A change that replaces the model's pod.
    async fn change_arguments(&self, context: u32) -> Result<()> {
        let args = json!({ "engine": { "args": { "ctx-size": context.to_string() } } });
        self.installed.patch(args).await
    }

    async fn scale(&self, replicas: [u32; 2]) -> Result<()> {
        for (name, replicas) in CONTROLLERS.iter().zip(replicas) {
            let scale = [
                "scale",
                "-n",
                NAMESPACE,
                &deployment(name),
                &format!("--replicas={replicas}"),
            ];
            self.installed.kubectl(&scale).await?;
        }
        Ok(())
    }

    /// Waits until no pod is left whose name begins so.
    async fn no_pods(&self, prefix: &str) -> Result<()> {
        eventually(PATIENCE, async || {
            let pods = self.pods().await?;
            let left = pods.iter().filter(|pod| pod.name_any().starts_with(prefix)).count();
            ensure!(left == 0, "{left} pods of controllers are left");
            Ok(())
        })
        .await
    }

    /// Pods of the controllers.
    async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.installed.client(), NAMESPACE);
        Ok(pods.list(&ListParams::default()).await?.items)
    }

    /// Adds (`-I`) or deletes (`-D`) the rule that drops everything from the controllers' pods.
    async fn partition(&self, what: &str) -> Result<()> {
        for pod in self.pods().await? {
            let address = pod
                .status
                .and_then(|status| status.pod_ip)
                .context("a pod without an address")?;
            let mut iptables = self.installed.node.command("iptables");
            iptables.args([what, "FORWARD", "-s", &address, "-j", "DROP"]);
            ensure!(iptables.status().await?.success(), "iptables failed");
        }
        Ok(())
    }

    /// Changes the first container of the controllers' pods; when new ones have failed and the old ones still work, undoes it.
    async fn template(&self, change: &Value) -> Result<()> {
        for name in CONTROLLERS {
            let mut container = change.clone();
            container["name"] = json!(name);
            let patch = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
            let patch = ["patch", &deployment(name), "-n", NAMESPACE, "-p", &patch.to_string()];
            self.installed.kubectl(&patch).await?;
        }
        eventually(PATIENCE, async || {
            let pods = self.pods().await?;
            let waiting = pods.iter().filter(|pod| has_failed(pod)).count();
            ensure!(waiting >= CONTROLLERS.len(), "{waiting} pods have failed");
            Ok(())
        })
        .await?;
        self.asleep("probe").await.context("while new pods do not start")?;
        self.deleted("probe").await.context("while new pods do not start")?;
        for name in CONTROLLERS {
            let undo = ["rollout", "undo", &deployment(name), "-n", NAMESPACE];
            self.installed.kubectl(&undo).await?;
        }
        Ok(())
    }

    /// Sets fields of every webhook of the product, or removes them.
    async fn webhooks(&self, fields: &Value) -> Result<()> {
        for configuration in WEBHOOKS {
            let fields = fields.as_object().context("fields are an object")?;
            let operations: Vec<Value> = fields.iter().map(|(path, value)| operation(path, value)).collect();
            let patch = [
                "patch",
                configuration,
                "--type=json",
                "-p",
                &json!(operations).to_string(),
            ];
            self.installed.kubectl(&patch).await?;
        }
        Ok(())
    }

    /// Waits until the model's Deployment is as this says.
    async fn model(&self, check: impl Fn(&Value) -> Result<()>) -> Result<()> {
        let deployments: Api<Deployment> = Api::default_namespaced(self.installed.client());
        eventually(PATIENCE, async || check(&json!(deployments.get(NAME).await?))).await
    }

    /// Raises or lowers etcd's alarm of a full disk, with which it refuses every write.
    async fn disk_alarm(&self, action: &str) -> Result<()> {
        let alarm = json!({ "action": action, "alarm": "NOSPACE" });
        post(self.installed.node.etcd(), "/v3/maintenance/alarm", &alarm)
            .await
            .map(drop)
    }

    /// Kills the engine in the model's pod, and returns the pod as it was before.
    async fn kill_engine(&self) -> Result<Pod> {
        let pod = self.installed.pods().await?.pop().context("the model has no pod")?;
        self.installed.node.kill(&node::running(&pod)?).await?;
        Ok(pod)
    }

    /// Waits until the model's status no longer says that it is ready.
    async fn is_not_ready(&self) -> Result<()> {
        eventually(PATIENCE, async || {
            let status = self.installed.models().get(NAME).await?.status.unwrap_or_default();
            ensure!(!status.conditions.is_true(condition::READY), "the model is still Ready");
            Ok(())
        })
        .await
    }

    /// Waits until the model's pod was rejected, and its status says that the next one cannot be scheduled.
    async fn is_unschedulable(&self) -> Result<()> {
        eventually(PATIENCE, async || {
            let pods = self.installed.pods().await?;
            ensure!(pods.iter().any(has_ended), "no pod of the model was rejected");
            Ok(())
        })
        .await?;
        self.says(NAME, "cannot be scheduled").await
    }

    async fn subjects(&self, bindings: &[String]) -> Result<Vec<Value>> {
        let mut subjects = Vec::new();
        for name in bindings {
            let output = self
                .installed
                .node
                .kubectl()?
                .args(["get", name, "-o", "json"])
                .output()
                .await?;
            let binding: Value = serde_json::from_slice(&output.stdout).with_context(|| name.clone())?;
            subjects.push(binding["subjects"].clone());
        }
        Ok(subjects)
    }

    async fn patch(&self, name: &str, namespace: &str, patch: &Value) -> Result<()> {
        let mut args = vec!["patch", name, "--type=merge"];
        if !namespace.is_empty() {
            args.extend(["-n", namespace]);
        }
        let patch = patch.to_string();
        self.installed.kubectl(&[&args[..], &["-p", &patch]].concat()).await
    }

    async fn create(&self, object: &Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        runway_dev_cluster::apply(&self.installed.client(), &object)
            .await
            .map(drop)
    }
}

/// Checks that the status is of the current spec, and that either the model has its Deployment or is stalled.
fn is_judged(model: &ModelDeployment, is_deployed: bool) -> Result<()> {
    let (name, status) = (model.name_any(), model.status.clone().unwrap_or_default());
    ensure!(
        status.observed_generation == model.metadata.generation,
        "the status of {name} is of generation {:?}",
        status.observed_generation
    );
    let is_stalled = status.conditions.is_true(condition::STALLED);
    ensure!(
        is_stalled != is_deployed && is_stalled == name.starts_with("invalid"),
        "{name} is stalled: {is_stalled}, and has a Deployment: {is_deployed}: {}",
        status.message.unwrap_or_default()
    );
    Ok(())
}

/// Whether the image of a pod cannot be pulled, or its program not be started.
fn has_failed(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    statuses
        .filter_map(|status| status.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
        .any(|reason| {
            [
                "ErrImagePull",
                "ImagePullBackOff",
                "CrashLoopBackOff",
                "RunContainerError",
            ]
            .contains(&reason)
        })
}

/// JSON patch of a field of the first webhook of a configuration.
fn operation(path: &str, value: &Value) -> Value {
    let path = format!("/webhooks/0/{path}");
    if value.is_null() {
        json!({ "op": "remove", "path": path })
    } else {
        json!({ "op": "replace", "path": path, "value": value })
    }
}

/// A webhook whose server does not answer, so that each write waits for its timeout.
fn slow_webhook(url: &str) -> Value {
    let rule = |group: &str, resource: &str| json!({ "apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["CREATE", "UPDATE"] });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "slow" },
        "webhooks": [{
            "name": "slow.example.org", "clientConfig": { "url": url }, "timeoutSeconds": 5, "failurePolicy": "Ignore",
            "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "rules": [rule("kubeairunway.ai", "modeldeployments"), rule("apps", "deployments")],
        }],
    })
}
