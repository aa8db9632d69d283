//! A ModelDeployment of the KubeRay provider on a real Ray cluster: the real operator, Ray's head and workers, Ray's autoscaler and
//! Ray Serve. Only the model is a stand-in (`runway_testbed::ray`), since an engine is too large here.
//!
//! Only `cargo xtask test --lane ray` runs this test. Each change has a context length of its own, which the replica names in its
//! answers: Ready must never be True for a generation while a replica of another one answers.

#![allow(
    clippy::print_stdout,
    reason = "what the messages are, and how long it took, is worth reading"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Resource, ResourceExt};
use parking_lot::Mutex;
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, Phase};
use runway_product_testbed::{Bed, NAMESPACE, Upstream};
use runway_provider_kuberay::{KubeRay, RAY_SERVICE};
use runway_testbed::engine::{CHAT, Endpoint, chat_request};
use runway_testbed::ray::{self, FAILURE, LOAD_SECONDS, MODEL, SENTENCE};
use runway_testbed::{Node, PATIENCE, eventually};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

const NAME: &str = "tiny";
/// Context length of the first generation.
const FIRST_LENGTH: i64 = 1001;
/// Message with which loading fails.
const OUT_OF_MEMORY: &str = "CUDA out of memory: tried to allocate 20.00 GiB";
/// Answers after which the model is Ready and stays so.
const CONFIRMED_BY: usize = 10;
/// Longest time for a chat.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Longest time in which Ready may be True after the head was lost: KubeRay reads the cluster every two seconds, and the provider
/// asks the model again when the status of the RayService changes.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by cargo xtask test --lane ray"]
async fn model_on_a_real_ray_cluster_is_ready_when_the_latest_generation_answers() -> Result<()> {
    const WHAT: &str = "a model on a real Ray cluster";
    let Some(image) = tokio::task::spawn_blocking(|| ray::image(WHAT)).await?? else {
        return Ok(());
    };
    let mut bed = Bed::start_with_node(Upstream::None).await?;
    ray::install(&mut bed.cluster, &image).await?;
    let _core = bed.core().await?;
    let _kuberay = bed.asking_provider(KubeRay::default()).await?;

    bed.create(json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": { "name": NAME, "namespace": NAMESPACE }, "spec": ray::spec(&image.name, FIRST_LENGTH),
    }))
    .await?;
    let scene = Scene {
        witness: Witness::start(&bed),
        bed: &bed,
    };
    scene.created().await.context("created")?;
    scene.changed_in_place().await.context("changed in place")?;
    scene.scaled().await.context("scaled")?;
    scene.moved_to_a_second_cluster().await.context("second cluster")?;
    scene.failed_to_load().await.context("failed load")?;
    scene.lost_its_head().await.context("lost head")?;
    scene.zero_is_refused().await.context("zero")?;
    let seen = scene.witness.seen();
    println!(
        "{} answers while Ready; the longest without an answer while Ready: {:.1} s",
        seen.answers,
        seen.longest.as_secs_f64()
    );
    ensure!(
        seen.violations.is_empty(),
        "Ready without an answer of this generation:\n{}",
        seen.violations.join("\n")
    );
    deleted(&bed).await.context("deleted")?;
    bed.cluster.stop().await
}

struct Scene<'a> {
    bed: &'a Bed<Node>,
    witness: Witness,
}

