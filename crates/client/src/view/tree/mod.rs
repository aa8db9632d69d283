//! `kubeairunway tree`: an object of ours, what belongs to it, down to the pods and the endpoint, and where that chain breaks
//! first. Pure: what was read goes in.
//!
//! | module | the chain of |
//! |---|---|
//! | [`deployment`] | a ModelDeployment: upstream object, workloads, pods, endpoint |
//! | [`actor`] | an AsyncActor: target or own workload, pods, queue, ScaledObject, autoscaler |
//! | [`distribution`] | a LlamaStackDistribution: claim, Deployment, pods with their init containers, Service |

pub mod actor;
pub mod deployment;
pub mod distribution;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use runway_api::Tone;
use runway_operator::kubelet;
use runway_operator::object::{self, Condition};
use serde::Serialize;
use serde_json::Value;

use crate::text::{self, Look, Mood};
use crate::view::change::kind;
use crate::view::pods;

/// Objects that may belong to an object; owner references decide.
#[derive(Clone, Debug, Default)]
pub struct Belongings {
    /// Everything in its namespace but pods.
    pub objects: Vec<Arc<DynamicObject>>,
    /// The pods.
    pub pods: Vec<Pod>,
    /// Lookups that failed, as messages for the user.
    pub missing: Vec<String>,
}

impl Belongings {
    /// An object by kind and name.
    fn find(&self, wanted: &str, name: &str) -> Option<&Arc<DynamicObject>> {
        self.objects.iter().find(|o| kind(o) == wanted && o.name_any() == name)
    }
}

/// The whole chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// The object at its top.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// The first broken link whose cause is not another link; absent if the chain is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<Broken>,
    /// That object, and what belongs to it below.
    pub root: Node,
    /// Lookups that failed, as messages for the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// First failure in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Broken {
    /// Kind and name, such as `Pod/gemma-0`.
    pub object: String,
    /// Reason.
    pub reason: String,
}

/// A link of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// State, in one or two words.
    pub state: String,
    /// Message.
    pub text: String,
    /// Health.
    pub health: Health,
    /// Whether this is the first failure of the chain.
    pub broken: bool,
    /// Objects that belong to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Self>,
}

/// Health of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Health {
    /// No problem.
    Good,
    /// In progress, or unknown.
    Open,
    /// Failed, and blocks the chain.
    Bad,
}

impl From<Tone> for Health {
    fn from(tone: Tone) -> Self {
        match tone {
            Tone::Current => Self::Good,
            Tone::Failed => Self::Bad,
            Tone::InProgress | Tone::Terminating | Tone::Paused | Tone::Unknown => Self::Open,
        }
    }
}

impl Health {
    /// CSS class of the console: `good`, `open` or `bad`.
    pub fn mood(&self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Open => "open",
            Self::Bad => "bad",
        }
    }
}

/// State, message and health of an object.
struct Standing {
    state: String,
    text: String,
    health: Health,
}

impl Standing {
    fn new(state: impl Into<String>, text: impl Into<String>, health: Health) -> Self {
        Self {
            state: state.into(),
            text: text.into(),
            health,
        }
    }
}

impl Node {
    fn new(kind: impl Into<String>, name: impl Into<String>, standing: Standing) -> Self {
        Self {
            kind: kind.into(),
            name: name.into(),
            state: standing.state,
            text: standing.text,
            health: standing.health,
            broken: false,
            children: Vec::new(),
        }
    }

    fn with(mut self, children: Vec<Self>) -> Self {
        self.children = children;
        self
    }
}

/// Owned kinds that are not part of the chain.
const ASIDE: [&str; 9] = [
    "ConfigMap",
    "ControllerRevision",
    "EndpointSlice",
    "Event",
    "PersistentVolumeClaim",
    "Secret",
    "Service",
    "ServiceAccount",
    "ModelDeployment",
];

impl Tree {
    /// Marks where the chain breaks.
    fn of(object: &impl Resource, mut root: Node, missing: &[String]) -> Self {
        Self {
            name: object.name_any(),
            namespace: object.namespace().unwrap_or_default(),
            broken: mark(&mut root),
            root,
            missing: missing.to_vec(),
        }
    }
}

