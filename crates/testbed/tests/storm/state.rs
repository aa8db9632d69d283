//! Objects of a namespace, without what differs from one run to the next.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_provider::Kind;
use runway_provider_dynamo::DYNAMO_GRAPH_DEPLOYMENT;
use runway_provider_kaito::{INFERENCE_SET, WORKSPACE};
use runway_provider_kuberay::RAY_SERVICE;
use serde_json::{Value, json};

use crate::scenario::{ACTOR, MODEL, STACK};

pub(crate) const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments");
pub(crate) const STATEFUL_SET: Kind = Kind::new("apps", "v1", "StatefulSet", "statefulsets");
pub(crate) const SERVICE: Kind = Kind::new("", "v1", "Service", "services");
pub(crate) const CONFIG_MAP: Kind = Kind::new("", "v1", "ConfigMap", "configmaps");
pub(crate) const CLAIM: Kind = Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");
pub(crate) const SERVICE_ACCOUNT: Kind = Kind::new("", "v1", "ServiceAccount", "serviceaccounts");
pub(crate) const SCALED_OBJECT: Kind = Kind::new("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects");

/// Kinds of the product, whose status settles last.
const OURS: [Kind; 3] = [MODEL, ACTOR, STACK];

/// Other kinds that a user or a controller of the product creates.
const OTHERS: [Kind; 17] = [
    INFERENCE_SET,
    WORKSPACE,
    DYNAMO_GRAPH_DEPLOYMENT,
    RAY_SERVICE,
    DEPLOYMENT,
    STATEFUL_SET,
    SERVICE,
    CONFIG_MAP,
    CLAIM,
    SCALED_OBJECT,
    Kind::new("keda.sh", "v1alpha1", "TriggerAuthentication", "triggerauthentications"),
    Kind::new(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
    SERVICE_ACCOUNT,
    Kind::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses"),
    Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
];

/// Objects by kind and name.
pub(crate) type State = BTreeMap<String, Value>;

/// The objects of a namespace. An error means that one of them has a generation that its controller has not observed yet.
pub(crate) async fn state(client: &Client, namespace: &str) -> Result<State> {
    of_kinds(client, namespace, OURS.iter().chain(&OTHERS)).await
}

/// An error says what differs, apart from the number of rollouts: a Deployment with the strategy Recreate reports its generation as
/// observed before it begins the rollout, for which it waits until the old pods are gone.
pub(crate) fn is_same_but_rollouts(before: &State, now: &State) -> Result<()> {
    let [before, now] = [before, now].map(|state| {
        let mut state = state.clone();
        for status in state
            .values_mut()
            .filter_map(|object| object.get_mut("status")?.as_object_mut())
        {
            status.remove(ROLLOUTS);
        }
        state
    });
    ensure!(now == before, "another final state: {}", difference(&before, &now));
    Ok(())
}

/// Without what shows how a state was reached: rollouts, generations, claims, that a user has changed a field, and the order in which
/// conditions appeared.
pub(crate) fn however_reached(mut state: State) -> State {
    // The operators keep a claim with data that a spec no longer names.
    state.retain(|id, _| !id.starts_with("PersistentVolumeClaim/"));
    for object in state.values_mut() {
        if let Some(managers) = object.pointer_mut("/metadata/managers").and_then(Value::as_array_mut) {
            managers.retain(|manager| !manager.as_str().is_some_and(|manager| manager.starts_with(BY_HAND)));
        }
        let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else {
            continue;
        };
        for history in [ROLLOUTS, GENERATION] {
            status.remove(history);
        }
        if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions
                .iter_mut()
                .filter_map(Value::as_object_mut)
                .for_each(|condition| {
                    condition.remove(GENERATION);
                });
            conditions.sort_by_key(|condition| condition["type"].to_string());
        }
    }
    state
}

