//! Common parts of all simulated operators: they watch a kind while its CRD exists, guard deletion with a finalizer,
//! take each object through its stages and write its status.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    io::Write as _,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope, api::core::v1::Service,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource as _, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    runtime::{
        Controller, WatchStreamExt as _,
        conditions::is_crd_established,
        controller::{self, Action},
        wait::Condition as _,
        watcher::{self, Event, watcher},
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    Behavior, Config, LABEL, Task,
    timeline::{self, PodState, Stage},
};

const STUCK_FINALIZER: &str = "simulator.kubeairunway.ai/stuck";
/// Objects worked on at once, few as in the real ones: the API server gives out the addresses of Services one by one, and
/// a thousand asked for at once make each other wait for half a minute.
const WORKERS: u16 = 8;
/// Longer than any timeline: the age of an object that had its result before we came.
const LONG_AGO: Duration = Duration::from_hours(1000);

/// A kind that some upstream operator has a controller for.
#[derive(Clone)]
pub(super) struct Role {
    /// The name of its CRD.
    pub(super) crd: &'static str,
    /// The field manager of everything that is written for it.
    pub(super) manager: &'static str,
    /// The finalizer that the operator puts on it.
    pub(super) finalizer: Option<&'static str>,
    /// Children, whose changes requeue the object.
    pub(super) owns: Vec<ApiResource>,
}

/// The pods made so far, by the uid of their object: the hash of the template, and the state.
pub(super) type KnownPods = HashMap<String, BTreeMap<String, (String, Option<PodState>)>>;

/// State that an object is on its way to.
struct Undertaking {
    name: String,
    start: Instant,
    /// Its status has had the result.
    had_result: bool,
}

/// A role being played, in the version that its CRD stores.
pub(super) struct Simulation {
    pub(super) client: Client,
    pub(super) config: Config,
    pub(super) kind: ApiResource,
    role: Role,
    /// By uid.
    undertakings: Mutex<HashMap<String, Undertaking>>,
    pub(super) pods: Mutex<KnownPods>,
}

/// Plays until dropped: from the moment the CRD is established until it is deleted, and anew when its stored version
/// changes, since that is how an operator's own upgrade looks to its clients.
pub(super) async fn play<R, F>(client: Client, config: Config, role: Role, reconcile: R)
where
    R: Fn(Arc<DynamicObject>, Arc<Simulation>) -> F + Copy + Send + Sync + 'static,
    F: Future<Output = kube::Result<Action>> + Send + 'static,
{
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={}", role.crd));
    let mut events = pin!(watcher(crds, only).default_backoff());
    let mut running: Option<(ApiResource, Task)> = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(crd) | Event::InitApply(crd)) if is_crd_established().matches_object(Some(&crd)) => {
                let kind = stored_kind(&crd);
                if running.as_ref().is_none_or(|(played, _)| *played != kind) {
                    let simulation = Simulation::new(client.clone(), config.clone(), kind.clone(), role.clone());
                    running = Some((kind, Task::spawn(simulation.control(reconcile))));
                }
            }
            Ok(Event::Delete(_)) => running = None,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, crd = role.crd, "upstream simulator: watch failed, trying again");
            }
        }
    }
}

fn stored_kind(crd: &CustomResourceDefinition) -> ApiResource {
    let stored = crd.spec.versions.iter().find(|version| version.storage);
    let version = stored.map_or("", |version| &version.name);
    let names = &crd.spec.names;
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(&crd.spec.group, version, &names.kind),
        &names.plural,
    )
}

/// Another writer was faster, or the object is gone: its next event brings us back. Anything else is tried again.
#[expect(clippy::needless_pass_by_value, reason = "the signature that Controller asks for")]
fn retry(object: Arc<DynamicObject>, error: &kube::Error, _: Arc<Simulation>) -> Action {
    match error {
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => Action::requeue(Duration::from_secs(5)),
        _ => {
            tracing::warn!(%error, name = object.name_any(), "upstream simulator: write failed, trying again");
            Action::requeue(Duration::from_secs(1))
        }
    }
}

impl Simulation {
    fn new(client: Client, config: Config, kind: ApiResource, role: Role) -> Self {
        Self {
            client,
            config,
            kind,
            role,
            undertakings: Mutex::default(),
            pods: Mutex::default(),
        }
    }

