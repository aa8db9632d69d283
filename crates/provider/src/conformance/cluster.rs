//! A cluster in memory for one ModelDeployment. It carries out plans as the API server would, and supplies the observed state
//! for the next plan. Every upstream object has a finalizer of its operator, so that its deletion takes a while.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::core::DynamicObject;
use runway_api::model_deployment::ProviderStatus;
use runway_api::{ModelDeployment, ModelDeploymentStatus, labels};
use runway_operator::apply;
use runway_operator::plan::{Apply, Note, Plan, Step};
use serde_json::{Map, Value, json};

use crate::contract::{CLAIM, Kind, Provider, ReplicaObjects};
use crate::model_pods::ModelPod;
use crate::observe::{self, Observed, Verification};
use crate::plan;
use crate::settings::InvalidSettings;
use crate::upstream::Installed;

/// Rounds after which a plan that is never silent counts as an endless loop.
const MANY_ROUNDS: usize = 12;

/// Maps of built-in types that the API server drops when they are empty.
const OMITTED_WHEN_EMPTY: [&str; 8] = [
    "annotations",
    "labels",
    "nodeSelector",
    "matchLabels",
    "selector",
    "data",
    "limits",
    "requests",
];

/// The cluster.
#[derive(Clone)]
pub(super) struct Cluster<'a> {
    pub(super) provider: &'a dyn Provider,
    pub(super) md: ModelDeployment,
    /// The ModelDeployment is gone.
    pub(super) gone: bool,
    pub(super) objects: Vec<Stored>,
    pub(super) installed: Installed,
    /// Reason why the settings of the installation cannot be used.
    pub(super) invalid_settings: Option<InvalidSettings>,
    /// Its pods; `None` if they are not known.
    pub(super) pods: Option<Vec<ModelPod>>,
    /// Reason why the upstream operator does not act.
    pub(super) outage: Option<String>,
    /// Response of its endpoint.
    pub(super) verification: Verification,
    pub(super) now: Timestamp,
    /// Events that were sent.
    pub(super) events: Vec<Note>,
    /// Statuses that were written.
    pub(super) statuses: Vec<Value>,
    /// Writes, such as `apply Workspace 'gemma'`.
    pub(super) writes: Vec<String>,
    /// Number of writes until the controller is killed.
    pub(super) budget: Option<usize>,
    /// The caches are behind and show no objects.
    pub(super) blind: bool,
    made: usize,
}

/// An object in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub(super) kind: Kind,
    pub(super) object: Value,
    /// Object as last applied by the provider; `None` for an object with another creator.
    applied: Option<Value>,
}

impl Stored {
    pub(super) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap_or_default()
    }

    pub(super) fn is_going(&self) -> bool {
        !self.object["metadata"]["deletionTimestamp"].is_null()
    }

    /// Object as last applied; null for an object with another creator.
    pub(super) fn applied(&self) -> &Value {
        self.applied.as_ref().unwrap_or(&Value::Null)
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.object["metadata"]["annotations"][key].as_str()
    }
}

/// Reason why a plan was not completed.
pub(super) enum Stop {
    /// The controller was killed.
    Killed,
    /// The API server rejected a write.
    Refused(apply::Error),
}

impl<'a> Cluster<'a> {
    pub(super) fn new(provider: &'a dyn Provider, md: ModelDeployment, installed: Installed) -> Self {
        Self {
            provider,
            md,
            gone: false,
            objects: Vec::new(),
            installed,
            pods: None,
            outage: None,
            invalid_settings: None,
            verification: Verification::Assumed,
            now: Timestamp::constant(1_767_225_600, 0),
            events: Vec::new(),
            statuses: Vec::new(),
            writes: Vec::new(),
            budget: None,
            blind: false,
            made: 0,
        }
    }

    /// Observation from the provider's caches.
    pub(super) fn observe(&self) -> Observed {
        Observed {
            md: Arc::new(self.md.clone()),
            installed: self.installed.clone(),
            invalid_settings: self.invalid_settings.clone(),
            children: observe::children(self, self.provider, &self.md),
            pods: self.pods.clone(),
            outage: self.outage.clone(),
            verification: self.verification.clone(),
            answer_timeout: Duration::from_secs(10),
            now: self.now,
        }
    }

    /// The plan for the current state.
    pub(super) fn plan(&self) -> Plan {
        plan::plan(self.provider, &self.observe())
    }

    /// One reconcile: plan and apply. A rejection is reported as the loop does.
    pub(super) fn step(&mut self) -> Plan {
        if self.gone {
            return Plan::default();
        }
        let seen = self.observe();
        let plan = plan::plan(self.provider, &seen);
        if let Err(Stop::Refused(error)) = self.execute(&plan) {
            // The plan after a failure is a status, which is never rejected here.
            let _ = self.execute(&plan::after_failure(self.provider, &seen, &error));
        }
        plan
    }

