//! AsyncActors on a real node: a real KEDA wakes and puts to sleep by the depth of a real RabbitMQ's queues, pods from our own images
//! answer, and no message is lost.
#![allow(clippy::too_many_lines, reason = "a life is a story")]

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use runway_api::{AsyncActor, ModelDeployment, labels};
use runway_asya_testbed::pipeline::Incoming;
use runway_asya_testbed::stage::{Installation, NAMESPACE, Stage, apply, reverting_controller};
use runway_client::cluster::Cluster;
use runway_client::depth::Depth;
use runway_client::endpoint;
use runway_client::operated;
use runway_client::queue;
use runway_client::source::Source;
use runway_client::tree::Row;
use runway_manifests::{self as manifests, Component, Release};
use runway_operator::clock;
use runway_testbed::{Node, Options, PATIENCE, eventually, node, programs};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// As long as the model must stay awake after it was bound.
const COOLDOWN: Duration = Duration::from_secs(20);
/// Enough for several pods; each takes a while.
const MESSAGES: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn models_wake_answer_and_sleep_and_nothing_is_lost() -> Result<()> {
    if node::skip("AsyncActors on a real node") {
        return Ok(());
    }
    let core = manifests::core();
    let node = start(&core).await?;
    let play = play(&node, &core, false).await?;
    let fight = play.a_fight_begins().await?;
    play.a_bound_deployment_scales_from_zero_and_back().await?;
    play.two_actors_of_our_own_hand_on().await?;
    play.errors_of_a_handler_are_reported().await?;
    play.a_model_deployment_is_called_where_it_answers().await?;
    play.who_is_let_go_is_as_before().await?;
    play.who_fought_back_is_called_when_asked_for().await?;
    fight.abort();
    play.stage.rabbit.stop().await;
    node.stop().await
}

/// Operator, sidecar and KEDA reach the broker over TLS, with an authority of its own. The queue has an alias.
#[tokio::test(flavor = "multi_thread")]
async fn actor_wakes_answers_and_sleeps_over_tls() -> Result<()> {
    if node::skip("AsyncActors over TLS on a real node") {
        return Ok(());
    }
    let core = manifests::core();
    let node = start(&core).await?;
    let play = play(&node, &core, true).await?;
    play.model("parrot", 0.0).await?;
    let mut spec = play.bound("apps/v1", "Deployment", "parrot");
    spec["scaling"] = json!({"enabled": true, "minReplicas": 0, "maxReplicas": 1, "pollingInterval": 1,
        "initialCooldownPeriod": 0, "cooldownPeriod": 5});
    spec["queueAlias"] = json!("AsyaV01");
    play.actor("ask", spec).await?;
    play.word("ask", "Napping").await?;
    play.replicas("parrot", 0).await?;
    let mut answers = play.stage.answers().await?;
    play.ask("ask", 7).await?;
    ensure!(number(&answers.next(PATIENCE).await?.0)? == 7);
    play.replicas("parrot", 0).await?;

    // Senders of the public Asya v0.1 know the exchange and the name of the actor.
    let envelope = json!({"id": "8", "route": {"actors": ["ask"], "current": 0}, "payload": question(8)});
    let body = envelope.to_string();
    play.stage.broker.publish_to("asya", "ask", body.as_bytes()).await?;
    ensure!(number(&answers.next(PATIENCE).await?.0)? == 8);
    play.replicas("parrot", 0).await?;
    play.stage.rabbit.stop().await;
    node.stop().await
}

async fn start(core: &Component) -> Result<Node> {
    Node::start(Options {
        crds: core.crds.clone(),
        ..Options::default()
    })
    .await
}

/// Sets the stage on a node. `tls`: the broker is reached over TLS.
async fn play<'a>(node: &'a Node, core: &Component, tls: bool) -> Result<Play<'a>> {
    let stage = stage(node, core, tls).await?;
    let client = stage.node.client("somebody", &["system:masters"]).await?;
    Ok(Play { stage, client })
}

