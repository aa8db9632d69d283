//! One run of a scenario in a namespace of its own, and what has to be true of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_provider::Kind;
use runway_testbed::fault::{Plan, Write};
use runway_testbed::{ControlPlane, eventually};
use runway_upstream_simulator::{self as simulator, Simulator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::controllers::{Controller, SENTINEL, Who};
use crate::scenario::{ACTOR, MODEL, STACK, Scenario, Step, Until, config_map, service};
use crate::state::{self, CONFIG_MAP, SERVICE, State};
use crate::upstream::Ledger;
use runway_product_testbed::{Bed, PATIENCE, Upstream};

/// Longer than the product delays any write: a provider reports progress after it has been unchanged for five seconds.
const AT_REST: Duration = Duration::from_secs(7);
/// Belongs to the namespace and not to an actor.
const SHARED: &str = "ConfigMap/asya-runtime";
/// Namespace of the controllers that keep all providers registered.
const LIGHTHOUSE: &str = "lighthouse";

/// Everything that the worlds share.
pub(crate) struct Shore {
    cluster: Box<ControlPlane>,
    admin: Client,
    ledger: Ledger,
    worlds: AtomicUsize,
    _simulator: Simulator,
    _lighthouse: Vec<Arc<Controller>>,
}

/// Result of a run.
pub(crate) struct Run {
    /// State before anything was deleted at the end.
    pub(crate) state: State,
    /// Writes until then.
    pub(crate) writes: BTreeMap<Who, Vec<Write>>,
    /// Events of watches that were held back, lost with their watch or followed by a 410.
    pub(crate) bends: usize,
    /// Changes of a walk.
    pub(crate) tried: Tried,
}

/// Changes of specs.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tried {
    pub(crate) accepted: usize,
    /// By the API server.
    pub(crate) rejected: usize,
}

impl Tried {
    pub(crate) fn total(self) -> usize {
        self.accepted + self.rejected
    }
}

impl AddAssign for Tried {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.rejected += other.rejected;
    }
}

impl Shore {
    pub(crate) async fn start() -> Result<Self> {
        let bed = Bed::start_with(Upstream::Everything, false).await?;
        let ledger = Ledger::start(&bed.admin);
        let upstream = bed.cluster.client("upstream", &["system:masters"]).await?;
        let config = simulator::Config {
            ready_after: Duration::from_millis(200),
            headless: true,
            ..simulator::Config::default()
        };
        let mut lighthouse = Vec::new();
        namespace(&bed.admin, LIGHTHOUSE).await?;
        for who in Who::PROVIDERS {
            lighthouse.push(Controller::start(who, &bed.cluster, LIGHTHOUSE).await?);
        }
        eventually(PATIENCE, async || {
            let ready = bed.configs().list(&ListParams::default()).await?.items;
            let ready = ready.iter().filter_map(|c| c.status.as_ref()?.ready).filter(|r| *r);
            ensure!(
                ready.count() == Who::PROVIDERS.len(),
                "not all providers have registered"
            );
            Ok(())
        })
        .await?;
        Ok(Self {
            admin: bed.admin.clone(),
            cluster: bed.cluster,
            ledger,
            worlds: AtomicUsize::new(0),
            _simulator: Simulator::start(upstream, config),
            _lighthouse: lighthouse,
        })
    }

    /// Fails if the API server does not answer, without which every further run fails.
    pub(crate) async fn is_up(&self) -> Result<()> {
        let version = self.admin.apiserver_version().await;
        version
            .map(drop)
            .context("the API server of the campaign has ended: run the command again with --resume")
    }

    /// Runs a scenario with faults, which an error names. Without an expected state, this run's is the one.
    pub(crate) async fn run(
        &self,
        scenario: &Scenario,
        plan: impl Fn(Who) -> Plan,
        expected: Option<&State>,
    ) -> Result<Run> {
        let mut world = World::start(self, scenario, plan).await?;
        let run = world.live(expected).await;
        run.with_context(|| world.faults())
    }
}

struct World<'a> {
    shore: &'a Shore,
    scenario: &'a Scenario,
    namespace: String,
    controllers: Vec<Arc<Controller>>,
    /// Objects that are there whatever becomes of the scenario's.
    strangers: State,
    tried: Tried,
}