    async fn control<R, F>(self, reconcile: R)
    where
        R: Fn(Arc<DynamicObject>, Arc<Self>) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = kube::Result<Action>> + Send + 'static,
    {
        let all = |kind: &ApiResource| Api::<DynamicObject>::all_with(self.client.clone(), kind);
        let mut controller = Controller::new_with(all(&self.kind), watcher::Config::default(), self.kind.clone());
        for owned in &self.role.owns {
            controller = controller.owns_with(all(owned), owned.clone(), watcher::Config::default());
        }
        controller
            .with_config(controller::Config::default().concurrency(WORKERS))
            .run(reconcile, retry, Arc::new(self))
            .for_each(|_| async {})
            .await;
    }

    /// Behavior for the object. An unknown label must not look like success: the object stalls and reports the label.
    pub(super) fn behavior(&self, object: &DynamicObject) -> Behavior {
        match object.labels().get(LABEL).map(|value| value.parse()) {
            None => self.config.behavior,
            Some(Ok(behavior)) => behavior,
            Some(Err(error)) => {
                // Past the test harness, which would keep it until the end.
                let _ = writeln!(
                    std::io::stderr(),
                    "upstream simulator: {} stalls, its label {LABEL} is wrong: {error}",
                    object.name_any()
                );
                Behavior::Stall
            }
        }
    }

    /// Puts finalizers on and takes them off. True when there is nothing else to do for now.
    pub(super) async fn guard_deletion(&self, object: &DynamicObject) -> kube::Result<bool> {
        let behavior = self.behavior(object);
        let operators = self.role.finalizer.filter(|_| self.config.finalizer);
        let mut finalizers = object.finalizers().to_vec();
        if object.metadata.deletion_timestamp.is_some() {
            self.forget(object);
            finalizers.retain(|name| Some(name.as_str()) != self.role.finalizer);
        } else if behavior != Behavior::Stall {
            let stuck = (behavior == Behavior::StuckDelete).then_some(STUCK_FINALIZER);
            for name in operators.into_iter().chain(stuck) {
                if !finalizers.iter().any(|present| present == name) {
                    finalizers.push(name.to_owned());
                }
            }
        }
        if finalizers != object.finalizers() {
            self.set_finalizers(object, &finalizers).await?;
            return Ok(true);
        }
        Ok(object.metadata.deletion_timestamp.is_some())
    }

    /// Stage of the object's undertaking, and when to requeue. Without a stage, nothing is written.
    ///
    /// `undertaking` names the current one: another name restarts the timeline. `done` means that the status has its
    /// result, which then was there before we came. Before its result was written once, the timeline waits there: on a
    /// busy machine a flapping object would be not ready without having been ready.
    pub(super) fn stage(&self, object: &DynamicObject, undertaking: &str, done: bool) -> (Option<Stage>, Action) {
        let behavior = self.behavior(object);
        let result_after = timeline::result_after(behavior, self.config.ready_after);
        let age = self.with_undertaking(object, undertaking, done, |current, now| {
            current.had_result |= done;
            if !current.had_result
                && let Some(latest) = result_after.and_then(|after| now.checked_sub(after))
            {
                current.start = current.start.max(latest);
            }
            now.duration_since(current.start)
        });
        let (stage, next) = timeline::stage(behavior, self.config.ready_after, age);
        (stage, next.map_or_else(Action::await_change, Action::requeue))
    }

    /// Time since the undertaking was first observed.
    pub(super) fn age(&self, object: &DynamicObject, undertaking: &str) -> Duration {
        self.with_undertaking(object, undertaking, false, |current, now| {
            now.duration_since(current.start)
        })
    }

    fn with_undertaking<T>(
        &self,
        object: &DynamicObject,
        name: &str,
        done: bool,
        then: impl FnOnce(&mut Undertaking, Instant) -> T,
    ) -> T {
        let now = Instant::now();
        let new = |start| Undertaking {
            name: name.to_owned(),
            start,
            had_result: false,
        };
        let mut undertakings = self.undertakings.lock();
        let current = undertakings
            .entry(object.uid().unwrap_or_default())
            .or_insert_with(|| new(now.checked_sub(LONG_AGO).filter(|_| done).unwrap_or(now)));
        if current.name != name {
            *current = new(now);
        }
        then(current, now)
    }

