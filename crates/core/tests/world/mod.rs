//! An API server, two providers with their upstreams, and a user: all in memory.
//!
//! Each write is checked: no field has two owners, transition times change only on transitions, nothing is unbounded, plans are
//! deterministic, and there are never two upstream objects at a time.
//!
//! A controller may read from caches that lag behind, and may crash between two writes. Writes are guarded as
//! `runway_operator::apply` guards them, and a controller sees its own writes at once.

mod past;

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use parking_lot::Mutex;
use proptest::prelude::*;
use runway_api::condition::{Conditions, READY};
use runway_api::{InferenceProviderConfig, ModelDeployment, labels};
use runway_core::autoscalers::Autoscalers;
use runway_core::observe::Observed as SeenByCore;
use runway_core::providers::Providers;
use runway_golden::reported;
use runway_golden::ssa::{self, Applied};
use runway_operator::plan::{self, Apply, Plan};
use runway_provider::conformance::acme::Acme;
use runway_provider::observe::{Child, Observed as SeenByProvider};
use runway_provider::{Installed, Kind, Provider, State};
use serde_json::{Value, json};

use crate::registered::{How, registered};
pub(crate) use past::{Lag, MOST_LAG};
use past::{Past, Reader, View};

pub(crate) const START: &str = "2026-03-01T10:00:00Z";

const RIVALS: [Acme; 2] = [Acme("acme"), Acme("zenith")];
/// One in this many plans is made twice.
const CHECKED: u64 = 64;

/// The rules of both providers.
static COMPILED: LazyLock<Providers> = LazyLock::new(|| {
    let configs = RIVALS.map(|rival| {
        let config = InferenceProviderConfig::new(rival.0, rival.registration());
        Arc::new(config)
    });
    Providers::compile(configs, &Providers::default())
});

/// A controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Core,
    Provider(usize),
}

impl Who {
    pub(crate) const ALL: [Self; 3] = [Self::Core, Self::Provider(0), Self::Provider(1)];

    fn at(self) -> usize {
        match self {
            Self::Core => 0,
            Self::Provider(at) => 1 + at,
        }
    }

    fn manager(self) -> String {
        match self {
            Self::Core => labels::CORE_MANAGER.to_owned(),
            Self::Provider(at) => labels::provider_manager(RIVALS[at].0),
        }
    }
}

/// A write that the API server rejects, because the object is not as observed.
struct Conflict;

/// A step of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A controller reconciles, if it is running.
    Reconcile(Who, Lag),
    /// A controller reconciles, crashes after that many writes, and restarts.
    Crash(Who, Lag, usize),
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
        4 => (who(), lag()).prop_map(|(who, lag)| Step::Reconcile(who, lag)),
        2 => (who(), lag(), 1..3_usize).prop_map(|(who, lag, writes)| Step::Crash(who, lag, writes)),
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

fn who() -> impl Strategy<Value = Who> {
    (0..Who::ALL.len()).prop_map(|at| Who::ALL[at])
}

fn lag() -> impl Strategy<Value = Lag> {
    (0..=MOST_LAG, 0..=MOST_LAG).prop_map(|(owner, children)| Lag { owner, children })
}

/// States that settle, each with the part of [`World::settles`] that it is reached in. Most states lead to one of these soon.
#[derive(Default)]
pub(crate) struct Settled(Mutex<HashSet<(usize, u64)>>);

/// State of the simulated cluster.
#[derive(Clone)]
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
    /// A controller has read what was no longer so, or has crashed: until all have settled, a status may be half written.
    disturbed: bool,
    past: Past,
    /// Caches of each controller.
    readers: [Reader; 3],
    /// Actions so far, for the report of a failure.
    history: Vec<Arc<Action>>,
}

