//! Plays Dynamo: DynamoGraphDeployments become successful, in both shapes of their API.
//!
//! Sources: ai-dynamo/dynamo deploy/operator, `dynamographdeployment_controller.go` and `api/{v1alpha1,v1beta1}`.
//! As there: `state` is initializing, pending, successful or failed, and there is no message but that of the condition
//! `Ready`; a model server that crashes or waits leaves the state pending; failed is what cannot be reconciled; the
//! counts are per component, ready or available ones depending on what stands behind it; each frontend has a Service.
//! Every change of the spec goes through pending again, and what was ready stays so meanwhile.
//! Simplified: the pods of a component are objects that no node runs; no rolling updates, restarts or scaling adapters. With
//! [`Config::dynamo_workloads`] the components are real Deployments, and the status follows them.
//!
//! | behavior | upstream | version |
//! |---|---|---|
//! | a changed spec is observed, and reported as successful, before its rollout begins: `updatedReplicas` is 0 | `internal/controller/dynamographdeployment_controller.go` | issues 3567 and 10527, 2026 |
//! | a v1alpha1 worker with the subtype prefill or decode is a component of that type, and back: see [`conversion`](super::conversion) | `api/v1alpha1/shared_spec_conversion.go` | pull request 9082, 2026-05 |
//! | the type of a component cannot change once it is set, in either version: [`with_immutable_types`] | the CEL rules of `DynamoComponentDeploymentSharedSpec`, `api/{v1alpha1,v1beta1}/dynamocomponentdeployment_types.go` | pull request 13763, 2026-08 |

mod manifests;
mod workloads;

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use kube::{Client, ResourceExt, api::DynamicObject, runtime::controller::Action};
use serde_json::{Map, Value, json};

use super::{
    Config,
    engine::{Role, Simulation, condition, play},
    pods::SimulatedPod,
    timeline::{PodState, Stage},
};

/// The field manager of everything that the simulator writes as Dynamo.
pub const MANAGER: &str = "dynamo-simulator";
/// On the pods of a DynamoGraphDeployment.
pub const GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";
/// On a DynamoGraphDeployment: `false` puts Deployments behind its components, not Grove's PodCliques.
pub const ENABLE_GROVE: &str = "nvidia.com/enable-grove";

/// On the pods of a component, with its name.
pub const COMPONENT: &str = "nvidia.com/dynamo-component";
const FAILURE: &str = "failed to reconcile the component deployments: admission denied a pod: the quota of nvidia.com/gpu \
                       of the namespace is used up";

/// The CRD as releases from September 2026 on have it: the type of a component is refused to change.
#[must_use]
pub fn with_immutable_types(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        let schema = version.schema.as_mut().and_then(|v| v.open_api_v3_schema.as_mut());
        let Some(spec) = schema.and_then(|schema| schema.properties.as_mut()?.get_mut("spec")) else {
            continue;
        };
        for (components, field) in [("services", "componentType"), ("components", "type")] {
            if let Some(component) = member(spec, components) {
                component
                    .x_kubernetes_validations
                    .get_or_insert_default()
                    .push(ValidationRule {
                        rule: format!(
                            "!has(oldSelf.{field}) || (has(self.{field}) && self.{field} == oldSelf.{field})"
                        ),
                        message: Some(format!("{field} is immutable after it is set")),
                        ..ValidationRule::default()
                    });
            }
        }
    }
    crd
}

/// The schema of the members of a list or map.
fn member<'a>(schema: &'a mut JSONSchemaProps, field: &str) -> Option<&'a mut JSONSchemaProps> {
    let field = schema.properties.as_mut()?.get_mut(field)?;
    match (field.items.as_mut(), field.additional_properties.as_mut()) {
        (Some(JSONSchemaPropsOrArray::Schema(member)), _) | (_, Some(JSONSchemaPropsOrBool::Schema(member))) => {
            Some(member)
        }
        _ => None,
    }
}

/// Plays Dynamo's controller while its CRD is there, in the version that the CRD stores.
pub(super) async fn run(client: Client, config: Config) {
    let mut graphs = Role {
        crd: "dynamographdeployments.nvidia.com",
        manager: MANAGER,
        finalizer: Some("nvidia.com/finalizer"),
        owns: Vec::new(),
    };
    if config.dynamo_workloads {
        graphs.owns = workloads::owned();
        play(client, config, graphs, workloads::graph).await;
    } else {
        play(client, config, graphs, graph).await;
    }
}

async fn graph(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    if simulation.guard_deletion(&object).await? {
        return Ok(Action::await_change());
    }
    let generation = object.metadata.generation.unwrap_or_default();
    let status = &object.data["status"];
    let is_known = status["observedGeneration"] == generation;
    let is_done = is_known && (status["state"] == "successful" || status["state"] == "failed");
    let (stage, next) = simulation.stage(&object, &generation.to_string(), is_done);
    if let Some(stage) = stage {
        let components = components(&object);
        if !is_known {
            make(&object, &components, &simulation).await?;
        }
        keep_pods(&object, &components, stage, &simulation).await?;
        let status = graph_status(&object, &components, &simulation.kind.version, stage);
        simulation.set_status(&object, status).await?;
    }
    Ok(next)
}

