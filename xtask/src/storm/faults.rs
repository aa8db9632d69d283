//! `storm --installed`: faults of a cluster that the product must survive, on a real node, with the product in pods as users install
//! it, and with clients that ask a model all the time.
//!
//! The faults are those of opendatahub-io/operator-chaos (site/docs/failure-modes at edb1c04), under its names, except for
//! ClientFault, which the rest of the campaign does at every write; and faults of what the cluster itself consists of.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::ModelDeployment;
use runway_api::condition::{self, Conditions as _};
use runway_api::labels::{self, CORE_MANAGER};
use runway_client::manifests::{NAMESPACE, WEBHOOK_SECRET};
use runway_testbed::traffic::client::post;
use runway_testbed::traffic::load::{Load, Seen};
use runway_testbed::{PATIENCE, eventually, node};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::installed::{Installed, NAME, deployment, has_ended};
use crate::record;
use crate::up::step;

const PROVIDER: &str = "direct";
/// Deployments of the controllers.
const CONTROLLERS: [&str; 2] = [CORE_MANAGER, "direct-provider"];
/// An image that no registry has.
const ABSENT: &str = "registry.invalid/engine:1";
/// A program that no image has.
const MISSING: &str = "/missing";
/// Models that are created at once, as many as the node has addresses for Services, and the share of those that are invalid.
const MANY: usize = 200;
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

/// Faults of the installed product.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Inject faults, such as killed pods, revoked rights and outages, into the product on a real node.
    #[arg(long, conflicts_with_all = ["all", "scenario", "states", "seed", "changes", "walk"])]
    pub(super) installed: bool,
    /// With --installed: only the fault of this name, such as PodKill.
    #[arg(long, value_name = "NAME", requires = "installed", conflicts_with = "docs")]
    fault: Option<String>,
    /// With --installed: write the table into docs/reliability.md, in place of that of the run before.
    #[arg(long, requires = "installed")]
    docs: bool,
    /// With --installed: run a development build.
    #[arg(long, requires = "installed")]
    unoptimised: bool,
}

/// A fault, and what followed.
struct Row {
    name: &'static str,
    effect: &'static str,
    seen: Seen,
    /// The fault concerns what the requests need.
    may_fail: bool,
    /// Time until everything worked again after the fault was over, or what did not.
    recovered: Result<Duration, String>,
}

