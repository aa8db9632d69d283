//! Ready is accurate: real engines in real pods are taken through everything that happens to models, by the direct provider
//! and by the upstream simulator's KAITO.
//!
//! - Ready is never True without an answer of the generation that it speaks of: each generation gives the model another name, and
//!   whenever Ready is True the endpoint must answer to it.
//! - A model that answers does not stay NotReady: for each change it is measured how long it answered before the status said so.
//! - What goes wrong is named.

#![allow(
    clippy::print_stdout,
    reason = "what the messages are, and how long it took, is worth reading"
)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, ModelDeploymentStatus, Phase};
use runway_operator::client::ClientArgs;
use runway_operator::services::Services;
use runway_product_testbed::engine::{alias, endpoint, model, with_args};
use runway_product_testbed::{Bed, NAMESPACE, Upstream};
use runway_provider_direct::Direct;
use runway_provider_kaito::Kaito;
use runway_testbed::engine::{self, LlamaServer, MODEL, NOT_A_MODEL, SENTENCE};
use runway_testbed::{Node, PATIENCE, eventually, images};
use runway_upstream_simulator::{self as simulator, Simulator};
use serde_json::{Value, json};

/// Models that live at the same time.
const DIRECT: usize = 6;
const KAITO: usize = 3;
/// Changes of the status that all of them see together, at least.
const TRANSITIONS: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn ready_is_true_when_a_real_engine_answers_and_only_then() -> Result<()> {
    const WHAT: &str = "models that answer on a real node";
    let Some(llama_server) = LlamaServer::for_node(WHAT).await? else {
        return Ok(());
    };
    let scene = Scene::set(llama_server).await?;
    let _core = scene.bed.core().await?;
    let _direct = scene.bed.asking_provider(Direct::default()).await?;
    let _kaito = scene.bed.asking_provider(Kaito::default()).await?;
    let config = simulator::Config {
        workloads: true,
        ..simulator::Config::default()
    };
    let client = scene.bed.cluster.client("kaito", &["system:masters"]).await?;
    let _simulator = Simulator::start(client, config);

    scene.bad_input_is_named().await?;
    scene.volumes_are_mounted_or_named().await?;
    scene.a_mirror_without_the_image_is_named().await?;
    scene.fields_reach_the_process().await?;
    scene.lives().await?;
    scene.bed.cluster.stop().await
}

/// Something that a user gets wrong, or an engine that misbehaves.
struct Bad {
    name: &'static str,
    image: Image,
    args: &'static [(&'static str, &'static str)],
    memory: &'static str,
    /// Of Ready.
    reason: &'static str,
    /// Parts of the message.
    texts: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Image {
    LlamaServer,
    Hostile,
    Busybox,
    Absent,
}

const fn llama(
    name: &'static str,
    args: &'static [(&'static str, &'static str)],
    reason: &'static str,
    texts: &'static [&'static str],
) -> Bad {
    Bad {
        name,
        image: Image::LlamaServer,
        args,
        memory: "256Mi",
        reason,
        texts,
    }
}

/// An engine that is healthy, and does not answer.
const fn hostile(
    name: &'static str,
    args: &'static [(&'static str, &'static str)],
    texts: &'static [&'static str],
) -> Bad {
    Bad {
        image: Image::Hostile,
        ..llama(name, args, "NotAnswering", texts)
    }
}

