//! Dynamo's real frontend, KV router and mocker behind the Dynamo provider, on a real node. Dynamo's operator is the upstream simulator, the
//! engines are the test bed's stand-in. Run by `cargo xtask test --lane dynamo`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use kube::api::{ApiResource, GroupVersionKind, ListParams, LogParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Upstream};
use runway_provider_dynamo::{DYNAMO_GRAPH_DEPLOYMENT, Dynamo, DynamoConfig};
use runway_testbed::engine::{CHAT, Endpoint, MODELS, chat_request};
use runway_testbed::{Node, crds, dynamo, eventually, say};
use runway_upstream_simulator::conversion::ConversionWebhook;
use runway_upstream_simulator::dynamo::{COMPONENT, GRAPH, with_immutable_types};
use runway_upstream_simulator::{self as simulator, Simulator};
use serde_json::{Value, json};

/// One node for everything, because starting it takes longer than each of these checks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by cargo xtask test --lane dynamo"]
async fn models_of_dynamo_answer_through_its_frontend() -> Result<()> {
    let what = "models behind Dynamo's frontend";
    let Some(parts) = tokio::task::spawn_blocking(move || dynamo::Dynamo::prepare(what)).await?? else {
        return Ok(());
    };
    let stage = Stage::start(&parts).await?;
    stage.an_upgrade_of_dynamo_keeps_a_v1alpha1_model_serving().await?;
    stage.models_become_ready().await?;
    stage.prefill_comes_before_decode().await?;
    stage.round_robin_alternates_between_workers().await?;
    stage.kv_router_prefers_the_worker_that_has_the_prompt().await?;
    stage
        .a_rollout_answers_under_the_old_name_until_the_new_one_serves()
        .await?;
    stage.workers_are_scaled_while_the_model_answers().await?;
    stage.unknown_engine_arguments_are_reported().await?;
    stage.deletion_takes_everything().await?;
    stage.stop().await
}

#[test]
#[ignore = "run by cargo xtask test --lane dynamo"]
fn stand_in_refuses_arguments_that_it_cannot_map() -> Result<()> {
    let Some(parts) = dynamo::Dynamo::prepare("arguments of the stand-in for Dynamo's workers")? else {
        return Ok(());
    };
    let mapped = parts.stand_in(
        "vllm",
        &["--model", "a/b", "--served-model-name", "c", "--max-model-len", "64"],
    )?;
    for part in [
        "--model-path a/b",
        "--model-name c",
        "--max-model-len 64",
        "--no-enable-prefix-caching",
    ] {
        ensure!(mapped.contains(part), "no {part} in {mapped}");
    }
    for (engine, arguments, reason) in [
        (
            "vllm",
            &["--model", "m", "--max-model-length", "64"][..],
            "unrecognized arguments",
        ),
        (
            "vllm",
            &["--model", "m", "--disaggregation-mode", "prefill"],
            "no way to transfer",
        ),
        (
            "vllm",
            &["--model", "m", "--disaggregation-mode", "prefil"],
            "invalid choice",
        ),
        ("sglang", &["--model", "m"], "--model-path"),
        (
            "sglang",
            &["--model-path", "m", "--disaggregation-mode", "decode"],
            "no way to transfer",
        ),
        (
            "trtllm",
            &["--model-path", "m", "--override-engine-args", "{"],
            "invalid loads value",
        ),
    ] {
        let refused = parts.stand_in(engine, arguments).err();
        let refused = refused.with_context(|| format!("{engine} takes {arguments:?}"))?;
        ensure!(format!("{refused:#}").contains(reason), "{arguments:?}: {refused:#}");
    }
    Ok(())
}

/// The product with a node, and who plays Dynamo's operator.
struct Stage {
    bed: Bed<Node>,
    start: Instant,
    webhook: ConversionWebhook,
    _controllers: Vec<runway_product_testbed::Running>,
    _operator: Simulator,
}

impl Stage {
    async fn start(parts: &dynamo::Dynamo) -> Result<Self> {
        let start = Instant::now();
        let bed = Bed::start_with_node(Upstream::None).await?;
        bed.cluster.import_image(&parts.image().archive).await?;
        bed.cluster.offer_gpus(16).await?;
        for crd in crds::upstream_crds(&[crds::DYNAMO_V1ALPHA1, crds::DYNAMO_WORKERS])? {
            crds::install_crd(&bed.admin, crd).await?;
        }
        let image = &parts.image().name;
        let images = json!({"vllm": image, "sglang": image, "trtllm": image});
        let config: DynamoConfig = serde_json::from_value(json!({"images": images}))?;
        let core = bed.core().await?;
        bed.admission_is_up().await?;
        let operator = Simulator::start(
            bed.cluster.client("dynamo-operator", &["system:masters"]).await?,
            simulator::Config {
                dynamo_workloads: true,
                ..simulator::Config::default()
            },
        );
        let provider = bed.asking_provider(Dynamo::new(config)).await?;
        let stage = Self {
            webhook: ConversionWebhook::start(&bed.cluster.pki()).await?,
            bed,
            start,
            _controllers: vec![core, provider],
            _operator: operator,
        };
        stage.done("a node with the image, the core and the provider");
        Ok(stage)
    }

