//! Verdicts of `runway_fit`, compared with what the real kube-scheduler does on a real API server. The nodes are
//! objects without a kubelet: a scheduler reads nothing else.
//!
//! Each generated cluster is a set of nodes with one value of the label `fit/cluster`, which the pods of its deployment
//! select, so that one scheduler decides on all clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use runway_api::{InferenceProviderConfig, ModelDeployment};
use runway_cli::answer::Answer;
use runway_cli::args::CommandLine;
use runway_cli::commands;
use runway_client::text::Look;
use runway_fit::{Ask, Batch, Devices, Outcome, Snapshot, Verdict, decide};
use runway_manifests as manifests;
use runway_provider::Provider;
use runway_provider_direct::Direct;
use runway_testbed::{ControlPlane, Options, PATIENCE, eventually};
use serde_json::{Value, json};

/// Requests that are sent at the same time.
const PARALLEL: usize = 32;

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_agree_with_the_scheduler() -> Result<()> {
    println!("{}", compare(40, 1).await?);
    Ok(())
}

/// The campaign: `cargo test -p runway-testbed --test fit -- --ignored --nocapture`. Takes some minutes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a campaign of 2,000 clusters"]
async fn verdicts_agree_with_the_scheduler_on_2000_clusters() -> Result<()> {
    // A scheduler looks at all nodes for each pod: ten small rounds are faster than one.
    for seed in 2..12 {
        println!("{}", compare(200, seed).await?);
    }
    Ok(())
}

/// `deploy --check-fit` of a user who may do anything, and of one who may not list nodes.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_reports_whether_pods_fit() -> Result<()> {
    let control_plane = ControlPlane::start(Options {
        nodes_are_objects: true,
        crds: manifests::all_crds(),
        ..Options::default()
    })
    .await?;
    let client = control_plane.admin_client().await?;
    registered(&client).await?;
    let nodes = Api::<Node>::all(client.clone());
    let gpu_node = |name: &str, gpus: &str, taints: Value| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.memory": "24576"}},
            "spec": {"taints": taints},
            "status": {
                "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    };
    let taint = json!([{"key": "dedicated", "value": "training", "effect": "NoSchedule"}]);
    let made = [
        ("gpu-1", "1", json!([])),
        ("gpu-2", "8", taint),
        ("cpu-1", "0", json!([])),
    ];
    create(
        &nodes,
        made.map(|(name, gpus, taints)| gpu_node(name, gpus, taints)).to_vec(),
    )
    .await?;

    let model = |replicas: i32| {
        json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "llama"},
            "spec": {
                "provider": {"name": "direct"},
                "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
                "engine": {"type": "vllm", "contextLength": 8192},
                "resources": {"gpu": {"count": 1}, "memory": "32Gi", "cpu": "4"},
                "scaling": {"replicas": replicas},
            },
        })
        .to_string()
    };
    let admin = control_plane.admin()?;
    let fits = checked(&admin, &["-f", "-"], &model(1)).await?;
    ensure!(fits.code.is_none() && !fits.failed, "{fits:?}");
    ensure!(fits.data.starts_with("default/llama: the pods fit\n"), "{}", fits.data);

    let short = checked(&admin, &["-f", "-"], &model(2)).await?;
    ensure!(short.code == Some(3), "{short:?}");
    let expected = "\
default/llama: the pods do not fit
PODS              REPLICAS  REQUESTS                              FIT  NODES  ROOM
Deployment/llama  2         cpu 4, memory 32Gi, nvidia.com/gpu 1  no   1/3    1
Deployment/llama: 1/3 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {dedicated: training}
memory: about 17.4 GiB for each replica: weights 14.9 GiB, KV cache 1.0 GiB, overhead 1.5 GiB
  parameters: 8 billion (from the model's name)
  weights: bf16, 16 bits each (default)
  context length: 8192 tokens, 1 request (from the spec)
  KV cache: 16 bits (default)
note: about 17.4 GiB are within 1 GPU(s) of 24.0 GiB (label nvidia.com/gpu.memory), 90% of it usable
note: only existing nodes are considered: a cluster autoscaler may add others
";
    ensure!(short.data == expected, "{}", short.data);

    let derived = [
        "meta-llama/Llama-3.1-8B-Instruct",
        "--provider",
        "direct",
        "--gpu",
        "4",
        "-o",
        "json",
    ];
    let derived = checked(&admin, &derived, "").await?;
    let report: Value = serde_json::from_str(&derived.data)?;
    ensure!(derived.code == Some(3) && report["verdict"] == "no", "{report}");
    ensure!(
        report["pods"][0]["message"]
            .as_str()
            .is_some_and(|m| m.contains("2 Insufficient nvidia.com/gpu")),
        "{report}"
    );
    let applied = Api::<ModelDeployment>::default_namespaced(client.clone())
        .list(&ListParams::default())
        .await?;
    ensure!(applied.items.is_empty(), "nothing is applied");

    limited(&client, &admin, &model(1)).await?;
    denied(&control_plane, &client, &model(1)).await?;
    control_plane.stop().await
}