async fn make(object: &DynamicObject, components: &[Component<'_>], simulation: &Simulation) -> kube::Result<()> {
    let graph = object.name_any();
    for frontend in components.iter().filter(|component| component.kind == "frontend") {
        let selector = json!({GRAPH: graph, COMPONENT: frontend.name});
        let port = json!({"name": "http", "protocol": "TCP", "port": 8000, "targetPort": "http"});
        simulation
            .apply_service(object, &frontend.resource_name(&graph), selector, port)
            .await?;
    }
    Ok(())
}

/// The pods of all components. While a change is pending, those of the spec before it stay as they are.
async fn keep_pods(
    object: &DynamicObject,
    components: &[Component<'_>],
    stage: Stage,
    simulation: &Simulation,
) -> kube::Result<()> {
    let has_run = object.data["status"]["conditions"].is_array();
    let Some(workers) =
        PodState::at(simulation.behavior(object), stage).filter(|_| stage != Stage::Pending || !has_run)
    else {
        return Ok(());
    };
    let graph = object.name_any();
    let mut pods = Vec::new();
    for component in components {
        let template = component.pod_template();
        let is_frontend = component.kind == "frontend";
        // The frontend has no model to load.
        let condition = match workers {
            PodState::Crashing | PodState::SecretMissing if is_frontend => PodState::Ready,
            as_workers => as_workers,
        };
        for number in 0..component.replicas {
            let name = format!("{}-{number}", component.resource_name(&graph));
            let labels = [(GRAPH, graph.as_str()), (COMPONENT, component.name)];
            pods.push(SimulatedPod::new(name, &template, &labels, condition));
        }
    }
    if stage == Stage::Headless {
        pods.retain(|pod| {
            pod.labels
                .get(COMPONENT)
                .is_some_and(|name| name.as_str() != "Frontend")
        });
    }
    simulation.keep_pods(object, pods).await
}

/// A service of v1alpha1 or a component of v1beta1.
struct Component<'a> {
    name: &'a str,
    kind: &'a str,
    replicas: u64,
    spec: &'a Value,
    backing: &'static str,
}

fn components(graph: &DynamicObject) -> Vec<Component<'_>> {
    let spec = &graph.data["spec"];
    let has_grove = graph
        .annotations()
        .get(ENABLE_GROVE)
        .is_none_or(|value| value != "false");
    let services = spec["services"].as_object().into_iter().flatten();
    let services = services.map(|(name, spec)| (name.as_str(), &spec["componentType"], spec));
    let listed = spec["components"].as_array().into_iter().flatten();
    let listed = listed.map(|spec| (spec["name"].as_str().unwrap_or_default(), &spec["type"], spec));
    services
        .chain(listed)
        .map(|(name, kind, spec)| Component {
            name,
            kind: kind.as_str().unwrap_or("worker"),
            replicas: spec["replicas"].as_u64().unwrap_or(1),
            spec,
            backing: match (has_grove, spec["multinode"].is_object()) {
                (true, false) => "PodClique",
                (true, true) => "PodCliqueScalingGroup",
                (false, false) => "Deployment",
                (false, true) => "LeaderWorkerSet",
            },
        })
        .collect()
}

/// Name of the objects of a component.
fn resource_name(graph: &str, component: &str) -> String {
    format!("{graph}-{}", component.to_lowercase())
}

impl Component<'_> {
    fn resource_name(&self, graph: &str) -> String {
        resource_name(graph, self.name)
    }

    /// The name of what stands behind it.
    fn backing_name(&self, graph: &str) -> String {
        match self.backing {
            "PodClique" | "PodCliqueScalingGroup" => format!("{graph}-0-{}", self.name.to_lowercase()),
            _ => self.resource_name(graph),
        }
    }

    /// Scaling groups count no ready replicas; plain cliques and leader-worker sets no available ones.
    fn counts(&self) -> &'static [&'static str] {
        match self.backing {
            "PodCliqueScalingGroup" => &["availableReplicas"],
            "Deployment" => &["readyReplicas", "availableReplicas"],
            _ => &["readyReplicas"],
        }
    }

    /// The container of v1alpha1: that of the pod's spec, with the variables of the service.
    fn main_container(&self) -> Value {
        let mut container = self.spec["extraPodSpec"]["mainContainer"].clone();
        if !container.is_object() {
            container = json!({});
        }
        container["name"] = json!("main");
        container["env"] = self.spec["envs"].clone();
        container
    }

    fn pod_template(&self) -> Value {
        match &self.spec["podTemplate"] {
            Value::Null => json!({
                "metadata": self.spec["extraPodMetadata"],
                "spec": {"containers": [self.main_container()]},
            }),
            template => template.clone(),
        }
    }
}

