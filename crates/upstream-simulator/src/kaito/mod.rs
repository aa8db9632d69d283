//! Plays KAITO: Workspaces become Ready, InferenceSets make Workspaces.
//!
//! By default there are no nodes, and the status follows a timeline. As in KAITO's controller: `state` stays Pending until
//! the first Ready and is NotReady only after it; while a model loads, `WorkspaceSucceeded` is False with reason
//! `workspacePending`, which is not a failure; the terminal failure is `BenchmarkFailed`. There is no StatefulSet and no
//! benchmark result.
//!
//! With [`Config::workloads`](super::Config::workloads) the real workloads are made, and the status follows them. Of the
//! behaviors of [`LABEL`] only `stall` and `stuck-delete` have an effect then; pods determine the rest. As of
//! kaito-project/kaito 056b8280 (v0.12.0), with node auto-provisioning disabled, as on clusters with nodes of one's own:
//!
//! | behavior | upstream |
//! |---|---|
//! | a template becomes a StatefulSet as it is: labels, ports, probes and command are the user's; tolerations for GPUs are added, the affinity is replaced by one for `resource.labelSelector` | `pkg/workspace/manifests/manifests.go`, `GenerateManifestWithPodTemplate` |
//! | a changed template is accepted and never rolled out; the status observes the new generation and keeps reporting Ready (issue 2124) | `pkg/workspace/inference/template_inference.go`, `CreateTemplateInference` |
//! | Services `NAME` (80 to 5000, and three more ports) and `NAME-headless` are created once; `NAME` selects the pod `NAME-0` alone, ready or not | `manifests.go`, `GenerateServiceManifest` |
//! | a preset becomes a StatefulSet with the base image; another revision of the Workspace replaces environment, mounts, volumes and init containers, not command or resources | `pkg/workspace/controllers/workspace_controller.go`, `applyInference` |
//! | the ConfigMap of `inference.config` is mounted by name: changed contents roll nothing out | `pkg/workspace/inference/preset_inferences.go`, `GenerateInferencePodSpec` |
//! | a preset without a node that has the labels of GPU feature discovery makes nothing; the messages end in `(last reconcile error: …)` | `pkg/workspace/estimator/nodesestimator/estimator.go`, `pkg/sku/helpers.go` |
//! | without a ready node for the label selector nothing is made: `NodesReady` is False | `pkg/nodeprovision/byo-provisioner/byo_provisioner.go` |
//! | a Deployment named as the Workspace is deleted, regardless of its creator | `workspace_controller.go`, `applyInference` |
//! | Ready is `readyReplicas == replicas` of the StatefulSet, whatever the pods are made from | `workspace_controller.go`, `collectInferenceReadyStatus` |
//! | `InferenceReady` gives the cause in the pods (OOM kill, image, start, crash loop, eviction, scheduling); pods are not watched, so it may be late | `workspace_controller.go`, `classifyInferencePodFailure`, `SetupWithManager` |
//! | each spec is kept as a ControllerRevision, and its number is an annotation of the object | `workspace_controller.go`, `syncControllerRevision` |
//! | an InferenceSet makes Workspaces `NAME-xxxxx`, each with its own Services; the set has none | `pkg/utils/inferenceset/inferenceset.go`, `NewWorkspaceForInferenceSet` |
//! | the status of an InferenceSet only counts its Workspaces that have succeeded: why one has not, is in that Workspace | `inferenceset_controller.go`, `aggregateBenchmarkResults` |
//! | a changed template of an InferenceSet reaches new Workspaces only; of those that are there, labels are added | `pkg/inferenceset/inferenceset_controller.go`, `addOrUpdateInferenceSet` |
//! | scaling down deletes Workspaces with another image than the base image first, and those that are not ready before those that are | `inferenceset_controller.go`, `selectWorkspacesToDelete` |
//!
//! Not played: admission, benchmarks, node provisioning, tuning, adapters, model streaming, upgrades of the base image, and
//! the size of a preset's model (one node is enough for each).