const BAD: [Bad; 14] = [
    llama(
        "not-a-gguf",
        &[("model", NOT_A_MODEL)],
        "CrashLoopBackOff",
        &["container 'model'", "invalid magic"],
    ),
    llama(
        "no-such-file",
        &[("model", "/models/none.gguf")],
        "CrashLoopBackOff",
        &["/models/none.gguf"],
    ),
    llama(
        "unknown-flag",
        &[("model", MODEL), ("no-such-flag", "1")],
        "CrashLoopBackOff",
        &["--no-such-flag", "spec.engine.args"],
    ),
    Bad {
        image: Image::Busybox,
        ..llama(
            "no-engine",
            &[("model", MODEL)],
            "ContainerStartFailed",
            &["executable file not found", "spec.image"],
        )
    },
    Bad {
        image: Image::Absent,
        ..llama(
            "no-image",
            &[("model", MODEL)],
            "ImagePullFailed",
            &["testbed.local/none:1", "spec.image"],
        )
    },
    Bad {
        memory: "900Gi",
        ..llama(
            "no-memory",
            &[("model", MODEL)],
            "Unschedulable",
            &["Insufficient memory", "spec.resources"],
        )
    },
    Bad {
        memory: "6Mi",
        ..llama(
            "too-little-memory",
            &[("model", MODEL)],
            "OOMKilled",
            &["6Mi", "spec.resources.memory"],
        )
    },
    hostile(
        "other-name",
        &[("mode", "other-name")],
        &["'another-other-name'", "not 'other-name'"],
    ),
    hostile(
        "errors",
        &[("mode", "errors")],
        &["/v1/chat/completions: 500", "the engine is broken"],
    ),
    hostile("hangs", &[("mode", "hangs")], &["no response within 10 seconds"]),
    hostile(
        "redirects",
        &[("mode", "redirects")],
        &["302 Found: redirects are not followed"],
    ),
    hostile("endless", &[("mode", "endless")], &["longer than 64 KiB"]),
    hostile("not-found", &[("mode", "not-found")], &["GET /v1/models: 404"]),
    hostile("closes", &[("mode", "closes")], &["GET /v1/models"]),
];

/// The folder of a process in /proc.
struct Engine(PathBuf);

impl Engine {
    /// A file, with spaces for the zero bytes and line ends in it.
    fn read(&self, file: &str) -> Result<String> {
        let bytes = std::fs::read(self.0.join(file))?;
        Ok(String::from_utf8_lossy(&bytes).replace(['\0', '\n'], " "))
    }
}

struct Scene {
    bed: Bed<Node>,
    services: Services,
    llama_server: LlamaServer,
    hostile: String,
    busybox: String,
}

impl Scene {
    async fn set(llama_server: LlamaServer) -> Result<Self> {
        let (hostile, busybox) =
            tokio::task::spawn_blocking(|| anyhow::Ok((engine::hostile()?, images::busybox()?))).await??;
        let bed = Bed::start_with_node(Upstream::Kaito).await?;
        for archive in [&llama_server.image.archive, &hostile.archive, &busybox.archive] {
            bed.cluster.import_image(archive).await?;
        }
        let args = ClientArgs {
            kubeconfig: Some(bed.cluster.kubeconfig("asker", &["system:masters"])?),
            context: None,
        };
        Ok(Self {
            services: Services::of(&args.config().await?)?,
            bed,
            llama_server,
            hostile: hostile.name,
            busybox: busybox.name,
        })
    }

    /// Bad input, all at once: never Ready, and the message has the cause.
    async fn bad_input_is_named(&self) -> Result<()> {
        for bad in &BAD {
            let args: serde_json::Map<_, _> = bad
                .args
                .iter()
                .map(|(key, value)| ((*key).to_owned(), json!(value)))
                .collect();
            let mut object = with_args(bad.name, "direct", self.image(bad.image), &args.into());
            object["spec"]["resources"]["memory"] = json!(bad.memory);
            self.bed.create(object).await?;
        }
        for Bad {
            name, reason, texts, ..
        } in &BAD
        {
            let md = self
                .bed
                .status(name, reason, |s| {
                    s.conditions
                        .get_condition(condition::READY)
                        .is_some_and(|c| c.status == "False" && c.reason == *reason)
                })
                .await?;
            let message = md.status.and_then(|s| s.message).unwrap_or_default();
            println!("{name}: {message}");
            for text in *texts {
                ensure!(
                    message.contains(text),
                    "{name}: the message does not say '{text}': {message}"
                );
            }
        }
        for bad in &BAD {
            self.bed.delete(bad.name).await?;
        }
        try_join_all(BAD.iter().map(|bad| self.bed.gone(bad.name))).await?;
        Ok(())
    }

