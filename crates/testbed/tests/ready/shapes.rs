//! The models that are sampled, and what happens to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use runway_api::ModelDeployment;
use runway_operator::client::ClientArgs;
use runway_operator::services::Services;
use runway_provider_direct::Direct;
use runway_provider_dynamo::Dynamo;
use runway_provider_kaito::Kaito;
use runway_provider_kuberay::KubeRay;
use runway_testbed::engine::LlamaServer;
use runway_testbed::{Node, PATIENCE, eventually};
use runway_upstream_simulator::dynamo::GRAPH;
use runway_upstream_simulator::kuberay::ORIGIN;
use runway_upstream_simulator::{self as simulator, Simulator};
use serde_json::{Value, json};

use super::league::{League, Samples, Truth, is_ready};
use runway_product_testbed::engine::{alias, endpoint, model};
use runway_product_testbed::{Bed, NAMESPACE, Running, Upstream, vllm};

/// Models of a shape that live at the same time.
const AT_ONCE: u32 = 6;
/// Models on a node, which share two cores.
const ON_NODE: u32 = 3;
/// The variable that marks the pods of a generation.
const STAMP: &str = "STAMP";

/// A sequence of numbers from a seed (SplitMix64).
struct Dice(AtomicU64);

impl Dice {
    fn roll(&self, sides: u64) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// KubeRay and Dynamo: the pods are objects with a status.
pub(crate) struct Simulated {
    bed: Bed,
    /// The upstream operators; absent while they are down.
    operators: Arc<Mutex<Option<Simulator>>>,
    _controllers: Vec<Running>,
}

/// A model serves if enough pods are ready that have its stamp, and no ready pod has another.
#[derive(Clone)]
struct Stamped {
    pods: Api<Pod>,
    label: &'static str,
}

impl Stamped {
    async fn of(&self, name: &str) -> Result<Vec<Pod>> {
        let of_model = ListParams::default().labels(&format!("{}={name}", self.label));
        Ok(self.pods.list(&of_model).await?.items)
    }
}

impl Truth for Stamped {
    async fn serves(&self, md: &ModelDeployment) -> bool {
        let name = md.name_any();
        let stamp = md.spec.env.iter().find(|variable| variable.name == STAMP);
        let stamp = stamp.and_then(|variable| variable.value.clone()).unwrap_or_default();
        let replicas = md
            .spec
            .scaling
            .as_ref()
            .and_then(|scaling| scaling.replicas)
            .unwrap_or(1);
        let Ok(pods) = self.of(&name).await else {
            return false;
        };
        let ready = pods.iter().filter(|pod| runway_operator::kubelet::is_ready(pod));
        let current = ready.filter(|pod| stamp_of(pod) == Some(stamp.as_str()) && !pod.owner_references().is_empty());
        // The head or the frontend, and the workers.
        replicas > 0 && current.count() > usize::try_from(replicas).unwrap_or(usize::MAX)
    }
}

fn stamp_of(pod: &Pod) -> Option<&str> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let mut variables = container.env.iter().flatten();
    variables.find(|variable| variable.name == STAMP)?.value.as_deref()
}

impl Simulated {
    pub(crate) async fn start() -> Result<Self> {
        let bed = Bed::start_with(Upstream::All, false).await?;
        let controllers = vec![
            bed.core().await?,
            bed.provider(Dynamo::default()).await?,
            bed.provider(KubeRay::default()).await?,
        ];
        let operators = Arc::new(Mutex::new(Some(simulator_of(&bed.admin))));
        Ok(Self {
            bed,
            operators,
            _controllers: controllers,
        })
    }

