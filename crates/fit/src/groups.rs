//! The pods of a deployment, from the objects that its provider would apply.
//!
//! Only the pods of a Deployment are known in full. Upstream operators add containers, requests and tolerations to the
//! templates in their objects, so that these are lower bounds: they can show that pods do not fit, not that they fit.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DeploymentSpec;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use kube::ResourceExt;
use kube::core::{DynamicObject, ObjectMeta};
use runway_api::model_deployment::DEFAULT_GPU;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Kinds that have no pods.
const WITHOUT_PODS: [&str; 8] = [
    "Service",
    "ConfigMap",
    "PersistentVolumeClaim",
    "HorizontalPodAutoscaler",
    "ScaledObject",
    "HTTPRoute",
    "InferencePool",
    "NetworkPolicy",
];

/// Rollout of a change of the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rollout {
    /// All old pods terminate first.
    Recreate,
    /// Old pods terminate one by one, before new ones are created.
    InPlace,
    /// New pods are created first, or the upstream operator decides.
    Other,
}

/// Pods that are all alike.
#[derive(Clone, Debug)]
pub struct Group {
    /// Object, and part of it: `Deployment/llama`, `RayService/llama workers`.
    pub name: String,
    /// Number of pods.
    pub replicas: i64,
    /// The pod.
    pub pod: Pod,
    /// Upstream operator that adds to the pods.
    pub operator: Option<&'static str>,
    /// Reasons for which the pods cannot be predicted.
    pub opaque: Vec<String>,
    pub(super) rollout: Rollout,
    /// Labels of the current pods of the deployment.
    pub(super) selector: BTreeMap<String, String>,
}

impl Group {
    fn new(name: String, replicas: i64, template: PodTemplateSpec, namespace: &str) -> Self {
        let metadata = template.metadata.unwrap_or_default();
        Self {
            name,
            replicas,
            pod: Pod {
                metadata: ObjectMeta {
                    namespace: Some(namespace.to_owned()),
                    labels: metadata.labels,
                    annotations: metadata.annotations,
                    ..ObjectMeta::default()
                },
                spec: template.spec,
                status: None,
            },
            operator: None,
            opaque: Vec::new(),
            rollout: Rollout::Other,
            selector: BTreeMap::new(),
        }
    }

    fn of(self, operator: &'static str) -> Self {
        Self {
            operator: Some(operator),
            ..self
        }
    }

    fn unknown(name: String, namespace: &str, reason: String) -> Self {
        let mut group = Self::new(name, 1, PodTemplateSpec::default(), namespace);
        group.opaque.push(reason);
        group
    }

