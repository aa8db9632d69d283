//! Dynamo in a cluster with a node: Deployments of the components are created, and the status follows them.
//!
//! Source: ai-dynamo/dynamo deploy/operator/internal/controller, main of August 2026: `dynamographdeployment_controller.go` without Grove, and
//! `dynamocomponentdeployment_controller.go` (`IsDeploymentReady`). Of the behaviors of the label only `stall` and `stuck-delete` have an effect.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus},
    core::v1::{Service, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject},
    runtime::controller::Action,
};
use serde_json::{Map, Value, json};

use super::{
    super::{
        Behavior,
        engine::{Simulation, condition},
    },
    Component, component_status, components, components_field,
    manifests::Graph,
    pending,
};

/// Kinds whose changes requeue a graph.
pub(super) fn owned() -> Vec<ApiResource> {
    vec![
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<Service>(&()),
    ]
}

/// One reconcile: all objects, then the status.
pub(super) async fn graph(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    if simulation.guard_deletion(&object).await? || simulation.behavior(&object) == Behavior::Stall {
        return Ok(Action::await_change());
    }
    let status = match apply(&object, &simulation).await {
        Ok(deployments) => status(&object, &simulation.kind.version, &deployments),
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 400 | 403 | 422) => failed(&object, &refusal.message),
        Err(error) => return Err(error),
    };
    simulation.set_status(&object, status).await?;
    Ok(Action::await_change())
}

/// The Deployments of the components, in their order.
async fn apply(object: &DynamicObject, simulation: &Simulation) -> kube::Result<Vec<Deployment>> {
    let graph = Graph::of(object);
    simulation
        .apply::<ServiceAccount>(object, graph.service_account())
        .await?;
    simulation.apply::<Role>(object, graph.role()).await?;
    simulation.apply::<RoleBinding>(object, graph.role_binding()).await?;
    let mut deployments = Vec::new();
    for component in &graph.components {
        simulation.apply::<Service>(object, graph.service(component)).await?;
        deployments.push(simulation.apply(object, graph.deployment(component)).await?);
    }
    Ok(deployments)
}

fn failed(object: &DynamicObject, error: &str) -> Value {
    let message = format!("failed to reconcile the component deployments: {error}");
    json!({
        "state": "failed",
        "observedGeneration": object.metadata.generation,
        "conditions": [condition(object, "Ready", false, "failed_to_reconcile_the_resources", &message)],
    })
}

fn status(object: &DynamicObject, version: &str, deployments: &[Deployment]) -> Value {
    let graph = object.name_any();
    let (mut statuses, mut missing) = (Map::new(), Vec::new());
    for (component, deployment) in components(object).into_iter().zip(deployments) {
        let component = Component {
            backing: "Deployment",
            ..component
        };
        let counts = deployment.status.clone().unwrap_or_default();
        let ready = counts.ready_replicas.unwrap_or(0);
        if !is_ready(deployment, &counts) {
            let name = component.resource_name(&graph);
            missing.push(format!(
                "deployment/{name}: desired={}, ready={ready}",
                component.replicas
            ));
        }
        let mut status = component_status(&component, &graph, u64::try_from(ready).unwrap_or(0), version);
        status["replicas"] = json!(counts.replicas.unwrap_or(0));
        status["updatedReplicas"] = json!(counts.updated_replicas.unwrap_or(0));
        status["availableReplicas"] = json!(counts.available_replicas.unwrap_or(0));
        statuses.insert(component.name.to_owned(), status);
    }
    let is_ready = missing.is_empty();
    let (state, reason, message) = if is_ready {
        super::ready()
    } else {
        pending(&graph, version, &missing)
    };
    json!({
        "state": state,
        "observedGeneration": object.metadata.generation,
        "conditions": [condition(object, "Ready", is_ready, reason, &message)],
        components_field(version): statuses,
    })
}

/// (`IsDeploymentReady`) Pods of an earlier template may still run.
fn is_ready(deployment: &Deployment, counts: &DeploymentStatus) -> bool {
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let enough = |count: Option<i32>| count.unwrap_or(0) >= desired;
    desired == 0
        || counts.observed_generation >= deployment.metadata.generation
            && enough(counts.updated_replicas)
            && enough(counts.available_replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(counts: &Value) -> Value {
        let object = json!({"metadata": {"name": "g", "generation": 2},
            "spec": {"components": [{"name": "W", "type": "worker", "replicas": 2}]}});
        let deployment = json!({"metadata": {"generation": 3}, "spec": {"replicas": 2, "selector": {}, "template": {}}, "status": counts});
        let deployment = serde_json::from_value(deployment).unwrap();
        status(&serde_json::from_value(object).unwrap(), "v1beta1", &[deployment])
    }

    #[test]
    fn a_graph_is_successful_when_its_deployments_are_rolled_out() {
        let ready = json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2});
        assert_eq!(status_of(&ready)["state"], "successful");
        for (field, value) in [
            ("observedGeneration", 2),
            ("updatedReplicas", 1),
            ("availableReplicas", 1),
        ] {
            let mut counts = ready.clone();
            counts[field] = json!(value);
            let status = status_of(&counts);
            assert_eq!(status["state"], "pending", "{field}");
            assert_eq!(
                status["components"]["W"]["updatedReplicas"], counts["updatedReplicas"],
                "{field}"
            );
        }
    }
}
