//! Plays KAITO: Workspaces become Ready, InferenceSets make Workspaces.
//!
//! As in KAITO's controller: `state` stays Pending until the first Ready and is NotReady only after it;
//! while a model loads, `WorkspaceSucceeded` is False with reason `workspacePending`, which is no failure;
//! the terminal failure is `BenchmarkFailed`. Simplified: no nodes, no StatefulSet, no benchmark result.

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join};
use k8s_openapi::{
    api::core::v1::{Pod, Service},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource as _, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
    runtime::{
        Controller, WatchStreamExt as _,
        conditions::is_crd_established,
        controller::Action,
        wait::Condition as _,
        watcher::{self, Event, watcher},
    },
};
use serde_json::{Value, json};

use super::{Behaviour, Config, LABEL, Task, behaviour, set_finalizers, set_status, timeline};

/// The field manager of everything that the simulator writes.
pub const MANAGER: &str = "kaito-simulator";
/// On a Workspace that an InferenceSet made.
pub const CREATED_BY: &str = "inferenceset.kaito.sh/created-by";
/// On the pods of a Workspace.
pub const WORKSPACE: &str = "kaito.sh/workspace";

const STUCK_FINALIZER: &str = "simulator.kubeairunway.ai/stuck";
const FAILURE: &str = "benchmark failed: the model server exited with code 1 during the first request";
const CRASH: &str = "container \"inference\" is restarting: back-off 5m0s restarting failed container";
/// Longer than any timeline: the age of an object that had its result before we came.
const LONG_AGO: Duration = Duration::from_hours(1000);

/// Plays until dropped. Each kind is played while its CRD is there.
pub async fn run(client: Client, config: Config) {
    let simulation = Arc::new(Simulation {
        client: client.clone(),
        config,
        first_seen: Mutex::default(),
    });
    let sets = Arc::clone(&simulation);
    join(
        while_served(client.clone(), "workspaces.kaito.sh", move || {
            play_workspaces(Arc::clone(&simulation))
        }),
        while_served(client, "inferencesets.kaito.sh", move || {
            play_inference_sets(Arc::clone(&sets))
        }),
    )
    .await;
}

struct Simulation {
    client: Client,
    config: Config,
    first_seen: Mutex<HashMap<String, Instant>>,
}

/// Runs `controller` from the moment the CRD is established until it is deleted.
async fn while_served<F>(client: Client, crd: &str, controller: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let crds: Api<CustomResourceDefinition> = Api::all(client);
    let only = watcher::Config::default().fields(&format!("metadata.name={crd}"));
    let mut events = pin!(watcher(crds, only).default_backoff());
    let mut running = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(crd) | Event::InitApply(crd)) if is_crd_established().matches_object(Some(&crd)) => {
                running.get_or_insert_with(|| Task::spawn(controller()));
            }
            Ok(Event::Delete(_)) => running = None,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, crd, "upstream simulator: watch failed, trying again");
            }
        }
    }
}

async fn play_workspaces(simulation: Arc<Simulation>) {
    let kind = kind("Workspace");
    let api: Api<DynamicObject> = Api::all_with(simulation.client.clone(), &kind);
    Controller::new_with(api, watcher::Config::default(), kind)
        .run(workspace, retry, simulation)
        .for_each(|_| async {})
        .await;
}