mod manifests;
mod readiness;
mod replicas;
mod workloads;

use std::sync::Arc;

use futures::future::join;
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Service};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch},
    runtime::controller::Action,
};
use serde_json::{Value, json};

use super::{
    Behavior, Config, LABEL,
    engine::{self, Role, Simulation, play},
    pods::SimulatedPod,
    timeline::{self, PodState},
};

/// The field manager of everything that the simulator writes as KAITO.
pub const MANAGER: &str = "kaito-simulator";
/// On a Workspace that an InferenceSet made.
pub const CREATED_BY: &str = "inferenceset.kaito.sh/created-by";
/// On the pods of a Workspace.
pub const WORKSPACE: &str = "kaito.sh/workspace";

const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
const FAILURE: &str = "benchmark failed: the model server exited with code 1 during the first request";
const CRASH: &str = "container \"inference\" is restarting: back-off 5m0s restarting failed container";

/// Plays both of KAITO's controllers, each while its CRD is there.
pub(super) async fn run(client: Client, config: Config) {
    let mut workspaces = Role {
        crd: "workspaces.kaito.sh",
        manager: MANAGER,
        finalizer: Some("workspace.finalizer.kaito.sh"),
        owns: Vec::new(),
    };
    let inference_sets = Role {
        crd: "inferencesets.kaito.sh",
        manager: MANAGER,
        finalizer: Some("inferenceset.finalizer.kaito.sh"),
        owns: vec![workspace_kind()],
    };
    if config.workloads {
        workspaces.owns = vec![
            ApiResource::erase::<StatefulSet>(&()),
            ApiResource::erase::<Service>(&()),
        ];
        join(
            play(client.clone(), config.clone(), workspaces, workloads::workspace),
            play(client, config, inference_sets, replicas::inference_set),
        )
        .await;
    } else {
        join(
            play(client.clone(), config.clone(), workspaces, workspace),
            play(client, config, inference_sets, inference_set),
        )
        .await;
    }
}

async fn workspace(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    if simulation.guard_deletion(&object).await? {
        return Ok(Action::await_change());
    }
    let summary = &object.data["status"]["state"];
    let is_done = summary == "Ready" || summary == "NotReady";
    let (stage, next) = simulation.stage(&object, "start", is_done);
    if let Some(stage) = stage {
        if summary.is_null() {
            let name = object.name_any();
            let port = json!({"name": "http", "protocol": "TCP", "port": 80, "targetPort": 5000});
            simulation
                .apply_service(&object, &name, json!({WORKSPACE: name}), port)
                .await?;
        }
        let pod = PodState::at(simulation.behavior(&object), stage).filter(|_| stage != timeline::Stage::Headless);
        simulation
            .keep_pods(&object, pod.map(|state| pod_of(&object, state)).into_iter().collect())
            .await?;
        simulation.set_status(&object, workspace_status(&object, stage)).await?;
    }
    Ok(next)
}

/// The one pod of a Workspace.
fn pod_of(workspace: &DynamicObject, state: PodState) -> SimulatedPod {
    let name = workspace.name_any();
    let set = workspace.labels().get(CREATED_BY).map(|set| (CREATED_BY, set.as_str()));
    let labels: Vec<_> = [(WORKSPACE, name.as_str()), (POD_INDEX, "0")]
        .into_iter()
        .chain(set)
        .collect();
    SimulatedPod {
        rolls_out: false,
        ..SimulatedPod::new(
            format!("{name}-0"),
            &workspace.data["inference"]["template"],
            &labels,
            state,
        )
    }
}

