//! Parts of kustomize for choices of an installation, and examples of installations for two namespaces and in another namespace.

use anyhow::Result;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_api::labels;
use runway_dev_release::yaml::documents;
use runway_manifests::{AGGREGATE, Component, Identity, confinement};
use runway_operator::scope::Namespaces;
use serde_json::{Value, json};

/// Folder of the example for another namespace.
const ELSEWHERE: &str = "deploy/kustomize-other-namespace";
/// Namespace of that example.
const OTHER: &str = "ai-platform";
/// Folder of the example for namespaces.
const EXAMPLE: &str = "deploy/kustomize-namespaced";
/// Namespaces of the example.
const TEAMS: [&str; 2] = ["team-a", "team-b"];

pub(crate) fn files(components: &[Component]) -> Result<Vec<(String, String)>> {
    let namespaces: Namespaces = TEAMS.join(",").parse()?;
    let roles: Vec<DynamicObject> = components
        .iter()
        .flat_map(|component| component.roles(Identity::ServiceAccount, &namespaces))
        .collect();
    let of = |namespace: Option<&str>| -> Vec<Value> {
        let here = roles.iter().filter(|role| role.namespace().as_deref() == namespace);
        here.map(|role| json!(role)).collect()
    };
    let cluster_roles: Vec<Value> = of(None)
        .into_iter()
        .filter(|role| role["kind"] == "ClusterRole")
        .collect();
    let folder = |path: &str| format!("deploy/kustomize/{path}");
    let mut files = vec![
        (
            folder("namespaced/kustomization.yaml"),
            component(&json!([{ "path": "cluster-roles.yaml" }]))?,
        ),
        (folder("namespaced/cluster-roles.yaml"), documents(&cluster_roles)?),
        (
            folder("namespaced-roles/kustomization.yaml"),
            kustomization(&json!({ "resources": ["objects.yaml"] }))?,
        ),
        (folder("namespaced-roles/objects.yaml"), documents(&of(Some(TEAMS[0])))?),
        (
            folder("no-aggregation/kustomization.yaml"),
            component(&json!(not_aggregated(components)))?,
        ),
        (format!("{EXAMPLE}/kustomization.yaml"), example(&namespaces)?),
        (format!("{ELSEWHERE}/kustomization.yaml"), elsewhere()?),
        (
            format!("{ELSEWHERE}/model-network-policy/kustomization.yaml"),
            policies_elsewhere()?,
        ),
    ];
    for team in TEAMS {
        let object = json!({ "namespace": team, "resources": ["../../kustomize/namespaced-roles"] });
        files.push((format!("{EXAMPLE}/{team}/kustomization.yaml"), kustomization(&object)?));
    }
    Ok(files)
}

/// Patches that keep the roles of users out of Kubernetes' own roles.
fn not_aggregated(components: &[Component]) -> Vec<Value> {
    let objects = components.iter().flat_map(|component| &component.extra);
    let labels = objects.flat_map(|object| object.labels().keys().map(move |label| (object.name_any(), label)));
    labels
        .filter(|(_, label)| label.starts_with(AGGREGATE))
        .map(|(name, label)| {
            let path = format!("/metadata/labels/{}", label.replace('~', "~0").replace('/', "~1"));
            let replaced = json!([{ "op": "replace", "path": path, "value": "false" }]);
            json!({ "target": { "kind": "ClusterRole", "name": name }, "patch": replaced.to_string() })
        })
        .collect()
}

/// An overlay for the namespaces. A namespace stands in one folder, in the argument of all controllers and in the webhooks.
fn example(namespaces: &Namespaces) -> Result<String> {
    let ours = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE);
    let argument =
        json!([{ "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": namespaces.argument() }]);
    let named = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces.names() });
    let selector = json!({ "matchExpressions": [named] });
    let selector = json!([{ "op": "replace", "path": "/webhooks/0/namespaceSelector", "value": selector }]);
    let resources: Vec<&str> = ["../kustomize"].into_iter().chain(TEAMS).collect();
    kustomization(&json!({
        "resources": resources,
        "components": ["../kustomize/namespaced"],
        "patches": [
            { "target": { "kind": "Deployment", "labelSelector": ours }, "patch": argument.to_string() },
            { "target": { "kind": "(Mutating|Validating)WebhookConfiguration" }, "patch": selector.to_string() },
        ],
    }))
}

/// An overlay for another namespace than the default one: `namespace` does not change the expressions of the confinement.
fn elsewhere() -> Result<String> {
    let expressions =
        ["matchConditions.0", "matchConditions.1", "validations.0"].map(|path| format!("spec.{path}.expression"));
    kustomization(&json!({
        "namespace": OTHER,
        "resources": ["../kustomize"],
        "replacements": [{
            "source": { "kind": "Deployment", "name": labels::CORE_MANAGER, "fieldPath": "metadata.namespace" },
            "targets": [{
                "select": { "kind": "ValidatingAdmissionPolicy", "name": confinement::POLICY },
                "fieldPaths": expressions,
                "options": { "delimiter": "'", "index": 1 },
            }],
        }],
    }))
}

/// An overlay of the policies for the namespaces of models, which name the namespace of the installation in a selector.
fn policies_elsewhere() -> Result<String> {
    let label = "kubernetes.io~1metadata.name";
    let path = format!("/spec/ingress/0/from/1/namespaceSelector/matchLabels/{label}");
    let replaced = json!([{ "op": "replace", "path": path, "value": OTHER }]);
    kustomization(&json!({
        "resources": ["../../kustomize/model-network-policy"],
        "patches": [{ "target": { "kind": "NetworkPolicy" }, "patch": replaced.to_string() }],
    }))
}

fn kustomization(fields: &Value) -> Result<String> {
    file("kustomize.config.k8s.io/v1beta1", "Kustomization", fields)
}

fn component(patches: &Value) -> Result<String> {
    file(
        "kustomize.config.k8s.io/v1alpha1",
        "Component",
        &json!({ "patches": patches }),
    )
}

fn file(api_version: &str, kind: &str, fields: &Value) -> Result<String> {
    let mut object = json!({ "apiVersion": api_version, "kind": kind });
    if let (Some(object), Some(fields)) = (object.as_object_mut(), fields.as_object()) {
        object.extend(fields.clone());
    }
    documents(&[object])
}