impl Scene<'_> {
    async fn created(&self) -> Result<()> {
        self.answers(1).await?;
        let stream = model_endpoint(self.bed).await?.streamed(&question()).await?;
        ensure!(stream.len() > 1 && stream.concat() == SENTENCE, "{stream:?}");
        Ok(())
    }

    /// The model is loaded again in the same cluster.
    async fn changed_in_place(&self) -> Result<()> {
        let before = self.cluster().await?;
        let prober = Prober::start(self.bed).await?;
        let generation = self.change(json!({"engine": {"args": {LOAD_SECONDS: "10"}}})).await?;
        self.answers(generation).await?;
        println!("changed in place: {}", prober.end());
        let after = self.cluster().await?;
        ensure!(before == after, "{before} was replaced by {after}");
        Ok(())
    }

    /// Ready with two replicas means that two answer. The first one stays.
    async fn scaled(&self) -> Result<()> {
        let first = self.chat().await?.pod;
        let replicas = |count: i32| json!({"spec": {"scaling": {"replicas": count}}});
        let generation = self.bed.patch(NAME, replicas(2)).await?.metadata.generation;
        self.ready(generation.context("a generation")?).await?;
        let mut pods = BTreeSet::new();
        for _ in 0..40 {
            pods.insert(self.chat().await?.pod);
        }
        ensure!(
            pods.len() == 2 && pods.contains(&first),
            "{pods:?} answer, after {first}"
        );
        let generation = self.bed.patch(NAME, replicas(1)).await?.metadata.generation;
        self.answers(generation.context("a generation")?).await
    }

    /// The first cluster answers until the second one does.
    async fn moved_to_a_second_cluster(&self) -> Result<()> {
        let before = self.cluster().await?;
        let prober = Prober::start(self.bed).await?;
        let generation = self
            .change(json!({"env": [{"name": "MARK", "value": "other"}]}))
            .await?;
        self.answers(generation).await?;
        let after = self.cluster().await?;
        ensure!(before != after, "{before} was not replaced");
        let answers = prober.end();
        println!("second cluster: {answers}");
        ensure!(answers.failures.is_empty(), "{:?}", answers.failures);
        ensure!(answers.lengths.len() == 2, "{:?}", answers.lengths);
        Ok(())
    }

    /// Ray Serve's message is in the status, also when it has stopped to try.
    async fn failed_to_load(&self) -> Result<()> {
        let generation = self
            .change(json!({"engine": {"args": {FAILURE: OUT_OF_MEMORY}}}))
            .await?;
        let start = Instant::now();
        let md = self
            .bed
            .status(NAME, "failed", |s| {
                let ready = s.conditions.get_condition(condition::READY);
                let is_failed = ready.is_some_and(|c| {
                    c.status == "False" && c.reason == "DeployFailed" && c.observed_generation == Some(generation)
                });
                is_failed
                    && s.message
                        .as_ref()
                        .is_some_and(|message| message.contains(OUT_OF_MEMORY))
            })
            .await?;
        let message = md.status.and_then(|status| status.message).unwrap_or_default();
        println!("failed load, after {:.0} s: {message}", start.elapsed().as_secs_f64());
        println!(
            "after the last attempt, the earlier replica answers: {}",
            self.chat().await.is_ok()
        );
        let prober = Prober::start(self.bed).await?;
        let corrected = self.change(json!({"engine": {"args": {FAILURE: null}}})).await?;
        self.answers(corrected).await?;
        println!("corrected: {}", prober.end());
        let failed = self.witness.seen().failed;
        ensure!(
            failed == BTreeSet::from([generation]),
            "generations reported as failed: {failed:?}, not {generation}"
        );
        Ok(())
    }

    /// A head that is lost takes Ray's state with it: the model is loaded again.
    async fn lost_its_head(&self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        let of_cluster = format!("ray.io/node-type=head,ray.io/cluster={}", self.cluster().await?);
        let heads = pods.list(&ListParams::default().labels(&of_cluster)).await?.items;
        let head = heads.first().context("no head")?.name_any();
        pods.delete(&head, &DeleteParams::default().grace_period(0)).await?;
        let start = Instant::now();
        let md = self
            .bed
            .status(NAME, "not Ready", |s| !s.conditions.is_true(condition::READY))
            .await?;
        let message = md.status.and_then(|status| status.message).unwrap_or_default();
        println!("lost head, after {:.1} s: {message}", start.elapsed().as_secs_f64());
        ensure!(start.elapsed() < NOTICED_WITHIN, "noticed after {:?}", start.elapsed());
        self.answers(self.generation().await?).await
    }

    /// KubeRay 1.6 cannot suspend a RayService: what runs stays as it is.
    async fn zero_is_refused(&self) -> Result<()> {
        self.bed
            .patch(NAME, json!({"spec": {"scaling": {"replicas": 0}}}))
            .await?;
        let md = self
            .bed
            .status(NAME, "refused", |s| {
                s.message
                    .as_ref()
                    .is_some_and(|message| message.contains("came with 1.7"))
            })
            .await?;
        println!(
            "zero: {}",
            md.status.and_then(|status| status.message).unwrap_or_default()
        );
        self.chat().await?;
        let md = self
            .bed
            .patch(NAME, json!({"spec": {"scaling": {"replicas": 1}}}))
            .await?;
        self.answers(md.metadata.generation.context("a generation")?).await
    }

    /// Changes the spec, and with it the context length. Returns the generation.
    async fn change(&self, mut spec: Value) -> Result<i64> {
        spec["engine"]["contextLength"] = json!(FIRST_LENGTH + self.generation().await?);
        let md = self.bed.patch(NAME, json!({ "spec": spec })).await?;
        md.metadata.generation.context("a generation")
    }

    async fn generation(&self) -> Result<i64> {
        let md = self.bed.deployments().get(NAME).await?;
        md.metadata.generation.context("a generation")
    }

    /// Waits until it is Ready for this generation.
    async fn ready(&self, generation: i64) -> Result<ModelDeployment> {
        let start = Instant::now();
        let md = self
            .bed
            .status(NAME, "Ready", |s| {
                let ready = s.conditions.when_true(condition::READY);
                ready.is_some_and(|c| c.observed_generation == Some(generation))
            })
            .await?;
        println!(
            "generation {generation} Ready after {:.0} s",
            start.elapsed().as_secs_f64()
        );
        Ok(md)
    }

    /// Ready for this generation, and its replica answers, which the witness confirms.
    async fn answers(&self, generation: i64) -> Result<()> {
        let md = self.ready(generation).await?;
        let reply = self.chat().await?;
        ensure!(
            Some(reply.length) == length(&md),
            "a replica with {} answers, not one with {:?}",
            reply.length,
            length(&md)
        );
        let before = self.witness.seen().answers;
        eventually(PATIENCE, async || {
            ensure!(
                self.witness.seen().answers > before + CONFIRMED_BY,
                "too few answers while Ready"
            );
            Ok(())
        })
        .await
    }

    async fn chat(&self) -> Result<Reply> {
        chat(&model_endpoint(self.bed).await?).await
    }

    /// Name of the Ray cluster that serves.
    async fn cluster(&self) -> Result<String> {
        let service = self.bed.upstream(RAY_SERVICE, "v1").get(NAME).await?;
        let name = service.data["status"]["activeServiceStatus"]["rayClusterName"].as_str();
        Ok(name.context("no active cluster")?.to_owned())
    }
}