    async fn an_upgrade_of_dynamo_keeps_a_v1alpha1_model_serving(&self) -> Result<()> {
        self.bed.create(model("agg", "vllm", "kv", 1)).await?;
        self.bed.running("agg").await?;
        self.chat("agg", "agg", "Hello").await.context("v1alpha1")?;
        self.done("aggregated, v1alpha1");
        for crd in crds::upstream_crds(&[crds::DYNAMO_V1BETA1])? {
            crds::install_crd(&self.bed.admin, with_immutable_types(self.webhook.converting(crd))).await?;
        }
        // A rollout that no answer shows: the containers stay the same.
        let note = json!({"podTemplate": {"metadata": {"annotations": {"note": "new"}}}});
        self.bed.patch("agg", json!({"spec": note})).await?;
        self.runs_generation("agg", 2).await?;
        for pod in self.alive("agg", "VllmWorker").await? {
            let note = pod.annotations().get("note").map(String::as_str);
            ensure!(note == Some("new"), "Ready with {} of the earlier spec", pod.name_any());
        }
        let graphs = self.bed.upstream(DYNAMO_GRAPH_DEPLOYMENT, "v1beta1");
        let graph = graphs.get("agg").await?;
        let version = graph
            .managed_fields()
            .iter()
            .find(|entry| entry.manager.as_deref() == Some("dynamo-provider"));
        ensure!(
            version.and_then(|entry| entry.api_version.as_deref()) == Some("nvidia.com/v1beta1"),
            "{:?}",
            graph.managed_fields()
        );
        self.chat("agg", "agg", "Hello").await.context("v1beta1")?;
        self.done("the same in v1beta1 after an upgrade of the CRD");
        Ok(())
    }

    async fn models_become_ready(&self) -> Result<()> {
        let models = [
            disaggregated("pd", "vllm", "kv"),
            disaggregated("sg", "sglang", "round-robin"),
            disaggregated("trt", "trtllm", "random"),
            model("rr", "sglang", "round-robin", 2),
            model("kv", "vllm", "kv", 2),
        ];
        let names: Vec<String> = models
            .iter()
            .filter_map(|m| m["metadata"]["name"].as_str().map(str::to_owned))
            .collect();
        for model in models {
            self.bed.create(model).await?;
        }
        for name in &names {
            self.bed.running(name).await?;
            self.chat(name, name, "Hello").await.with_context(|| name.clone())?;
        }
        self.done("five models: vllm, sglang and trtllm, aggregated and disaggregated");
        Ok(())
    }

    async fn prefill_comes_before_decode(&self) -> Result<()> {
        for (name, prefill, decode) in [
            ("pd", "VllmPrefillWorker", "VllmDecodeWorker"),
            ("sg", "SglangPrefillWorker", "SglangDecodeWorker"),
            ("trt", "TrtllmPrefillWorker", "TrtllmDecodeWorker"),
        ] {
            let id = self.chat(name, name, "What is prefilled first?").await?;
            let [first, second] = [
                self.served_by(name, prefill, &id).await?,
                self.served_by(name, decode, &id).await?,
            ];
            let [[first], [second]] = [first.as_slice(), second.as_slice()] else {
                bail!("{name}: {id} was served by {first:?} and {second:?}")
            };
            ensure!(
                first.1 < second.1,
                "{name}: decode at {}, prefill at {}",
                second.1,
                first.1
            );
        }
        self.done("a prefill, then a decode worker had each request");
        Ok(())
    }

    async fn round_robin_alternates_between_workers(&self) -> Result<()> {
        let mut workers = Vec::new();
        for _ in 0..6 {
            workers.push(self.worker_of("rr", "SglangWorker", "The same question again").await?);
        }
        ensure!(
            workers.windows(2).all(|pair| pair[0] != pair[1]),
            "not in turn: {workers:?}"
        );
        self.done("round-robin alternates");
        Ok(())
    }