/// Marks the first failure: the topmost node that is bad, or else in progress, without such a node below.
fn mark(root: &mut Node) -> Option<Broken> {
    let found = [Health::Bad, Health::Open].into_iter().find_map(|health| {
        // The root sums up what is below.
        let below = root.children.iter_mut().find_map(|child| deepest(child, health));
        below.map(|node| {
            node.broken = true;
            Broken::at(node)
        })
    });
    if found.is_some() || root.health == Health::Good {
        return found;
    }
    root.broken = true;
    Some(Broken::at(root))
}

fn deepest(node: &mut Node, health: Health) -> Option<&mut Node> {
    let below = node.children.iter().position(|child| holds(child, health));
    match below {
        Some(index) => deepest(&mut node.children[index], health),
        None => (node.health == health).then_some(node),
    }
}

fn holds(node: &Node, health: Health) -> bool {
    node.health == health || node.children.iter().any(|child| holds(child, health))
}

impl Broken {
    fn at(node: &Node) -> Self {
        let reason = if node.text.is_empty() { &node.state } else { &node.text };
        Self {
            object: format!("{}/{}", node.kind, node.name),
            reason: reason.clone(),
        }
    }
}

/// A way down from owner to owned.
struct Walk<'a> {
    found: &'a Belongings,
    of_pod: &'a dyn Fn(&Pod) -> Node,
    /// Objects in the tree so far, because owner references may form circles or lead to one object twice.
    shown: RefCell<BTreeSet<String>>,
}

impl<'a> Walk<'a> {
    fn new(found: &'a Belongings, of_pod: &'a dyn Fn(&Pod) -> Node) -> Self {
        Self {
            found,
            of_pod,
            shown: RefCell::default(),
        }
    }

    fn first_time(&self, object: &impl Resource) -> bool {
        object
            .meta()
            .uid
            .as_ref()
            .is_none_or(|uid| self.shown.borrow_mut().insert(uid.clone()))
    }

    /// An object with all that it owns.
    fn node(&self, object: &DynamicObject) -> Node {
        self.first_time(object);
        Node::new(kind(object), object.name_any(), generic(object)).with(self.owned_by(object))
    }

    /// Nodes of owned objects, workloads before pods, by name.
    fn owned_by(&self, owner: &impl Resource) -> Vec<Node> {
        let Some(uid) = &owner.meta().uid else {
            return Vec::new();
        };
        let mut workloads: Vec<&Arc<DynamicObject>> = self
            .found
            .objects
            .iter()
            .filter(|o| !ASIDE.contains(&kind(o)) && has_owner(o.owner_references(), uid) && !is_old(o))
            .collect();
        workloads.sort_by_key(|o| (kind(o).to_owned(), o.name_any()));
        let mut nodes: Vec<Node> = workloads
            .into_iter()
            .filter(|o| self.first_time(o.as_ref()))
            .map(|object| self.node(object))
            .collect();
        nodes.extend(self.pods(|pod| has_owner(pod.owner_references(), uid)));
        nodes
    }

    /// The pods of which something holds, by name.
    fn pods(&self, holds: impl Fn(&Pod) -> bool) -> Vec<Node> {
        let mut pods: Vec<&Pod> = self.found.pods.iter().filter(|pod| holds(pod)).collect();
        pods.sort_by_key(|pod| pod.name_any());
        pods.into_iter()
            .filter(|pod| self.first_time(*pod))
            .map(|pod| (self.of_pod)(pod))
            .collect()
    }
}

fn has_owner(references: &[OwnerReference], uid: &str) -> bool {
    references.iter().any(|owner| owner.uid == uid)
}

/// A ReplicaSet of an earlier version of its Deployment.
fn is_old(object: &DynamicObject) -> bool {
    kind(object) == "ReplicaSet" && number(&object.data, "/spec/replicas") == Some(0)
}