async fn play_inference_sets(simulation: Arc<Simulation>) {
    let kind_ = kind("InferenceSet");
    let api: Api<DynamicObject> = Api::all_with(simulation.client.clone(), &kind_);
    let children = kind("Workspace");
    let child_api: Api<DynamicObject> = Api::all_with(simulation.client.clone(), &children);
    Controller::new_with(api, watcher::Config::default(), kind_)
        .owns_with(child_api, children, watcher::Config::default())
        .run(inference_set, retry, simulation)
        .for_each(|_| async {})
        .await;
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

async fn workspace(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    let config = &simulation.config;
    let api = simulation.api(&object, "Workspace");
    let behaviour = behaviour(&object, config);
    if simulation
        .guard_deletion(&api, &object, behaviour, "workspace.finalizer.kaito.sh")
        .await?
    {
        return Ok(Action::await_change());
    }

    let (stage, next) = timeline::stage(behaviour, config.ready_after, simulation.age(&object));
    if let Some(stage) = stage {
        if object.data["status"]["state"].is_null() {
            simulation.apply_service(&object).await?;
            if behaviour == Behaviour::SecretMissing {
                simulation.apply_waiting_pod(&object).await?;
            }
        }
        set_status(&api, &object, workspace_status(&object, stage), MANAGER).await?;
    }
    Ok(next.map_or_else(Action::await_change, Action::requeue))
}

async fn inference_set(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    let api = simulation.api(&object, "InferenceSet");
    let behaviour = behaviour(&object, &simulation.config);
    if simulation
        .guard_deletion(&api, &object, behaviour, "inferenceset.finalizer.kaito.sh")
        .await?
        || behaviour == Behaviour::Stall
    {
        return Ok(Action::await_change());
    }

    let workspaces = simulation.api(&object, "Workspace");
    let selector = format!("{CREATED_BY}={}", object.name_any());
    let present = workspaces.list(&ListParams::default().labels(&selector)).await?.items;
    let wanted = wanted_workspaces(&object);
    for workspace in wanted
        .iter()
        .filter(|w| present.iter().all(|p| p.name_any() != w.name_any()))
    {
        let params = PatchParams::apply(MANAGER).force();
        workspaces
            .patch(&workspace.name_any(), &params, &Patch::Apply(workspace))
            .await?;
    }
    for workspace in present
        .iter()
        .filter(|p| wanted.iter().all(|w| p.name_any() != w.name_any()))
    {
        if workspace.metadata.deletion_timestamp.is_none() {
            workspaces
                .delete(&workspace.name_any(), &DeleteParams::default())
                .await?;
        }
    }

    let ready = present.iter().filter(|w| w.data["status"]["state"] == "Ready").count();
    set_status(
        &api,
        &object,
        inference_set_status(&object, wanted.len(), ready),
        MANAGER,
    )
    .await?;
    Ok(Action::await_change())
}

impl Simulation {
    fn api(&self, neighbour: &DynamicObject, kind_name: &str) -> Api<DynamicObject> {
        let namespace = neighbour.namespace().unwrap_or_default();
        Api::namespaced_with(self.client.clone(), &namespace, &kind(kind_name))
    }

    /// Puts finalizers on and takes them off. True when there is nothing else to do for now.
    async fn guard_deletion(
        &self,
        api: &Api<DynamicObject>,
        object: &DynamicObject,
        behaviour: Behaviour,
        finalizer: &str,
    ) -> kube::Result<bool> {
        let mut finalizers = object.finalizers().to_vec();
        if object.metadata.deletion_timestamp.is_some() {
            self.forget(object);
            finalizers.retain(|name| name != finalizer);
        } else if behaviour != Behaviour::Stall {
            let ours = [
                (self.config.finalizer, finalizer),
                (behaviour == Behaviour::StuckDelete, STUCK_FINALIZER),
            ];
            for (_, name) in ours.into_iter().filter(|(wanted, _)| *wanted) {
                if !finalizers.iter().any(|present| present == name) {
                    finalizers.push(name.to_owned());
                }
            }
        }
        if finalizers != object.finalizers() {
            set_finalizers(api, object, &finalizers, MANAGER).await?;
            return Ok(true);
        }
        Ok(object.metadata.deletion_timestamp.is_some())
    }

    /// Since we first saw it; an object with a result had it before we came.
    fn age(&self, object: &DynamicObject) -> Duration {
        let first_seen = *self
            .first_seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(object.uid().unwrap_or_default())
            .or_insert_with(|| {
                let state = &object.data["status"]["state"];
                let had_result = state == "Ready" || state == "NotReady";
                let now = Instant::now();
                if had_result {
                    now.checked_sub(LONG_AGO).unwrap_or(now)
                } else {
                    now
                }
            });
        first_seen.elapsed()
    }

    fn forget(&self, object: &DynamicObject) {
        let mut first_seen = self.first_seen.lock().unwrap_or_else(PoisonError::into_inner);
        first_seen.remove(&object.uid().unwrap_or_default());
    }

    /// The endpoint that KAITO makes for each Workspace.
    async fn apply_service(&self, workspace: &DynamicObject) -> kube::Result<()> {
        let (name, namespace) = (workspace.name_any(), workspace.namespace().unwrap_or_default());
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "ownerReferences": [owner_reference(workspace, "Workspace")]},
            "spec": {
                "type": "ClusterIP",
                "selector": {WORKSPACE: name},
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 5000}],
            },
        });
        let api: Api<Service> = Api::namespaced(self.client.clone(), &namespace);
        api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&service))
            .await
            .map(drop)
    }

    /// A pod as the kubelet leaves it when a Secret is missing.
    async fn apply_waiting_pod(&self, workspace: &DynamicObject) -> kube::Result<()> {
        let name = format!("{}-0", workspace.name_any());
        let template = &workspace.data["inference"]["template"];
        let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        labels.insert(WORKSPACE.to_owned(), workspace.name_any().into());
        let container = &template["spec"]["containers"][0];
        let container = json!({
            "name": container["name"].as_str().unwrap_or("inference"),
            "image": container["image"].as_str().unwrap_or("kaito-base"),
        });
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner_reference(workspace, "Workspace")]},
            "spec": {"containers": [container]},
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &workspace.namespace().unwrap_or_default());
        let params = PatchParams::apply(MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(&pod)).await?;

        let message = format!("secret \"{}\" not found", secret_name(&workspace.data));
        pod["status"] = json!({"phase": "Pending", "containerStatuses": [{
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": false,
            "restartCount": 0,
            "state": {"waiting": {"reason": "CreateContainerConfigError", "message": message}},
        }]});
        api.patch_status(&name, &params, &Patch::Apply(&pod)).await.map(drop)
    }
}