    /// Workers publish what is in their caches only if the provider has set their flags for it.
    async fn kv_router_prefers_the_worker_that_has_the_prompt(&self) -> Result<()> {
        let prompt = "A long question that fills several blocks of a cache. ".repeat(12);
        let first = self.worker_of("kv", "VllmWorker", &prompt).await?;
        // Its event is on its way.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..5 {
            let next = self.worker_of("kv", "VllmWorker", &prompt).await?;
            ensure!(next == first, "{next} has the request, and {first} the prompt");
        }
        let answer = self.answer("kv", "kv", &prompt).await?;
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        ensure!(cached.is_some_and(|tokens| tokens > 100), "{answer}");
        self.done("the KV router chooses the worker with the prompt");
        Ok(())
    }

    async fn a_rollout_answers_under_the_old_name_until_the_new_one_serves(&self) -> Result<()> {
        let endpoint = self.endpoint("agg");
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = ends.clone();
        let sampler = tokio::spawn(async move {
            let mut answers = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                answers.push(serving_name(&endpoint, ["agg", "renewed"]).await);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            answers
        });
        let generation = self
            .bed
            .patch("agg", json!({"spec": {"model": {"servedName": "renewed"}}}))
            .await?;
        let generation = generation.metadata.generation.unwrap_or_default();
        self.runs_generation("agg", generation).await?;
        self.chat("agg", "renewed", "Hello").await.context("Ready")?;
        eventually(PATIENCE, async || {
            let (_, models) = self.endpoint("agg").get(MODELS).await?;
            ensure!(!models.contains("\"agg\""), "{models}");
            Ok(())
        })
        .await?;
        ends.store(true, Ordering::Relaxed);
        let answers = sampler.await?.into_iter().collect::<Result<Vec<_>>>()?;
        let change = answers
            .iter()
            .position(|name| *name == "renewed")
            .context("no new answer")?;
        ensure!(change > 0, "no old answer: {answers:?}");
        self.done(&format!("a rollout: {} chats, none failed", answers.len()));
        Ok(())
    }

    async fn workers_are_scaled_while_the_model_answers(&self) -> Result<()> {
        for replicas in [3, 1] {
            self.bed
                .patch("rr", json!({"spec": {"scaling": {"replicas": replicas}}}))
                .await?;
            self.bed
                .status("rr", "scaled", |status| {
                    let ready = status.replicas.as_ref().and_then(|r| r.ready);
                    status.phase == Some(Phase::Running)
                        && status.conditions.is_true(condition::READY)
                        && ready == Some(replicas)
                })
                .await?;
            eventually(PATIENCE, async || {
                let alive = self.alive("rr", "SglangWorker").await?.len();
                ensure!(alive == usize::try_from(replicas)?, "{alive} pods");
                Ok(())
            })
            .await?;
            self.chat("rr", "rr", "Hello")
                .await
                .with_context(|| format!("{replicas} workers"))?;
        }
        self.done("workers are scaled from 2 to 3 and 1");
        Ok(())
    }

    async fn unknown_engine_arguments_are_reported(&self) -> Result<()> {
        let mut wrong = model("wrong", "vllm", "kv", 1);
        wrong["spec"]["engine"]["args"] = json!({"max-model-length": "64"});
        self.bed.create(wrong).await?;
        self.bed
            .status("wrong", "explained by its worker", |status| {
                status
                    .message
                    .as_deref()
                    .is_some_and(|m| m.contains("unrecognized arguments: --max-model-length"))
            })
            .await?;
        self.done("an argument that the worker refuses is in the message");
        Ok(())
    }

    async fn deletion_takes_everything(&self) -> Result<()> {
        let names: Vec<String> = self
            .bed
            .deployments()
            .list(&ListParams::default())
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        for name in &names {
            self.bed.delete(name).await?;
        }
        for name in &names {
            self.bed.gone(name).await?;
        }
        self.all_gone::<Deployment>("").await?;
        self.all_gone::<Pod>("").await?;
        self.all_gone::<Service>("kubernetes").await?;
        self.all_gone::<ServiceAccount>("default").await?;
        let kind = GroupVersionKind::gvk("nvidia.com", "v1alpha1", "DynamoWorkerMetadata");
        let workers: Api<DynamicObject> =
            Api::namespaced_with(self.bed.admin.clone(), NAMESPACE, &ApiResource::from_gvk(&kind));
        eventually(PATIENCE, async || {
            let left = workers.list(&ListParams::default()).await?.items;
            ensure!(left.is_empty(), "{} workers are still registered", left.len());
            Ok(())
        })
        .await?;
        self.done("deletion takes everything");
        Ok(())
    }

    async fn all_gone<K>(&self, except: &str) -> Result<()>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        eventually(PATIENCE, async || {
            let left = api.list(&ListParams::default()).await?;
            let left: Vec<_> = left
                .iter()
                .map(ResourceExt::name_any)
                .filter(|name| name != except)
                .collect();
            ensure!(left.is_empty(), "{} are left: {left:?}", K::plural(&()));
            Ok(())
        })
        .await
    }

    async fn stop(self) -> Result<()> {
        self.bed.cluster.stop().await
    }

    fn done(&self, what: &str) {
        say(&format!("{:>4} s: {what}", self.start.elapsed().as_secs()));
    }

    async fn runs_generation(&self, name: &str, generation: i64) -> Result<()> {
        self.bed
            .status(name, "Running in its latest generation", |status| {
                status.phase == Some(Phase::Running)
                    && status.observed_generation == Some(generation)
                    && status.conditions.is_true(condition::READY)
            })
            .await?;
        Ok(())
    }

    fn endpoint(&self, name: &str) -> Endpoint {
        Endpoint::service(self.bed.admin.clone(), &format!("{name}-frontend"), 8000)
    }

    async fn answer(&self, name: &str, served: &str, prompt: &str) -> Result<Value> {
        let mut request = chat_request(served, prompt);
        request["max_tokens"] = json!(4);
        self.endpoint(name).answer(CHAT, &request).await
    }

    /// Sends a chat, checks that words are answered, and returns Dynamo's ID of the request.
    async fn chat(&self, name: &str, served: &str, prompt: &str) -> Result<String> {
        let answer = self.answer(name, served, prompt).await?;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        ensure!(
            content.matches(dynamo::WORD).count() == 4 && answer["model"] == served,
            "{answer}"
        );
        let id = answer["id"].as_str().and_then(|id| id.strip_prefix("chatcmpl-"));
        Ok(id.with_context(|| format!("no ID: {answer}"))?.to_owned())
    }

    /// The pod that has answered.
    async fn worker_of(&self, name: &str, component: &str, prompt: &str) -> Result<String> {
        let id = self.chat(name, name, prompt).await?;
        let served = self.served_by(name, component, &id).await?;
        match served.as_slice() {
            [(pod, _)] => Ok(pod.clone()),
            others => bail!("{id} was served by {others:?}"),
        }
    }

    /// Pods of a component with a line about the request, with the time of the line.
    async fn served_by(&self, name: &str, component: &str, id: &str) -> Result<Vec<(String, String)>> {
        let api: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        eventually(Duration::from_secs(10), async || {
            let mut found = Vec::new();
            for pod in self.pods(name, component).await? {
                let log = api.logs(&pod.name_any(), &LogParams::default()).await?;
                let line = log
                    .lines()
                    .find(|line| line.contains("request received") && line.contains(id));
                let time = line.and_then(|line| line.split('Z').next()).map(str::to_owned);
                found.extend(time.map(|time| (pod.name_any(), time)));
            }
            ensure!(!found.is_empty(), "no {component} of {name} has logged {id}");
            Ok(found)
        })
        .await
    }

    /// Pods of a component that are not being deleted.
    async fn alive(&self, name: &str, component: &str) -> Result<Vec<Pod>> {
        let mut pods = self.pods(name, component).await?;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    async fn pods(&self, name: &str, component: &str) -> Result<Vec<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        let selector = format!("{GRAPH}={name},{COMPONENT}={component}");
        Ok(api.list(&ListParams::default().labels(&selector)).await?.items)
    }
}