/// Injects one fault after the other. Fails at the end if any was not survived.
pub(super) async fn run(options: &Options) -> Result<()> {
    let installed = Installed::start("storm --installed", !options.unoptimised, &[], &[PROVIDER]).await?;
    installed.deploy(PROVIDER).await?;
    let load = Load::begin(&[installed.at_service()]);
    load.is_answered().await?;
    let mut campaign = Campaign {
        installed,
        load,
        only: options.fault.clone(),
        may_fail: false,
        rows: Vec::new(),
    };
    campaign.works().await.context("before any fault")?;
    campaign.all().await;
    let Campaign { installed, rows, .. } = campaign;
    installed.node.stop().await?;
    let table = table(&rows);
    println!("\n{table}");
    if options.docs {
        record::write_down(record::RELIABILITY, "storm --installed --docs", &table)?;
    }
    let only = options.fault.as_deref().unwrap_or_default();
    ensure!(
        !rows.is_empty(),
        "unknown fault '{only}': docs/reliability.md lists all"
    );
    let failed: Vec<String> = rows.iter().filter_map(Row::failure).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

struct Campaign {
    installed: Installed,
    load: Load,
    /// The only fault to inject.
    only: Option<String>,
    /// Requests may fail because of the fault that is injected.
    may_fail: bool,
    rows: Vec<Row>,
}

impl Campaign {
    async fn all(&mut self) {
        self.processes().await;
        self.control_plane().await;
        self.templates().await;
        self.admission().await;
        self.objects().await;
        self.limits().await;
        self.installation().await;
    }

    async fn processes(&mut self) {
        let effect = "all controllers' pods are deleted without grace";
        self.fault("PodKill", effect, async |campaign| {
            let all = [
                "delete",
                "pods",
                "-n",
                NAMESPACE,
                "--all",
                "--grace-period=0",
                "--force",
            ];
            campaign.installed.kubectl(&all).await
        })
        .await;
        let effect = "the controllers' Deployments are scaled to 0, and the model is changed meanwhile";
        self.fault("DeploymentScaleZero", effect, async |campaign| {
            campaign.scale([0, 0]).await?;
            campaign.no_pods("").await?;
            campaign.change_arguments(256).await?;
            campaign.scale([2, 1]).await
        })
        .await;
        let effect = "all Leases of the controllers are deleted";
        self.fault("LeaderElectionDisrupt", effect, async |campaign| {
            let all = ["delete", "leases", "-n", NAMESPACE, "--all"];
            campaign.installed.kubectl(&all).await
        })
        .await;
        let effect = "no packet of the controllers' pods is forwarded for 20 s, and the model is changed meanwhile";
        self.fault("NetworkPartition", effect, async |campaign| {
            campaign.partition("-I").await?;
            campaign.change_arguments(512).await?;
            tokio::time::sleep(OUTAGE).await;
            campaign.partition("-D").await
        })
        .await;
    }

    async fn control_plane(&mut self) {
        let effect = "kube-apiserver is away for 20 s";
        self.fault("API server outage", effect, async |campaign| {
            campaign.installed.node.stop_apiserver().await;
            tokio::time::sleep(OUTAGE).await;
            campaign.installed.node.start_apiserver().await
        })
        .await;
        let effect = "etcd is killed, and away for 20 s";
        self.fault("EtcdOutage", effect, async |campaign| {
            campaign.installed.node.kill_etcd().await?;
            tokio::time::sleep(OUTAGE).await;
            campaign.installed.node.start_etcd().await
        })
        .await;
        let effect =
            "the disk of etcd is full for 20 s, so that every write fails; a pod of the model is killed meanwhile";
        self.fault("DiskFull", effect, async |campaign| {
            campaign.may_fail = true;
            campaign.disk_alarm("ACTIVATE").await?;
            let pod = campaign.kill_engine().await?;
            tokio::time::sleep(OUTAGE).await;
            campaign.disk_alarm("DEACTIVATE").await?;
            campaign.installed.restarted(&pod).await
        })
        .await;
        let effect = "the kubelet stands still and the engine is killed, until the node and the model are not ready";
        self.fault("NodeLoss", effect, async |campaign| {
            campaign.may_fail = true;
            campaign.installed.node.pause("kubelet")?;
            let lost = async {
                campaign.kill_engine().await?;
                campaign.is_not_ready().await
            };
            let lost = lost.await;
            campaign.installed.node.resume("kubelet")?;
            lost
        })
        .await;
        let effect = "the kubelet restarts with less memory than its pods request, and rejects the model's pod";
        self.fault("MemoryLoss", effect, async |campaign| {
            campaign.may_fail = true;
            campaign.installed.node.take_memory()?;
            let rejected = campaign.is_unschedulable().await;
            campaign.installed.node.give_memory()?;
            rejected
        })
        .await;
    }

    async fn templates(&mut self) {
        let effect = "the controllers' Deployments get an image that does not exist";
        self.fault("ImageCorrupt", effect, async |campaign| {
            campaign.template(&json!({ "image": ABSENT })).await
        })
        .await;
        let effect = "the controllers' Deployments get a command that does not exist";
        self.fault("CrashLoopInject", effect, async |campaign| {
            campaign.template(&json!({ "command": [MISSING] })).await
        })
        .await;
    }

    async fn admission(&mut self) {
        let effect = "the Secret of the webhook's authority is deleted";
        self.fault("SecretDeletion", effect, async |campaign| {
            let delete = ["delete", "secret", WEBHOOK_SECRET, "-n", NAMESPACE];
            campaign.installed.kubectl(&delete).await
        })
        .await;
        let effect = "every value of that Secret is overwritten";
        self.fault("ConfigDrift", effect, async |campaign| {
            let secrets: Api<Secret> = Api::namespaced(campaign.installed.client(), NAMESPACE);
            let data = secrets.get(WEBHOOK_SECRET).await?.data.unwrap_or_default();
            let data: serde_json::Map<_, _> = data.into_keys().map(|key| (key, json!("AAAA"))).collect();
            let name = format!("secret/{WEBHOOK_SECRET}");
            campaign.patch(&name, NAMESPACE, &json!({ "data": data })).await
        })
        .await;
        let effect = "the CA bundles of the webhooks are removed, and admission must succeed (`failurePolicy: Fail`)";
        self.fault("WebhookDisrupt", effect, async |campaign| {
            campaign
                .webhooks(&json!({ "clientConfig/caBundle": null, "failurePolicy": "Fail" }))
                .await?;
            campaign.works().await.context("with failurePolicy Fail")?;
            campaign.webhooks(&json!({ "failurePolicy": "Ignore" })).await
        })
        .await;
        let effect = "the core is scaled to 0 while 200 models are created, a tenth of them invalid";
        self.fault("WebhookAway", effect, Self::created_without_webhook).await;
        let effect = "another webhook delays every write of ModelDeployments and Deployments by 5 s";
        self.fault("WebhookLatency", effect, async |campaign| {
            // Accepts connections and never answers.
            let silent = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("https://{}/", silent.local_addr()?);
            campaign.create(&slow_webhook(&url)).await?;
            campaign.change_arguments(768).await?;
            campaign.installed.settled().await?;
            let delete = ["delete", "validatingwebhookconfiguration", "slow"];
            campaign.installed.kubectl(&delete).await
        })
        .await;
    }

    async fn objects(&mut self) {
        let model = deployment(NAME);
        let effect = "another client sets another image in the model's Deployment";
        self.fault("CRDMutation", effect, async |campaign| {
            let set = ["set", "image", &model, &format!("*={ABSENT}")];
            campaign.installed.kubectl(&set).await?;
            campaign
                .model(|spec| {
                    let image = &spec["spec"]["template"]["spec"]["containers"][0]["image"];
                    ensure!(image != ABSENT, "the image is {image}");
                    Ok(())
                })
                .await
        })
        .await;
        let effect = "a label of the model's Deployment is overwritten, another is removed";
        self.fault("LabelStomping", effect, async |campaign| {
            let (owner, provider) = (labels::MANAGED_BY, labels::PROVIDER);
            let stomp = [
                "label",
                "--overwrite",
                &model,
                &format!("{owner}=another"),
                &format!("{provider}-"),
            ];
            campaign.installed.kubectl(&stomp).await?;
            campaign
                .model(|object| {
                    let labels = &object["metadata"]["labels"];
                    ensure!(labels[owner] == labels::MANAGED_BY_VALUE, "{labels}");
                    ensure!(labels[provider] == PROVIDER, "{labels}");
                    Ok(())
                })
                .await
        })
        .await;
        let effect = "the owner of the model's Deployment is removed, which is reported, and set again";
        self.fault("OwnerRefOrphan", effect, async |campaign| {
            let deployments: Api<Deployment> = Api::default_namespaced(campaign.installed.client());
            let owners = deployments.get(NAME).await?.metadata.owner_references;
            let set = |owners: Value| json!({ "metadata": { "ownerReferences": owners } });
            campaign.patch(&model, "default", &set(Value::Null)).await?;
            campaign.says(NAME, "was not created for this ModelDeployment").await?;
            campaign.patch(&model, "default", &set(json!(owners))).await
        })
        .await;
        let effect = "the model's Service is deleted; requests until it is there again fail";
        self.fault("ResourceDeletion", effect, async |campaign| {
            let services: Api<Service> = Api::default_namespaced(campaign.installed.client());
            let before = services.get(NAME).await?.uid();
            services.delete(NAME, &DeleteParams::default()).await?;
            eventually(PATIENCE, async || {
                ensure!(services.get(NAME).await?.uid() != before, "still the old one");
                Ok(())
            })
            .await?;
            campaign.may_fail = true;
            Ok(())
        })
        .await;
        let effect = "a finalizer of another controller holds the Deployment of a model that is deleted";
        self.fault("FinalizerBlock", effect, Self::finalizer).await;
    }

    async fn limits(&mut self) {
        let effect = "a ResourceQuota allows no further pod when the model is scaled up";
        self.fault("QuotaExhaustion", effect, async |campaign| {
            campaign
                .installed
                .kubectl(&["create", "quota", "none", "--hard=pods=1"])
                .await?;
            campaign
                .installed
                .patch(json!({ "scaling": { "replicas": 2 } }))
                .await?;
            campaign.says(NAME, "exceeded quota").await?;
            campaign.installed.kubectl(&["delete", "quota", "none"]).await?;
            campaign.installed.settled().await?;
            campaign.installed.change(json!({ "scaling": { "replicas": 1 } })).await
        })
        .await;
        let effect =
            "the controllers' ClusterRoleBindings lose their subjects for 20 s, and the model is changed meanwhile";
        self.fault("RBACRevoke", effect, async |campaign| {
            let bindings = CONTROLLERS.map(|name| format!("clusterrolebinding/{name}"));
            let before = campaign.subjects(&bindings).await?;
            for name in &bindings {
                campaign.patch(name, "", &json!({ "subjects": [] })).await?;
            }
            campaign.change_arguments(256).await?;
            tokio::time::sleep(OUTAGE).await;
            for (name, subjects) in bindings.iter().zip(before) {
                campaign.patch(name, "", &json!({ "subjects": subjects })).await?;
            }
            Ok(())
        })
        .await;
        let effect = "a PodDisruptionBudget forbids evictions of the controllers";
        self.fault("PDBBlock", effect, async |campaign| {
            let budget = ["create", "pdb", "none", "-n", NAMESPACE, "--max-unavailable=0"];
            let selector = format!("--selector=kubeairunway.ai/managed-by={}", labels::MANAGED_BY_VALUE);
            campaign
                .installed
                .kubectl(&[&budget[..], &[&selector]].concat())
                .await?;
            campaign.works().await.context("with the budget")?;
            campaign
                .installed
                .kubectl(&["delete", "pdb", "none", "-n", NAMESPACE])
                .await
        })
        .await;
    }

    async fn installation(&mut self) {
        let effect = "the namespace of the controllers is deleted, and the product is installed again";
        self.fault("NamespaceDeletion", effect, async |campaign| {
            let installed = &campaign.installed;
            installed.kubectl(&["delete", "namespace", NAMESPACE]).await?;
            let namespaces: Api<Namespace> = Api::all(installed.client());
            ensure!(namespaces.get_opt(NAMESPACE).await?.is_none(), "it is still there");
            campaign.load.is_answered().await?;
            installed.kubeairunway(&["controller", "install", "--yes"]).await?;
            installed
                .kubeairunway(&["provider", "install", PROVIDER, "--yes"])
                .await
        })
        .await;
    }

    /// Injects a fault, and takes it back if no controller does; then everything must work, and no request have failed.
    async fn fault(
        &mut self,
        name: &'static str,
        effect: &'static str,
        inject: impl AsyncFnOnce(&mut Self) -> Result<()>,
    ) {
        if self.only.as_ref().is_some_and(|only| only != name) {
            return;
        }
        step(&format!("{name}: {effect}"));
        self.load.take();
        self.may_fail = false;
        let recovered = async {
            inject(self).await?;
            let begun = Instant::now();
            self.works().await?;
            self.load.is_answered().await?;
            Ok::<_, anyhow::Error>(begun.elapsed())
        };
        let recovered = recovered.await.map_err(|error| format!("{error:#}"));
        let seen = self.load.take().pop().map(|(_, seen)| seen).unwrap_or_default();
        match &recovered {
            Ok(time) => step(&format!(
                "{name}: {:.1} s, {} failed",
                time.as_secs_f64(),
                seen.failed.len()
            )),
            Err(error) => step(&format!("{name}: {error}")),
        }
        self.rows.push(Row {
            name,
            effect,
            seen,
            may_fail: self.may_fail,
            recovered,
        });
    }

    /// The controllers run; the model serves as its spec says; a new model gets its objects and goes again; an invalid one is
    /// rejected by the webhook.
    async fn works(&self) -> Result<()> {
        self.installed.rolled_out(&CONTROLLERS).await?;
        self.installed.settled().await?;
        self.rejects().await?;
        self.asleep("probe").await?;
        self.deleted("probe").await
    }

    async fn rejects(&self) -> Result<()> {
        let invalid = invalid("invalid")?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually(PATIENCE, async || {
            match self.installed.models().create(&dry_run, &invalid).await {
                Err(kube::Error::Api(answer)) if answer.message.contains("denied the request") => Ok(()),
                answer => bail!("an invalid model is not rejected by the webhook: {answer:?}"),
            }
        })
        .await
    }

    /// A model without replicas.
    fn sleeper(&self, name: &str) -> Result<ModelDeployment> {
        let spec = json!({
            "provider": { "name": PROVIDER }, "model": { "source": "custom" }, "engine": { "type": "llamacpp" },
            "image": self.installed.engine.image.name, "scaling": { "replicas": 0 },
        });
        model(name, &spec)
    }

    /// Creates a model without replicas, and waits for its Deployment and its status.
    async fn asleep(&self, name: &str) -> Result<()> {
        let (models, model) = (self.installed.models(), self.sleeper(name)?);
        eventually(PATIENCE, async || {
            models
                .create(&PostParams::default(), &model)
                .await
                .map(drop)
                .context(name.to_owned())
        })
        .await?;
        let deployments: Api<Deployment> = Api::default_namespaced(self.installed.client());
        eventually(PATIENCE, async || {
            deployments.get(name).await?;
            let now = models.get(name).await?;
            let seen = now.status.as_ref().and_then(|status| status.observed_generation);
            ensure!(
                seen == now.metadata.generation,
                "the status of {name} is of generation {seen:?}"
            );
            Ok(())
        })
        .await
    }

    async fn deleted(&self, name: &str) -> Result<()> {
        self.installed.models().delete(name, &DeleteParams::default()).await?;
        self.is_gone(name).await
    }

    async fn is_gone(&self, name: &str) -> Result<()> {
        let deployments: Api<Deployment> = Api::default_namespaced(self.installed.client());
        eventually(PATIENCE, async || {
            let left = self.installed.models().get_opt(name).await?;
            ensure!(
                left.is_none(),
                "{name} is still there: {:?}",
                left.and_then(|md| md.status)
            );
            ensure!(
                deployments.get_opt(name).await?.is_none(),
                "Deployment {name} is still there"
            );
            Ok(())
        })
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

    async fn finalizer(&mut self) -> Result<()> {
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

    /// Creates models while no core runs. Once it runs again, each has its Deployment, or a status that says why not.
    async fn created_without_webhook(&mut self) -> Result<()> {
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
        crate::cluster::apply(&self.installed.client(), &object).await.map(drop)
    }
}

impl Row {
    /// Message about a fault that was not survived.
    fn failure(&self) -> Option<String> {
        let failed = self.seen.failed.first().filter(|_| !self.may_fail);
        match &self.recovered {
            Err(error) => Some(format!("{}: {error}", self.name)),
            Ok(_) => {
                failed.map(|request| format!("{}: {} requests failed: {request}", self.name, self.seen.failed.len()))
            }
        }
    }
}

fn model(name: &str, spec: &Value) -> Result<ModelDeployment> {
    let object = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": name }, "spec": spec,
    });
    Ok(serde_json::from_value(object)?)
}

/// A model that the webhook rejects, and the schema does not.
fn invalid(name: &str) -> Result<ModelDeployment> {
    model(
        name,
        &json!({ "model": { "source": "huggingface" }, "engine": { "type": "vllm" } }),
    )
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

fn table(rows: &[Row]) -> String {
    let mut text =
        "| fault | effect | requests of the model that failed | works again after, s |\n|---|---|--:|--:|\n".to_owned();
    for Row {
        name,
        effect,
        seen,
        recovered,
        ..
    } in rows
    {
        let failed = seen.failed.len();
        let all = seen.answered + failed;
        let time = recovered
            .as_ref()
            .map_or_else(|_| "not".to_owned(), |time| format!("{:.1}", time.as_secs_f64()));
        // Writing to a String does not fail.
        let _ = writeln!(text, "| {name} | {effect} | {failed} of {all} | {time} |");
    }
    text
}