    /// Whether a pod is one of the current pods of the deployment.
    pub(super) fn has(&self, pod: &Pod) -> bool {
        let labels = pod.labels();
        !self.selector.is_empty()
            && pod.namespace() == self.pod.namespace()
            && self.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// Groups of pods of all objects that a provider would apply.
pub fn groups(objects: &[&DynamicObject], namespace: &str) -> Vec<Group> {
    let with_pods = objects.iter().filter(|object| {
        let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
        !WITHOUT_PODS.contains(&kind)
    });
    with_pods.flat_map(|object| of_object(object, namespace)).collect()
}

fn of_object(object: &DynamicObject, namespace: &str) -> Vec<Group> {
    let types = object.types.clone().unwrap_or_default();
    let name = format!("{}/{}", types.kind, object.name_any());
    let found = match types.kind.as_str() {
        "Deployment" => deployment(object, &name, namespace),
        "RayService" => ray(object, &name, namespace),
        "DynamoGraphDeployment" => dynamo(object, &name, namespace),
        "InferenceSet" | "Workspace" => kaito(object, &name, namespace),
        kind => Err(format!("the pods of a {kind} are not known")),
    };
    found.unwrap_or_else(|reason| vec![Group::unknown(name, namespace, reason)])
}

/// A part of an object as a type, or the reason for which it is not one.
fn part<T: DeserializeOwned>(value: Option<&Value>, what: &str) -> Result<T, String> {
    let value = value.ok_or_else(|| format!("the object has no {what}"))?;
    serde_json::from_value(value.clone()).map_err(|error| format!("cannot read {what}: {error}"))
}

fn deployment(object: &DynamicObject, name: &str, namespace: &str) -> Result<Vec<Group>, String> {
    let spec: DeploymentSpec = part(object.data.get("spec"), "spec")?;
    let replicas = i64::from(spec.replicas.unwrap_or(1));
    let mut group = Group::new(name.to_owned(), replicas, spec.template, namespace);
    group.selector = spec.selector.match_labels.unwrap_or_default();
    let strategy = spec.strategy.unwrap_or_default();
    let surge = strategy.rolling_update.and_then(|rolling| rolling.max_surge);
    let surge = surge.map(|surge| serde_json::to_value(surge).unwrap_or_default());
    group.rollout = match (strategy.type_.as_deref(), surge) {
        (Some("Recreate"), _) => Rollout::Recreate,
        (_, Some(surge)) if surge == json!(0) || surge == json!("0%") => Rollout::InPlace,
        _ => Rollout::Other,
    };
    Ok(vec![group])
}

fn ray(object: &DynamicObject, name: &str, namespace: &str) -> Result<Vec<Group>, String> {
    let cluster = object.data.pointer("/spec/rayClusterConfig");
    let cluster = cluster.ok_or("the object has no spec.rayClusterConfig")?;
    let head = part(cluster.pointer("/headGroupSpec/template"), "headGroupSpec.template")?;
    let mut found = vec![Group::new(format!("{name} head"), 1, head, namespace).of("KubeRay")];
    for workers in cluster["workerGroupSpecs"].as_array().into_iter().flatten() {
        let count = |field: &str| workers[field].as_i64().unwrap_or(0);
        let template = part(workers.get("template"), "workerGroupSpecs.template")?;
        let label = format!("{name} {}", workers["groupName"].as_str().unwrap_or("workers"));
        let replicas = count("replicas").max(count("minReplicas"));
        found.push(Group::new(label, replicas, template, namespace).of("KubeRay"));
    }
    Ok(found)
}

fn dynamo(object: &DynamicObject, name: &str, namespace: &str) -> Result<Vec<Group>, String> {
    let spec = object.data.get("spec").ok_or("the object has no spec")?;
    let mut found = Vec::new();
    // v1beta1
    for component in spec["components"].as_array().into_iter().flatten() {
        let label = format!("{name} {}", component["name"].as_str().unwrap_or_default());
        let template = part(component.get("podTemplate"), "podTemplate")?;
        let replicas = component["replicas"].as_i64().unwrap_or(1);
        found.push(Group::new(label, replicas, template, namespace).of("Dynamo"));
    }
    // v1alpha1
    for (key, service) in spec["services"].as_object().into_iter().flatten() {
        let label = format!("{name} {key}");
        let replicas = service["replicas"].as_i64().unwrap_or(1);
        let template = of_service(service)?;
        found.push(Group::new(label, replicas, template, namespace).of("Dynamo"));
    }
    if found.is_empty() {
        return Err("the object has no components".to_owned());
    }
    Ok(found)
}

/// Pod of a service of v1alpha1, as far as the service states it.
fn of_service(service: &Value) -> Result<PodTemplateSpec, String> {
    let mut spec = service.get("extraPodSpec").cloned().unwrap_or_else(|| json!({}));
    let main = spec.as_object_mut().and_then(|spec| spec.remove("mainContainer"));
    let mut main = main.unwrap_or_else(|| json!({}));
    let amounts = |part: &str| {
        let given = &service["resources"][part];
        let kind = given["gpuType"].as_str().unwrap_or(DEFAULT_GPU);
        let named = [("cpu", "cpu"), ("memory", "memory"), ("gpu", kind)];
        let all = named.into_iter();
        let all = all.filter_map(|(field, name)| Some((name.to_owned(), given.get(field)?.clone())));
        Value::Object(all.collect())
    };
    main["name"] = json!("main");
    main["resources"] = json!({"requests": amounts("requests"), "limits": amounts("limits")});
    spec["containers"] = json!([main]);
    let spec: PodSpec = part(Some(&spec), "extraPodSpec")?;
    Ok(PodTemplateSpec {
        metadata: match service.get("extraPodMetadata") {
            Some(metadata) => part(Some(metadata), "extraPodMetadata")?,
            None => None,
        },
        spec: Some(spec),
    })
}

fn kaito(object: &DynamicObject, name: &str, namespace: &str) -> Result<Vec<Group>, String> {
    let is_set = object.types.as_ref().is_some_and(|types| types.kind == "InferenceSet");
    let (body, replicas, selector) = if is_set {
        let spec = object.data.get("spec").ok_or("the object has no spec")?;
        let replicas = spec["replicas"].as_i64().unwrap_or(1);
        (&spec["template"], replicas, &spec["labelSelector"])
    } else {
        (&object.data, 1, &object.data["resource"]["labelSelector"])
    };
    if let Some(instance) = body["resource"]["instanceType"].as_str() {
        return Err(format!(
            "KAITO provisions a node of instance type {instance} for each replica"
        ));
    }
    let Some(template) = body.pointer("/inference/template") else {
        return Err("KAITO's preset determines the requests of the pods".to_owned());
    };
    let mut template: PodTemplateSpec = part(Some(template), "inference.template")?;
    let labels: BTreeMap<String, String> = part(Some(&selector["matchLabels"]), "labelSelector").unwrap_or_default();
    let spec = template.spec.get_or_insert_default();
    spec.node_selector.get_or_insert_default().extend(labels);
    Ok(vec![
        Group::new(name.to_owned(), replicas, template, namespace).of("KAITO"),
    ])
}