impl<'a> World<'a> {
    async fn start(shore: &'a Shore, scenario: &'a Scenario, plan: impl Fn(Who) -> Plan) -> Result<Self> {
        let number = shore.worlds.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("storm-world-{number}");
        self::namespace(&shore.admin, &namespace).await?;
        let mut world = Self {
            shore,
            scenario,
            namespace,
            controllers: Vec::new(),
            strangers: State::new(),
            tried: Tried::default(),
        };
        world.create(CONFIG_MAP, &config_map("bystander")).await?;
        world.create(SERVICE, &service("bystander")).await?;
        // These two are Kubernetes'.
        for (kind, name) in [(CONFIG_MAP, "kube-root-ca.crt"), (state::SERVICE_ACCOUNT, "default")] {
            world.until(kind, name, Until::There).await?;
        }
        world.strangers = state::state(&shore.admin, &world.namespace).await?;
        for who in scenario.controllers {
            let controller = Controller::start(*who, &shore.cluster, &world.namespace).await?;
            controller.proxy.plan(plan(*who));
            world.controllers.push(controller);
        }
        Ok(world)
    }

    /// The whole run.
    async fn live(&mut self, expected: Option<&State>) -> Result<Run> {
        for step in &self.scenario.steps {
            self.take(step).await?;
        }
        let (admin, namespace) = (&self.shore.admin, &self.namespace);
        let compared = if self.tried.total() > 0 {
            state::however_reached
        } else {
            |state| state
        };
        if self.tried.total() > 0 {
            // The pods of its last changes may still come and go, which the status then reports.
            self.is_at_rest().await;
        }
        let read = async || match expected {
            Some(expected) => state::is_as(admin, namespace, expected, compared).await,
            None => state::state(admin, namespace).await,
        };
        if expected.is_none() {
            self.is_at_rest().await;
        }
        let state = eventually(PATIENCE, read).await?;
        let mut run = Run {
            state,
            writes: self.controllers.iter().map(|c| (c.who, c.proxy.writes())).collect(),
            bends: self.controllers.iter().map(|c| c.proxy.bends().len()).sum(),
            tried: self.tried,
        };
        state::is_named(&run.state)?;
        // The expected state may be there before the last write of a controller that has read an earlier one. A restart sooner than
        // that could not tell a write that takes this one back from a write that was missing.
        self.is_at_rest().await;
        for controller in &self.controllers {
            controller.proxy.plan(Plan::Calm);
        }
        self.is_silent().await.context("not silent")?;
        // The garbage collector may still delete what was created while its owner was deleted: a DELETE that has seen no finalizer
        // does not see one that is added before it is committed.
        let unchanged = eventually(PATIENCE, async || {
            let now = read().await?;
            state::is_same_but_rollouts(&run.state, &now)?;
            anyhow::Ok(now)
        });
        run.state = unchanged.await.context("after a restart")?;
        self.ends().await.context("at the end")?;
        Ok(run)
    }