    /// Two replicas load a model from an image volume and share a claim; what cannot be mounted is named.
    async fn volumes_are_mounted_or_named(&self) -> Result<()> {
        self.make_claim("cache").await?;
        let weights =
            |reference: &str| json!({"name": "weights", "image": {"reference": reference}, "mountPath": "/weights"});
        let cache = |claim: &str| json!({"name": "cache", "purpose": "modelCache", "claimName": claim});
        let path = format!("/weights{MODEL}");
        let engine = self.image(Image::LlamaServer);
        let create = async |name: &str, volumes: Value| {
            let mut object = with_args(name, "direct", engine, &json!({"model": path, "threads": "1"}));
            object["spec"]["scaling"] = json!({"replicas": 2});
            object["spec"]["model"]["storage"] = json!({ "volumes": volumes });
            self.bed.create(object).await
        };
        create("mounted", json!([weights(engine), cache("cache")])).await?;
        create("no-claim", json!([weights(engine), cache("none")])).await?;
        create("no-volume-image", json!([weights("testbed.local/none:1")])).await?;
        let fast = json!({"name": "cache", "purpose": "modelCache", "size": "1Gi", "storageClassName": "fast"});
        create("no-class", json!([weights(engine), fast])).await?;
        self.make_claim_of("one-pod", "ReadWriteOncePod").await?;
        create("one-pod-at-a-time", json!([weights(engine), cache("one-pod")])).await?;

        let is_ready = |status: &ModelDeploymentStatus| {
            let ready = status.replicas.as_ref().and_then(|replicas| replicas.ready);
            status.conditions.when_true(condition::READY).is_some() && ready == Some(2)
        };
        self.bed.status("mounted", "Ready", is_ready).await?;
        for (name, reason, text) in [
            ("no-claim", "Unschedulable", "persistentvolumeclaim \"none\" not found"),
            (
                "no-volume-image",
                "ImagePullFailed",
                "Check the name of the image in spec.model.storage.volumes[weights].image",
            ),
            ("no-class", "Unschedulable", "check that storage class 'fast' exists"),
            (
                "one-pod-at-a-time",
                "Unschedulable",
                "Use a claim with another access mode in spec.model.storage.volumes",
            ),
        ] {
            let named = |status: &ModelDeploymentStatus| {
                let ready = status.conditions.get_condition(condition::READY);
                ready.is_some_and(|c| c.status == "False" && c.reason == reason && c.message.contains(text))
            };
            let md = self.bed.status(name, reason, named).await?;
            println!("{name}: {}", md.status.and_then(|s| s.message).unwrap_or_default());
        }
        for name in [
            "mounted",
            "no-claim",
            "no-volume-image",
            "no-class",
            "one-pod-at-a-time",
        ] {
            self.bed.delete(name).await?;
            self.bed.gone(name).await?;
        }
        Ok(())
    }

