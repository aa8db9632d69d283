//! KAITO on a cluster with nodes: the real workloads are made, and the status follows them.
//!
//! Source: kaito-project/kaito 056b8280 (v0.12.0), `pkg/workspace/controllers/workspace_controller.go`, with node
//! auto-provisioning disabled (`pkg/nodeprovision/byo-provisioner`).
//!
//! As there, pods are not watched: their failures are reported at the next event of the Workspace or its StatefulSet.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment, StatefulSet},
    core::v1::{Node, Pod, Service},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Preconditions},
    runtime::controller::Action,
};
use serde_json::{Value, json};

use super::{
    super::{
        Behavior,
        engine::{Simulation, hash},
    },
    WORKSPACE,
    manifests::{self, REVISION},
    readiness::{self, Seen},
};

/// (`reconcileNodes`)
const LOOK_FOR_NODES_AFTER: Duration = Duration::from_secs(2);
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// One reconcile: the workload as far as it can be made, then the status, in any case.
pub(super) async fn workspace(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    if simulation.guard_deletion(&object).await? || simulation.behavior(&object) == Behavior::Stall {
        return Ok(Action::await_change());
    }
    let spec = json!([object.data["resource"], object.data["inference"], object.data["tuning"]]);
    let revision = revision(&object, &simulation, "workspace", &spec).await?;
    let nodes = nodes(&object, &simulation).await?;
    let mut seen = Seen {
        target: None,
        workload: None,
        pods: Vec::new(),
        error: None,
        nodes,
    };
    match plan(&object, &seen.nodes) {
        Ok(plan) => {
            seen.target = Some(plan.pods);
            if seen.has_nodes() {
                seen.error = spoken(deploy(&object, &simulation, &plan, revision).await)?;
            }
        }
        Err(error) => seen.error = Some(error),
    }
    let name = object.name_any();
    seen.workload = simulation.namespaced::<StatefulSet>(&object).get_opt(&name).await?;
    let selector = ListParams::default().labels(&format!("{WORKSPACE}={name}"));
    seen.pods = simulation.namespaced::<Pod>(&object).list(&selector).await?.items;
    let status = readiness::status(&object, &seen);
    simulation.set_status(&object, status).await?;
    Ok(if seen.error.is_some() {
        Action::requeue(TRY_AGAIN_AFTER)
    } else if seen.has_nodes() {
        Action::await_change()
    } else {
        Action::requeue(LOOK_FOR_NODES_AFTER)
    })
}

/// Objects to create.
struct Plan {
    /// Nodes that one copy of the model takes, each with one pod.
    pods: i64,
    /// GPUs on each, for a preset.
    gpus: u64,
}

/// (`UpdateWorkspaceTargetNodeCount`) What is recorded stays. A preset takes the GPUs of the first node that is ready.
/// Simplified: the size of a preset's model is not looked up, and one node is enough for each.
fn plan(workspace: &DynamicObject, nodes: &[Node]) -> Result<Plan, String> {
    let recorded = workspace.data["status"]["targetNodeCount"]
        .as_i64()
        .filter(|count| *count > 0);
    let pods = recorded
        .or_else(|| workspace.data["resource"]["count"].as_i64())
        .unwrap_or(1);
    if workspace.data["inference"]["preset"].is_null() {
        return Ok(Plan { pods, gpus: 0 });
    }
    let failed = |error| {
        format!("failed to update Workspace status targetNodeCount: failed to calculate target node count: {error}")
    };
    let first = nodes.iter().find(|node| readiness::is_ready(node));
    let first =
        first.ok_or_else(|| failed("no ready nodes found, unable to determine GPU configuration".to_owned()))?;
    let gpus = manifests::gpus(first)
        .map_err(|error| failed(format!("failed to get GPU config from existing nodes: {error}")))?;
    Ok(Plan { pods, gpus })
}

/// (`ListWorkspaceNodes`)
async fn nodes(workspace: &DynamicObject, simulation: &Simulation) -> kube::Result<Vec<Node>> {
    let labels = manifests::node_labels(workspace);
    let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let selected = ListParams::default().labels(&labels.join(","));
    let mut nodes = Api::<Node>::all(simulation.client.clone()).list(&selected).await?.items;
    nodes.sort_by_key(ResourceExt::name_any);
    Ok(nodes)
}

/// (`addOrUpdateWorkspace`)
async fn deploy(workspace: &DynamicObject, simulation: &Simulation, plan: &Plan, revision: i64) -> kube::Result<()> {
    for service in [manifests::service(workspace), manifests::headless_service(workspace)] {
        create::<Service>(workspace, simulation, service).await?;
    }
    purge_deployment(workspace, simulation).await?;
    let inference = &workspace.data["inference"];
    if inference["template"].is_object() {
        // What is there stays as it is: a changed template is not rolled out (`CreateTemplateInference`, issue 2124).
        create::<StatefulSet>(workspace, simulation, manifests::of_template(workspace, plan.pods)).await
    } else if inference["preset"].is_object() {
        let manifest = manifests::of_preset(workspace, plan.pods, &revision.to_string(), plan.gpus);
        deploy_preset(workspace, simulation, manifest).await
    } else {
        Ok(())
    }
}

/// Deletes a Deployment of this name, regardless of its creator: releases before 0.8 created Deployments (`applyInference`).
async fn purge_deployment(workspace: &DynamicObject, simulation: &Simulation) -> kube::Result<()> {
    let api = simulation.namespaced::<Deployment>(workspace);
    let Some(deployment) = api.get_opt(&workspace.name_any()).await? else {
        return Ok(());
    };
    let that_one = DeleteParams::default().preconditions(Preconditions {
        uid: deployment.uid(),
        ..Preconditions::default()
    });
    api.delete(&deployment.name_any(), &that_one).await.map(drop)
}

