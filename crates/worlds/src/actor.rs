//! A namespace in memory. Plans change it as the API server would, as far as the next plan can see.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, DynamicObject};
use runway_api::AsyncActor;
use runway_asya_operator::needs::{Lookup, objects};
use runway_asya_operator::object::{Found, Key};
use runway_asya_operator::observe::{Observed, Settings};
use runway_asya_operator::plan::{self, Plan};
use runway_asya_operator::queue::{QueueState, QueueWork};
use runway_asya_operator::rivals::Rival;
use runway_asya_operator::transports::Transports;
use runway_asya_transport::tenants::Credentials;
use runway_golden::{reported, ssa};
use runway_operator::plan::Step;
use serde_json::{Value, json};

/// Transports of the operator.
const TRANSPORTS: &str = r#"{"transports": {
    "rabbitmq": {"type": "rabbitmq", "config": {"host": "rabbitmq.asya-system.svc", "username": "asya",
        "passwordSecretRef": {"name": "rabbitmq", "key": "password"}}},
    "secure": {"type": "rabbitmq", "config": {"host": "rabbitmq.asya-system.svc", "username": "asya",
        "passwordSecretRef": {"name": "rabbitmq", "key": "password"}, "tls": {"caSecretRef": {"name": "rabbitmq", "key": "ca.crt"}}}},
    "secure-amqp": {"type": "rabbitmq", "config": {"host": "rabbitmq.asya-system.svc", "managementPort": 0,
        "tls": {"caConfigMapRef": {"name": "rabbitmq-ca", "key": "ca.crt"}}}},
    "others": {"type": "rabbitmq", "namespaces": ["finance"], "config": {"host": "rabbitmq.asya-system.svc"}},
    "tenants": {"type": "rabbitmq", "config": {"host": "rabbitmq.asya-system.svc", "username": "asya",
        "passwordSecretRef": {"name": "rabbitmq", "key": "password"}, "tenants": {"username": "admin",
        "passwordSecretRef": {"name": "admin", "key": "password"}, "keySecretRef": {"name": "admin", "key": "key"}}}},
    "sqs": {"type": "sqs", "config": {"region": "eu-central-1", "accountId": "123456789012"}},
    "sqs-keys": {"type": "sqs", "config": {"region": "eu-central-1", "accountId": "123456789012", "credentials": {
        "accessKeyIdSecretRef": {"name": "aws", "key": "id"}, "secretAccessKeySecretRef": {"name": "aws", "key": "key"}}}},
    "off": {"type": "sqs", "enabled": false, "config": {"region": "eu-central-1", "accountId": "123456789012"}}}}"#;

#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
/// An actor and the objects of its namespace.
pub struct World {
    /// The actor that is reconciled.
    pub actor: AsyncActor,
    /// Other actors of the cluster.
    pub others: Vec<AsyncActor>,
    /// Pods of its target.
    pub pods: Vec<Pod>,
    /// Other objects by group, kind and name.
    pub objects: BTreeMap<(String, String, String), Value>,
    /// State of its queue at the broker.
    pub queue: QueueState,
    /// Whether KEDA is installed.
    pub keda: bool,
    /// Whether the operator manages queues.
    pub manages_queues: bool,
    /// Time of the next plan.
    pub now: Timestamp,
    /// Whether the API server has removed the actor.
    pub gone: bool,
    /// Credentials of the namespace at the broker, if it has users of its own.
    pub tenant: Option<Result<Credentials, String>>,
    /// Whether no other actor of the namespace uses the broker.
    pub is_last: bool,
}

impl Lookup for World {
    fn find(&self, key: &Key) -> Found {
        let at = (key.kind.group.to_owned(), key.kind.kind.to_owned(), key.name.clone());
        if key.kind.group == "keda.sh" && !self.keda {
            return Found::NotInstalled;
        }
        match self.objects.get(&at) {
            None => Found::Absent {
                version: key.kind.version.to_owned(),
            },
            Some(object) => {
                let version = object["apiVersion"]
                    .as_str()
                    .unwrap()
                    .rsplit('/')
                    .next()
                    .unwrap()
                    .to_owned();
                let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
                Found::Here {
                    version,
                    object: Arc::new(object),
                }
            }
        }
    }
}

impl World {
    /// An actor in a namespace without other objects, in a cluster with KEDA.
    pub fn new(actor: AsyncActor, now: Timestamp) -> Self {
        Self {
            actor,
            others: Vec::new(),
            pods: Vec::new(),
            objects: BTreeMap::new(),
            queue: QueueState::Unknown,
            keda: true,
            manages_queues: true,
            now,
            gone: false,
            tenant: None,
            is_last: false,
        }
    }

    /// Adds an object, or replaces it.
    pub fn add(&mut self, object: Value) {
        self.objects.insert(at(&object), object);
    }

    /// Input of the next plan.
    pub fn observed(&self) -> Observed {
        Observed {
            actor: Arc::new(self.actor.clone()),
            objects: objects(&self.actor, self),
            pods: self.pods.iter().cloned().map(Arc::new).collect(),
            rivals: self.others.iter().filter_map(Rival::of).map(Arc::new).collect(),
            queue: self.queue.clone(),
            transports: Arc::new(Transports::parse(TRANSPORTS).unwrap()),
            tenant: self.tenant.clone(),
            is_last: self.is_last,
            settings: Arc::new(Settings {
                sidecar_image: "asya-sidecar:1".to_owned(),
                gateway_url: None,
                manages_queues: self.manages_queues,
                conflict_wait: std::time::Duration::from_secs(5),
                runtime_script: "print('runtime')\n".to_owned(),
            }),
            now: self.now,
        }
    }