    pub(crate) async fn run(self, changes: u32, league: &mut League) -> Result<()> {
        let (operators, client) = (self.operators.clone(), self.bed.admin.clone());
        let outages = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(20)).await;
                operators.lock().take();
                tokio::time::sleep(Duration::from_secs(4)).await;
                *operators.lock() = Some(simulator_of(&client));
            }
        });
        let outages = tokio_util::task::AbortOnDropHandle::new(outages);
        for (provider, label, shape) in [
            ("kuberay", ORIGIN, "KubeRay, simulated pods"),
            ("dynamo", GRAPH, "Dynamo, simulated pods"),
        ] {
            let samples = Samples::default();
            let truth = Stamped {
                pods: Api::namespaced(self.bed.admin.clone(), NAMESPACE),
                label,
            };
            let each = changes.div_ceil(AT_ONCE);
            let models = (0..AT_ONCE).map(|number| self.life(provider, number, each, truth.clone(), &samples));
            try_join_all(models).await?;
            league.add(shape, each * AT_ONCE, &samples);
        }
        drop(outages);
        self.bed.cluster.stop().await
    }

    /// A model of a provider, and its changes.
    async fn life(&self, provider: &str, number: u32, changes: u32, truth: Stamped, samples: &Samples) -> Result<()> {
        let name = format!("{provider}-{number}");
        let dice = Dice(AtomicU64::new(u64::from(number) + 1));
        let mut object = vllm(&name, provider);
        object["spec"]["env"] = json!([{"name": STAMP, "value": "0"}]);
        self.bed.create(object).await?;
        let _sampler = samples.follow(self.bed.deployments(), name.clone(), truth.clone());
        for change in 1..=changes {
            let stamp = json!({"spec": {"env": [{"name": STAMP, "value": change.to_string()}]}});
            let pods = truth.of(&name).await?;
            match dice.roll(7) {
                0 => {
                    // The rollout is reverted on its way, and begins again.
                    self.bed.patch(&name, stamp.clone()).await?;
                    tokio::time::sleep(Duration::from_millis(dice.roll(900))).await;
                    let earlier = json!({"spec": {"env": [{"name": STAMP, "value": (change - 1).to_string()}]}});
                    self.bed.patch(&name, earlier).await?;
                }
                1 => {
                    let replicas = dice.roll(3);
                    self.bed
                        .patch(&name, json!({"spec": {"scaling": {"replicas": replicas}}}))
                        .await?;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    self.bed
                        .patch(&name, json!({"spec": {"scaling": {"replicas": 1}}}))
                        .await?;
                }
                2 => self.fail(&pods, false).await?,
                3 => self.remove(&pods).await?,
                4 => self.stranger(&pods).await?,
                5 => self.drift(provider, &name).await?,
                _ => {}
            }
            self.bed.patch(&name, stamp).await?;
            settled(&self.bed.deployments(), &name, &truth)
                .await
                .with_context(|| format!("{name}, change {change}"))?;
        }
        self.bed.delete(&name).await
    }

    /// The pods fail for two seconds, and the upstream does not report it.
    async fn fail(&self, pods: &[Pod], is_ready: bool) -> Result<()> {
        for (ready, pause) in [(is_ready, 2), (true, 0)] {
            for pod in pods {
                let ready = if ready { "True" } else { "False" };
                let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
                let api: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
                ignore_gone(
                    api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
                        .await,
                )?;
            }
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
        Ok(())
    }

    /// The pods are gone for two seconds, and the upstream does not report it.
    async fn remove(&self, pods: &[Pod]) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        for pod in pods {
            let now = DeleteParams::default().grace_period(0);
            ignore_gone(api.delete(&pod.name_any(), &now).await)?;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    /// The pods are replaced by others that carry their labels.
    async fn stranger(&self, pods: &[Pod]) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        let mut made = Vec::new();
        for pod in pods {
            let mut stranger = pod.clone();
            let name = format!("stranger-{}", pod.name_any());
            stranger.metadata = kube::core::ObjectMeta {
                name: Some(name.clone()),
                labels: pod.metadata.labels.clone(),
                ..kube::core::ObjectMeta::default()
            };
            let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
            api.create(&PostParams::default(), &stranger).await?;
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
                .await?;
            made.push(stranger);
        }
        self.fail(pods, false).await?;
        self.remove(&made).await
    }

    /// Another writer changes the upstream object.
    async fn drift(&self, provider: &str, name: &str) -> Result<()> {
        let (kind, patch) = match provider {
            "kuberay" => (runway_provider_kuberay::RAY_SERVICE, json!({"spec": {"suspend": true}})),
            _ => (
                runway_provider_dynamo::DYNAMO_GRAPH_DEPLOYMENT,
                json!({"spec": {"backendFramework": "sglang"}}),
            ),
        };
        let api = self.bed.upstream(kind, kind.version);
        match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            // Some values are immutable.
            Err(kube::Error::Api(_)) => {}
            other => drop(other?),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }
}

/// Waits until a model serves and its status says so.
async fn settled(models: &Api<ModelDeployment>, name: &str, truth: &impl Truth) -> Result<()> {
    eventually(PATIENCE, async || {
        let md = models.get(name).await?;
        let (ready, serves) = (is_ready(&md), truth.serves(&md).await);
        ensure!(
            ready && serves,
            "Ready: {ready}, serves: {serves}: {:?}",
            md.status.and_then(|s| s.message)
        );
        Ok(())
    })
    .await
}