async fn inference_set(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    if simulation.guard_deletion(&object).await? || simulation.behavior(&object) == Behavior::Stall {
        return Ok(Action::await_change());
    }

    let namespace = object.namespace().unwrap_or_default();
    let workspaces: Api<DynamicObject> = Api::namespaced_with(simulation.client.clone(), &namespace, &workspace_kind());
    let selector = format!("{CREATED_BY}={}", object.name_any());
    let present = workspaces.list(&ListParams::default().labels(&selector)).await?.items;
    let wanted = wanted_workspaces(&object, &simulation);
    for workspace in wanted
        .iter()
        .filter(|w| present.iter().all(|p| p.name_any() != w.name_any()))
    {
        let patch = Patch::Apply(workspace);
        workspaces
            .patch(&workspace.name_any(), &simulation.apply_params(), &patch)
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
    let status = inference_set_status(&object, wanted.len(), ready);
    simulation.set_status(&object, status).await?;
    Ok(Action::await_change())
}

fn workspace_status(workspace: &DynamicObject, stage: timeline::Stage) -> Value {
    use timeline::Stage::{Crashing, Failed, Headless, Loading, Pending, Ready, Unready};

    // Each with what it says when it is true and when it is not: (reason, message).
    let condition = |kind: &str, is: bool, yes: (&str, &str), no: (&str, &str)| {
        let (reason, message) = if is { yes } else { no };
        engine::condition(workspace, kind, is, reason, message)
    };
    // Pods are not watched, and the StatefulSet's status may be late.
    let stage = if matches!(stage, Crashing | Headless) {
        Ready
    } else {
        stage
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
        Ready | Crashing | Headless => "Ready",
        Unready | Failed => "NotReady",
    };
    json!({"state": summary, "conditions": conditions})
}

fn inference_set_status(set: &DynamicObject, replicas: usize, ready: usize) -> Value {
    let is_ready = ready == replicas;
    let (reason, message) = if is_ready {
        ("inferencesetReady", "inferenceset is ready".to_owned())
    } else {
        let message = format!("inferenceset is not ready, {ready}/{replicas} replicas are ready");
        ("inferencesetNotReady", message)
    };
    json!({
        "replicas": replicas,
        "readyReplicas": ready,
        "selector": format!("{CREATED_BY}={}", set.name_any()),
        "conditions": [engine::condition(set, "InferenceSetReady", is_ready, reason, &message)],
    })
}

/// One Workspace per replica.
fn wanted_workspaces(set: &DynamicObject, simulation: &Simulation) -> Vec<DynamicObject> {
    let replicas = set.data["spec"]["replicas"].as_u64().unwrap_or(1);
    // Room for a hyphen and five characters, as KAITO leaves it.
    let prefix: String = set.name_any().chars().take(57).collect();
    let workspace = |index| {
        let mut workspace = wanted_workspace(set, simulation)?;
        workspace.metadata.name = Some(format!("{prefix}-{index:05}"));
        Some(workspace)
    };
    (0..replicas).filter_map(workspace).collect()
}

/// A Workspace without a name, with the labels and annotations of the template and no others of the set:
/// a controller that looks for its own objects must not find these.
fn wanted_workspace(set: &DynamicObject, simulation: &Simulation) -> Option<DynamicObject> {
    let spec = &set.data["spec"];
    let template = &spec["template"];
    let mut labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(CREATED_BY.to_owned(), set.name_any().into());
    if let Some(value) = set
        .labels()
        .get(LABEL)
        .filter(|value| **value != Behavior::StuckDelete.to_string())
    {
        labels.insert(LABEL.to_owned(), value.clone().into());
    }
    serde_json::from_value(json!({
        "apiVersion": "kaito.sh/v1beta1",
        "kind": "Workspace",
        "metadata": {
            "namespace": set.namespace(),
            "labels": labels,
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [simulation.owner_reference(set)],
        },
        "resource": without_nulls(json!({
            "instanceType": template["resource"]["instanceType"],
            "labelSelector": spec["labelSelector"].as_object().cloned().unwrap_or_default(),
        })),
        "inference": template["inference"],
    }))
    .ok()
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

fn workspace_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("kaito.sh", "v1beta1", "Workspace"))
}