/// An action of a [`World`].
enum Action {
    Step(Timestamp, Step),
    Plan(Who, Box<Plan>),
    Conflict(Who, String),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(at, step) => write!(f, "{at} {step:?}"),
            Self::Plan(who, plan) => write!(f, "{}:\n{}", who.manager(), reported::plan(plan)),
            Self::Conflict(who, write) => write!(f, "{}: conflict at {write}", who.manager()),
        }
    }
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
        let mut world = Self {
            now: START.parse().unwrap(),
            md: Some(md),
            status: Applied::default(),
            objects: Vec::new(),
            alive: [true; 2],
            installed: [true; 2],
            holds: false,
            made: 0,
            given_up: false,
            disturbed: false,
            past: Past::default(),
            readers: Default::default(),
            history: Vec::new(),
        };
        world.committed();
        world
    }

    pub(crate) fn take(&mut self, step: &Step) {
        self.acted(Action::Step(self.now, step.clone()));
        self.act(step);
        let is_committed = matches!(
            step,
            Step::Reconcile(..) | Step::Crash(..) | Step::Rest | Step::Seconds(_)
        );
        if !is_committed {
            self.committed();
        }
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Reconcile(who, lag) => {
                drop(self.turn(*who, *lag, usize::MAX));
            }
            Step::Crash(who, lag, writes) => {
                self.disturbed = true;
                drop(self.turn(*who, *lag, *writes));
                self.readers[who.at()] = Reader::started(&self.past);
            }
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

    /// Takes note of a change, which caches may not have seen yet.
    fn committed(&mut self) {
        self.past.add(View::new(self.shown(), &self.objects));
    }

    /// Reconciles until all plans are silent. Returns when the first of them looks again.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        self.rest_or(|_| false).continue_value().flatten()
    }

    /// Reconciles until all plans are silent, or, after a round with writes, `is_known`.
    fn rest_or(&mut self, mut is_known: impl FnMut(&Self) -> bool) -> ControlFlow<(), Option<Duration>> {
        for _ in 0..16 {
            let plans: Vec<Plan> = Who::ALL
                .into_iter()
                .filter_map(|who| self.turn(who, Lag::NONE, usize::MAX))
                .collect();
            if plans.iter().all(Plan::is_silent) {
                self.disturbed = false;
                self.has_one_owner_for_each_field();
                return ControlFlow::Continue(plans.iter().filter_map(|p| p.look_again).min());
            }
            if is_known(self) {
                return ControlFlow::Break(());
            }
        }
        self.fail("the plans do not become silent within 16 rounds");
    }

    fn has_one_owner_for_each_field(&self) {
        let shared = self.status.shared();
        if !shared.is_empty() && !self.disturbed {
            self.fail(&format!("held by two: {shared:?}"));
        }
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
        // A paused object has no status except the condition Paused.
        let is_paused = md.is_paused() && md.conditions().is_true("Paused");
        let ready = md.conditions().get_condition(READY);
        let is_current = |observed: Option<i64>| observed == md.metadata.generation;
        let stands = status.phase.is_some()
            && is_current(status.observed_generation)
            && ready.is_some_and(|c| is_current(c.observed_generation));
        if !is_paused && !stands {
            self.fail("the status does not say where the current generation stands");
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

    /// Everything that a controller can do now: with each lag of its caches, completely or until a crash.
    pub(crate) fn reconciles(&self, crashes: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        for who in Who::ALL {
            let mut readings = Vec::new();
            for lag in Lag::all() {
                let reader = self.readers[who.at()].reading(&self.past, lag);
                if readings.contains(&reader) {
                    continue;
                }
                let plan = self.plan(who, &reader).filter(|plan| !plan.is_silent());
                readings.push(reader);
                let Some(plan) = plan else { continue };
                steps.push(Step::Reconcile(who, lag));
                if crashes {
                    steps.extend((1..writes_of(&plan).count()).map(|writes| Step::Crash(who, lag, writes)));
                }
            }
        }
        steps
    }

    /// A number that is the same for states that differ in nothing that matters.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.past.texts().for_each(|text| text.hash(&mut hasher));
        for reader in &self.readers {
            reader.lags(&self.past).hash(&mut hasher);
        }
        (self.now, self.alive, self.installed, self.holds).hash(&mut hasher);
        (self.given_up, self.disturbed).hash(&mut hasher);
        // The fields of each manager: two can have applied the same value.
        self.status.hash(&mut hasher);
        hasher.finish()
    }

    /// Whatever happened, everything settles, handovers are in order again, and only the objects of the selected provider exist.
    pub(crate) fn settles(self, known: &Settled) {
        let mut passed = Vec::new();
        // Whether it has come to the end or to a known state makes no difference.
        let _ = self.settles_or(|part, world| {
            let state = (part, world.fingerprint());
            let is_known = known.0.lock().contains(&state);
            passed.push(state);
            is_known
        });
        // Not before: of states that lead to each other, none settles.
        known.0.lock().extend(passed);
    }

    /// The parts of [`Self::settles`], until a state `is_known` to pass the rest of them.
    fn settles_or(mut self, mut is_known: impl FnMut(usize, &Self) -> bool) -> ControlFlow<()> {
        self.rest_or(|world| is_known(0, world))?;
        // Nothing is left that could spoil what comes later.
        for (at, rival) in RIVALS.iter().enumerate() {
            let part = at + 1;
            self.take(&Step::Edit(json!({"provider": {"name": rival.0}})));
            self.take(&Step::Seconds(301));
            if is_known(part, &self) {
                return ControlFlow::Break(());
            }
            self.rest_or(|world| is_known(part, world))?;
        }
        self.is_in_order();
        ControlFlow::Continue(())
    }

    /// At rest, the status is explained, and only the objects of the selected provider exist.
    fn is_in_order(&self) {
        self.is_explained();
        let Some(md) = self.observed() else {
            let owned = |object: &Value| object["metadata"]["ownerReferences"][0]["uid"] == "uid-of-llama";
            if self.objects.iter().any(|(_, object)| !owned(object)) {
                self.fail("an object is left that the garbage collector does not delete");
            }
            return;
        };
        if md.is_paused() || md.metadata.deletion_timestamp.is_some() || self.given_up || self.holds {
            return;
        }
        for (at, rival) in RIVALS.iter().enumerate() {
            let selected = md.selected_provider() == Some(rival.0);
            let made = self.upstream_objects(at).count();
            if self.alive[at] && made > usize::from(selected) {
                self.fail(&format!("{made} objects of {}, selected: {selected}", rival.0));
            }
        }
    }

    /// The ModelDeployment with its status.
    fn shown(&self) -> Option<Value> {
        let mut md = self.md.clone()?;
        md["status"] = self.status.merged();
        Some(md)
    }

    fn observed(&self) -> Option<ModelDeployment> {
        self.shown().map(|md| serde_json::from_value(md).unwrap())
    }

    /// A controller reconciles. Returns its plan, unless it is not running or has nothing to reconcile.
    fn turn(&mut self, who: Who, lag: Lag, writes: usize) -> Option<Plan> {
        let reader = self.readers[who.at()].reading(&self.past, lag);
        let plan = self.plan(who, &reader)?;
        self.disturbed |= reader != self.readers[who.at()].reading(&self.past, Lag::NONE);
        self.readers[who.at()] = reader;
        self.carry_out(who, &plan, writes);
        Some(plan)
    }

    /// The plan of a controller with these caches.
    fn plan(&self, who: Who, reader: &Reader) -> Option<Plan> {
        let md = reader.owner(&self.past)?;
        let plan = match who {
            Who::Core => {
                let seen = self.seen_by_core(md);
                let plan = runway_core::plan::plan(&seen);
                self.same(&plan, || runway_core::plan::plan(&seen));
                plan
            }
            Who::Provider(at) if !self.alive[at] => return None,
            Who::Provider(at) => {
                let seen = self.seen_by_provider(at, md, reader);
                let plan = runway_provider::plan::plan(&RIVALS[at], &seen);
                self.same(&plan, || runway_provider::plan::plan(&RIVALS[at], &seen));
                plan
            }
        };
        Some(plan)
    }

    fn seen_by_core(&self, md: Arc<ModelDeployment>) -> SeenByCore {
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
        SeenByCore {
            md,
            providers: Arc::new(Providers::compile(configs, &COMPILED)),
            selector_enabled: true,
            autoscalers: Autoscalers::default(),
            now: self.now,
        }
    }

    fn seen_by_provider(&self, at: usize, md: Arc<ModelDeployment>, reader: &Reader) -> SeenByProvider {
        let rival = RIVALS[at];
        let installed = if self.installed[at] {
            Installed::newest(&rival.upstreams())
        } else {
            Installed::new(rival.upstreams().into_iter().map(|u| (u.kind, State::Missing)))
        };
        let children = rival.children("llama").into_iter().filter_map(|child| {
            Some(Child {
                kind: child.kind,
                object: reader.child(&self.past, child.kind, &child.name)?,
            })
        });
        SeenByProvider {
            md,
            installed,
            invalid_settings: None,
            children: children.collect(),
            pods: None,
            outage: None,
            verification: runway_provider::observe::Verification::Assumed,
            answer_timeout: std::time::Duration::from_secs(10),
            now: self.now,
        }
    }

    /// Checks some of the plans: all of them would take most of the time.
    fn same(&self, one: &Plan, again: impl FnOnce() -> Plan) {
        static PLANS: AtomicU64 = AtomicU64::new(0);
        let is_checked = PLANS.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECKED);
        if is_checked && reported::plan(one) != reported::plan(&again()) {
            self.fail("the same input gives another plan");
        }
    }

    /// Carries out the first writes of a plan, until one is rejected.
    fn carry_out(&mut self, who: Who, plan: &Plan, writes: usize) {
        if !plan.is_silent() {
            self.acted(Action::Plan(who, Box::new(plan.clone())));
        }
        if plan.look_again == Some(Duration::ZERO) {
            self.fail("looks again at once: a hot loop");
        }
        if plan.events.iter().any(|note| note.reason == "FinalizerTimeout") {
            self.given_up = true;
        }
        let mut read = self.readers[who.at()].owner(&self.past).and_then(|md| version(&md));
        for step in writes_of(plan).take(writes) {
            if self.commit(who, step, read.as_deref()).is_err() {
                self.acted(Action::Conflict(who, format!("{step:?}")));
                return;
            }
            if matches!(
                step,
                plan::Step::AddFinalizer | plan::Step::StatusOf(_) | plan::Step::Status { .. }
            ) {
                read = self.past.newest().md.as_deref().and_then(version);
            }
        }
    }

    /// Carries out a write of a plan that was made for the ModelDeployment of version `read`.
    fn commit(&mut self, who: Who, step: plan::Step<'_>, read: Option<&str>) -> Result<(), Conflict> {
        let guarded = match step {
            plan::Step::AddFinalizer | plan::Step::RemoveFinalizer => true,
            plan::Step::StatusOf(of) => of.guarded,
            plan::Step::Status { guarded, .. } => guarded,
            _ => false,
        };
        if guarded && self.past.newest().md.as_deref().and_then(version).as_deref() != read {
            return Err(Conflict);
        }
        match step {
            plan::Step::AddFinalizer => self.change(|md| md["metadata"]["finalizers"] = json!([labels::FINALIZER])),
            plan::Step::Delete(delete) => self.delete(&delete.uid),
            plan::Step::Apply(apply) => self.apply(who, apply)?,
            plan::Step::StatusOf(of) => self.write(&of.manager, &of.status)?,
            plan::Step::Status { fields, .. } => {
                let held = |world: &Self| matches!(who, Who::Provider(at) if world.is_recorded(at));
                let before = held(self);
                self.write(&who.manager(), fields)?;
                if let Who::Provider(at) = who
                    && before
                    && !held(self)
                    && self.upstream_objects(at).count() > 0
                    && !self.disturbed
                {
                    self.fail("the status releases an object that exists");
                }
            }
            plan::Step::RemoveFinalizer => self.md = None,
            plan::Step::DryRun(_) | plan::Step::Trial(_) | plan::Step::Edit(_) | plan::Step::Event(_) => {}
        }
        self.committed();
        let reader = &mut self.readers[who.at()];
        match step {
            plan::Step::Delete(_) => {}
            plan::Step::Apply(Apply { object, .. }) => {
                reader.wrote_child(&self.past, kind_of(object), object.metadata.name.clone().unwrap());
            }
            _ => reader.wrote_owner(&self.past),
        }
        Ok(())
    }

    fn write(&mut self, manager: &str, wanted: &Value) -> Result<(), Conflict> {
        // The status of a deleted object is not missed.
        let Some(before) = self.past.newest().md.clone() else {
            return Ok(());
        };
        if let Err(conflict) = self.status.apply(manager, wanted) {
            if self.disturbed {
                return Err(Conflict);
            }
            self.fail(&conflict);
        }
        self.has_one_owner_for_each_field();
        let after = self.observed().unwrap();
        if before.status != after.status {
            self.change(|_| {});
        }
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
        Ok(())
    }

    fn apply(&mut self, who: Who, apply: &Apply) -> Result<(), Conflict> {
        let kind = kind_of(&apply.object);
        if let Who::Provider(at) = who
            && !self.installed[at]
            && !kind.is_built_in()
        {
            return Err(Conflict);
        }
        let mut wanted = serde_json::to_value(&apply.object).unwrap();
        let there = self
            .objects
            .iter_mut()
            .find(|(k, o)| *k == kind && o["metadata"]["name"] == wanted["metadata"]["name"]);
        let uid = there.as_ref().and_then(|(_, live)| live["metadata"]["uid"].as_str());
        if uid != apply.live.as_deref() {
            return Err(Conflict);
        }
        if let Some((_, live)) = there {
            for kept in ["uid", "creationTimestamp", "deletionTimestamp"] {
                wanted["metadata"][kept] = live["metadata"][kept].take();
            }
            wanted["status"] = live["status"].take();
            *live = wanted;
            return Ok(());
        }
        self.made += 1;
        wanted["metadata"]["uid"] = format!("uid-{}", self.made).into();
        wanted["metadata"]["creationTimestamp"] = json!(Time(self.now));
        self.objects.push((kind, wanted));
        let all = self.upstream_objects(0).chain(self.upstream_objects(1)).count();
        if !kind.is_built_in() && all > 1 && !self.given_up {
            self.fail("two upstream objects at a time");
        }
        Ok(())
    }

    /// Upstream objects of a provider.
    fn upstream_objects(&self, at: usize) -> impl Iterator<Item = &Value> {
        let own = move |object: &Value| object["metadata"]["labels"][labels::PROVIDER] == RIVALS[at].0;
        // Without the label of its provider an object may be that of another, and is left to the garbage collector.
        let made = self
            .objects
            .iter()
            .filter(move |(kind, object)| !kind.is_built_in() && own(object));
        made.map(|(_, object)| object)
    }

    /// Whether the status names the upstream object of a provider.
    fn is_recorded(&self, at: usize) -> bool {
        let fields = self.status.of(&Who::Provider(at).manager());
        fields.contains_key(&["provider", "resourceName"].map(str::to_owned)[..])
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

    fn acted(&mut self, action: Action) {
        self.history.push(Arc::new(action));
    }

    fn fail(&self, what: &str) -> ! {
        let history: Vec<_> = self.history.iter().map(ToString::to_string).collect();
        panic!("{what}\n{}\nstatus: {:#}", history.join("\n"), self.status.merged());
    }
}

/// The steps of a plan that change what this world holds.
fn writes_of(plan: &Plan) -> impl Iterator<Item = plan::Step<'_>> {
    let is_write = |step: &plan::Step<'_>| {
        !matches!(
            step,
            plan::Step::DryRun(_) | plan::Step::Trial(_) | plan::Step::Edit(_) | plan::Step::Event(_)
        )
    };
    plan.steps().into_iter().filter(is_write)
}

fn version(md: &ModelDeployment) -> Option<String> {
    md.metadata.resource_version.clone()
}

fn kind_of(object: &DynamicObject) -> Kind {
    let types = object.types.clone().unwrap();
    let mut kinds = RIVALS
        .iter()
        .flat_map(|rival| rival.children("llama"))
        .map(|child| child.kind);
    kinds
        .find(|kind| kind.kind == types.kind && types.api_version.starts_with(kind.group))
        .unwrap()
}