/// A preset's workload is updated when the Workspace has another revision, in a few fields (`applyInference`).
async fn deploy_preset(workspace: &DynamicObject, simulation: &Simulation, manifest: Value) -> kube::Result<()> {
    let api = simulation.namespaced::<StatefulSet>(workspace);
    let Some(existing) = api.get_opt(&workspace.name_any()).await? else {
        return create::<StatefulSet>(workspace, simulation, manifest).await;
    };
    let wanted: StatefulSet = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
    if existing.annotations().get(REVISION) == wanted.annotations().get(REVISION) {
        return Ok(());
    }
    let name = existing.name_any();
    api.replace(&name, &simulation.post_params(), &revised(existing, wanted))
        .await
        .map(drop)
}

/// Environment and mounts of the first container, init containers and volumes; neither command, image nor resources.
fn revised(mut existing: StatefulSet, wanted: StatefulSet) -> StatefulSet {
    let revision = wanted.annotations().get(REVISION).cloned().unwrap_or_default();
    existing.annotations_mut().insert(REVISION.to_owned(), revision);
    let pod = existing.spec.as_mut().and_then(|spec| spec.template.spec.as_mut());
    let wanted = wanted.spec.and_then(|spec| spec.template.spec);
    if let (Some(pod), Some(wanted)) = (pod, wanted) {
        pod.init_containers = wanted.init_containers;
        pod.volumes = wanted.volumes;
        if let (Some(container), Some(wanted)) = (pod.containers.first_mut(), wanted.containers.into_iter().next()) {
            container.env = wanted.env;
            container.volume_mounts = wanted.volume_mounts;
        }
    }
    existing
}

/// Records the spec as a ControllerRevision and names its number on the object (`syncControllerRevision`): a spec that was
/// there before has its old number again. Simplified: old ones are never deleted.
pub(super) async fn revision(
    object: &DynamicObject,
    simulation: &Simulation,
    kind: &str,
    spec: &Value,
) -> kube::Result<i64> {
    let (name_label, hash_key) = (format!("{kind}.kaito.io/name"), format!("{kind}.kaito.io/hash"));
    let hash = hash(&spec.to_string());
    let name = format!("{}-{}", object.name_any(), &hash[..5]);

    let api = simulation.namespaced::<ControllerRevision>(object);
    let of_object = ListParams::default().labels(&format!("{name_label}={}", object.name_any()));
    let present = api.list(&of_object).await?.items;
    let number = if let Some(known) = present.iter().find(|revision| revision.name_any() == name) {
        known.revision
    } else {
        let number = present.iter().map(|revision| revision.revision).max().unwrap_or(0) + 1;
        let revision = json!({
            "metadata": {
                "name": name,
                "labels": {name_label: object.name_any()},
                "annotations": {&hash_key: hash},
            },
            "revision": number,
            "data": spec_fields(spec),
        });
        create::<ControllerRevision>(object, simulation, revision).await?;
        number
    };
    let annotations = BTreeMap::from([
        (hash_key, hash),
        (format!("{kind}.kaito.io/revision"), number.to_string()),
    ]);
    simulation.annotate(object, &annotations).await?;
    Ok(number)
}

/// ControllerRevisions hold objects.
fn spec_fields(spec: &Value) -> Value {
    match spec {
        Value::Object(_) => spec.clone(),
        other => json!({"spec": other}),
    }
}

/// Creates an object of the owner's, unless one of its name is there, whatever it looks like.
async fn create<K>(owner: &DynamicObject, simulation: &Simulation, manifest: Value) -> kube::Result<()>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut object: K = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
    object.meta_mut().owner_references = Some(simulation.owner_reference(owner).into_iter().collect());
    let api = simulation.namespaced::<K>(owner);
    if api.get_metadata_opt(&object.name_any()).await?.is_some() {
        return Ok(());
    }
    match api.create(&simulation.post_params(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// An error of the API server ends the reconcile and is reported in the status.
fn spoken(result: kube::Result<()>) -> kube::Result<Option<String>> {
    match result {
        Ok(()) => Ok(None),
        Err(kube::Error::Api(status)) if status.code != 404 => Ok(Some(status.message.clone())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revised_preset_changes_volumes_and_environment_and_nothing_else() {
        let workload = |config: &str, revision: &str, gpus| -> StatefulSet {
            let workspace =
                json!({"metadata": {"name": "w"}, "inference": {"preset": {"name": "p"}, "config": config}});
            let workspace = serde_json::from_value(workspace).unwrap();
            serde_json::from_value(manifests::of_preset(&workspace, 1, revision, gpus)).unwrap()
        };
        let revised = revised(workload("a", "1", 1), workload("b", "2", 8));
        let expected = workload("b", "2", 1);
        assert_eq!(revised, expected);
    }

    #[test]
    fn a_preset_needs_a_node_with_gpu_labels_and_a_template_does_not() {
        let node = |labels: Value| -> Node {
            let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}, "status": status})).unwrap()
        };
        let workspace = |inference: Value| -> DynamicObject {
            serde_json::from_value(json!({"metadata": {"name": "w"}, "inference": inference})).unwrap()
        };
        let preset = workspace(json!({"preset": {"name": "p"}}));
        let error = plan(&preset, &[node(json!({}))]).err().unwrap();
        assert!(
            error.ends_with("missing required nvidia.com labels on node n"),
            "{error}"
        );
        let labels = json!({"nvidia.com/gpu.product": "A", "nvidia.com/gpu.count": "4", "nvidia.com/gpu.memory": "1"});
        assert_eq!(plan(&preset, &[node(labels)]).unwrap().gpus, 4);
        assert_eq!(plan(&workspace(json!({"template": {}})), &[]).unwrap().pods, 1);
    }
}