    /// Reconciles until the plan is silent.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MANY_ROUNDS {
            if self.gone || self.plan().is_silent() {
                return Ok(());
            }
            self.step();
        }
        Err(format!(
            "after {MANY_ROUNDS} reconciles with nothing new to see it still writes: {}",
            self.writes.last().map_or("only Events", String::as_str)
        ))
    }

    /// Carries out a plan in the executor's order.
    pub(super) fn execute(&mut self, plan: &Plan) -> Result<(), Stop> {
        for step in plan.steps() {
            match step {
                Step::AddFinalizer => {
                    self.write("add the finalizer")?;
                    self.finalizers().push(labels::FINALIZER.to_owned());
                }
                Step::Status { fields, .. } => {
                    self.write("write the status")?;
                    self.set_status(fields);
                }
                Step::Delete(delete) => {
                    self.write(&format!("delete {} '{}'", delete.resource.kind, delete.name))?;
                    self.delete(&delete.uid);
                }
                Step::Apply(apply) => {
                    let name = apply.object.metadata.name.as_deref().unwrap_or_default();
                    self.write(&format!("apply {} '{name}'", apply.resource.kind))?;
                    self.apply(apply)?;
                    self.events.extend(apply.note.clone());
                }
                Step::Event(note) => self.events.push(note.clone()),
                Step::RemoveFinalizer => {
                    self.write("remove the finalizer")?;
                    self.finalizers().retain(|name| name != labels::FINALIZER);
                    self.gone = self.md.is_deleting();
                }
                // This cluster has no admission, and no objects of other owners.
                Step::DryRun(_) | Step::Trial(_) | Step::Edit(_) | Step::StatusOf(_) => {}
            }
        }
        Ok(())
    }

    fn finalizers(&mut self) -> &mut Vec<String> {
        self.md.metadata.finalizers.get_or_insert_default()
    }

    fn write(&mut self, what: &str) -> Result<(), Stop> {
        if let Some(left) = &mut self.budget {
            *left = left.checked_sub(1).ok_or(Stop::Killed)?;
        }
        self.writes.push(what.to_owned());
        Ok(())
    }

    /// Starts a deletion; [`Self::upstream_lets_go`] completes it.
    fn delete(&mut self, uid: &str) {
        let now = self.now.to_string();
        for object in self.objects.iter_mut().filter(|o| o.uid() == uid) {
            object.object["metadata"]["deletionTimestamp"] = json!(now);
        }
    }

    /// The upstream operator removes its finalizers.
    pub(super) fn upstream_lets_go(&mut self) {
        self.objects.retain(|o| !o.is_going());
    }

    /// Server-side apply with atomic lists.
    fn apply(&mut self, apply: &Apply) -> Result<(), Stop> {
        let mut wanted = serde_json::to_value(&apply.object).unwrap_or_default();
        let name = apply.object.metadata.name.clone().unwrap_or_default();
        let plural = apply.resource.plural.clone();
        let place = self
            .objects
            .iter_mut()
            .find(|o| o.kind.plural == plural && o.name() == name);
        let Some(stored) = place else {
            if apply.live.is_some() {
                return Err(Stop::Refused(refused(apply, None)));
            }
            let Some(kind) = self.kind(&apply.resource.plural) else {
                return Ok(());
            };
            if kind.is_built_in() {
                omit_empty(&mut wanted);
            }
            let mut object = wanted.clone();
            self.made += 1;
            object["metadata"]["uid"] = json!(format!("uid-{}", self.made));
            object["metadata"]["resourceVersion"] = json!("1");
            object["metadata"]["generation"] = json!(1);
            object["metadata"]["creationTimestamp"] = json!(self.now.to_string());
            object["serverDefault"] = json!({"of": "the server"});
            self.objects.push(Stored {
                kind,
                object,
                applied: Some(wanted),
            });
            return Ok(());
        };
        if apply.live.as_deref() != Some(stored.uid()) {
            return Err(Stop::Refused(refused(apply, Some(stored))));
        }
        if stored.kind.is_built_in() {
            omit_empty(&mut wanted);
        }
        let before = stored.object.clone();
        let applied = stored.applied.take().unwrap_or_default();
        merge(&mut stored.object, &applied, &wanted);
        if before != stored.object {
            let generation = before["metadata"]["generation"].as_i64().unwrap_or(1);
            stored.object["metadata"]["generation"] = json!(generation + 1);
        }
        stored.applied = Some(wanted);
        Ok(())
    }

    /// The status as both owners left it: the core's part stays.
    fn set_status(&mut self, status: &Value) {
        self.statuses.push(status.clone());
        let before = self.md.status.clone().unwrap_or_default();
        let ours = plan::owned(&before).conditions;
        let mut after: ModelDeploymentStatus = serde_json::from_value(status.clone()).unwrap_or_default();
        let made = after.provider.unwrap_or_default();
        after.provider = Some(ProviderStatus {
            resource_kind: made.resource_kind,
            resource_name: made.resource_name,
            ..before.provider.unwrap_or_default()
        });
        after.conditions.extend(
            before
                .conditions
                .into_iter()
                .filter(|c| ours.iter().all(|o| o.type_ != c.type_)),
        );
        self.md.status = Some(after);
    }

    /// Another creator adds an object.
    pub(super) fn put_foreign(&mut self, kind: Kind, name: &str, owner: Option<Value>) {
        self.made += 1;
        let metadata = json!({
            "name": name, "namespace": self.md.metadata.namespace, "uid": format!("uid-{}", self.made),
            "ownerReferences": owner.into_iter().collect::<Vec<_>>(),
        });
        let api_version = if kind.group.is_empty() {
            "v1".to_owned()
        } else {
            format!("{}/v1", kind.group)
        };
        let object = json!({"apiVersion": api_version, "kind": kind.kind, "metadata": metadata, "theirs": true});
        self.objects.push(Stored {
            kind,
            object,
            applied: None,
        });
    }

    /// Edits the objects of the upstream kinds, as their operator does.
    pub(super) fn upstream_says(&mut self, edit: fn(&mut Value)) {
        let upstreams = self.upstream_kinds();
        for stored in self.objects.iter_mut().filter(|o| upstreams.contains(&o.kind)) {
            edit(&mut stored.object);
        }
    }

    /// Objects of the upstream kinds, including those being deleted.
    pub(super) fn upstream_objects(&self) -> Vec<&Stored> {
        let upstreams = self.upstream_kinds();
        self.objects.iter().filter(|o| upstreams.contains(&o.kind)).collect()
    }

    pub(super) fn pass(&mut self, time: SignedDuration) {
        self.now += time;
    }

    /// Returns the reasons of the Events sent so far, and clears them.
    pub(super) fn heard(&mut self) -> Vec<&'static str> {
        self.events.drain(..).map(|note| note.reason).collect()
    }

    fn upstream_kinds(&self) -> Vec<Kind> {
        self.provider.upstreams().iter().map(|u| u.kind).collect()
    }

    fn kind(&self, plural: &str) -> Option<Kind> {
        let name = self.md.metadata.name.clone().unwrap_or_default();
        self.provider
            .children(&name)
            .into_iter()
            .map(|c| c.kind)
            .chain([CLAIM])
            .find(|k| k.plural == plural)
    }
}