    /// An administrator names a mirror that lacks the default image: a new model reports it.
    async fn a_mirror_without_the_image_is_named(&self) -> Result<()> {
        let settings = |settings: Value| {
            json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig", "metadata": {"name": "direct"},
                "spec": {"settings": settings}})
        };
        let mirror = settings(json!({"registryMirror": "testbed.local/mirror"}));
        self.bed.apply(&mirror).await?;
        let mut object = with_args("mirrored", "direct", "", &json!({}));
        object["spec"]["model"] = json!({"id": "Org/Model"});
        self.bed.create(object).await?;
        let md = self
            .bed
            .status("mirrored", "ImagePullFailed", |s| {
                let ready = s.conditions.get_condition(condition::READY);
                ready.is_some_and(|c| c.reason == "ImagePullFailed")
            })
            .await?;
        let message = md.status.and_then(|s| s.message).unwrap_or_default();
        println!("mirrored: {message}");
        for text in [
            "testbed.local/mirror/",
            "registryMirror",
            "InferenceProviderConfig 'direct'",
        ] {
            ensure!(message.contains(text), "no '{text}' in: {message}");
        }
        self.bed.apply(&settings(json!({}))).await?;
        self.bed.delete("mirrored").await?;
        self.bed.gone("mirrored").await
    }

    /// Each field is set to a value that can be recognized in the engine's process on the node, or in the fields of its pod that
    /// only the scheduler and the kubelet use.
    async fn fields_reach_the_process(&self) -> Result<()> {
        for object in [
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "model-runner", "namespace": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": NAMESPACE},
                "stringData": {"HF_TOKEN": "marked-token"}}),
            json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "models"}, "value": 7}),
        ] {
            self.bed.apply(&object).await?;
        }
        for provider in ["direct", "kaito"] {
            let name = format!("marked-{provider}");
            self.bed.create(self.marked(&name, provider)).await?;
            self.bed.running(&name).await?;
            let (pod, process) = self.engine_of(&name).await?;
            let model = format!("/weights{MODEL}");
            let image = format!(r#""image":"{}""#, self.image(Image::LlamaServer));
            let marks: [(String, &[(&str, &str)]); 5] = [
                (
                    process.read("cmdline")?,
                    &[
                        ("spec.engine.args", "--threads 1 "),
                        ("spec.engine.args.model", &model),
                        ("spec.engine.contextLength", "--ctx-size 512 "),
                    ],
                ),
                (
                    process.read("environ")?,
                    &[
                        ("spec.env", "MARKER=marked-value "),
                        ("spec.secrets", "HF_TOKEN=marked-token "),
                        ("volumes[].purpose", "LLAMA_CACHE=/marked-cache "),
                    ],
                ),
                (
                    process.read("mountinfo")?,
                    &[
                        ("volumes[].mountPath", " /marked-cache "),
                        ("volumes[].image", " /weights "),
                        ("podTemplate.spec.shmSize", "size=32768k"),
                    ],
                ),
                (
                    process.read("status")?,
                    &[("securityContext.supplementalGroups", "7777 ")],
                ),
                (
                    pod,
                    &[
                        ("resources.memory, request", r#""memory":"256Mi""#),
                        ("resources.cpu", r#""cpu":"10m""#),
                        ("spec.image", &image),
                        ("podTemplate.metadata.labels", r#""team":"marked-label""#),
                        ("podTemplate.metadata.annotations", r#""note":"marked-note""#),
                        ("spec.nodeSelector", "kubernetes.io/os"),
                        ("spec.tolerations", r#""key":"marked-taint""#),
                        ("spec.imagePullSecrets", r#""name":"marked-registry""#),
                        ("spec.serviceAccountName", r#""serviceAccountName":"model-runner""#),
                        ("podTemplate.spec.priorityClassName", r#""priorityClassName":"models""#),
                        (
                            "podTemplate.spec.topologySpreadConstraints",
                            r#""topologyKey":"kubernetes.io/hostname""#,
                        ),
                        (
                            "podTemplate.spec.schedulerName",
                            r#""schedulerName":"default-scheduler""#,
                        ),
                        ("volumes[].claimName", r#""claimName":"cache""#),
                    ],
                ),
            ];
            for (found, marks) in marks {
                for (field, mark) in marks {
                    ensure!(found.contains(mark), "{provider}: {field}: no '{mark}' in {found}");
                }
            }
            println!("{provider}: {}", process.read("cmdline")?);
            self.bed.delete(&name).await?;
            self.bed.gone(&name).await?;
        }
        Ok(())
    }

    /// A model with every field that a provider passes on without GPUs.
    fn marked(&self, name: &str, provider: &str) -> Value {
        let image = self.image(Image::LlamaServer);
        let mut object = model(name, provider, image);
        let fields = json!({
            "model": {"storage": {"volumes": [
                {"name": "weights", "image": {"reference": image}, "mountPath": "/weights"},
                {"name": "cache", "purpose": "modelCache", "claimName": "cache", "mountPath": "/marked-cache"},
            ]}},
            "engine": {"contextLength": 512, "args": {"model": format!("/weights{MODEL}"), "alias": name}},
            "env": [{"name": "MARKER", "value": "marked-value"}],
            "secrets": {"huggingFaceToken": "hub"},
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "marked-taint", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "marked-registry"}],
            "serviceAccountName": "model-runner",
            "podTemplate": {
                "metadata": {"labels": {"team": "marked-label"}, "annotations": {"note": "marked-note"}},
                "spec": {
                    "priorityClassName": "models", "schedulerName": "default-scheduler", "shmSize": "32Mi",
                    "securityContext": {"supplementalGroups": [7777]},
                    "topologySpreadConstraints": [
                        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"},
                    ],
                },
            },
        });
        json_patch::merge(&mut object["spec"], &fields);
        object
    }

    /// The only pod of a model, as JSON, and the process of its engine on the node.
    async fn engine_of(&self, name: &str) -> Result<(String, Engine)> {
        let pods: Api<Pod> = Api::namespaced(self.bed.admin.clone(), NAMESPACE);
        let all = pods.list(&ListParams::default()).await?.items.into_iter();
        let mut of_it = all.filter(|pod| pod.name_any().starts_with(name));
        let pod = of_it.next().context("no pod")?;
        let uid = pod.uid().context("the pod has no uid")?;
        let processes = std::fs::read_dir("/proc")?.filter_map(|entry| Some(Engine(entry.ok()?.path())));
        let engine = processes.into_iter().find(|process| {
            let has = |file: &str, text: &str| process.read(file).is_ok_and(|found| found.contains(text));
            has("cgroup", &uid) && has("cmdline", "--alias")
        });
        Ok((json!(pod).to_string(), engine.context("no process of the engine")?))
    }

    /// A claim that pods on all nodes can write to.
    async fn make_claim(&self, name: &str) -> Result<()> {
        self.make_claim_of(name, "ReadWriteMany").await
    }

    /// A claim with a volume in a directory of the node.
    async fn make_claim_of(&self, name: &str, mode: &str) -> Result<()> {
        let size = json!({"storage": "1Gi"});
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": [mode],
                "hostPath": {"path": "/run/model-cache", "type": "DirectoryOrCreate"},
                "claimRef": {"namespace": NAMESPACE, "name": name},
            },
        }))?;
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": [mode],
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": size},
            },
        }))?;
        let (volumes, claims): (Api<PersistentVolume>, Api<PersistentVolumeClaim>) = (
            Api::all(self.bed.admin.clone()),
            Api::namespaced(self.bed.admin.clone(), NAMESPACE),
        );
        volumes.create(&PostParams::default(), &volume).await?;
        claims.create(&PostParams::default(), &claim).await?;
        Ok(())
    }

    fn image(&self, image: Image) -> &str {
        match image {
            Image::LlamaServer => &self.llama_server.image.name,
            Image::Hostile => &self.hostile,
            Image::Busybox => &self.busybox,
            Image::Absent => "testbed.local/none:1",
        }
    }

    /// Many models at once, each through a whole life.
    async fn lives(&self) -> Result<()> {
        let witness = Witness::start(self.bed.admin.clone(), self.services.clone());
        let direct = (0..DIRECT).map(|n| self.life(&witness, format!("direct-{n}"), "direct"));
        let kaito = (0..KAITO).map(|n| self.life(&witness, format!("kaito-{n}"), "kaito"));
        let direct = try_join_all(direct);
        let kaito = try_join_all(kaito);
        tokio::try_join!(direct, kaito)?;
        let seen = witness.end();
        println!(
            "{} transitions; the longest that a model answered before its status said so: {:.1} s",
            seen.transitions,
            seen.longest.as_secs_f64()
        );
        ensure!(
            seen.violations.is_empty(),
            "Ready without an answer:\n{}",
            seen.violations.join("\n")
        );
        ensure!(
            seen.transitions >= TRANSITIONS,
            "only {} transitions were seen",
            seen.transitions
        );
        Ok(())
    }

    async fn life(&self, witness: &Witness, name: String, provider: &str) -> Result<()> {
        let life = Life {
            scene: self,
            witness,
            name,
            kaito: provider == "kaito",
        };
        let (image, next) = (&self.llama_server.image.name, &self.llama_server.next.name);
        self.bed.create(model(&life.name, provider, image)).await?;
        life.answers(1).await.context("created")?;
        let change = |patch: Value| self.bed.change_engine(&life.name, patch);

        let generation = change(json!({"engine": {"args": {"ctx-size": "512"}}})).await?;
        life.answers(generation).await.context("other arguments")?;
        let generation = change(json!({"image": next})).await?;
        life.answers(generation).await.context("another image")?;
        change(json!({"engine": {"args": {"no-such-flag": "1"}}})).await?;
        life.fails("CrashLoopBackOff", "--no-such-flag").await?;
        if !life.kaito {
            life.still_answers(generation).await.context("a broken rollout")?;
        }
        let generation = change(json!({"engine": {"args": {"no-such-flag": null}}})).await?;
        life.answers(generation).await.context("the flag is gone")?;
        change(json!({"engine": {"args": {"model": "/models/none.gguf"}}})).await?;
        life.fails("CrashLoopBackOff", "/models/none.gguf").await?;
        let generation = change(json!({"engine": {"args": {"model": MODEL}}})).await?;
        life.answers(generation).await.context("the file is there again")?;
        if !life.kaito {
            // KAITO's templates have no limit of memory.
            change(json!({"resources": {"memory": "6Mi"}})).await?;
            life.fails("OOMKilled", "6Mi").await?;
            let generation = change(json!({"resources": {"memory": "256Mi"}})).await?;
            life.answers(generation).await.context("memory enough")?;
        }
        life.pod_goes().await?;
        let generation = life.generation().await?;
        life.answers(generation).await.context("another pod")?;
        change(json!({"scaling": {"replicas": 0}})).await?;
        life.fails("ScaledToZero", "no replica").await?;
        let generation = change(json!({"scaling": {"replicas": 1}})).await?;
        life.answers(generation).await.context("awake again")?;
        self.bed.delete(&life.name).await?;
        self.bed.gone(&life.name).await
    }
}