/// The first of these names under which a model answers.
async fn serving_name(endpoint: &Endpoint, names: [&'static str; 2]) -> Result<&'static str> {
    let mut refusals = Vec::new();
    for name in names {
        let mut request = chat_request(name, "Hello");
        request["max_tokens"] = json!(2);
        match endpoint.post(CHAT, &request).await? {
            (StatusCode::OK, _) => return Ok(name),
            (StatusCode::NOT_FOUND, text) => refusals.push(text),
            (status, text) => bail!("{name}: {status} {text}"),
        }
    }
    bail!("neither of {names:?}: {refusals:?}")
}

/// A model with as many workers, served under its own name.
fn model(name: &str, engine: &str, router: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "provider": {"name": "dynamo", "overrides": {
                "routerMode": router,
                "frontend": {"resources": {"cpu": "10m", "memory": "64Mi"}},
            }},
            "model": {"id": dynamo::MODEL, "servedName": name},
            "engine": {"type": engine},
            "scaling": {"replicas": replicas},
            "resources": {"gpu": {"count": 1}, "memory": "512Mi", "cpu": "10m"},
        },
    })
}

fn disaggregated(name: &str, engine: &str, router: &str) -> Value {
    let worker = json!({"replicas": 1, "gpu": {"count": 1}, "memory": "512Mi"});
    let mut model = model(name, engine, router, 1);
    model["spec"]["resources"] = json!({"cpu": "10m"});
    model["spec"]["serving"] = json!({"mode": "disaggregated"});
    model["spec"]["scaling"] = json!({"prefill": worker, "decode": worker});
    model
}