fn question() -> Value {
    chat_request(MODEL, "Hi")
}

fn length(md: &ModelDeployment) -> Option<i64> {
    md.spec.engine.as_ref()?.context_length.map(i64::from)
}

/// The Service that the status names.
async fn model_endpoint(bed: &Bed<Node>) -> Result<Endpoint> {
    let md = bed.deployments().get(NAME).await?;
    let endpoint = md.status.and_then(|status| status.endpoint).context("no endpoint")?;
    let (service, port) = endpoint.service.zip(endpoint.port).context("no Service")?;
    Ok(Endpoint::service(bed.admin.clone(), &service, u16::try_from(port)?))
}

/// The replica that answered.
struct Reply {
    pod: String,
    length: i64,
}

async fn chat(endpoint: &Endpoint) -> Result<Reply> {
    let answer = tokio::time::timeout(ANSWERS_WITHIN, endpoint.answer(CHAT, &question())).await??;
    ensure!(answer["choices"][0]["message"]["content"] == SENTENCE, "{answer}");
    let replica = answer["system_fingerprint"]
        .as_str()
        .and_then(|text| text.split_once(' '));
    let (pod, length) = replica.with_context(|| answer.to_string())?;
    Ok(Reply {
        pod: pod.to_owned(),
        length: length.parse()?,
    })
}

/// Asks every 100 ms, whether the model is Ready or not.
struct Prober {
    seen: Arc<Mutex<Probed>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone, Default)]
struct Probed {
    answers: usize,
    /// Context lengths of the replicas that answered.
    lengths: BTreeSet<i64>,
    failures: Vec<String>,
}

impl Prober {
    async fn start(bed: &Bed<Node>) -> Result<Self> {
        let endpoint = model_endpoint(bed).await?;
        let seen = Arc::new(Mutex::new(Probed::default()));
        let results = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                let reply = chat(&endpoint).await;
                results.lock().add(reply);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Self {
            seen,
            _task: AbortOnDropHandle::new(task),
        })
    }

    fn end(self) -> Probed {
        self.seen.lock().clone()
    }
}

impl Probed {
    fn add(&mut self, reply: Result<Reply>) {
        match reply {
            Ok(reply) => {
                self.answers += 1;
                self.lengths.insert(reply.length);
            }
            Err(error) => self.failures.push(format!("{error:#}")),
        }
    }
}

impl std::fmt::Display for Probed {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let failures: BTreeSet<_> = self.failures.iter().collect();
        write!(
            f,
            "{} answers of replicas with {:?}, {} failures {failures:?}",
            self.answers,
            self.lengths,
            self.failures.len()
        )
    }
}