/// One model.
struct Life<'a> {
    scene: &'a Scene,
    witness: &'a Witness,
    name: String,
    kaito: bool,
}

impl Life<'_> {
    /// The name of the model in a generation.
    fn alias(&self, generation: i64) -> String {
        alias(&self.name, generation)
    }

    async fn generation(&self) -> Result<i64> {
        let md = self.scene.bed.deployments().get(&self.name).await?;
        md.metadata.generation.context("a generation")
    }

    /// Ready for this generation, and the whole sentence.
    async fn answers(&self, generation: i64) -> Result<()> {
        let md = self
            .scene
            .bed
            .status(&self.name, "Ready", |s| {
                let ready = s.conditions.when_true(condition::READY);
                ready.is_some_and(|c| c.observed_generation == Some(generation))
            })
            .await?;
        let at = endpoint(&md).context("an endpoint")?;
        let question = json!({"model": self.alias(generation), "messages": [{"role": "user", "content": "Hi"}]});
        let response = self.scene.services.post(&at, "/v1/chat/completions", &question).await?;
        let answer: Value = serde_json::from_slice(&response.body)?;
        let said = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        ensure!(said.trim() == SENTENCE, "{} answers {answer}", self.name);
        self.witness.settled(&self.name, generation).await
    }

    /// The pods of an earlier generation serve on, and the status says so.
    async fn still_answers(&self, generation: i64) -> Result<()> {
        let md = self
            .scene
            .bed
            .status(&self.name, "serving on", |s| {
                s.message
                    .as_ref()
                    .is_some_and(|message| message.contains("Replicas that still serve: 1"))
            })
            .await?;
        lists(&self.scene.services, &md, generation).await
    }

    /// Not Ready, for this reason.
    async fn fails(&self, reason: &str, text: &str) -> Result<()> {
        let generation = self.generation().await?;
        self.scene
            .bed
            .status(&self.name, reason, |s| {
                let ready = s.conditions.get_condition(condition::READY);
                let is_it = ready.is_some_and(|c| {
                    c.status == "False" && c.reason == reason && c.observed_generation == Some(generation)
                });
                is_it && s.message.as_ref().is_some_and(|message| message.contains(text))
            })
            .await
            .map(drop)
    }

    /// Its pod is deleted, and the status notices.
    async fn pod_goes(&self) -> Result<()> {
        self.scene.bed.remove_pods(&self.name).await?;
        self.scene
            .bed
            .status(&self.name, "not Ready", |s| !s.conditions.is_true(condition::READY))
            .await
            .map(drop)
    }
}

