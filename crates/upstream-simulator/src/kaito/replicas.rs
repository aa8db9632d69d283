//! An InferenceSet on a cluster with nodes: Workspaces under names of the API server's choice.
//!
//! Source: kaito-project/kaito 056b8280 (v0.12.0), `pkg/inferenceset/inferenceset_controller.go` and
//! `pkg/utils/inferenceset/inferenceset.go`. The InferenceSet itself has no Service; each Workspace has its own.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch},
    runtime::controller::Action,
};
use serde_json::{Value, json};

use super::{
    super::{Behavior, engine::Simulation},
    CREATED_BY, inference_set_status,
    manifests::BASE_IMAGE,
    wanted_workspace, workloads, workspace_kind,
};

pub(super) async fn inference_set(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    if simulation.guard_deletion(&object).await? || simulation.behavior(&object) == Behavior::Stall {
        return Ok(Action::await_change());
    }
    workloads::revision(&object, &simulation, "inferenceset", &object.data["spec"]).await?;

    let namespace = object.namespace().unwrap_or_default();
    let workspaces: Api<DynamicObject> = Api::namespaced_with(simulation.client.clone(), &namespace, &workspace_kind());
    let of_set = ListParams::default().labels(&format!("{CREATED_BY}={}", object.name_any()));
    let wanted = object.data["spec"]["replicas"].as_u64().unwrap_or(1);
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let mut present = workspaces.list(&of_set).await?.items;
    if present.len() > wanted {
        for name in surplus(&candidates(&present, &simulation).await?, wanted) {
            workspaces.delete(name, &DeleteParams::default()).await?;
        }
        present = workspaces.list(&of_set).await?.items;
    }
    for _ in present.len()..wanted {
        let Some(mut workspace) = wanted_workspace(&object, &simulation) else {
            break;
        };
        workspace.metadata.generate_name = Some(format!("{}-", object.name_any()));
        workspaces.create(&simulation.post_params(), &workspace).await?;
    }
    label(&object, &present, &workspaces).await?;

    let ready = present.iter().filter(|workspace| has_succeeded(workspace)).count();
    let status = inference_set_status(&object, wanted, ready);
    simulation.set_status(&object, status).await?;
    Ok(Action::await_change())
}

/// A Workspace that may have to go.
struct Candidate<'a> {
    name: &'a str,
    is_going: bool,
    is_ready: bool,
    /// Whether its image is another than that of presets, as all templates' are (`isWorkspaceOnOldImage`).
    is_old: bool,
}

async fn candidates<'a>(workspaces: &'a [DynamicObject], simulation: &Simulation) -> kube::Result<Vec<Candidate<'a>>> {
    let mut candidates = Vec::new();
    for workspace in workspaces {
        let Some(name) = workspace.metadata.name.as_deref() else {
            continue;
        };
        let workload = simulation.namespaced::<StatefulSet>(workspace).get_opt(name).await?;
        candidates.push(Candidate {
            name,
            is_going: workspace.metadata.deletion_timestamp.is_some(),
            is_ready: has_succeeded(workspace),
            is_old: workload.is_some_and(|workload| image(&workload) != Some(BASE_IMAGE)),
        });
    }
    Ok(candidates)
}

/// Workspaces to delete (`selectWorkspacesToDelete`): old ones first, those that are not ready before those that are, and no
/// ready one while fewer than wanted would be left; new ones only beyond the number of old ones.
fn surplus<'a>(candidates: &[Candidate<'a>], wanted: usize) -> Vec<&'a str> {
    let mut staying: Vec<_> = candidates.iter().filter(|candidate| !candidate.is_going).collect();
    let to_go = staying.len().saturating_sub(wanted);
    let ready = staying.iter().filter(|candidate| candidate.is_ready).count();
    let old = staying.iter().filter(|candidate| candidate.is_old).count();
    staying.sort_by_key(|candidate| (!candidate.is_old, candidate.is_ready));
    let mut ready_budget = ready.saturating_sub(wanted);
    let mut new_budget = to_go.saturating_sub(old);
    let mut going = Vec::new();
    for candidate in staying {
        let may_go = (!candidate.is_ready || ready_budget > 0) && (candidate.is_old || new_budget > 0);
        if going.len() == to_go || !may_go {
            continue;
        }
        going.push(candidate.name);
        ready_budget -= usize::from(candidate.is_ready);
        new_budget -= usize::from(!candidate.is_old);
    }
    going
}

/// New labels of the template reach the Workspaces that are there; nothing else of the template does, and no label goes.
async fn label(set: &DynamicObject, present: &[DynamicObject], workspaces: &Api<DynamicObject>) -> kube::Result<()> {
    let Some(wanted) = set.data["spec"]["template"]["metadata"]["labels"].as_object() else {
        return Ok(());
    };
    for workspace in present {
        let labels = workspace.labels();
        if wanted
            .iter()
            .any(|(key, value)| labels.get(key).map(String::as_str) != value.as_str())
        {
            let patch = Patch::Merge(json!({"metadata": {"labels": wanted}}));
            workspaces
                .patch(&workspace.name_any(), &kube::api::PatchParams::default(), &patch)
                .await?;
        }
    }
    Ok(())
}

/// (`DetermineWorkspacePhase`)
fn has_succeeded(workspace: &DynamicObject) -> bool {
    let conditions = workspace.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition: &Value| condition["type"] == "WorkspaceSucceeded" && condition["status"] == "True")
}

/// That of the container named after the Workspace, else the first's (`GetInferenceContainerImage`).
fn image(workload: &StatefulSet) -> Option<&str> {
    let containers = &workload.spec.as_ref()?.template.spec.as_ref()?.containers;
    let named = containers
        .iter()
        .find(|container| Some(&container.name) == workload.metadata.name.as_ref());
    named.or_else(|| containers.first())?.image.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, is_ready: bool, is_old: bool) -> Candidate<'_> {
        Candidate {
            name,
            is_going: false,
            is_ready,
            is_old,
        }
    }

    #[test]
    fn those_that_are_not_ready_go_first() {
        let all = [
            candidate("a", true, true),
            candidate("b", false, true),
            candidate("c", true, true),
        ];
        assert_eq!(surplus(&all, 2), ["b"]);
        assert_eq!(surplus(&all, 1), ["b", "a"]);
        assert_eq!(surplus(&all, 0), ["b", "a", "c"]);
    }

    #[test]
    fn the_last_ready_one_stays_while_others_start() {
        let all = [candidate("a", true, true), candidate("b", false, false)];
        assert!(surplus(&all, 1).is_empty(), "the one to come has not come");
        let all = [candidate("a", true, true), candidate("b", true, false)];
        assert_eq!(surplus(&all, 1), ["a"], "old images go first");
    }

    #[test]
    fn one_that_is_going_counts_as_gone() {
        let going = Candidate {
            is_going: true,
            ..candidate("a", true, true)
        };
        assert!(surplus(&[going, candidate("b", true, true)], 1).is_empty());
    }
}