fn workspace_status(workspace: &DynamicObject, stage: timeline::Stage) -> Value {
    use timeline::Stage::{Failed, Loading, Pending, Ready, Unready};

    // Each with what it says when it is true and when it is not: (reason, message).
    let condition = |kind: &str, is: bool, yes: (&str, &str), no: (&str, &str)| {
        let (reason, message) = if is { yes } else { no };
        json!({
            "type": kind,
            "status": if is { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "observedGeneration": workspace.metadata.generation,
        })
    };
    let provisioned = stage != Pending;
    let loaded = matches!(stage, Ready | Failed);

    let mut conditions = vec![
        condition(
            "ResourceReady",
            provisioned,
            ("workspaceResourceStatusSuccess", "workspace resource is ready"),
            ("workspaceResourceStatusNotReady", "node status condition not ready"),
        ),
        condition(
            "InferenceReady",
            loaded,
            (
                "WorkspaceInferenceStatusSuccess",
                "Inference has been deployed successfully",
            ),
            if stage == Unready {
                ("ContainerCrashLoopBackOff", CRASH)
            } else {
                ("WorkspaceInferenceStatusPending", "Inference workload is not ready")
            },
        ),
        condition(
            "WorkspaceSucceeded",
            stage == Ready,
            ("workspaceSucceeded", "workspace succeeds"),
            if stage == Failed {
                ("BenchmarkFailed", FAILURE)
            } else {
                (
                    "workspacePending",
                    "workspace is waiting for inference workload readiness",
                )
            },
        ),
    ];
    // Only where KAITO makes the nodes itself.
    if workspace.data["resource"]["instanceType"]
        .as_str()
        .is_some_and(|name| !name.is_empty())
    {
        conditions.push(condition(
            "NodeClaimReady",
            provisioned,
            ("NodeClaimsReady", "NodeClaims are ready"),
            ("NodeClaimNotReady", "waiting for 1 NodeClaim"),
        ));
    }
    if stage == Failed {
        conditions.push(condition(
            "BenchmarkCompleted",
            false,
            ("", ""),
            ("BenchmarkFailed", FAILURE),
        ));
    }

    let summary = match stage {
        Pending | Loading => "Pending",
        Ready => "Ready",
        Unready | Failed => "NotReady",
    };
    json!({"state": summary, "conditions": conditions})
}

fn inference_set_status(set: &DynamicObject, replicas: usize, ready: usize) -> Value {
    let (status, reason, message) = if ready == replicas {
        ("True", "inferencesetReady", "inferenceset is ready".to_owned())
    } else {
        let message = format!("inferenceset is not ready, {ready}/{replicas} replicas are ready");
        ("False", "inferencesetNotReady", message)
    };
    json!({
        "replicas": replicas,
        "readyReplicas": ready,
        "selector": format!("{CREATED_BY}={}", set.name_any()),
        "conditions": [{
            "type": "InferenceSetReady",
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": set.metadata.generation,
        }],
    })
}

/// One Workspace per replica, with the labels and annotations of the template and no others of the set:
/// a controller that looks for its own objects must not find these.
fn wanted_workspaces(set: &DynamicObject) -> Vec<DynamicObject> {
    let spec = &set.data["spec"];
    let template = &spec["template"];
    let replicas = spec["replicas"].as_u64().unwrap_or(1);
    // Room for a hyphen and five characters, as KAITO leaves it.
    let prefix: String = set.name_any().chars().take(57).collect();

    let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(CREATED_BY.to_owned(), set.name_any().into());
    if let Some(value) = set
        .labels()
        .get(LABEL)
        .filter(|value| **value != Behaviour::StuckDelete.to_string())
    {
        labels.insert(LABEL.to_owned(), value.clone().into());
    }
    let workspace = |index| {
        serde_json::from_value(json!({
            "apiVersion": "kaito.sh/v1beta1",
            "kind": "Workspace",
            "metadata": {
                "name": format!("{prefix}-{index:05}"),
                "namespace": set.namespace(),
                "labels": labels,
                "annotations": template["metadata"]["annotations"],
                "ownerReferences": [owner_reference(set, "InferenceSet")],
            },
            "resource": without_nulls(json!({
                "instanceType": template["resource"]["instanceType"],
                "labelSelector": spec["labelSelector"].as_object().cloned().unwrap_or_default(),
            })),
            "inference": template["inference"],
        }))
    };
    (0..replicas).filter_map(|index| workspace(index).ok()).collect()
}

/// The Secret that the object names: in the preset, or in the environment of its first container that has one.
fn secret_name(workspace: &Value) -> &str {
    let inference = &workspace["inference"];
    let containers = inference["template"]["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten();
    let in_containers = containers.flat_map(|container| {
        let env = container["env"].as_array().into_iter().flatten();
        let env_from = container["envFrom"].as_array().into_iter().flatten();
        env.map(|env| &env["valueFrom"]["secretKeyRef"]["name"])
            .chain(env_from.map(|env| &env["secretRef"]["name"]))
    });
    let preset = &inference["preset"]["presetOptions"]["modelAccessSecret"];
    [preset]
        .into_iter()
        .chain(in_containers)
        .find_map(Value::as_str)
        .unwrap_or("hf-token")
}

fn owner_reference(owner: &DynamicObject, kind_name: &str) -> Value {
    json!(owner.controller_owner_ref(&kind(kind_name)))
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

fn kind(name: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("kaito.sh", "v1beta1", name))
}