fn simulator_of(client: &Client) -> Simulator {
    let config = simulator::Config {
        ready_after: Duration::from_millis(1500),
        ..simulator::Config::default()
    };
    Simulator::start(client.clone(), config)
}

fn ignore_gone<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}

/// The direct provider and KAITO, with real engines.
pub(crate) struct OnNode {
    bed: Bed<Node>,
    llama_server: LlamaServer,
    truth: Named,
    _controllers: Vec<Running>,
    _operators: Simulator,
}

/// A model serves if its endpoint lists it under the name of its generation.
#[derive(Clone)]
struct Named(Services);

impl Truth for Named {
    async fn serves(&self, md: &ModelDeployment) -> bool {
        let Some(at) = endpoint(md) else { return false };
        let services = self.0.with_patience(Duration::from_secs(2));
        let Ok(response) = services.get(&at, "/v1/models").await else {
            return false;
        };
        let models: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        models["data"][0]["id"] == alias(&md.name_any(), md.metadata.generation.unwrap_or_default())
    }
}

impl OnNode {
    pub(crate) async fn start(llama_server: LlamaServer) -> Result<Self> {
        let bed = Bed::start_with_node(Upstream::Kaito).await?;
        bed.cluster.import_image(&llama_server.image.archive).await?;
        let args = ClientArgs {
            kubeconfig: Some(bed.cluster.kubeconfig("asker", &["system:masters"])?),
            context: None,
        };
        let truth = Named(Services::of(&args.config().await?)?);
        let controllers = vec![
            bed.core().await?,
            bed.asking_provider(Direct::default()).await?,
            bed.asking_provider(Kaito::default()).await?,
        ];
        let config = simulator::Config {
            workloads: true,
            ..simulator::Config::default()
        };
        let client = bed.cluster.client("kaito", &["system:masters"]).await?;
        Ok(Self {
            bed,
            llama_server,
            truth,
            _controllers: controllers,
            _operators: Simulator::start(client, config),
        })
    }

    pub(crate) async fn run(self, changes: u32, league: &mut League) -> Result<()> {
        for (provider, shape) in [("direct", "direct"), ("kaito", "KAITO, simulated operator")] {
            let samples = Samples::default();
            let each = changes.div_ceil(ON_NODE);
            let models = (0..ON_NODE).map(|number| self.life(provider, number, each, &samples));
            try_join_all(models).await?;
            league.add(shape, each * ON_NODE, &samples);
        }
        self.bed.cluster.stop().await
    }

    async fn life(&self, provider: &str, number: u32, changes: u32, samples: &Samples) -> Result<()> {
        let name = format!("{provider}-{number}");
        let dice = Dice(AtomicU64::new(u64::from(number) + 1));
        let image = &self.llama_server.image.name;
        self.bed.create(model(&name, provider, image)).await?;
        let _sampler = samples.follow(self.bed.deployments(), name.clone(), self.truth.clone());
        settled(&self.bed.deployments(), &name, &self.truth).await?;
        for change in 1..=changes {
            match dice.roll(6) {
                0 => {
                    self.bed
                        .change_engine(&name, json!({"engine": {"args": {"no-such-flag": "1"}}}))
                        .await?;
                    tokio::time::sleep(Duration::from_secs(3)).await;
                    self.bed
                        .change_engine(&name, json!({"engine": {"args": {"no-such-flag": null}}}))
                        .await?;
                }
                1 => {
                    self.bed
                        .change_engine(&name, json!({"image": "testbed.local/none:1"}))
                        .await?;
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    self.bed.change_engine(&name, json!({"image": image})).await?;
                }
                2 => {
                    self.bed
                        .change_engine(&name, json!({"scaling": {"replicas": 0}}))
                        .await?;
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    self.bed
                        .change_engine(&name, json!({"scaling": {"replicas": 1}}))
                        .await?;
                }
                3 => self.bed.remove_pods(&name).await?,
                _ => drop(self.bed.change_engine(&name, json!({})).await?),
            }
            settled(&self.bed.deployments(), &name, &self.truth)
                .await
                .with_context(|| format!("{name}, change {change}"))?;
        }
        self.bed.delete(&name).await?;
        self.bed.gone(&name).await
    }
}