/// A LimitRange, which only admission applies.
async fn limited(client: &Client, admin: &Path, model: &str) -> Result<()> {
    let limits = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "8Gi"}}]}});
    create(
        &Api::<k8s_openapi::api::core::v1::LimitRange>::default_namespaced(client.clone()),
        vec![limits],
    )
    .await?;
    eventually(PATIENCE, async || {
        let rejected = checked(admin, &["-f", "-"], model).await?;
        ensure!(
            rejected.code == Some(3) && rejected.data.contains("the API server rejects the pods"),
            "{rejected:?}"
        );
        Ok(())
    })
    .await
}

/// The error of a user who may not list nodes names the permission.
async fn denied(control_plane: &ControlPlane, client: &Client, model: &str) -> Result<()> {
    let (rule, binding) = editor();
    create(&Api::<ClusterRole>::all(client.clone()), vec![rule]).await?;
    create(&Api::<ClusterRoleBinding>::all(client.clone()), vec![binding]).await?;
    let editor = control_plane.kubeconfig("editor", &[])?;
    eventually(PATIENCE, async || {
        let denied = checked(&editor, &["-f", "-"], model).await?;
        let said = denied.talk.iter().map(ToString::to_string).collect::<String>();
        ensure!(
            denied.failed && said.contains("not allowed to list nodes in all namespaces"),
            "{denied:?}"
        );
        ensure!(said.contains("resources [nodes, pods], verbs [list]"), "{said}");
        Ok(())
    })
    .await
}

/// A user who may create ModelDeployments, and read what their plans read.
fn editor() -> (Value, Value) {
    let rule = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "editor"}, "rules": [
        {"apiGroups": ["kubeairunway.ai"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["services", "persistentvolumeclaims"], "verbs": ["*"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"]},
    ]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "editor"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "editor"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "editor"}]});
    (rule, binding)
}

/// Registers the provider direct, as its controller does.
async fn registered(client: &Client) -> Result<()> {
    let configs: Api<InferenceProviderConfig> = Api::all(client.clone());
    let direct = Direct::default();
    let config = InferenceProviderConfig::new(direct.name(), direct.registration());
    // The definition may be younger than what the API server serves.
    eventually(PATIENCE, async || {
        Ok(configs.create(&PostParams::default(), &config).await?)
    })
    .await?;
    let now = runway_operator::clock::now().to_string();
    let status = Patch::Merge(json!({"status": {"ready": true, "lastHeartbeat": now}}));
    configs
        .patch_status(direct.name(), &PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// Runs `kubeairunway deploy --check-fit`.
async fn checked(kubeconfig: &Path, args: &[&str], stdin: &str) -> Result<Answer> {
    let kubeconfig = kubeconfig.display().to_string();
    let start = ["kubeairunway", "--kubeconfig", &kubeconfig, "deploy", "--check-fit"];
    let line = CommandLine::try_parse_from(start.iter().chain(args))?;
    Ok(Box::pin(commands::run(&line, &mut stdin.as_bytes(), Look::default())).await?)
}

/// SplitMix64: the same clusters in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in so many of 100 cases.
    fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.below(all.len() as u64)).unwrap_or(0)]
    }
}

/// Pods that are all alike.
struct Wanted {
    name: String,
    replicas: usize,
    pod: Value,
}

/// A generated cluster.
struct Generated {
    nodes: Vec<Value>,
    /// Pods on nodes, and their phase.
    pods: Vec<(Value, Option<&'static str>)>,
    wanted: Vec<Wanted>,
}

fn taint(random: &mut Random) -> Value {
    random
        .of(&[
            json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}),
            json!({"key": "dedicated", "value": "search", "effect": "NoSchedule"}),
            json!({"key": "dedicated", "effect": "NoExecute"}),
            json!({"key": "spot", "value": "true", "effect": "PreferNoSchedule"}),
            json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}),
            json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}),
            json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}),
        ])
        .clone()
}