/// Sees every status of every model, and asks the endpoints itself.
struct Witness {
    seen: Arc<Mutex<Seen>>,
    _tasks: tokio::task::JoinSet<()>,
}

#[derive(Clone, Default)]
struct Seen {
    transitions: usize,
    violations: Vec<String>,
    longest: Duration,
    /// Generations that were Ready, and asked for.
    checked: BTreeSet<(String, i64)>,
}

impl Witness {
    fn start(client: Client, services: Services) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(watch(client, services, seen.clone()));
        Self { seen, _tasks: tasks }
    }

    /// Waits until Ready of this generation has been checked.
    async fn settled(&self, name: &str, generation: i64) -> Result<()> {
        eventually(PATIENCE, async || {
            let seen = self.seen.lock();
            ensure!(
                seen.checked.contains(&(name.to_owned(), generation)),
                "{name} is not checked"
            );
            Ok(())
        })
        .await
    }

    fn end(self) -> Seen {
        self.seen.lock().clone()
    }
}

async fn watch(client: Client, services: Services, seen: Arc<Mutex<Seen>>) {
    let models: Api<ModelDeployment> = Api::namespaced(client.clone(), NAMESPACE);
    let mut events = watcher(models.clone(), watcher::Config::default())
        .applied_objects()
        .boxed();
    let mut last = std::collections::HashMap::new();
    let mut samplers = std::collections::HashMap::new();
    while let Ok(Some(md)) = events.try_next().await {
        let name = md.name_any();
        let now = said(&md);
        if last.insert(name.clone(), now.clone()) == Some(now.clone()) {
            continue;
        }
        seen.lock().transitions += 1;
        if let Some(generation) = now.ready_for {
            let answering = samplers.remove(&(name.clone(), generation));
            let gap = answering.map_or(Duration::ZERO, |sampler: Sampler| sampler.answering_for());
            let outcome = lists(&services, &md, generation).await;
            let current = models.get(&name).await.ok().and_then(|md| md.metadata.generation);
            let mut seen = seen.lock();
            seen.longest = seen.longest.max(gap);
            match outcome {
                // What was true when it was written may have been changed since.
                Err(error) if current == Some(generation) => {
                    seen.violations
                        .push(format!("{name}, generation {generation}: {error:#}"));
                }
                _ => {}
            }
            seen.checked.insert((name, generation));
        } else if let Some(generation) = md.metadata.generation {
            samplers
                .entry((name, generation))
                .or_insert_with(|| Sampler::start(services.clone(), md.clone(), generation));
        }
    }
}