impl observe::Lookup for Cluster<'_> {
    /// A kind is watched while it is installed, with a known schema or not.
    fn find(&self, kind: Kind, _: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.installed.visible_version(kind).filter(|_| !self.blind)?;
        let found = self.objects.iter().find(|o| o.kind == kind && o.name() == name)?;
        serde_json::from_value(found.object.clone()).ok().map(Arc::new)
    }

    /// No upstream acts in this cluster.
    fn replicas(&self, _: ReplicaObjects, _: &str, _: &str) -> Vec<Arc<DynamicObject>> {
        Vec::new()
    }

    fn claims(&self, _: &str, deployment: &str) -> Vec<Arc<DynamicObject>> {
        let has_label = |o: &&Stored| o.object["metadata"]["labels"][labels::DEPLOYMENT] == deployment;
        let claims = self.objects.iter().filter(|o| o.kind == CLAIM && !self.blind);
        let found = claims
            .filter(has_label)
            .map(|o| serde_json::from_value(o.object.clone()));
        found.filter_map(Result::ok).map(Arc::new).collect()
    }
}

/// Sets the desired fields, and removes those that were applied before and are no longer desired.
fn merge(live: &mut Value, applied: &Value, wanted: &Value) {
    let (Value::Object(fields), Value::Object(wanted)) = (&mut *live, wanted) else {
        live.clone_from(wanted);
        return;
    };
    let nothing = Map::new();
    let applied = applied.as_object().unwrap_or(&nothing);
    fields.retain(|key, _| wanted.contains_key(key) || !applied.contains_key(key));
    for (key, value) in wanted {
        merge(
            fields.entry(key.clone()).or_insert(Value::Null),
            applied.get(key).unwrap_or(&Value::Null),
            value,
        );
    }
}

/// Removes what built-in types do not store: empty lists, and some empty maps.
fn omit_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(omit_empty);
            fields.retain(|key, value| {
                let empty_map = value.as_object().is_some_and(Map::is_empty);
                let empty_list = value.as_array().is_some_and(Vec::is_empty);
                let omitted =
                    value.is_null() || empty_list || (empty_map && OMITTED_WHEN_EMPTY.contains(&key.as_str()));
                !omitted
            });
        }
        Value::Array(entries) => entries.iter_mut().for_each(omit_empty),
        _ => {}
    }
}

/// The executor's error for a failed guard; `found` is the object with that name.
fn refused(apply: &Apply, found: Option<&Stored>) -> apply::Error {
    let answer = kube::core::Status::failure("the object has been modified", "Conflict").with_code(409);
    let source = Box::new(kube::Error::Api(Box::new(answer)));
    let kind = apply.resource.kind.clone();
    let name = apply.object.metadata.name.clone().unwrap_or_default();
    if apply.live.is_some() || found.is_none_or(|stored| stored.applied.is_some()) {
        return apply::Error::Outdated { kind, name, source };
    }
    apply::Error::NameTaken {
        kind,
        name,
        manager: "managed by 'kubectl-create'".to_owned(),
        source,
    }
}