fn toleration(random: &mut Random) -> Value {
    random
        .of(&[
            json!({"operator": "Exists"}),
            json!({"operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": "nvidia.com/gpu", "operator": "Exists"}),
            json!({"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}),
            json!({"key": "dedicated", "value": "search"}),
            json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}),
            json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}),
            json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}),
        ])
        .clone()
}

fn node(random: &mut Random, cluster: usize, index: usize) -> Value {
    let name = format!("c{cluster}-n{index}");
    let mut labels = json!({"kubernetes.io/hostname": name, "fit/cluster": cluster.to_string()});
    labels["zone"] = json!(random.of(&["a", "b", "c"]));
    if random.percent(40) {
        labels["disk"] = json!(random.of(&["ssd", "hdd"]));
    }
    if random.percent(50) {
        labels["size"] = json!(random.of(&["1", "5", "10", "20", "large"]));
    }
    let mut allocatable = json!({
        "cpu": random.of(&["2", "3500m", "8", "16", "32"]),
        "memory": random.of(&["4000Mi", "8Gi", "17179869184", "64G", "128Gi"]),
        "pods": random.of(&["2", "5", "110", "110", "110", "110"]),
    });
    if random.percent(60) {
        allocatable["nvidia.com/gpu"] = json!(random.of(&["0", "1", "4", "8", "8"]));
    }
    if random.percent(60) {
        allocatable["ephemeral-storage"] = json!(random.of(&["5Gi", "100Gi"]));
    }
    let mut taints: Vec<Value> = Vec::new();
    for _ in 0..2 {
        let one = taint(random);
        let is_new = !taints
            .iter()
            .any(|t| (&t["key"], &t["effect"]) == (&one["key"], &one["effect"]));
        if is_new && random.percent(12) {
            taints.push(one);
        }
    }
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": random.percent(10)},
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

fn requests(random: &mut Random) -> Value {
    let mut amounts = json!({});
    if random.percent(70) {
        amounts["cpu"] = json!(random.of(&["100m", "250m", "500m", "1", "1500m", "5"]));
    }
    if random.percent(70) {
        amounts["memory"] = json!(random.of(&["256Mi", "1Gi", "1500M", "3G", "6Gi"]));
    }
    if random.percent(6) {
        amounts["ephemeral-storage"] = json!(random.of(&["1Gi", "6Gi"]));
    }
    if random.percent(15) {
        amounts["nvidia.com/gpu"] = json!(random.of(&["1", "1", "2", "4"]));
    }
    json!({"requests": amounts, "limits": amounts})
}

fn container(random: &mut Random, name: &str) -> Value {
    let mut container = json!({"name": name, "image": "none", "resources": requests(random)});
    // A pod may not use a port twice.
    let ports: &[i32] = match name {
        "c0" => &[8080, 9090],
        "i0" => &[7070],
        _ => &[],
    };
    if !ports.is_empty() && random.percent(8) {
        let mut port = json!({"containerPort": 80, "hostPort": random.of(ports)});
        if random.percent(40) {
            port["hostIP"] = json!(random.of(&["10.0.0.1", "10.0.0.2"]));
        }
        if random.percent(20) {
            port["protocol"] = json!("UDP");
        }
        container["ports"] = json!([port]);
    }
    container
}

fn spec(random: &mut Random) -> Value {
    let containers: Vec<Value> = (0..=random.below(2))
        .map(|i| container(random, &format!("c{i}")))
        .collect();
    let mut spec = json!({"containers": containers, "terminationGracePeriodSeconds": 0});
    if random.percent(30) {
        let mut init = Vec::new();
        for index in 0..=random.below(2) {
            let mut one = container(random, &format!("i{index}"));
            if random.percent(50) {
                one["restartPolicy"] = json!("Always");
            } else if let Some(one) = one.as_object_mut() {
                one.remove("ports");
            }
            init.push(one);
        }
        spec["initContainers"] = json!(init);
    }
    if random.percent(10) {
        spec["runtimeClassName"] = json!("heavy");
    }
    spec
}

fn expression(random: &mut Random) -> Value {
    random
        .of(&[
            json!({"key": "zone", "operator": "In", "values": ["a", "b"]}),
            json!({"key": "zone", "operator": "NotIn", "values": ["a"]}),
            json!({"key": "disk", "operator": "NotIn", "values": ["hdd"]}),
            json!({"key": "disk", "operator": "Exists"}),
            json!({"key": "disk", "operator": "DoesNotExist"}),
            json!({"key": "size", "operator": "Gt", "values": ["4"]}),
            json!({"key": "size", "operator": "Lt", "values": ["10"]}),
        ])
        .clone()
}

fn asked(random: &mut Random, cluster: usize, nodes: usize) -> Value {
    let mut spec = spec(random);
    spec["nodeSelector"] = json!({"fit/cluster": cluster.to_string()});
    if random.percent(10) {
        spec["nodeSelector"]["zone"] = json!(random.of(&["a", "b"]));
    }
    let count = random.below(3);
    if random.percent(60) {
        spec["tolerations"] = (0..=count).map(|_| toleration(random)).collect();
    }
    if random.percent(20) {
        let mut terms = Vec::new();
        for _ in 0..=random.below(2) {
            let mut term = json!({"matchExpressions": [expression(random)]});
            if random.percent(30) {
                let name = format!("c{cluster}-n{}", random.below(nodes as u64));
                let operator = random.of(&["In", "NotIn"]);
                term["matchFields"] = json!([{"key": "metadata.name", "operator": operator, "values": [name]}]);
            }
            terms.push(term);
        }
        spec["affinity"] =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    }
    if random.percent(5) {
        spec["priorityClassName"] = json!("high");
    }
    if random.percent(4) {
        let term = json!({"labelSelector": {"matchLabels": {"app": "model"}}, "topologyKey": "kubernetes.io/hostname"});
        spec["affinity"]["podAntiAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    }
    if random.percent(3) {
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "model"}},
        }]);
    }
    if random.percent(2) {
        spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]);
    }
    if random.percent(2) {
        spec["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    }
    if random.percent(5) {
        spec["containers"] = json!([{"name": "c0", "image": "none", "resources": {"requests": {"cpu": "500m"}}}]);
        spec["initContainers"] = json!([]);
        spec["resources"] = json!({"requests": {"cpu": random.of(&["1", "4"]), "memory": "2Gi"}});
    }
    spec
}

fn generated(seed: u64, cluster: usize) -> Generated {
    let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(cluster as u64));
    let random = &mut random;
    let count = usize::try_from(1 + random.below(6)).unwrap_or(1);
    let nodes: Vec<Value> = (0..count).map(|index| node(random, cluster, index)).collect();
    let mut pods = Vec::new();
    for index in 0..count {
        for number in 0..random.below(3) {
            let mut spec = spec(random);
            spec["nodeName"] = json!(format!("c{cluster}-n{index}"));
            if random.percent(8) {
                let mut term = json!({"labelSelector": {"matchLabels": {"app": "model"}}, "topologyKey": random.of(&["kubernetes.io/hostname", "fit/none"])});
                if random.percent(30) {
                    term["namespaces"] = json!(["kube-system"]);
                }
                spec["affinity"]["podAntiAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
            }
            let name = format!("c{cluster}-n{index}-old{number}");
            let phase = random.percent(15).then(|| *random.of(&["Succeeded", "Failed"]));
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "old"}}, "spec": spec});
            pods.push((pod, phase));
        }
    }
    let groups = if random.percent(20) { 2 } else { 1 };
    let wanted = (0..groups).map(|group| Wanted {
        name: format!("c{cluster}-g{group}"),
        replicas: usize::try_from(1 + random.below(5)).unwrap_or(1),
        pod: json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"labels": {"app": "model", "group": format!("c{cluster}-g{group}")}},
            "spec": asked(random, cluster, count),
        }),
    });
    let wanted = wanted.collect();
    Generated { nodes, pods, wanted }
}