    fn forget(&self, object: &DynamicObject) {
        let uid = object.uid().unwrap_or_default();
        self.undertakings.lock().remove(&uid);
        self.pods.lock().remove(&uid);
    }

    /// As `metav1.NewControllerRef` makes them: the owner's deletion in the foreground waits for what it owns.
    pub(super) fn owner_reference(&self, owner: &DynamicObject) -> Option<OwnerReference> {
        let reference = owner.controller_owner_ref(&self.kind)?;
        Some(OwnerReference {
            block_owner_deletion: Some(true),
            ..reference
        })
    }

    /// An endpoint of the object.
    pub(super) async fn apply_service(
        &self,
        owner: &DynamicObject,
        name: &str,
        selector: Value,
        port: Value,
    ) -> kube::Result<()> {
        let mut service = json!({
            "metadata": {"name": name},
            "spec": {"type": "ClusterIP", "selector": selector, "ports": [port]},
        });
        if self.config.headless {
            service["spec"]["clusterIP"] = json!("None");
        }
        self.apply_any_service(owner, service).await
    }

    /// A Service of the object.
    pub(super) async fn apply_any_service(&self, owner: &DynamicObject, service: Value) -> kube::Result<()> {
        self.apply::<Service>(owner, service).await.map(drop)
    }

    /// An object that the owner has alone.
    pub(super) async fn apply<K>(&self, owner: &DynamicObject, mut manifest: Value) -> kube::Result<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        manifest["apiVersion"] = json!(K::api_version(&()));
        manifest["kind"] = json!(K::kind(&()));
        manifest["metadata"]["ownerReferences"] = json!([self.owner_reference(owner)]);
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        self.namespaced::<K>(owner)
            .patch(name, &self.apply_params(), &Patch::Apply(&manifest))
            .await
    }

    /// [`set_status`](Self::set_status), with the time in `lastUpdateTime` if it says something new.
    pub(super) async fn set_status_with_time(&self, object: &DynamicObject, mut status: Value) -> kube::Result<()> {
        status["lastUpdateTime"] = object.data["status"]["lastUpdateTime"].clone();
        self.write_status(object, status, true).await
    }

    /// Writes the status if it says something new; transition times move only with the status of their condition.
    pub(super) async fn set_status(&self, object: &DynamicObject, status: Value) -> kube::Result<()> {
        self.write_status(object, status, false).await
    }

    async fn write_status(&self, object: &DynamicObject, mut status: Value, timed: bool) -> kube::Result<()> {
        let current = &object.data["status"];
        let now = now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            let before = current["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|c| c["type"] == condition["type"]);
            let unmoved = before.filter(|c| c["status"] == condition["status"]);
            condition["lastTransitionTime"] =
                unmoved.map_or_else(|| now.clone().into(), |c| c["lastTransitionTime"].clone());
        }
        let fields = status.as_object_mut().into_iter().flatten();
        let mut news = false;
        for (field, value) in fields {
            news |= current[field] != *value;
            *value = replacing(&current[field], value.take());
        }
        if news {
            if timed {
                status["lastUpdateTime"] = json!(now);
            }
            let patch = Patch::Merge(json!({ "status": status }));
            self.api(object)
                .patch_status(&object.name_any(), &self.params(), &patch)
                .await?;
        }
        Ok(())
    }

    /// Replaces the finalizers, unless the object has changed meanwhile; its next event brings another try.
    async fn set_finalizers(&self, object: &DynamicObject, finalizers: &[String]) -> kube::Result<()> {
        let metadata = json!({"finalizers": finalizers, "resourceVersion": object.resource_version()});
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.api(object)
            .patch(&object.name_any(), &self.params(), &patch)
            .await
            .map(drop)
    }

    /// Adds annotations, unless the object has them.
    pub(super) async fn annotate(
        &self,
        object: &DynamicObject,
        annotations: &BTreeMap<String, String>,
    ) -> kube::Result<()> {
        let present = object.annotations();
        if annotations.iter().all(|(key, value)| present.get(key) == Some(value)) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.api(object)
            .patch(&object.name_any(), &self.params(), &patch)
            .await
            .map(drop)
    }

    /// Objects of a kind beside this one.
    pub(super) fn namespaced<K>(&self, object: &DynamicObject) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default())
    }

    fn api(&self, object: &DynamicObject) -> Api<DynamicObject> {
        let namespace = object.namespace().unwrap_or_default();
        Api::namespaced_with(self.client.clone(), &namespace, &self.kind)
    }

    fn params(&self) -> PatchParams {
        PatchParams {
            field_manager: Some(self.role.manager.to_owned()),
            ..PatchParams::default()
        }
    }

    /// For objects that are created or replaced.
    pub(super) fn post_params(&self) -> PostParams {
        PostParams {
            field_manager: Some(self.role.manager.to_owned()),
            ..PostParams::default()
        }
    }

    /// For objects that only we write.
    pub(super) fn apply_params(&self) -> PatchParams {
        PatchParams::apply(self.role.manager).force()
    }
}