/// The objects of a namespace, if they are as expected; otherwise an error says what differs. `compared` is applied to both first.
pub(crate) async fn is_as(
    client: &Client,
    namespace: &str,
    expected: &State,
    compared: fn(State) -> State,
) -> Result<State> {
    let expected = compared(expected.clone());
    let mut state = State::new();
    // While they differ, no other kind is read.
    for kinds in [OURS.as_slice(), &OTHERS] {
        let read = of_kinds(client, namespace, kinds).await?;
        let is_of_these = |id: &str| {
            id.split_once('/')
                .is_some_and(|(of, _)| kinds.iter().any(|kind| kind.kind == of))
        };
        let wanted: State = expected
            .iter()
            .filter(|(id, _)| is_of_these(id))
            .map(|(id, object)| (id.clone(), object.clone()))
            .collect();
        let found = compared(read.clone());
        let wanted = with_rollouts_at_most(wanted, &found);
        ensure!(found == wanted, "another final state: {}", difference(&wanted, &found));
        state.extend(read);
    }
    Ok(state)
}

/// The wanted state, with fewer rollouts if there were fewer: of changes in quick succession, a Deployment's controller sees only the
/// last.
fn with_rollouts_at_most(mut wanted: State, found: &State) -> State {
    let rollouts = |object: &Value| object["status"][ROLLOUTS].as_str()?.parse::<u32>().ok();
    for (id, object) in &mut wanted {
        let Some(found) = found.get(id) else { continue };
        if let (Some(fewer), Some(most)) = (rollouts(found), rollouts(object))
            && fewer < most
        {
            object["status"][ROLLOUTS] = found["status"][ROLLOUTS].clone();
        }
    }
    wanted
}

fn difference(wanted: &State, found: &State) -> String {
    let patch = json_patch::diff(&json!(wanted), &json!(found));
    // Enough to see what it is about.
    json!(patch).to_string().chars().take(3000).collect()
}

/// At once: the API server lets each of these wait until its cache is known to be current.
async fn of_kinds(client: &Client, namespace: &str, kinds: impl IntoIterator<Item = &Kind>) -> Result<State> {
    let states = kinds.into_iter().map(|kind| of_kind(client, namespace, *kind));
    Ok(try_join_all(states).await?.into_iter().flatten().collect())
}

async fn of_kind(client: &Client, namespace: &str, kind: Kind) -> Result<State> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind.resource());
    let objects = api.list(&ListParams::default()).await?.items;
    objects.iter().try_for_each(|object| is_observed(kind, object))?;
    // A Workspace of an InferenceSet has a random name; they are counted.
    let is_replica = |object: &DynamicObject| object.owner_references().iter().any(|o| o.kind == "InferenceSet");
    let (replicas, named): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_replica);
    let mut state: State = named
        .into_iter()
        .map(|object| {
            (
                format!("{}/{}", kind.kind, object.name_any()),
                normal(kind, &object, namespace),
            )
        })
        .collect();
    if !replicas.is_empty() {
        state.insert(format!("{}/of InferenceSets", kind.kind), json!(replicas.len()));
    }
    Ok(state)
}

/// Fails if the controller of an object has not observed its generation: what it will write is missing, such as the number of
/// rollouts.
fn is_observed(kind: Kind, object: &DynamicObject) -> Result<()> {
    let (observed, generation) = (&object.data["status"][GENERATION], object.metadata.generation);
    let has_controller = matches!(kind, DEPLOYMENT | STATEFUL_SET) || !observed.is_null();
    ensure!(
        !has_controller || observed.as_i64() == generation,
        "{}/{} has generation {generation:?}, and its controller has observed {observed}",
        kind.kind,
        object.name_any()
    );
    Ok(())
}

/// Fails if a writer of an object has not named itself.
pub(crate) fn is_named(state: &State) -> Result<()> {
    for (id, object) in state {
        let managers = object["metadata"]["managers"].to_string();
        ensure!(
            !managers.contains("\"unknown "),
            "a writer of {id} has no name: {managers}"
        );
    }
    Ok(())
}

/// An object without what differs between runs: times, identifiers, the name of the namespace.
pub(crate) fn normal(kind: Kind, object: &DynamicObject, namespace: &str) -> Value {
    let meta = &object.metadata;
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    let rollouts = annotations.remove("deployment.kubernetes.io/revision");
    let mut value = object.data.clone();
    value["metadata"] = json!({ "labels": meta.labels, "annotations": annotations, "finalizers": meta.finalizers,
        "owners": meta.owner_references, "deleted": meta.deletion_timestamp.is_some(), "managers": managers(object) });
    // Its messages name pods, which have random names.
    if matches!(kind, DEPLOYMENT | STATEFUL_SET) {
        value["status"] = json!({ ROLLOUTS: rollouts });
    }
    // Whether replicas were counted before they changed is a matter of time.
    if let Some(status) = value["status"].as_object_mut() {
        status.retain(|field, _| !field.starts_with("lastScale"));
    }
    plain(&mut value, namespace);
    value
}