/// Creates objects, many at a time.
async fn create<K>(api: &Api<K>, objects: Vec<Value>) -> Result<Vec<K>>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let each = |object: Value| async move {
        let typed: K = serde_json::from_value(object.clone())?;
        let created = api.create(&PostParams::default(), &typed).await;
        created.with_context(|| format!("cannot create {object}"))
    };
    stream::iter(objects).map(each).buffered(PARALLEL).try_collect().await
}

async fn lists<K>(client: &Client) -> Result<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    Ok(Api::<K>::all(client.clone()).list(&ListParams::default()).await?.items)
}

/// Decision of the scheduler on a pod: its node, or the message.
fn decision(pod: &Pod) -> Option<Result<String, String>> {
    if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
        return Some(Ok(node));
    }
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    let is_decided = matches!(scheduled.reason.as_deref(), Some("Unschedulable" | "SchedulingGated"));
    is_decided.then(|| Err(scheduled.message.clone().unwrap_or_default()))
}

/// The reasons of a message of the scheduler: without the number of nodes and what preemption adds.
fn reasons_of(message: &str) -> BTreeSet<String> {
    let reasons = message.split_once(": ").map_or("", |(_, reasons)| reasons);
    let reasons = reasons.split_once(". ").map_or(reasons, |(reasons, _)| reasons);
    reasons.trim_end_matches('.').split(", ").map(str::to_owned).collect()
}