/// Asks the model whenever it is Ready.
struct Witness {
    seen: Arc<Mutex<Seen>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone, Default)]
struct Seen {
    answers: usize,
    violations: Vec<String>,
    /// Generations that were reported as failed.
    failed: BTreeSet<i64>,
    /// Longest time in which it was Ready and did not answer.
    longest: Duration,
    silent_since: Option<Instant>,
}

impl Witness {
    fn start(bed: &Bed<Node>) -> Self {
        let (models, client) = (bed.deployments(), bed.admin.clone());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let results = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let Ok(md) = models.get(NAME).await else {
                    continue;
                };
                results.lock().failed.extend(failed_generation(&md));
                if let Some(at) = ready_endpoint(&md) {
                    let reply = chat(&Endpoint::service(client.clone(), &at.0, at.1)).await;
                    // What was true when it was written may have changed since.
                    let is_still_so = models.get(NAME).await.is_ok_and(|now| {
                        ready_endpoint(&now).is_some() && now.metadata.generation == md.metadata.generation
                    });
                    results.lock().add(&md, reply, is_still_so);
                } else {
                    results.lock().silent_since = None;
                }
            }
        });
        Self {
            seen,
            _task: AbortOnDropHandle::new(task),
        }
    }

    fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }
}

impl Seen {
    fn add(&mut self, md: &ModelDeployment, reply: Result<Reply>, is_still_so: bool) {
        if !is_still_so {
            self.silent_since = None;
            return;
        }
        match reply {
            Ok(reply) if Some(reply.length) == length(md) => {
                self.answers += 1;
                self.silent_since = None;
            }
            Ok(reply) => self.violations.push(format!(
                "generation {:?} with the length {:?}: a replica with {} answers",
                md.metadata.generation,
                length(md),
                reply.length
            )),
            Err(_) => {
                let since = *self.silent_since.get_or_insert_with(Instant::now);
                self.longest = self.longest.max(since.elapsed());
            }
        }
    }
}

/// The Service of a model that is Ready for its latest generation.
fn ready_endpoint(md: &ModelDeployment) -> Option<(String, u16)> {
    let status = md.status.as_ref()?;
    let ready = status.conditions.when_true(condition::READY)?;
    let endpoint = status
        .endpoint
        .as_ref()
        .filter(|_| ready.observed_generation == md.metadata.generation)?;
    Some((endpoint.service.clone()?, u16::try_from(endpoint.port?).ok()?))
}

/// The generation that the status reports as failed.
fn failed_generation(md: &ModelDeployment) -> Option<i64> {
    let status = md
        .status
        .as_ref()
        .filter(|status| status.phase == Some(Phase::Failed))?;
    status.conditions.get_condition(condition::READY)?.observed_generation
}

/// Everything that the provider and KubeRay created is gone.
async fn deleted(bed: &Bed<Node>) -> Result<()> {
    let kind = |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("ray.io", "v1", kind));
    bed.delete(NAME).await?;
    bed.gone(NAME).await?;
    eventually(PATIENCE, async || {
        let mut left = Vec::new();
        for kind in [kind("RayService"), kind("RayCluster")] {
            let objects: Api<DynamicObject> = Api::namespaced_with(bed.admin.clone(), NAMESPACE, &kind);
            left.extend(names(&objects).await?);
        }
        left.extend(names::<Pod>(&Api::namespaced(bed.admin.clone(), NAMESPACE)).await?);
        left.extend(names::<Service>(&Api::namespaced(bed.admin.clone(), NAMESPACE)).await?);
        left.extend(names::<ServiceAccount>(&Api::namespaced(bed.admin.clone(), NAMESPACE)).await?);
        left.extend(names::<Role>(&Api::namespaced(bed.admin.clone(), NAMESPACE)).await?);
        left.extend(names::<RoleBinding>(&Api::namespaced(bed.admin.clone(), NAMESPACE)).await?);
        if !left.is_empty() {
            bail!("these are left: {left:?}");
        }
        Ok(())
    })
    .await
}

/// Names of objects that belong to the model.
async fn names<K>(objects: &Api<K>) -> Result<Vec<String>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all = objects.list(&ListParams::default()).await?.items;
    Ok(all
        .iter()
        .map(ResourceExt::name_any)
        .filter(|name| name.starts_with(NAME))
        .collect())
}