fn graph_status(graph: &DynamicObject, components: &[Component<'_>], version: &str, stage: Stage) -> Value {
    let name = graph.name_any();
    let current = &graph.data["status"];
    let field = components_field(version);
    // An object that was worked on before does not go back to the beginning.
    if stage == Stage::Pending && current["conditions"].is_null() {
        return json!({"state": "initializing", "observedGeneration": graph.metadata.generation});
    }

    // Pods that crash later are reported as ready for a while.
    let stage = if matches!(stage, Stage::Crashing | Stage::Headless) {
        Stage::Ready
    } else {
        stage
    };
    // A change is reported as successful before its rollout begins (issues 3567 and 10527).
    let is_early = stage == Stage::Pending && current["state"] == "successful";
    let mut statuses = Map::new();
    let mut missing = Vec::new();
    for component in components {
        let wanted = component.replicas;
        let was = component
            .counts()
            .first()
            .map(|count| &current[field][component.name][count]);
        let ready = match stage {
            Stage::Ready | Stage::Crashing | Stage::Headless => wanted,
            Stage::Pending | Stage::Loading => was.and_then(Value::as_u64).unwrap_or(0).min(wanted),
            Stage::Unready | Stage::Failed => 0,
        };
        if ready < wanted {
            let backing = component.backing.to_lowercase();
            let backing_name = component.backing_name(&name);
            missing.push(format!("{backing}/{backing_name}: desired={wanted}, ready={ready}"));
        }
        statuses.insert(
            component.name.to_owned(),
            component_status(component, &name, ready, version),
        );
        if is_early {
            statuses[component.name]["updatedReplicas"] = json!(0);
        }
    }

    let (summary, reason, message) = match stage {
        Stage::Failed => ("failed", "failed_to_reconcile_the_resources", FAILURE.to_owned()),
        Stage::Ready => ready(),
        _ if is_early => ready(),
        _ => pending(&name, version, &missing),
    };
    json!({
        "state": summary,
        "observedGeneration": graph.metadata.generation,
        "conditions": [condition(graph, "Ready", stage == Stage::Ready, reason, &message)],
        field: statuses,
    })
}

/// Field of the components' statuses.
fn components_field(version: &str) -> &'static str {
    if version == "v1alpha1" {
        "services"
    } else {
        "components"
    }
}

/// State, reason and message of a graph whose resources are ready.
fn ready() -> (&'static str, &'static str, String) {
    let message = "All resources are ready".to_owned();
    ("successful", "all_resources_are_ready", message)
}

/// The same of one with these resources missing. Releases with v1beta1 say more closely what is not ready (dynamo pull request 11131).
fn pending(graph: &str, version: &str, missing: &[String]) -> (&'static str, &'static str, String) {
    let reason = if version == "v1alpha1" {
        "some_resources_are_not_ready"
    } else {
        "pods_not_ready"
    };
    let message = format!("Resources not ready: {graph}: {}", missing.join("; "));
    ("pending", reason, message)
}

fn component_status(component: &Component<'_>, graph: &str, ready: u64, version: &str) -> Value {
    let backing_name = component.backing_name(graph);
    let mut status = json!({
        "componentKind": component.backing,
        "componentNames": [backing_name],
        "replicas": component.replicas,
        "updatedReplicas": component.replicas,
    });
    // Dropped in v1beta1.
    if version == "v1alpha1" {
        status["componentName"] = json!(backing_name);
    }
    for count in component.counts() {
        status[*count] = json!(ready);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(spec: &Value, status: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "g", "generation": 2},
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    fn status_of(graph: &DynamicObject, version: &str, stage: Stage) -> Value {
        graph_status(graph, &components(graph), version, stage)
    }

    #[test]
    fn scaling_up_keeps_what_is_ready() {
        let spec = json!({"services": {"Worker": {"componentType": "worker", "replicas": 3}}});
        let before = json!({"conditions": [], "services": {"Worker": {"readyReplicas": 2}}});
        let status = status_of(&graph(&spec, &before), "v1alpha1", Stage::Pending);
        assert_eq!(status["state"], "pending");
        assert_eq!(status["services"]["Worker"]["readyReplicas"], 2);
        assert_eq!(
            status["conditions"][0]["message"],
            "Resources not ready: g: podclique/g-0-worker: desired=3, ready=2"
        );
    }

    #[test]
    fn counted_replicas_depend_on_the_backing_kind() {
        let spec = json!({"components": [
            {"name": "one", "type": "decode"},
            {"name": "many", "type": "prefill", "multinode": {"nodeCount": 2}, "replicas": 2},
        ]});
        let status = status_of(&graph(&spec, &json!({})), "v1beta1", Stage::Ready);
        let [one, many] = ["one", "many"].map(|name| &status["components"][name]);
        assert_eq!(
            (&one["readyReplicas"], &one["availableReplicas"]),
            (&json!(1), &Value::Null)
        );
        assert_eq!(
            (&many["readyReplicas"], &many["availableReplicas"]),
            (&Value::Null, &json!(2))
        );
    }

    #[test]
    fn a_new_object_is_initializing_and_says_nothing_else() {
        let status = status_of(&graph(&json!({}), &Value::Null), "v1beta1", Stage::Pending);
        assert_eq!(status, json!({"state": "initializing", "observedGeneration": 2}));
    }
}