/// Our reasons in the same form. Since 1.36 the scheduler does not name the taints.
fn our_reasons(outcome: &Outcome) -> BTreeSet<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for (reason, nodes) in &outcome.reasons {
        let reason = if reason.contains("untolerated taint") {
            "node(s) had untolerated taint(s)"
        } else {
            reason
        };
        *counts.entry(reason).or_default() += nodes;
    }
    counts
        .iter()
        .map(|(reason, nodes)| format!("{nodes} {reason}"))
        .collect()
}

#[derive(Debug, Default)]
struct Tally {
    yes: usize,
    no: usize,
    unknown: usize,
    messages: usize,
    wrong: Vec<String>,
}

/// Creates the classes that generated pods name.
async fn classes(client: &Client) -> Result<()> {
    let high = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000});
    create(
        &Api::<k8s_openapi::api::scheduling::v1::PriorityClass>::all(client.clone()),
        vec![high],
    )
    .await?;
    let heavy = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "heavy"}, "handler": "heavy",
        "overhead": {"podFixed": {"cpu": "250m", "memory": "100Mi"}}});
    create(
        &Api::<k8s_openapi::api::node::v1::RuntimeClass>::all(client.clone()),
        vec![heavy],
    )
    .await?;
    Ok(())
}

/// Compares the verdicts on generated clusters, and returns a summary.
async fn compare(clusters: usize, seed: u64) -> Result<String> {
    let start = Instant::now();
    let mut control_plane = ControlPlane::start(Options {
        nodes_are_objects: true,
        ..Options::default()
    })
    .await?;
    let client = control_plane.admin_client().await?;
    let (nodes, pods) = (
        Api::<Node>::all(client.clone()),
        Api::<Pod>::default_namespaced(client.clone()),
    );
    classes(&client).await?;
    let all: Vec<Generated> = (0..clusters).map(|cluster| generated(seed, cluster)).collect();
    create(&nodes, all.iter().flat_map(|g| g.nodes.clone()).collect()).await?;
    create(
        &pods,
        all.iter().flat_map(|g| &g.pods).map(|(pod, _)| pod.clone()).collect(),
    )
    .await?;
    let ended = all
        .iter()
        .flat_map(|g| &g.pods)
        .filter_map(|(pod, phase)| Some((pod["metadata"]["name"].as_str()?, (*phase)?)));
    let end = |(name, phase): (&str, &'static str)| {
        let (name, pods) = (name.to_owned(), pods.clone());
        async move {
            let patch = Patch::Merge(json!({"status": {"phase": phase}}));
            pods.patch_status(&name, &PatchParams::default(), &patch).await
        }
    };
    let ends: Vec<_> = ended.map(end).collect();
    stream::iter(ends).buffered(PARALLEL).try_collect::<Vec<_>>().await?;

    let (held_nodes, held_pods) = (lists::<Node>(&client).await?, lists::<Pod>(&client).await?);
    let snapshot = Snapshot::new(&held_nodes, &held_pods, Devices::default());
    // Only now, so that it knows all nodes and pods before the first pod that it schedules.
    control_plane.start_scheduler().await?;
    let new: Vec<Value> = all
        .iter()
        .flat_map(|g| &g.wanted)
        .flat_map(|wanted| {
            (0..wanted.replicas).map(|replica| {
                let mut pod = wanted.pod.clone();
                pod["metadata"]["name"] = json!(format!("{}-{replica}", wanted.name));
                pod
            })
        })
        .collect();
    let created = create(&pods, new).await?;
    let expected = created.len();
    eventually(PATIENCE, async || {
        let held = pods.list(&ListParams::default().labels("app=model")).await?.items;
        let decided = held.iter().filter(|pod| decision(pod).is_some()).count();
        if decided < expected {
            // Each look lists all pods.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        ensure!(decided == expected, "{decided} of {expected} pods are decided");
        Ok(())
    })
    .await?;
    // A pod that is found unschedulable may be tried again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let held = pods.list(&ListParams::default().labels("app=model")).await?.items;

    let mut first = BTreeMap::new();
    for pod in &created {
        first.entry(pod.labels()["group"].clone()).or_insert(pod);
    }
    let mut tally = Tally::default();
    for generated in &all {
        judge(generated, &snapshot, &first, &held, &mut tally)?;
    }
    let summary = format!(
        "{clusters} clusters with {} nodes and {} pods, seed {seed}: {} groups yes, {} no, {} unknown; {} messages equal; {:?}",
        held_nodes.len(),
        held_pods.len() + expected,
        tally.yes,
        tally.no,
        tally.unknown,
        tally.messages,
        start.elapsed()
    );
    control_plane.stop().await?;
    ensure!(
        tally.wrong.is_empty(),
        "{} verdicts differ from the scheduler:\n{}",
        tally.wrong.len(),
        tally.wrong.join("\n")
    );
    ensure!(
        tally.yes > 0 && tally.no > 0 && tally.messages > 0,
        "the clusters prove little: {tally:?}"
    );
    Ok(summary)
}

/// Compares the verdicts on a cluster with what the scheduler did.
fn judge(
    generated: &Generated,
    snapshot: &Snapshot,
    first: &BTreeMap<String, &Pod>,
    held: &[Pod],
    tally: &mut Tally,
) -> Result<()> {
    let asks = generated.wanted.iter().map(|wanted| {
        let pod = first.get(&wanted.name).context("a pod of each group was created")?;
        let mut pod = (*pod).clone();
        // The scheduler may have been faster than the response.
        pod.spec.get_or_insert_default().node_name = None;
        Ok((Ask::new(&pod, true), i64::try_from(wanted.replicas)?))
    });
    let asks: Vec<(Ask, i64)> = asks.collect::<Result<_>>()?;
    let batches: Vec<Batch<'_>> = asks.iter().map(|(ask, count)| (ask, *count)).collect();
    let decided = decide(snapshot, &batches);
    let names: Vec<&str> = generated.wanted.iter().map(|wanted| wanted.name.as_str()).collect();
    let mut all = held.iter().filter(|pod| {
        let group = pod.labels().get("group");
        group.is_some_and(|group| names.contains(&group.as_str()))
    });
    if decided.is_short && all.all(|pod| matches!(decision(pod), Some(Ok(_)))) {
        tally.wrong.push(format!("false no for {names:?} together"));
    }
    for ((outcome, wanted), (ask, _)) in decided.outcomes.iter().zip(&generated.wanted).zip(&asks) {
        let pods = held
            .iter()
            .filter(|pod| pod.labels().get("group") == Some(&wanted.name));
        let decisions: Vec<_> = pods.filter_map(decision).collect();
        let bound = decisions.iter().filter(|decision| decision.is_ok()).count();
        let mut fault = match outcome.verdict {
            Verdict::Yes if bound < wanted.replicas => Some("false yes"),
            Verdict::No if bound == wanted.replicas => Some("false no"),
            Verdict::Unknown => {
                tally.unknown += 1;
                continue;
            }
            Verdict::Yes => {
                tally.yes += 1;
                None
            }
            Verdict::No => {
                tally.no += 1;
                None
            }
        };
        let is_alone = generated.wanted.len() == 1;
        let room = usize::try_from(outcome.room).unwrap_or(usize::MAX);
        let possible = usize::try_from(outcome.possible).unwrap_or(usize::MAX);
        let (least, most) = (room, room.saturating_add(possible));
        let least = if ask.limits.is_empty() { least } else { 0 };
        if is_alone && (bound < least.min(wanted.replicas) || bound > most.min(wanted.replicas)) {
            fault = fault.or(Some("another number of pods"));
        }
        let by_name = wanted.pod.to_string().contains("matchFields");
        // Requirements that are not modelled may fail before the nodes are looked at.
        let is_comparable = is_alone && !by_name && ask.limits.is_empty() && possible == 0;
        if let (0, true, Some(Err(message))) = (room, is_comparable, decisions.first()) {
            if reasons_of(message) == our_reasons(outcome) {
                tally.messages += 1;
            } else {
                fault = fault.or(Some("another message"));
            }
        }
        if let Some(fault) = fault {
            tally.wrong.push(format!(
                "{fault}: {} of {} bound; ours: {outcome:?}; the scheduler's: {decisions:?}\n  {}\n  {:?}",
                bound, wanted.replicas, wanted.pod, generated.nodes
            ));
        }
    }
    Ok(())
}
