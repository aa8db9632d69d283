//! Settings of a ModelDeployment for its pods and their volumes, as fields of a pod spec and of a container.
//!
//! A provider that writes pods itself uses these functions, so that a field means the same everywhere. A provider whose upstream
//! creates the pods rejects what the upstream does not pass on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use runway_api::model_deployment::VolumePurpose;
use runway_operator::quantity;
use serde_json::{Value, json};

use crate::contract::{Refusal, refuse};
use crate::engine;
use crate::fields::{Fields, fields};
use crate::request::Request;
use crate::settings::PullSecrets;

/// Adds everything to a pod spec that belongs neither to a container nor to a volume: pull secrets, ServiceAccount, placement and
/// security. Node selector and tolerations are not included, since upstreams treat them in their own ways.
#[must_use]
pub fn settings(spec: Fields, request: &Request, of_installation: &PullSecrets) -> Fields {
    let pods = &request.pods;
    spec.with("imagePullSecrets", pull_secrets(request, of_installation))
        .with("serviceAccountName", request.service_account.as_deref())
        .with("affinity", json!(pods.affinity))
        .with("topologySpreadConstraints", json!(pods.topology_spread_constraints))
        .with("priorityClassName", pods.priority_class_name.as_deref())
        .with("runtimeClassName", pods.runtime_class_name.as_deref())
        .with("schedulerName", pods.scheduler_name.as_deref())
        .with("securityContext", json!(pods.security_context))
}

/// Termination message policy of an engine: one that rejects its arguments logs the reason last.
pub const LAST_WORDS: &str = "FallbackToLogsOnError";

/// Security context of an engine's container, which Pod Security `restricted` admits if the container does not run as root.
///
/// `image_user` is the user of the image, if it is known and not root. It is set by number, since the kubelet starts no container
/// with `runAsNonRoot` if the image names its user. Fields of `podTemplate.spec.securityContext` take precedence: a field of a
/// container would override that of the pod.
pub fn container_security(request: &Request, image_user: Option<i64>) -> Fields {
    let of_pod = request.pods.security_context.as_ref();
    let non_root = of_pod.and_then(|context| context.run_as_non_root);
    let user_of_pod = of_pod.and_then(|context| context.run_as_user);
    let user = image_user.filter(|_| user_of_pod.is_none() && non_root != Some(false));
    let is_other_than_root = user_of_pod.or(user).is_some_and(|user| user > 0);
    let has_profile = of_pod.is_some_and(|context| context.seccomp_profile.is_some());
    fields()
        .with("allowPrivilegeEscalation", false)
        .with("capabilities", json!({"drop": ["ALL"]}))
        .with("runAsUser", json!(user))
        .with(
            "runAsNonRoot",
            json!((is_other_than_root && non_root.is_none()).then_some(true)),
        )
        .with(
            "seccompProfile",
            json!((!has_profile).then(|| json!({"type": "RuntimeDefault"}))),
        )
}

/// The user's pull secrets, and those of the installation. A name must be unique.
fn pull_secrets(request: &Request, of_installation: &PullSecrets) -> Vec<Value> {
    let given: Vec<Value> = request.image_pull_secrets.iter().map(|secret| json!(secret)).collect();
    let mut others = of_installation.references();
    others.retain(|secret| !given.contains(secret));
    [given, others].concat()
}

/// Volumes of the containers that run the model, and their mounts: `/dev/shm`, and those of the request. Without a size in the
/// request, `/dev/shm` is one of them only if `shared_memory` is set, and has no limit of its own.
pub fn volumes(request: &Request, shared_memory: bool) -> (Vec<Value>, Vec<Value>) {
    let given = request.volumes.iter().map(|volume| (volume.source(), volume.mount()));
    self::shared_memory(request, shared_memory)
        .into_iter()
        .chain(given)
        .unzip()
}

fn shared_memory(request: &Request, by_default: bool) -> Option<(Value, Value)> {
    let size = request.pods.shm_size.as_deref().map(quantity::canonical);
    (by_default || size.is_some()).then(|| {
        let medium = fields().with("medium", "Memory").with("sizeLimit", json!(size));
        (
            fields().with("name", "shm").with("emptyDir", medium).into(),
            json!({"name": "shm", "mountPath": "/dev/shm"}),
        )
    })
}

/// Variables that make an engine use the request's caches, except those that the user sets in `spec.env`.
///
/// # Errors
///
/// The engine has no variable for the purpose of a volume.
pub fn cache_variables(request: &Request) -> Result<Vec<EnvVar>, Refusal> {
    let engine = engine::find(&request.engine);
    let mut variables = Vec::new();
    for volume in &request.volumes {
        let name = match volume.purpose {
            VolumePurpose::Custom => continue,
            VolumePurpose::ModelCache => engine.map(|engine| engine.cache_variable),
            VolumePurpose::CompilationCache => engine.and_then(|engine| engine.compilation_cache_variable),
        };
        let Some(name) = name else {
            return refuse(format!(
                "{}: {} is not supported for {}: use purpose custom with a mountPath, and set the engine's own variable in spec.env",
                volume.field("purpose"),
                volume.purpose.as_str(),
                request.engine
            ));
        };
        if !request.env.iter().any(|given| given.name == name) {
            variables.push(EnvVar {
                name: name.to_owned(),
                value: Some(volume.path.clone()),
                value_from: None,
            });
        }
    }
    Ok(variables)
}

/// The user's labels of pods, without those by which the pods are found, and a message about these. `set` names the controllers that
/// set them, as `the provider and KAITO set`.
pub fn labels(
    request: &Request,
    is_reserved: impl Fn(&str) -> bool,
    set: &str,
) -> (BTreeMap<String, String>, Option<String>) {
    let given = request.pod_labels.clone();
    let (reserved, free): (BTreeMap<_, _>, BTreeMap<_, _>) = given.into_iter().partition(|(key, _)| is_reserved(key));
    let keys: Vec<String> = reserved.into_keys().collect();
    let ignored = (!keys.is_empty()).then(|| {
        format!(
            "podTemplate.metadata.labels ({}) are ignored: the pods are found by these labels, which {set}",
            keys.join(", ")
        )
    });
    (free, ignored)
}

/// Fields of the request, besides metadata, that only a provider which writes the pods itself can pass on; empty if none is set.
pub fn fields_of_pods(request: &Request) -> Vec<&'static str> {
    let pods = &request.pods;
    [
        ("spec.imagePullSecrets", !request.image_pull_secrets.is_empty()),
        ("spec.serviceAccountName", request.service_account.is_some()),
        ("spec.model.storage", !request.volumes.is_empty()),
        ("podTemplate.spec.affinity", pods.affinity.is_some()),
        (
            "podTemplate.spec.topologySpreadConstraints",
            !pods.topology_spread_constraints.is_empty(),
        ),
        ("podTemplate.spec.priorityClassName", pods.priority_class_name.is_some()),
        ("podTemplate.spec.runtimeClassName", pods.runtime_class_name.is_some()),
        ("podTemplate.spec.schedulerName", pods.scheduler_name.is_some()),
        ("podTemplate.spec.securityContext", pods.security_context.is_some()),
        ("podTemplate.spec.shmSize", pods.shm_size.is_some()),
    ]
    .into_iter()
    .filter(|(_, is_set)| *is_set)
    .map(|(field, _)| field)
    .collect()
}