    /// One reconcile of the operator: first the queue, then a new plan, which is carried out.
    pub fn step(&mut self) -> Plan {
        let mut plan = plan::plan(&self.observed());
        match &plan.queue {
            Some(QueueWork::Ensure(_)) => self.queue = QueueState::Ready { drift: None },
            Some(QueueWork::Remove { .. }) => self.queue = QueueState::Removed { left: None },
            None => {}
        }
        if plan.queue.is_some() {
            plan = plan::plan(&self.observed());
        }
        self.carry_out(&plan);
        plan
    }

    /// Carries out a plan without its work at the broker.
    pub fn carry_out(&mut self, plan: &Plan) {
        for step in plan.kube.steps() {
            match step {
                Step::AddFinalizer => self.finalizers().push("asya.sh/finalizer".to_owned()),
                Step::RemoveFinalizer => self.finalizers().retain(|name| name != "asya.sh/finalizer"),
                Step::Delete(delete) => {
                    self.objects.remove(&key(&delete.resource, &delete.name));
                }
                Step::Apply(apply) => self.applied(serde_json::to_value(&apply.object).unwrap()),
                Step::Edit(edit) => {
                    let live = self.objects.get_mut(&key(&edit.resource, &edit.name)).unwrap();
                    assert_eq!(
                        edit.patch["metadata"]["resourceVersion"], live["metadata"]["resourceVersion"],
                        "guarded"
                    );
                    ssa::patch(live, &edit.patch);
                    tidy(live);
                }
                Step::Status { fields, .. } => {
                    self.actor.status = Some(serde_json::from_value(fields.clone()).unwrap());
                }
                Step::DryRun(_) | Step::Trial(_) | Step::StatusOf(_) | Step::Event(_) => {}
            }
        }
        self.gone = self.actor.is_deleting() && !self.actor.has_finalizer();
    }

    fn finalizers(&mut self) -> &mut Vec<String> {
        self.actor.metadata.finalizers.get_or_insert_default()
    }

    /// Server-side apply in simple form: lists are merged by name, and an empty object removes the operator's fields.
    fn applied(&mut self, sent: Value) {
        let key = at(&sent);
        if sent["metadata"]["uid"].is_string() {
            let live = self
                .objects
                .get(&key)
                .unwrap_or_else(|| panic!("{key:?}: a uid that does not exist"));
            assert_eq!(live["metadata"]["uid"], sent["metadata"]["uid"], "another object");
        }
        let live = self
            .objects
            .entry(key.clone())
            .or_insert_with(|| json!({"metadata": {"uid": format!("uid-of-{}", key.2)}}));
        if sent.get("spec").is_none() && sent.get("data").is_none() {
            take_out(live);
            return;
        }
        let foreign = sent["metadata"]["uid"].is_string();
        if foreign {
            merge(live, &sent);
        } else {
            let uid = live["metadata"]["uid"].clone();
            let status = live.get("status").cloned();
            *live = sent;
            live["metadata"]["uid"] = uid;
            if let Some(status) = status {
                live["status"] = status;
            }
        }
    }

    /// Reconciles until the plan is silent. Returns the number of plans before.
    pub fn rest(&mut self) -> usize {
        for count in 0..12 {
            let plan = self.step();
            if self.gone || plan.is_silent() {
                return count;
            }
        }
        panic!("no rest: {}", reported(&plan::plan(&self.observed())));
    }
}

/// Text of a plan for golden cases, with its work at the broker.
pub fn reported(plan: &Plan) -> String {
    let mut text = reported::plan(&plan.kube);
    if let Some(work) = &plan.queue {
        text = format!("queue: {work:?}\n{}", if text.trim() == "{}" { "" } else { &text });
    }
    text
}

fn key(resource: &ApiResource, name: &str) -> (String, String, String) {
    (resource.group.clone(), resource.kind.clone(), name.to_owned())
}

fn at(object: &Value) -> (String, String, String) {
    let api = object["apiVersion"].as_str().unwrap();
    let group = api.split_once('/').map_or("", |(g, _)| g);
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    (
        group.to_owned(),
        text(&object["kind"]),
        text(&object["metadata"]["name"]),
    )
}

/// Removes the fields of the operator's field manager.
pub fn take_out(live: &mut Value) {
    if let Some(list) = live
        .pointer_mut("/spec/template/spec/containers")
        .and_then(Value::as_array_mut)
    {
        list.retain(|c| c["name"] != "asya-sidecar" && c["name"] != "asya-runtime");
    }
    if let Some(spec) = live.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut)
        && let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut)
    {
        volumes.retain(|volume| volume["name"] != "asya-credentials");
        if volumes.is_empty() {
            spec.remove("volumes");
        }
    }
    for ours in ["/metadata/annotations", "/spec/template/metadata/labels"] {
        if let Some(entries) = live.pointer_mut(ours).and_then(Value::as_object_mut) {
            entries.retain(|key, _| !key.starts_with("asya.sh/"));
        }
    }
    tidy(live);
}

fn tidy(live: &mut Value) {
    if live["metadata"]["annotations"]
        .as_object()
        .is_none_or(serde_json::Map::is_empty)
    {
        live["metadata"].as_object_mut().unwrap().remove("annotations");
    }
}

fn merge(live: &mut Value, sent: &Value) {
    match (live, sent) {
        (Value::Object(live), Value::Object(sent)) => {
            for (key, value) in sent {
                merge(live.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(live), Value::Array(sent)) if sent.iter().all(|i| i["name"].is_string()) => {
            for item in sent {
                match live.iter_mut().find(|l| l["name"] == item["name"]) {
                    Some(there) => there.clone_from(item),
                    None => live.push(item.clone()),
                }
            }
        }
        (live, sent) => live.clone_from(sent),
    }
}