/// State of an object of an unknown kind: by its replicas, its condition Ready, or its state.
fn generic(object: &DynamicObject) -> Standing {
    let data = &object.data;
    if object.metadata.deletion_timestamp.is_some() {
        return Standing::new("Terminating", "", Health::Open);
    }
    match kind(object) {
        "Deployment" | "StatefulSet" | "ReplicaSet" => return workload(data),
        "HorizontalPodAutoscaler" => return autoscaler(data),
        "PersistentVolumeClaim" => return claim(data),
        _ => {}
    }
    let ready = object::conditions(&data["status"]).find(is_summary);
    let state = data.pointer("/status/state").and_then(Value::as_str);
    match (ready, state) {
        (Some(ready), _) if ready.is_true() => Standing::new("ready", "", Health::Good),
        (Some(ready), _) => Standing::new("not ready", reason_and_message(&ready), Health::Open),
        (None, Some(state)) => {
            let health = match state.to_lowercase().as_str() {
                "ready" | "running" | "succeeded" | "successful" => Health::Good,
                "failed" => Health::Bad,
                _ => Health::Open,
            };
            let text = data.pointer("/status/reason").and_then(Value::as_str);
            Standing::new(state, text.unwrap_or_default(), health)
        }
        (None, None) => Standing::new("-", "", Health::Good),
    }
}

fn workload(data: &Value) -> Standing {
    let wanted = number(data, "/spec/replicas").unwrap_or(1);
    let ready = number(data, "/status/readyReplicas").unwrap_or(0);
    let state = format!("{ready}/{wanted} ready");
    match kubelet::rollout_failure(data) {
        Some(failure) => Standing::new(state, failure.message, Health::Bad),
        None if ready >= wanted => Standing::new(state, "", Health::Good),
        None => Standing::new(state, "", Health::Open),
    }
}

/// State of a ScaledObject or HorizontalPodAutoscaler.
fn autoscaler(data: &Value) -> Standing {
    let count = |at: &str| number(data, at).map_or_else(|| "?".to_owned(), |n| n.to_string());
    let state = format!("desired {}", count("/status/desiredReplicas"));
    let bounds = format!(
        "{} to {} replicas",
        number(data, "/spec/minReplicas").unwrap_or(1),
        count("/spec/maxReplicas")
    );
    let stuck = object::conditions(&data["status"]).find(|c| {
        // Asleep is well.
        ["AbleToScale", "ScalingActive"].contains(&c.type_) && c.is_false() && c.reason != "ScalingDisabled"
    });
    match stuck {
        Some(stuck) => Standing::new(state, reason_and_message(&stuck), Health::Bad),
        None => Standing::new(state, bounds, Health::Good),
    }
}

/// State of a PersistentVolumeClaim. An unused one may wait for its first consumer.
fn claim(data: &Value) -> Standing {
    let text = |at: &str| data.pointer(at).and_then(Value::as_str);
    let size = text("/status/capacity/storage").or_else(|| text("/spec/resources/requests/storage"));
    match text("/status/phase") {
        Some("Bound") => Standing::new("Bound", size.unwrap_or_default(), Health::Good),
        Some("Lost") => Standing::new("Lost", "its volume no longer exists, and its data is lost", Health::Bad),
        phase => Standing::new(
            phase.unwrap_or("Pending"),
            "no volume yet (does a StorageClass exist, and does a pod use the claim?)",
            Health::Open,
        ),
    }
}

fn reason_and_message(condition: &Condition<'_>) -> String {
    let said = [condition.reason, condition.message];
    let said: Vec<&str> = said.into_iter().filter(|text| !text.is_empty()).collect();
    said.join(": ")
}

/// Whether a condition summarizes the object: `Ready`, `Available`, or one with the name of the kind, such as
/// `InferenceSetReady`.
fn is_summary(condition: &Condition<'_>) -> bool {
    let name = condition.type_;
    name == "Ready" || name == "Available" || name == "WorkspaceSucceeded" || name == "InferenceSetReady"
}

fn number(data: &Value, at: &str) -> Option<i64> {
    data.pointer(at)?.as_i64()
}

fn of_pod(pod: &Pod) -> Node {
    let status = pod.status.clone().unwrap_or_default();
    let trouble = pods::trouble(pod);
    let restarts: i32 = status
        .container_statuses
        .iter()
        .flatten()
        .map(|c| c.restart_count)
        .sum();
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    let facts = [
        node.map(|node| format!("on {node}")),
        (restarts > 0).then(|| format!("{restarts} restarts")),
    ];
    let facts = facts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let (state, health) = match (&trouble, pod.metadata.deletion_timestamp.is_some()) {
        // What it leaves undone, its owner says.
        (_, true) => ("Terminating".to_owned(), Health::Good),
        (None, _) => ("ready".to_owned(), Health::Good),
        // Its owner has replaced it, and the object remains.
        (Some(_), _) if kubelet::has_ended(pod) && !pod.owner_references().is_empty() => {
            ("Failed".to_owned(), Health::Good)
        }
        (Some(_), _) => (
            status.phase.clone().unwrap_or_else(|| "Pending".to_owned()),
            if pods::is_starting(pod) {
                Health::Open
            } else {
                Health::Bad
            },
        ),
    };
    let text = trouble.map_or(facts, |trouble| trouble.to_string());
    Node::new("Pod", pod.name_any(), Standing::new(state, text, health))
}