async fn stage<'a>(node: &'a Node, core: &Component, tls: bool) -> Result<Stage<'a>> {
    let programs = programs::build(false).await?;
    let release = Release::default();
    let images: Vec<_> = [labels::ASYA_MANAGER, "asya-sidecar"]
        .map(|name| (release.image(name), programs.join(name)))
        .into();
    let objects: Vec<Value> = core
        .first
        .iter()
        .cloned()
        .chain(manifests::asya().objects(&release))
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?;
    let installation = Installation {
        namespace: manifests::NAMESPACE,
        objects: &objects,
        images: &images,
        tls,
    };
    Stage::set(node, &installation).await
}

struct Play<'a> {
    stage: Stage<'a>,
    client: Client,
}

impl Play<'_> {
    async fn a_bound_deployment_scales_from_zero_and_back(&self) -> Result<()> {
        let before = self.model("parrot", 0.3).await?;
        let scaling = json!({"enabled": true, "minReplicas": 0, "maxReplicas": 3, "queueLength": 5,
            "pollingInterval": 1, "cooldownPeriod": COOLDOWN.as_secs()});
        let mut spec = self.bound("apps/v1", "Deployment", "parrot");
        spec["scaling"] = scaling;
        self.actor("ask", spec).await?;
        self.word("ask", "Running").await?;

        // It was attached to an empty queue, and stays awake for those who call it directly. Both times are of the machine's
        // clock, and the second is later than the event, so load cannot make it fail.
        self.replicas("parrot", 0).await?;
        let awake = clock::now().duration_since(self.scaled_since("asya-ask").await?);
        ensure!(
            awake > SignedDuration::try_from(COOLDOWN / 2)?,
            "the model was put to sleep {awake:?} after it was bound"
        );
        self.word("ask", "Napping").await?;
        Box::pin(self.the_chain_is_shown_and_holds("ask")).await?;

        let mut answers = self.stage.answers().await?;
        for number in 0..MESSAGES {
            self.ask("ask", number).await?;
        }
        let (waiting, most, seen) = tokio::join!(
            self.messages_wait("ask"),
            self.most_pods("parrot"),
            collect(&mut answers, "ask")
        );
        waiting?;
        ensure!(seen? == numbers(), "messages are missing");
        let most = most?;
        ensure!(
            most > 1,
            "one pod did it all: KEDA's metrics did not reach the autoscaler"
        );
        self.the_printed_line_asks(&mut answers).await?;
        self.replicas("parrot", 0).await?;
        let napping = self.word("ask", "Napping").await?;
        ensure!(napping.status.unwrap_or_default().max_replicas == Some(3));
        ensure!(
            before == self.spec_of_model("parrot").await?,
            "the model's container changed"
        );
        Ok(())
    }

    /// Output of `kubeairunway endpoint asya/ask` for RabbitMQ.
    async fn the_printed_line_asks(&self, answers: &mut Incoming) -> Result<()> {
        let line = endpoint::queue(&self.actors().get("ask").await?).rabbitmq;
        let said = self.stage.typed(&line).await?;
        ensure!(said == r#"{"routed":true}"#, "{line}: {said}");
        // Numbers may come twice.
        while !String::from_utf8_lossy(&answers.next(PATIENCE).await?.0).contains("HELLO") {}
        Ok(())
    }

    /// The command and the console show the same: from the actor to the target, the queue, and what scales it.
    async fn the_chain_is_shown_and_holds(&self, name: &str) -> Result<()> {
        let source = Source::from(cluster(self.client.clone()));
        let tree = source.tree_of_actor(&self.actors().get(name).await?).await;
        ensure!(tree.broken.is_none() && tree.missing.is_empty(), "{tree:?}");
        let objects: Vec<String> = tree.rows().iter().map(Row::object).collect();
        let queue = format!("Queue/{}", Stage::queue(name));
        for object in [
            "AsyncActor/ask",
            &queue,
            "Deployment/parrot",
            "ScaledObject/asya-ask",
            "HorizontalPodAutoscaler/keda-hpa-asya-ask",
        ] {
            ensure!(
                objects.iter().any(|there| there == object),
                "{object} is not in {objects:?}"
            );
        }
        let queue = tree.root.children.iter().find(|node| node.kind == "Queue");
        ensure!(queue.is_some_and(|queue| queue.state == "empty"), "{queue:?}");
        // Its operator, asked by dry run, wants nothing else than what is there.
        let actor = self.actors().get(name).await?;
        let diff = operated::of_actor(&cluster(self.client.clone()), actor, clock::now()).await?;
        ensure!(diff.is_empty() && !diff.changes.is_empty(), "{diff:?}");
        // A user without access to KEDA's metrics sees that, and the rest.
        let onlooker = self.stage.node.client("onlooker", &[]).await?;
        let actor = self.actors().get(name).await?;
        let depth = queue::depth(&cluster(onlooker), &actor).await;
        ensure!(
            depth.to_string().starts_with("unknown: not allowed to read it"),
            "{depth}"
        );
        Ok(())
    }

    /// Length of the queue, as KEDA serves it to users.
    async fn messages_wait(&self, name: &str) -> Result<()> {
        let actor = self.actors().get(name).await?;
        let cluster = cluster(self.client.clone());
        eventually(PATIENCE, async || {
            let depth = queue::depth(&cluster, &actor).await;
            let waiting = matches!(depth, Depth::Messages(1..));
            ensure!(waiting, "{depth}");
            Ok(())
        })
        .await
    }

    fn actors(&self) -> Api<AsyncActor> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Handlers of one's own: the envelope goes from one to the other.
    async fn two_actors_of_our_own_hand_on(&self) -> Result<()> {
        const HANDLERS: &str = "\
            def double(payload):\n    return {'number': payload['number'] * 2}\n\n\
            def announce(payload):\n    return {'said': f\"it is {payload['number']}\"}\n";
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "handlers", "namespace": NAMESPACE},
            "data": {"handlers.py": HANDLERS}});
        apply(self.stage.node, &[config]).await?;
        for (name, kind) in [("double", "Deployment"), ("announce", "StatefulSet")] {
            let template = json!({"spec": {
                "containers": [{
                    "name": "asya-runtime", "image": self.stage.runtime, "imagePullPolicy": "Never",
                    "env": [{"name": "ASYA_HANDLER", "value": format!("handlers.{name}")}, {"name": "PYTHONPATH", "value": "/handlers"}],
                    "volumeMounts": [{"name": "handlers", "mountPath": "/handlers"}],
                }],
                "volumes": [{"name": "handlers", "configMap": {"name": "handlers"}}],
            }});
            self.actor(
                name,
                json!({"transport": "rabbitmq", "workload": {"kind": kind, "template": template}}),
            )
            .await?;
        }
        for name in ["double", "announce"] {
            self.word(name, "Running").await?;
        }
        let mut answers = self.stage.answers().await?;
        self.stage
            .send("sum", &["double", "announce"], json!({"number": 21}))
            .await?;
        let (body, _) = answers.next(PATIENCE).await?;
        let envelope: Value = serde_json::from_slice(&body)?;
        ensure!(
            envelope["payload"]["said"] == "it is 42" && envelope["id"] == "sum",
            "{envelope}"
        );
        for name in ["double", "announce"] {
            self.delete(name).await?;
        }
        Ok(())
    }

    /// The status contains the kubelet's report on pods, with a remedy.
    async fn errors_of_a_handler_are_reported(&self) -> Result<()> {
        let wrong = |handler: &str, sidecar: Value| {
            let runtime = json!({"name": "asya-runtime", "image": self.stage.runtime, "imagePullPolicy": "Never",
                "env": [{"name": "ASYA_HANDLER", "value": handler}]});
            json!({"transport": "rabbitmq", "sidecar": sidecar,
                "workload": {"template": {"spec": {"containers": [runtime]}}}})
        };
        self.actor("wrong", wrong("nowhere.handle", json!({}))).await?;
        let status = self.word("wrong", "RuntimeError").await?.status.unwrap_or_default();
        let message = status.message.unwrap_or_default();
        ensure!(
            message.contains("no module `nowhere` found") && message.contains("ASYA_HANDLER"),
            "{message}"
        );
        self.delete("wrong").await?;
        let absent = json!({"image": "registry.invalid/asya-sidecar:1", "imagePullPolicy": "Never"});
        self.actor("wrong", wrong("json.dumps", absent)).await?;
        let status = self.word("wrong", "ImagePullError").await?.status.unwrap_or_default();
        let message = status.message.unwrap_or_default();
        ensure!(message.contains("spec.sidecar.image"), "{message}");
        self.delete("wrong").await
    }

    async fn a_model_deployment_is_called_where_it_answers(&self) -> Result<()> {
        self.model("engine", 0.0).await?;
        let md = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "gemma", "namespace": NAMESPACE},
            "spec": {"model": {"id": "a/b"}, "engine": {"type": "llamacpp"}}});
        apply(self.stage.node, &[md]).await?;
        let models: Api<ModelDeployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        // What its provider would say.
        let status = json!({"status": {"endpoint": {"service": "engine", "port": 80}}});
        models
            .patch_status("gemma", &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        self.actor("md", self.bound("kubeairunway.ai/v1alpha1", "ModelDeployment", "gemma"))
            .await?;
        self.word("md", "Running").await?;
        let mut answers = self.stage.answers().await?;
        self.ask("md", 7).await?;
        ensure!(number(&answers.next(PATIENCE).await?.0)? == 7);
        self.delete("md").await
    }

    /// A controller of another owner reverts its Deployment as often as it is changed, which takes time.
    async fn a_fight_begins(&self) -> Result<JoinHandle<()>> {
        self.model("stubborn", 0.0).await?;
        let wanted = self.deployments().get("stubborn").await?;
        let fight = reverting_controller(self.client.clone(), wanted);
        self.actor("fight", self.bound("apps/v1", "Deployment", "stubborn"))
            .await?;
        Ok(fight)
    }

    async fn who_fought_back_is_called_when_asked_for(&self) -> Result<()> {
        let stopped = self.word("fight", "ConflictStopped").await?.status.unwrap_or_default();
        let message = stopped.message.unwrap_or_default();
        ensure!(message.contains("'reverting-controller'"), "{message}");
        let left = self.deployments().get("stubborn").await?;
        let template = left.spec.and_then(|s| s.template.spec).context("a template")?;
        ensure!(template.containers.len() == 1, "it is not left alone");

        let mut spec = self.bound("apps/v1", "Deployment", "stubborn");
        spec["binding"] = json!({"strategy": "Proxy"});
        spec["runtime"]["targetURL"] = json!("http://stubborn");
        self.actor("fight", spec).await?;
        self.word("fight", "Running").await?;
        let mut answers = self.stage.answers().await?;
        self.ask("fight", 8).await?;
        ensure!(number(&answers.next(PATIENCE).await?.0)? == 8);
        self.delete("fight").await
    }

    async fn who_is_let_go_is_as_before(&self) -> Result<()> {
        self.delete("ask").await?;
        self.replicas("parrot", 1).await?;
        let live = self.deployments().get("parrot").await?;
        let template = live.spec.and_then(|s| s.template.spec).context("a template")?;
        ensure!(template.containers.len() == 1, "the containers are still there");
        ensure!(
            self.stage.broker.ready(&Stage::queue("ask")).await.is_err(),
            "the queue is still there"
        );
        Ok(())
    }

    /// A model server that is ready; returns its container.
    async fn model(&self, name: &str, seconds: f32) -> Result<Value> {
        apply(self.stage.node, &self.stage.model_server(name, seconds)).await?;
        eventually(PATIENCE, async || {
            let status = self.deployments().get(name).await?.status.unwrap_or_default();
            ensure!(status.available_replicas == Some(1), "{name}: {status:?}");
            Ok(())
        })
        .await?;
        self.spec_of_model(name).await
    }

    async fn spec_of_model(&self, name: &str) -> Result<Value> {
        let spec = self.deployments().get(name).await?.spec.context("a spec")?;
        let template = spec.template.spec.context("a template")?;
        Ok(serde_json::to_value(template.containers.first())?)
    }

    fn bound(&self, api_version: &str, kind: &str, name: &str) -> Value {
        json!({
            "transport": "rabbitmq", "workloadRef": {"apiVersion": api_version, "kind": kind, "name": name},
            "runtime": {"image": self.stage.runtime, "imagePullPolicy": "Never", "handler": "asya_runtime.adapters.openai.forward"},
        })
    }

    async fn actor(&self, name: &str, spec: Value) -> Result<()> {
        let actor = json!({"apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
        apply(self.stage.node, &[actor]).await
    }

    async fn ask(&self, actor: &str, number: usize) -> Result<()> {
        let id = format!("{actor}-{number}");
        self.stage.send(&id, &[actor], question(number)).await
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn word(&self, name: &str, word: &str) -> Result<AsyncActor> {
        let actors = self.actors();
        eventually(PATIENCE, async || {
            let actor = actors.get(name).await?;
            let status = actor.status.clone().unwrap_or_default();
            if status.status.as_deref() == Some(word) {
                return Ok(actor);
            }
            bail!("{name} is not {word}: {}", serde_json::to_string_pretty(&status)?)
        })
        .await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let actors = self.actors();
        actors.delete(name, &DeleteParams::background()).await?;
        eventually(PATIENCE, async || {
            let status = actors
                .get_opt(name)
                .await?
                .map(|actor| actor.status.unwrap_or_default());
            ensure!(
                status.is_none(),
                "{name} is still there: {:?}",
                status.and_then(|status| status.message)
            );
            Ok(())
        })
        .await
    }

    /// Waits until it has so many pods.
    async fn replicas(&self, name: &str, count: i32) -> Result<()> {
        eventually(PATIENCE, async || {
            let live = self.deployments().get(name).await?;
            let (asked, there) = (
                live.spec.and_then(|s| s.replicas),
                live.status.and_then(|s| s.replicas).unwrap_or(0),
            );
            ensure!(
                asked == Some(count) && there == count,
                "{name}: {asked:?} replicas asked for, {there} there"
            );
            Ok(())
        })
        .await
    }

    /// Time at which a ScaledObject was created.
    async fn scaled_since(&self, name: &str) -> Result<Timestamp> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("keda.sh", "v1alpha1", "ScaledObject"));
        let scaled = Api::<DynamicObject>::namespaced_with(self.client.clone(), NAMESPACE, &kind)
            .get(name)
            .await?;
        Ok(scaled.creation_timestamp().context("it has no creation time")?.0)
    }

    /// The most pods that are ready at one time, until all is answered.
    async fn most_pods(&self, name: &str) -> Result<i32> {
        let most = std::sync::atomic::AtomicI32::new(0);
        let queue = Stage::queue("ask");
        eventually(PATIENCE, async || {
            let ready = self
                .deployments()
                .get(name)
                .await?
                .status
                .and_then(|s| s.ready_replicas);
            let most = most
                .fetch_max(ready.unwrap_or(0), std::sync::atomic::Ordering::Relaxed)
                .max(ready.unwrap_or(0));
            ensure!(
                most > 0 && self.stage.broker.ready(&queue).await? == 0,
                "{name} has not emptied its queue"
            );
            Ok(most)
        })
        .await
    }
}

fn cluster(client: Client) -> Cluster {
    Cluster::of(client, "the node", NAMESPACE.parse().unwrap_or_default())
}

fn numbers() -> BTreeSet<usize> {
    (0..MESSAGES).collect()
}

fn question(number: usize) -> Value {
    json!({"messages": [{"role": "user", "content": format!("number {number}")}]})
}

/// The number in an answer.
fn number(body: &[u8]) -> Result<usize> {
    let envelope: Value = serde_json::from_slice(body)?;
    let said = envelope["payload"]["choices"][0]["message"]["content"]
        .as_str()
        .with_context(|| format!("no answer: {envelope}"))?;
    Ok(said.strip_prefix("NUMBER ").context("not in capitals")?.parse()?)
}

/// Every number once, or more often if a pod was taken away at work.
async fn collect(answers: &mut Incoming, actor: &str) -> Result<BTreeSet<usize>> {
    let mut seen = BTreeSet::new();
    while seen.len() < MESSAGES {
        let (body, _) = answers
            .next(PATIENCE)
            .await
            .with_context(|| format!("{actor}: {} of {MESSAGES} came", seen.len()))?;
        seen.insert(number(&body)?);
    }
    Ok(seen)
}