/// A status without its times.
#[derive(Clone, PartialEq)]
struct Said {
    phase: Option<&'static str>,
    reason: String,
    /// The generation for which Ready is True.
    ready_for: Option<i64>,
    generation: Option<i64>,
}

fn said(md: &ModelDeployment) -> Said {
    let status = md.status.clone().unwrap_or_default();
    let ready = status.conditions.get_condition(condition::READY);
    Said {
        phase: status.phase.map(Phase::as_str),
        reason: ready.map(|c| c.reason.clone()).unwrap_or_default(),
        ready_for: ready.filter(|c| c.status == "True").and_then(|c| c.observed_generation),
        generation: status.observed_generation,
    }
}

/// Asks the endpoint of a model that is not Ready whether it answers by the name of a generation, and since when.
struct Sampler {
    since: Arc<Mutex<Option<Instant>>>,
    _task: tokio_util::task::AbortOnDropHandle<()>,
}

impl Sampler {
    fn start(services: Services, md: ModelDeployment, generation: i64) -> Self {
        let since = Arc::new(Mutex::new(None));
        let answers = since.clone();
        let task = tokio::spawn(async move {
            loop {
                let is_there = lists(&services, &md, generation).await.is_ok();
                {
                    let mut since = answers.lock();
                    *since = since.filter(|_| is_there).or_else(|| is_there.then(Instant::now));
                }
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        });
        Self {
            since,
            _task: tokio_util::task::AbortOnDropHandle::new(task),
        }
    }

    fn answering_for(&self) -> Duration {
        let since = self.since.lock();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Whether the endpoint lists the model under the name of this generation.
async fn lists(services: &Services, md: &ModelDeployment, generation: i64) -> Result<()> {
    let at = endpoint(md).context("no endpoint")?;
    let mut response = services.get(&at, "/v1/models").await;
    if response.is_err() {
        // On a busy machine a connection may break; another name, or no engine, stays.
        tokio::time::sleep(Duration::from_millis(300)).await;
        response = services.get(&at, "/v1/models").await;
    }
    let response = response?;
    let models: Value = serde_json::from_slice(&response.body).with_context(|| response.status.to_string())?;
    let wanted = alias(&md.name_any(), generation);
    if models["data"][0]["id"] != *wanted {
        bail!("the endpoint lists {}, not {wanted}", models["data"][0]["id"]);
    }
    Ok(())
}
