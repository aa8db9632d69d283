//! An API server, two providers with their upstreams, and a user: all in memory.
//!
//! Each write is checked: no field has two owners, transition times change only on transitions, nothing is unbounded, plans are
//! deterministic, and there are never two upstream objects.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use proptest::prelude::*;
use runway_api::condition::{Conditions, READY};
use runway_api::{ModelDeployment, labels};
use runway_core::observe::Observed as SeenByCore;
use runway_core::providers::Providers;
use runway_operator::plan::{Finalizer, Plan};
use runway_provider::observe::{Child, Observed as SeenByProvider};
use runway_provider::{Installed, Kind, Provider, State};
use serde_json::{Value, json};

use crate::common::acme::Acme;
use crate::common::ssa::{self, Applied};
use crate::common::told;
use crate::registered::{How, registered};

pub(crate) const START: &str = "2026-03-01T10:00:00Z";

const RIVALS: [Acme; 2] = [Acme("acme"), Acme("zenith")];

/// A step of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// The core reconciles.
    Core,
    /// A provider reconciles, if it is running.
    Provider(usize),
    /// All controllers reconcile until their plans are silent.
    Rest,
    /// Time passes.
    Seconds(i64),
    /// The user changes the spec by a merge patch.
    Edit(Value),
    /// The user sets or removes an annotation.
    Annotate(&'static str, bool),
    /// The user deletes the ModelDeployment.
    Delete,
    /// Upstream objects report something new.
    Upstream(&'static str),
    /// Whether deleted upstream objects keep a finalizer (`true`) or are removed (`false`).
    Hold(bool),
    /// A provider stops or starts.
    Alive(usize, bool),
    /// The upstream CRDs of a provider are installed, or removed with their objects.
    Installed(usize, bool),
    /// Another writer changes an upstream object.
    Meddle,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let edits = prop_oneof![
        1 => Just(json!({"model": {"id": "a/b"}})),
        1 => Just(json!({"model": {"id": "a/c"}})),
        1 => Just(json!({"engine": {"type": "llamacpp"}})),
        1 => Just(json!({"engine": {"type": "vllm"}})),
        3 => Just(json!({"engine": {"type": "sglang"}})),
        1 => Just(json!({"engine": {"args": {"max-num-seqs": "64"}}})),
        1 => Just(json!({"engine": {"args": null}})),
        1 => Just(json!({"resources": {"gpu": {"count": 0}}})),
        1 => Just(json!({"resources": {"gpu": {"count": 1}}})),
        1 => Just(json!({"scaling": {"replicas": 0}})),
        1 => Just(json!({"scaling": {"replicas": 1}})),
        1 => Just(json!({"scaling": {"replicas": 3}})),
        1 => Just(json!({"provider": {"overrides": {"zone": "b"}}})),
        1 => Just(json!({"provider": {"overrides": {"zone": 1}}})),
        1 => Just(json!({"provider": {"overrides": {"zoen": "b"}}})),
        3 => Just(json!({"provider": null})),
        4 => Just(json!({"provider": {"name": "acme"}})),
        4 => Just(json!({"provider": {"name": "zenith"}})),
        1 => Just(json!({"provider": {"name": "nobody"}})),
    ];
    prop_oneof![
        2 => Just(Step::Core),
        2 => (0..2_usize).prop_map(Step::Provider),
        8 => Just(Step::Rest),
        2 => prop_oneof![Just(1), Just(6), Just(61), Just(301)].prop_map(Step::Seconds),
        8 => edits.prop_map(Step::Edit),
        2 => (prop_oneof![Just(labels::PAUSED), Just(labels::DRY_RUN)], any::<bool>()).prop_map(|(key, on)| Step::Annotate(key, on)),
        2 => prop_oneof![Just("Queued"), Just("Loading"), Just("Ready"), Just("Broken")].prop_map(Step::Upstream),
        1 => any::<bool>().prop_map(Step::Hold),
        1 => (0..2_usize, any::<bool>()).prop_map(|(who, alive)| Step::Alive(who, alive)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(who, there)| Step::Installed(who, there)),
        1 => Just(Step::Meddle),
    ]
}

/// State of the simulated cluster.
pub(crate) struct World {
    now: Timestamp,
    /// The ModelDeployment without its status; `None` when it is gone.
    md: Option<Value>,
    status: Applied,
    objects: Vec<(Kind, Value)>,
    alive: [bool; 2],
    installed: [bool; 2],
    holds: bool,
    made: u32,
    /// A provider has timed out, so that its object may exist next to another one.
    given_up: bool,
    /// Actions so far, for the report of a failure.
    history: Vec<String>,
}

impl World {
    pub(crate) fn new() -> Self {
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {
                "name": "llama", "namespace": "default", "uid": "uid-of-llama", "generation": 1, "resourceVersion": "1",
                "annotations": {}, "finalizers": [labels::FINALIZER],
            },
            "spec": { "model": { "id": "a/b" }, "engine": { "type": "vllm" }, "resources": { "gpu": { "count": 1 } } },
        });
        Self {
            now: START.parse().unwrap(),
            md: Some(md),
            status: Applied::default(),
            objects: Vec::new(),
            alive: [true; 2],
            installed: [true; 2],
            holds: false,
            made: 0,
            given_up: false,
            history: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, step: &Step) {
        self.history.push(format!("{} {step:?}", self.now));
        match step {
            Step::Core => drop(self.turn_of_core()),
            Step::Provider(who) => drop(self.turn_of_provider(*who)),
            Step::Rest => {}
            Step::Seconds(seconds) => self.now += SignedDuration::from_secs(*seconds),
            Step::Edit(patch) => {
                self.change(|md| {
                    let before = md["spec"].clone();
                    ssa::patch(&mut md["spec"], patch);
                    if md["spec"] != before {
                        md["metadata"]["generation"] = (md["metadata"]["generation"].as_i64().unwrap() + 1).into();
                    }
                });
            }
            Step::Annotate(key, on) => self.change(|md| {
                ssa::patch(
                    &mut md["metadata"]["annotations"],
                    &json!({ *key: on.then_some("true") }),
                );
            }),
            Step::Delete => {
                let now = self.now;
                self.change(|md| md["metadata"]["deletionTimestamp"] = json!(Time(now)));
                self.collect_garbage();
            }
            Step::Upstream(state) => {
                let status = json!({"state": state, "message": format!("{state}!"), "updatedAt": Time(self.now)});
                for (_, object) in self.objects.iter_mut().filter(|(kind, _)| !kind.is_built_in()) {
                    object["status"] = status.clone();
                }
            }
            Step::Hold(holds) => {
                self.holds = *holds;
                self.collect_garbage();
            }
            Step::Alive(who, alive) => self.alive[*who] = *alive,
            Step::Installed(who, there) => {
                self.installed[*who] = *there;
                let lost = if *there {
                    Vec::new()
                } else {
                    vec![RIVALS[*who].server(), RIVALS[*who].fleet()]
                };
                self.objects.retain(|(kind, _)| !lost.contains(kind));
            }
            Step::Meddle => {
                for (_, object) in &mut self.objects {
                    object["spec"]["model"]["id"] = "somebody/else".into();
                    object["metadata"]["labels"] = json!({});
                }
            }
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Value)) {
        if let Some(md) = &mut self.md {
            change(md);
            let version: u32 = md["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            md["metadata"]["resourceVersion"] = (version + 1).to_string().into();
        }
    }

    /// Reconciles until all plans are silent.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        for _ in 0..16 {
            let plans: Vec<Plan> = [self.turn_of_core(), self.turn_of_provider(0), self.turn_of_provider(1)]
                .into_iter()
                .flatten()
                .collect();
            if plans.iter().all(Plan::is_silent) {
                return plans.iter().filter_map(|p| p.look_again).min();
            }
        }
        self.fail("the plans do not become silent within 16 rounds");
    }

    /// In steady state the status shows where the ModelDeployment stands, and which controller wrote it.
    pub(crate) fn is_explained(&self) {
        let Some(md) = self.observed() else { return };
        let status = md.status.clone().unwrap_or_default();
        let core = ssa::fields(&serde_json::to_value(runway_core::plan::owned(&status, false)).unwrap());
        if core != self.status.of(labels::CORE_MANAGER) {
            self.fail("the core takes other fields for its own than it has written");
        }
        let selected = RIVALS.iter().position(|r| md.selected_provider() == Some(r.0));
        if selected.is_some_and(|who| !self.alive[who]) {
            return;
        }
        if status.phase.is_none() || md.conditions().get_condition(READY).is_none() {
            // A paused object has no status except the condition Paused.
            let said = md.is_paused() && md.conditions().is_true("Paused");
            let invalid = !md.conditions().is_true("Validated");
            if !said && !invalid {
                self.fail("nothing says where it stands");
            }
        }
    }

    /// Deletion completes after any failure.
    pub(crate) fn deletion_ends(&mut self) {
        let begun = self.now;
        while self.md.is_some() {
            match self.rest() {
                _ if self.md.is_none() => {}
                Some(left) => self.now += SignedDuration::try_from(left).unwrap(),
                None => self.fail("deletion does not end"),
            }
            if self.now > begun + SignedDuration::from_secs(320) {
                self.fail("deletion takes too long");
            }
        }
    }

    fn observed(&self) -> Option<ModelDeployment> {
        let mut md = self.md.clone()?;
        md["status"] = self.status.merged();
        Some(serde_json::from_value(md).unwrap())
    }

    fn turn_of_core(&mut self) -> Option<Plan> {
        let md = Arc::new(self.observed()?);
        let configs = RIVALS
            .iter()
            .zip(self.alive)
            .zip(self.installed)
            .map(|((rival, alive), installed)| {
                let how = match (alive, installed) {
                    (false, _) => How::Silent,
                    (true, false) => How::NotReady,
                    (true, true) => How::Healthy,
                };
                Arc::new(registered(rival.0, rival.registration(), how, self.now))
            });
        let seen = SeenByCore {
            md,
            providers: Arc::new(Providers::compile(configs, &Providers::default())),
            selector_enabled: true,
            now: self.now,
        };
        let plan = runway_core::plan::plan(&seen);
        self.same(&plan, &runway_core::plan::plan(&seen));
        self.carry_out(labels::CORE_MANAGER, &plan);
        Some(plan)
    }

    fn turn_of_provider(&mut self, who: usize) -> Option<Plan> {
        let md = Arc::new(self.observed()?);
        let rival = RIVALS[who];
        if !self.alive[who] {
            return None;
        }
        let installed = if self.installed[who] {
            Installed::newest(&rival.upstreams())
        } else {
            Installed::new(rival.upstreams().into_iter().map(|u| (u.kind, State::Missing)))
        };
        let children = rival.children("llama").into_iter().filter_map(|child| {
            let (_, object) = self
                .objects
                .iter()
                .find(|(kind, o)| *kind == child.kind && o["metadata"]["name"] == *child.name)?;
            Some(Child {
                kind: child.kind,
                object: Arc::new(serde_json::from_value(object.clone()).unwrap()),
            })
        });
        let seen = SeenByProvider {
            md,
            installed,
            invalid_settings: None,
            children: children.collect(),
            unready: Vec::new(),
            outage: None,
            verification: runway_provider::observe::Verification::Assumed,
            now: self.now,
        };
        let plan = runway_provider::plan::plan(&rival, &seen);
        self.same(&plan, &runway_provider::plan::plan(&rival, &seen));
        self.carry_out(&labels::provider_manager(rival.0), &plan);
        Some(plan)
    }

    fn same(&self, one: &Plan, other: &Plan) {
        if told::plan(one) != told::plan(other) {
            self.fail("the same input gives another plan");
        }
    }

    fn carry_out(&mut self, manager: &str, plan: &Plan) {
        if !plan.is_silent() {
            self.history.push(format!("{manager}:\n{}", told::plan(plan)));
        }
        if plan.look_again == Some(Duration::ZERO) {
            self.fail("looks again at once: a hot loop");
        }
        if plan.events.iter().any(|note| note.reason == "FinalizerTimeout") {
            self.given_up = true;
        }
        if plan.finalizer == Finalizer::Add {
            self.change(|md| md["metadata"]["finalizers"] = json!([labels::FINALIZER]));
        }
        for delete in &plan.delete {
            self.delete(&delete.uid);
        }
        for apply in plan.apply.iter().filter(|a| !a.unchanged) {
            self.apply(&apply.object);
        }
        if let Some(of) = &plan.status_of {
            self.write(&of.manager, &of.status);
        }
        if let Some(status) = &plan.status {
            self.write(manager, status);
        }
        if plan.finalizer == Finalizer::Remove {
            self.md = None;
        }
    }

    fn write(&mut self, manager: &str, wanted: &Value) {
        let before = self.observed().unwrap();
        if let Err(conflict) = self.status.apply(manager, wanted) {
            self.fail(&conflict);
        }
        let shared = self.status.shared();
        if !shared.is_empty() {
            self.fail(&format!("held by two: {shared:?}"));
        }
        self.change(|_| {});
        let after = self.observed().unwrap();
        for condition in after.conditions() {
            let Some(earlier) = before.conditions().get_condition(&condition.type_) else {
                continue;
            };
            let moved = earlier.last_transition_time != condition.last_transition_time;
            let turned = earlier.status != condition.status;
            // Two transitions within one second have the same time.
            if moved != turned && (moved || earlier.last_transition_time.0 != self.now) {
                self.fail(&format!("the transition time of {} is wrong", condition.type_));
            }
        }
        let message = after.status.and_then(|s| s.message).unwrap_or_default();
        if message.len() > 32 * 1024 {
            self.fail("a message without bounds");
        }
    }

    fn apply(&mut self, object: &DynamicObject) {
        let types = object.types.clone().unwrap();
        let kind = RIVALS
            .iter()
            .flat_map(|rival| rival.children("llama"))
            .map(|child| child.kind)
            .find(|kind| kind.kind == types.kind && types.api_version.starts_with(kind.group))
            .unwrap();
        let mut wanted = serde_json::to_value(object).unwrap();
        let there = self
            .objects
            .iter_mut()
            .find(|(k, o)| *k == kind && o["metadata"]["name"] == wanted["metadata"]["name"]);
        if let Some((_, live)) = there {
            for kept in ["uid", "creationTimestamp", "deletionTimestamp"] {
                wanted["metadata"][kept] = live["metadata"][kept].take();
            }
            wanted["status"] = live["status"].take();
            *live = wanted;
            return;
        }
        self.made += 1;
        wanted["metadata"]["uid"] = format!("uid-{}", self.made).into();
        wanted["metadata"]["creationTimestamp"] = json!(Time(self.now));
        self.objects.push((kind, wanted));
        let upstream = self.objects.iter().filter(|(kind, _)| !kind.is_built_in()).count();
        if upstream > 1 && !self.given_up {
            self.fail("two upstream objects at a time");
        }
    }

    fn delete(&mut self, uid: &str) {
        let now = self.now;
        for (_, object) in self.objects.iter_mut().filter(|(_, o)| o["metadata"]["uid"] == uid) {
            object["metadata"]["deletionTimestamp"] = json!(Time(now));
        }
        self.collect_garbage();
    }

    fn collect_garbage(&mut self) {
        let holds = self.holds;
        self.objects
            .retain(|(kind, o)| o["metadata"]["deletionTimestamp"].is_null() || holds && !kind.is_built_in());
    }

    fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\n{}\nstatus: {:#}",
            self.history.join("\n"),
            self.status.merged()
        );
    }
}