/// Field manager of a user's changes.
pub(crate) const BY_HAND: &str = "kubectl-patch";
const GENERATION: &str = "observedGeneration";
/// Number of templates that a Deployment has had.
const ROLLOUTS: &str = "rollouts";

/// Whether an object of another owner is as it was before it was bound and released.
pub(crate) fn is_unharmed(now: &Value, before: &Value) -> bool {
    let but_rollouts = |object: &Value| {
        let mut object = object.clone();
        object["status"] = Value::Null;
        object
    };
    but_rollouts(now) == but_rollouts(before)
}

/// Field managers, without those of Kubernetes itself.
fn managers(object: &DynamicObject) -> BTreeSet<String> {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    object
        .managed_fields()
        .iter()
        .map(|m| format!("{} {} {}", text(&m.manager), text(&m.operation), text(&m.subresource)))
        .filter(|manager| !manager.starts_with("kube-controller-manager"))
        .collect()
}

/// Takes out times, and what the API server chooses.
pub(crate) fn plain(value: &mut Value, namespace: &str) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                let name = name.to_lowercase();
                ![
                    "resourceversion",
                    "clusterip",
                    "clusterips",
                    "rayclustername",
                    "ray.io/cluster",
                ]
                .contains(&name.as_str())
                    && !name.ends_with("uid")
                    && !name.ends_with("hash")
            });
            fields.values_mut().for_each(|field| plain(field, namespace));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| plain(item, namespace)),
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => "a time".clone_into(text),
        Value::String(text) => *text = text.replace(namespace, "NAMESPACE"),
        _ => {}
    }
}

#[test]
fn a_deployment_counts_once_its_controller_has_observed_it() {
    let observed = |kind, status: Value| {
        let object = json!({ "metadata": { "name": "m", "generation": 2 }, "status": status });
        serde_json::from_value(object).is_ok_and(|object| is_observed(kind, &object).is_ok())
    };
    assert!(observed(DEPLOYMENT, json!({ "observedGeneration": 2 })));
    assert!(!observed(DEPLOYMENT, json!({ "observedGeneration": 1 })));
    assert!(!observed(DEPLOYMENT, json!({})));
    let no_controller = Kind::new("kaito.sh", "v1beta1", "Workspace", "workspaces");
    assert!(observed(no_controller, json!({})));
}

#[test]
fn only_differences_between_runs_are_omitted() {
    let object = |namespace: &str, uid: &str, time: &str, manager: &str, image: &str| {
        let object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "m", "namespace": namespace,
            "uid": uid, "resourceVersion": uid, "creationTimestamp": time, "managedFields": [{ "manager": manager, "time": time }],
            "annotations": { "kubeairunway.ai/applied-hash": uid, "at": time } },
            "spec": { "image": image, "host": format!("m.{namespace}.svc") }, "status": { "replicas": 1 } });
        serde_json::from_value::<DynamicObject>(object)
            .map(|object| normal(DEPLOYMENT, &object, namespace))
            .ok()
    };
    let one = object("one", "1", "2026-11-25T08:00:00Z", "direct-provider", "x:1");
    assert_eq!(
        one,
        object("two", "2", "2026-11-25T09:00:00Z", "direct-provider", "x:1")
    );
    assert_ne!(
        one,
        object("one", "1", "2026-11-25T08:00:00Z", "direct-provider", "x:2")
    );
    assert_ne!(one, object("one", "1", "2026-11-25T08:00:00Z", "kubectl-edit", "x:1"));
}

#[test]
fn fewer_rollouts_are_as_expected_and_more_are_not() {
    let state =
        |rollouts: &str| State::from([("Deployment/a".to_owned(), json!({ "status": { ROLLOUTS: rollouts } }))]);
    for (found, is_expected) in [("1", true), ("2", true), ("3", false)] {
        let wanted = with_rollouts_at_most(state("2"), &state(found));
        assert_eq!(wanted == state(found), is_expected, "{found}");
    }
}