/// A condition without its transition time; see [`Simulation::set_status`].
pub(super) fn condition(object: &DynamicObject, kind: &str, is: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": kind,
        "status": if is { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "observedGeneration": object.metadata.generation,
    })
}

/// Eight hexadecimal digits that change with the text.
pub(super) fn hash(text: &str) -> String {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(text.as_bytes()));
    format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
}

/// A merge patch keeps what it does not name, so what is to go is named, as null.
fn replacing(current: &Value, mut wanted: Value) -> Value {
    if let (Some(current), Some(fields)) = (current.as_object(), wanted.as_object_mut()) {
        for (key, old) in current {
            let new = fields.remove(key).map_or(Value::Null, |new| replacing(old, new));
            fields.insert(key.clone(), new);
        }
    }
    wanted
}

/// The first Secret that is named anywhere in the object, in any of the ways of the upstream APIs.
pub(super) fn secret_name(value: &Value) -> Option<&str> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| match key.as_str() {
            "secretKeyRef" | "secretRef" => value["name"].as_str(),
            "envFromSecret" | "modelAccessSecret" => value.as_str(),
            _ => secret_name(value),
        }),
        Value::Array(items) => items.iter().find_map(secret_name),
        _ => None,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the simulator is an edge: it plays a foreign program with a clock of its own"
)]
fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn late_flapping_object_is_ready_before_it_is_not() {
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let config = Config {
            ready_after: Duration::from_millis(1),
            behavior: Behavior::Flap,
            ..Config::default()
        };
        let kind = ApiResource::erase::<Service>(&());
        let role = Role {
            crd: "",
            manager: "",
            finalizer: None,
            owns: Vec::new(),
        };
        let object = DynamicObject::new("late", &kind);
        let simulation = Simulation::new(Client::try_from(nowhere).unwrap(), config, kind, role);
        let late = || std::thread::sleep(Duration::from_millis(10));
        simulation.stage(&object, "start", false);
        late();
        assert_eq!(simulation.stage(&object, "start", false).0, Some(Stage::Ready));
        late();
        assert_eq!(simulation.stage(&object, "start", true).0, Some(Stage::Unready));
        assert_eq!(simulation.stage(&object, "start", false).0, Some(Stage::Unready));
    }

    #[test]
    fn removed_fields_are_null() {
        let current = json!({"a": {"name": "x", "gone": 1}, "b": [1]});
        let wanted = json!({"a": {"name": "y"}, "b": [2]});
        assert_eq!(
            replacing(&current, wanted),
            json!({"a": {"name": "y", "gone": null}, "b": [2]})
        );
    }

    #[test]
    fn a_secret_is_found_in_every_way_to_name_it() {
        let in_env = json!({"env": [{"name": "A"}, {"valueFrom": {"secretKeyRef": {"name": "a", "key": "k"}}}]});
        assert_eq!(secret_name(&in_env), Some("a"));
        assert_eq!(
            secret_name(&json!({"services": {"W": {"envFromSecret": "b"}}})),
            Some("b")
        );
        assert_eq!(
            secret_name(&json!({"envFrom": [{"secretRef": {"name": "c"}}]})),
            Some("c")
        );
        assert_eq!(secret_name(&json!({"image": "d"})), None);
    }
}