    /// The faults so far.
    fn faults(&self) -> String {
        let of = |controller: &Arc<Controller>| {
            let who = controller.who;
            let writes = controller.proxy.writes().into_iter().filter_map(move |write| {
                let Write { number, request, cut } = write;
                cut.map(|cut| format!("{cut} at {who}:{number}, {request}"))
            });
            let events = controller.proxy.bends().into_iter();
            writes
                .chain(events.map(move |(number, bend)| format!("{bend} at event {who}:{number}")))
                .collect::<Vec<_>>()
        };
        let faults: Vec<String> = self.controllers.iter().flat_map(of).collect();
        format!("in {} with [{}]", self.namespace, faults.join("; "))
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.shore.admin.clone(), &self.namespace, &kind.resource())
    }

    async fn create(&self, kind: Kind, object: &Value) -> Result<DynamicObject> {
        let mut object: DynamicObject = serde_json::from_value(object.clone())?;
        object.metadata.namespace = Some(self.namespace.clone());
        let params = PostParams {
            field_manager: Some("kubectl-create".to_owned()),
            ..PostParams::default()
        };
        let created = self.api(kind).create(&params, &object).await;
        created.with_context(|| format!("cannot create {} {}", kind.kind, object.name_any()))
    }

    async fn take(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Create(kind, object) => {
                self.create(*kind, object).await?;
            }
            Step::Theirs(kind, object) => {
                let created = self.create(*kind, object).await?;
                let id = format!("{}/{}", kind.kind, created.name_any());
                let before = state::normal(*kind, &created, &self.namespace);
                self.strangers.insert(id, before);
            }
            Step::Patch(kind, name, patch) => {
                self.api(*kind).patch(name, &by_hand(), &Patch::Merge(patch)).await?;
            }
            Step::Try(kind, name, patch) => {
                let step = self.try_change(*kind, name, patch).await;
                step.with_context(|| format!("after {patch}"))?;
            }
            Step::Replace(kind, name, spec) => {
                let operation = json!([{ "op": "replace", "path": "/spec", "value": spec }]);
                let patch = Patch::Json::<()>(serde_json::from_value(operation)?);
                self.api(*kind).patch(name, &by_hand(), &patch).await?;
                self.until(*kind, name, Until::Handled).await?;
            }
            Step::Delete(kind, name) => {
                self.api(*kind).delete(name, &DeleteParams::background()).await?;
            }
            Step::Until(kind, name, until) => self.until(*kind, name, *until).await?,
        }
        Ok(())
    }

    async fn try_change(&mut self, kind: Kind, name: &str, patch: &Value) -> Result<()> {
        match self.api(kind).patch(name, &by_hand(), &Patch::Merge(patch)).await {
            Ok(_) => {
                self.tried.accepted += 1;
                self.until(kind, name, Until::Handled).await
            }
            Err(kube::Error::Api(refusal)) if [400, 422].contains(&refusal.code) => {
                self.tried.rejected += 1;
                let message = &refusal.message;
                ensure!(message.contains("spec"), "the rejection names no field: {message}");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn until(&self, kind: Kind, name: &str, until: Until) -> Result<()> {
        eventually(PATIENCE, async || {
            let object = self.api(kind).get_opt(name).await?;
            until
                .check(object.as_ref())
                .with_context(|| format!("{} {name}", kind.kind))
        })
        .await
    }

    /// Waits until no controller has written for longer than any of them delays a write.
    async fn is_at_rest(&self) {
        let count = || -> usize { self.controllers.iter().map(|c| c.proxy.writes().len()).sum() };
        let (mut seen, mut since) = (count(), Instant::now());
        while since.elapsed() < AT_REST {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if count() != seen {
                (seen, since) = (count(), Instant::now());
            }
        }
    }

    /// All controllers start anew, so that each plans every object again. Once each has dealt with a sentinel, an object that
    /// came later, it has written nothing about any other.
    async fn is_silent(&self) -> Result<()> {
        let marks: Vec<usize> = self.controllers.iter().map(|c| c.proxy.writes().len()).collect();
        for controller in &self.controllers {
            controller.restart();
        }
        for (kind, object, until) in self.controllers.iter().map(|c| c.who.sentinel()) {
            let name = self.create(kind, &object).await?.name_any();
            self.until(kind, &name, until).await?;
            self.api(kind).delete(&name, &DeleteParams::background()).await?;
            self.until(kind, &name, Until::Gone).await?;
        }
        let mut needless = Vec::new();
        for (controller, mark) in self.controllers.iter().zip(marks) {
            let writes = controller.proxy.writes().split_off(mark);
            let is_needed = |write: &Write| {
                let mut theirs = self.strangers.keys().filter(|_| self.scenario.tries_again);
                write.request.contains(&format!("/{SENTINEL}")) || theirs.any(|id| write.request.ends_with(name(id)))
            };
            let others = writes.into_iter().filter(|write| !is_needed(write));
            needless.extend(others.map(|write| format!("{}: {}", controller.who, write.request)));
        }
        ensure!(needless.is_empty(), "needless writes: {needless:?}");
        Ok(())
    }

    /// Everything is deleted: nothing of the product stays, and nothing of others has changed.
    async fn ends(&self) -> Result<()> {
        for kind in [ACTOR, STACK, MODEL] {
            let api = self.api(kind);
            for object in api.list(&ListParams::default()).await?.items {
                api.delete(&object.name_any(), &DeleteParams::background()).await?;
            }
        }
        let namespace = &self.namespace;
        eventually(PATIENCE, async || {
            let left = state::state(&self.shore.admin, namespace).await?;
            let is_known = |id: &str| id == SHARED || self.strangers.contains_key(id);
            let ours: BTreeSet<_> = left.keys().filter(|id| !is_known(id)).collect();
            ensure!(ours.is_empty(), "still there: {ours:?}");
            for (id, before) in &self.strangers {
                let now = left.get(id).with_context(|| format!("{id} of another owner is gone"))?;
                ensure!(
                    state::is_unharmed(now, before),
                    "{id} of another owner was {before} and is {now}"
                );
            }
            self.shore.ledger.check(namespace)
        })
        .await
    }
}

fn by_hand() -> PatchParams {
    PatchParams {
        field_manager: Some(state::BY_HAND.to_owned()),
        ..PatchParams::default()
    }
}

/// `/NAME` of the `KIND/NAME` of an object.
fn name(id: &str) -> &str {
    id.find('/').map_or(id, |slash| &id[slash..])
}

async fn namespace(admin: &Client, name: &str) -> Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    runway_testbed::apply::apply(admin, &serde_json::from_value(object)?, "test").await?;
    Ok(())
}