/// Node of a Service with its number of endpoints. `serves`: whether it should have any; `port`: prefix of the message.
fn service(found: &Belongings, name: &str, port: &str, serves: bool, maker: &str) -> Node {
    let unless = if serves { Health::Bad } else { Health::Open };
    let standing = match found.find("Service", name) {
        None if found.missing.iter().any(|m| m.contains("list services")) => {
            Standing::new("unknown", port, Health::Open)
        }
        None => Standing::new("missing", format!("does not exist: {maker} creates it"), unless),
        Some(_) => {
            let (ready, all) = addresses(found, name);
            let state = format!("{ready} ready");
            match (ready, all) {
                (0, 0) => Standing::new(state, format!("{port}, no pod behind it"), unless),
                (0, all) => Standing::new(
                    state,
                    format!("{port}, none of the {all} behind it is ready"),
                    Health::Open,
                ),
                _ => Standing::new(state, port, Health::Good),
            }
        }
    };
    Node::new("Service", name, standing)
}

/// Ready and all addresses of a Service.
fn addresses(found: &Belongings, service: &str) -> (usize, usize) {
    let slices = found
        .objects
        .iter()
        .filter(|o| {
            kind(o) == "EndpointSlice"
                && o.labels()
                    .get("kubernetes.io/service-name")
                    .is_some_and(|s| s == service)
        })
        .filter_map(|o| o.as_ref().clone().try_parse::<EndpointSlice>().ok());
    let endpoints: Vec<_> = slices.flat_map(|slice| slice.endpoints).collect();
    let ready = endpoints
        .iter()
        .filter(|e| e.conditions.as_ref().and_then(|c| c.ready) != Some(false));
    (ready.count(), endpoints.len())
}

/// The tree on a screen.
pub fn screen(tree: &Tree, look: Look) -> String {
    let name = look.strong(&format!("{}/{}", tree.namespace, tree.name));
    let headline = match &tree.broken {
        None => format!("{name}: {}\n", look.paint(Mood::Good, "ok")),
        Some(broken) => format!(
            "{name}: {}\n  {}\n",
            look.paint(Mood::Bad, &format!("blocked at {}", broken.object)),
            text::cell(&broken.reason)
        ),
    };
    let mut table = text::table(&["OBJECT", "STATE", "MESSAGE"]);
    for row in tree.rows() {
        // The mark is text, so that color is never the only sign.
        let mark = if row.node.broken { "✗ " } else { "" };
        table.add_row([
            format!("{}{}", row.branch, row.object()),
            format!("{mark}{}", row.node.state),
            text::cell(&row.node.text),
        ]);
    }
    let missing = tree.missing.iter().map(|m| format!("Not shown: {}", text::cell(m)));
    let missing = text::lines(missing);
    let gap = if missing.is_empty() { "" } else { "\n" };
    format!("{headline}\n{}{gap}{missing}", text::aligned(&table))
}

/// A link on a line of its own.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Lines that lead to the node, such as `│ └─ `.
    pub branch: String,
    /// The link.
    pub node: &'a Node,
}

impl Row<'_> {
    /// Kind and name, such as `Pod/gemma-0`.
    pub fn object(&self) -> String {
        format!("{}/{}", self.node.kind, self.node.name)
    }
}

impl Tree {
    /// Every link, from the top.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        add(&mut rows, &self.root, String::new(), "");
        rows
    }
}

fn add<'a>(rows: &mut Vec<Row<'a>>, node: &'a Node, branch: String, below: &str) {
    rows.push(Row { branch, node });
    let last = node.children.len().saturating_sub(1);
    for (index, child) in node.children.iter().enumerate() {
        let (branch, trunk) = if index == last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        add(rows, child, format!("{below}{branch}"), &format!("{below}{trunk}"));
    }
}
