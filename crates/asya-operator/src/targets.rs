//! The table of targets: what each kind comes down to, how it can be bound, and where its model answers. Pure.
//!
//! | target | its pods | its controller | Auto |
//! |---|---|---|---|
//! | Deployment, StatefulSet | its own | keeps other containers | TemplatePatch |
//! | the same, owned by KServe, Seldon 1 or a ModelDeployment | its own | puts them back | Proxy |
//! | KAITO Workspace | StatefulSet of its name | keeps them until an upgrade | TemplatePatch; Proxy with scaling, whose replicas would be ranks |
//! | KAITO InferenceSet | several Workspaces | | Proxy, `targetURL` required |
//! | KServe InferenceService, Standard | Deployment NAME-predictor | puts them back | ParentSpec; Proxy with scaling, unless its own autoscaler is off |
//! | KServe InferenceService, Knative | Knative's | puts them back | Proxy |
//! | KServe LLMInferenceService, RayService, RayCluster, SeldonDeployment | | put them back, or pods are immutable | Proxy |
//! | Seldon 2 Server, BentoDeployment | StatefulSet, Deployment | keep them until they change | TemplatePatch |
//! | ModelDeployment | its provider's | | Proxy to its endpoint |
//! | anything else | unknown | unknown | Proxy, `targetURL` required |

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::async_actor::{AskedStrategy, Strategy, WorkloadRef};
use serde_json::Value;

use crate::observe::{Found, Key, Kind, Objects};
use crate::request::{Bound, check_url};

/// A Deployment.
pub const DEPLOYMENT: Kind = kind("apps", "Deployment", "deployments", "v1");
/// A StatefulSet.
pub const STATEFUL_SET: Kind = kind("apps", "StatefulSet", "statefulsets", "v1");
/// KAITO: one model on a set of nodes.
pub const WORKSPACE: Kind = kind("kaito.sh", "Workspace", "workspaces", "v1beta1");
/// KAITO: several Workspaces.
pub const INFERENCE_SET: Kind = kind("kaito.sh", "InferenceSet", "inferencesets", "v1beta1");
/// KServe.
pub const INFERENCE_SERVICE: Kind = kind("serving.kserve.io", "InferenceService", "inferenceservices", "v1beta1");
/// KServe for language models.
pub const LLM_INFERENCE_SERVICE: Kind = kind(
    "serving.kserve.io",
    "LLMInferenceService",
    "llminferenceservices",
    "v1alpha1",
);
/// KubeRay: a Ray cluster with Ray Serve.
pub const RAY_SERVICE: Kind = kind("ray.io", "RayService", "rayservices", "v1");
/// KubeRay: a Ray cluster.
pub const RAY_CLUSTER: Kind = kind("ray.io", "RayCluster", "rayclusters", "v1");
/// Seldon Core 1.
pub const SELDON_DEPLOYMENT: Kind = kind(
    "machinelearning.seldon.io",
    "SeldonDeployment",
    "seldondeployments",
    "v1",
);
/// Seldon Core 2.
pub const SELDON_SERVER: Kind = kind("mlops.seldon.io", "Server", "servers", "v1alpha1");
/// BentoML's Yatai.
pub const BENTO_DEPLOYMENT: Kind = kind("serving.yatai.ai", "BentoDeployment", "bentodeployments", "v2alpha1");
/// Ours.
pub const MODEL_DEPLOYMENT: Kind = kind("kubeairunway.ai", "ModelDeployment", "modeldeployments", "v1alpha1");

/// Every kind of the table.
pub const KNOWN: [Kind; 12] = [
    DEPLOYMENT,
    STATEFUL_SET,
    WORKSPACE,
    INFERENCE_SET,
    INFERENCE_SERVICE,
    LLM_INFERENCE_SERVICE,
    RAY_SERVICE,
    RAY_CLUSTER,
    SELDON_DEPLOYMENT,
    SELDON_SERVER,
    BENTO_DEPLOYMENT,
    MODEL_DEPLOYMENT,
];

const fn kind(group: &'static str, kind: &'static str, plural: &'static str, version: &'static str) -> Kind {
    Kind {
        group,
        kind,
        plural,
        version,
    }
}

/// Owners that put a Deployment or StatefulSet back as they want it, as soon as it differs.
const OWNERS_THAT_REVERT: [&str; 6] = [
    "InferenceService",
    "LLMInferenceService",
    "SeldonDeployment",
    "ModelDeployment",
    "Revision",
    "InferenceGraph",
];

/// A target that can be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// What workloadRef comes down to.
    pub target: Key,
    /// How it is bound.
    pub strategy: Strategy,
    /// The object that gets our containers, with a strategy in place.
    pub holder: Option<Key>,
    /// Where the model answers.
    pub url: String,
    /// What KEDA scales with a strategy in place, or why it must not.
    pub scale: Result<Key, String>,
    /// What KEDA can scale of the target beside a proxy.
    pub scale_too: Option<Key>,
}

/// Why a target cannot be bound, now or ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// A stable word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// It may come by itself.
    pub may_come: bool,
}

/// The kind that a reference names, if the table has it.
pub fn known(reference: &WorkloadRef) -> Option<Kind> {
    let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
    KNOWN.into_iter().find(|k| k.group == group && k.kind == reference.kind)
}

/// The objects a reference leads to: the one it names, and what that comes down to.
pub fn needs(reference: &WorkloadRef, found: &Objects) -> Vec<Key> {
    let Some(kind) = known(reference) else {
        return Vec::new();
    };
    let source = Key::new(kind, &reference.name);
    let workload = here(found, &source).and_then(|object| workload(kind, object));
    [Some(source), workload].into_iter().flatten().collect()
}

/// Every object that a reference may come down to: actors that share one cannot both be bound in place.
pub fn claims(reference: &WorkloadRef) -> Vec<Key> {
    let name = &reference.name;
    let own = known(reference).map(|kind| Key::new(kind, name));
    let workload = match known(reference) {
        Some(WORKSPACE | SELDON_SERVER) => Some(Key::new(STATEFUL_SET, name)),
        Some(BENTO_DEPLOYMENT) => Some(Key::new(DEPLOYMENT, name)),
        Some(INFERENCE_SERVICE) => Some(Key::new(DEPLOYMENT, format!("{name}-predictor"))),
        _ => None,
    };
    own.into_iter().chain(workload).collect()
}

/// The workload whose pods serve the model, where it is a Deployment or StatefulSet.
fn workload(kind: Kind, source: &DynamicObject) -> Option<Key> {
    let name = source.name_any();
    match kind {
        DEPLOYMENT | STATEFUL_SET => Some(Key::new(kind, name)),
        WORKSPACE | SELDON_SERVER => Some(Key::new(STATEFUL_SET, name)),
        BENTO_DEPLOYMENT => Some(Key::new(DEPLOYMENT, name)),
        INFERENCE_SERVICE if kserve_mode(source) == KServeMode::Standard => {
            Some(Key::new(DEPLOYMENT, format!("{name}-predictor")))
        }
        _ => None,
    }
}

/// What a binding comes down to.
pub fn resolve(bound: &Bound, namespace: &str, scaling: bool, found: &Objects) -> Result<Resolved, Unresolved> {
    let Some(kind) = known(&bound.reference) else {
        return resolve_unknown(bound);
    };
    let source_key = Key::new(kind, &bound.reference.name);
    let source = match found.get(&source_key) {
        Some(Found::Here { object, .. }) if object.metadata.deletion_timestamp.is_some() => {
            return Err(coming(
                "TargetNotFound",
                format!("{} is being deleted", source_key.told()),
            ));
        }
        Some(Found::Here { object, .. }) => object.as_ref(),
        Some(Found::NotInstalled) => {
            return Err(coming(
                "TargetKindNotInstalled",
                format!(
                    "{} cannot exist yet: the CRD {}.{} is not installed",
                    source_key.told(),
                    kind.plural,
                    kind.group
                ),
            ));
        }
        _ => {
            return Err(coming(
                "TargetNotFound",
                format!(
                    "{} does not exist in namespace '{namespace}'; the actor is bound as soon as it does",
                    source_key.told()
                ),
            ));
        }
    };
    let strategy = choose(kind, source, bound, scaling)?;
    let target = workload(kind, source).unwrap_or_else(|| source_key.clone());
    let holder = match strategy {
        Strategy::TemplatePatch => Some(target.clone()),
        Strategy::ParentSpec => Some(source_key.clone()),
        Strategy::Proxy => None,
    };
    if strategy == Strategy::TemplatePatch {
        owned_as_expected(kind, source, &target, found)?;
    }
    let url = url(kind, source, bound, namespace, strategy, &target, found)?;
    Ok(Resolved {
        scale: in_place_scale(kind, source, &target),
        scale_too: matches!(kind, DEPLOYMENT | STATEFUL_SET | INFERENCE_SET | MODEL_DEPLOYMENT).then_some(source_key),
        target,
        strategy,
        holder,
        url,
    })
}

/// A kind that the table does not have can be called, and nothing else.
fn resolve_unknown(bound: &Bound) -> Result<Resolved, Unresolved> {
    let reference = &bound.reference;
    let what = format!("{} of {}", reference.kind, reference.api_version);
    if matches!(bound.strategy, AskedStrategy::TemplatePatch | AskedStrategy::ParentSpec) {
        return Err(never(
            "TargetNotSupported",
            format!(
                "workloadRef.kind: how pods of a {what} are made is not known: set binding.strategy to Proxy and runtime.targetURL"
            ),
        ));
    }
    let Some(url) = &bound.runtime.target_url else {
        return Err(never(
            "TargetNotSupported",
            format!("workloadRef.kind: where a {what} answers is not known: set runtime.targetURL to its Service"),
        ));
    };
    // Only its name is told: nobody looks for the object.
    let named = Kind {
        group: "",
        kind: "",
        plural: "",
        version: "",
    };
    Ok(Resolved {
        target: Key::new(named, &reference.name),
        strategy: Strategy::Proxy,
        holder: None,
        url: url.clone(),
        scale: Err(String::new()),
        scale_too: None,
    })
}

fn choose(kind: Kind, source: &DynamicObject, bound: &Bound, scaling: bool) -> Result<Strategy, Unresolved> {
    let patchable = match kind {
        DEPLOYMENT | STATEFUL_SET | WORKSPACE | SELDON_SERVER | BENTO_DEPLOYMENT => true,
        INFERENCE_SERVICE => kserve_mode(source) == KServeMode::Standard,
        _ => false,
    };
    let has_parent_field = kind == INFERENCE_SERVICE && kserve_mode(source) == KServeMode::Standard;
    let refuse = |strategy: &str, why: &str| {
        Err(never(
            "StrategyNotPossible",
            format!(
                "binding.strategy: {strategy} is not possible for {} '{}': {why}; use Auto or Proxy",
                kind.kind,
                source.name_any()
            ),
        ))
    };
    match bound.strategy {
        AskedStrategy::Proxy => Ok(Strategy::Proxy),
        AskedStrategy::TemplatePatch if patchable => Ok(Strategy::TemplatePatch),
        AskedStrategy::TemplatePatch => refuse(
            "TemplatePatch",
            "its pods are not made by a Deployment or StatefulSet that can be changed",
        ),
        AskedStrategy::ParentSpec if has_parent_field => Ok(Strategy::ParentSpec),
        AskedStrategy::ParentSpec => refuse(
            "ParentSpec",
            "only a KServe InferenceService in Standard mode takes further containers",
        ),
        AskedStrategy::Auto => Ok(match kind {
            DEPLOYMENT | STATEFUL_SET if reverting_owner(source).is_some() => Strategy::Proxy,
            DEPLOYMENT | STATEFUL_SET | SELDON_SERVER | BENTO_DEPLOYMENT => Strategy::TemplatePatch,
            WORKSPACE if !scaling => Strategy::TemplatePatch,
            INFERENCE_SERVICE if has_parent_field && (!scaling || kserve_leaves_scaling(source)) => {
                Strategy::ParentSpec
            }
            _ => Strategy::Proxy,
        }),
    }
}

/// The owner of a workload that would put it back.
fn reverting_owner(workload: &DynamicObject) -> Option<&str> {
    let owner = workload
        .owner_references()
        .iter()
        .find(|o| o.controller == Some(true))?;
    OWNERS_THAT_REVERT
        .contains(&owner.kind.as_str())
        .then_some(owner.kind.as_str())
}

/// A workload of the right name is there, and its parent's.
fn owned_as_expected(kind: Kind, source: &DynamicObject, target: &Key, found: &Objects) -> Result<(), Unresolved> {
    if target.kind == kind {
        return Ok(());
    }
    let Some(workload) = here(found, target) else {
        return Err(coming(
            "TargetNotFound",
            format!(
                "{} '{}' has not made its {} yet",
                kind.kind,
                source.name_any(),
                target.told()
            ),
        ));
    };
    let is_its = workload
        .owner_references()
        .iter()
        .any(|o| Some(&o.uid) == source.metadata.uid.as_ref());
    if is_its || source.metadata.uid.is_none() {
        return Ok(());
    }
    Err(coming(
        "TargetNotFound",
        format!(
            "{} exists and does not belong to {} '{}'",
            target.told(),
            kind.kind,
            source.name_any()
        ),
    ))
}

fn in_place_scale(kind: Kind, source: &DynamicObject, target: &Key) -> Result<Key, String> {
    match kind {
        WORKSPACE => Err("replicas of a KAITO Workspace are ranks of one model: set binding.strategy to Proxy, or bind to an InferenceSet".to_owned()),
        INFERENCE_SERVICE if !kserve_leaves_scaling(source) => Err(format!(
            "KServe scales {} itself: set the annotation serving.kserve.io/autoscalerClass to external on the InferenceService, or binding.strategy to Proxy",
            target.told()
        )),
        _ => Ok(target.clone()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KServeMode {
    Standard,
    Other,
}

/// The status goes before the annotation; without either it is Standard, KServe's default.
fn kserve_mode(service: &DynamicObject) -> KServeMode {
    let told = service.data["status"]["deploymentMode"].as_str();
    let asked = service
        .annotations()
        .get("serving.kserve.io/deploymentMode")
        .map(String::as_str);
    match told.or(asked) {
        None | Some("Standard" | "RawDeployment") => KServeMode::Standard,
        Some(_) => KServeMode::Other,
    }
}

fn kserve_leaves_scaling(service: &DynamicObject) -> bool {
    let class = service.annotations().get("serving.kserve.io/autoscalerClass");
    class.is_some_and(|class| class == "external" || class == "none")
}

fn url(
    kind: Kind,
    source: &DynamicObject,
    bound: &Bound,
    namespace: &str,
    strategy: Strategy,
    target: &Key,
    found: &Objects,
) -> Result<String, Unresolved> {
    if let Some(given) = &bound.runtime.target_url {
        return Ok(given.clone());
    }
    let status = &source.data["status"];
    let name = source.name_any();
    let service = |service: &str, port: i64| Some(format!("http://{service}.{namespace}.svc:{port}"));
    let told = |paths: &[&str]| {
        let found = paths.iter().find_map(|path| status.pointer(path)?.as_str());
        found.map(|url| url.trim_end_matches('/').to_owned())
    };
    let found = match (strategy, kind) {
        // In the same pod: a Service would lead to another replica.
        (Strategy::TemplatePatch, WORKSPACE) => Some(loopback(5000)),
        (Strategy::ParentSpec, _) => Some(loopback(kserve_port(source))),
        (Strategy::TemplatePatch, _) => here(found, target).and_then(first_port).map(loopback),
        (Strategy::Proxy, WORKSPACE) => service(&name, 80),
        (Strategy::Proxy, RAY_SERVICE) => service(&format!("{name}-serve-svc"), 8000),
        (Strategy::Proxy, RAY_CLUSTER) => service(&format!("{name}-head-svc"), 8000),
        (Strategy::Proxy, INFERENCE_SERVICE) => told(&[
            "/address/url",
            "/components/predictor/address/url",
            "/components/predictor/url",
        ])
        .or_else(|| {
            (kserve_mode(source) == KServeMode::Standard).then(|| format!("http://{name}-predictor.{namespace}.svc"))
        }),
        (Strategy::Proxy, LLM_INFERENCE_SERVICE | SELDON_DEPLOYMENT) => told(&["/address/url", "/url"]),
        (Strategy::Proxy, MODEL_DEPLOYMENT) => {
            let endpoint = &status["endpoint"];
            endpoint["service"]
                .as_str()
                .and_then(|name| service(name, endpoint["port"].as_i64().unwrap_or(80)))
        }
        (Strategy::Proxy, _) => None,
    };
    let Some(url) = found else {
        let what = format!("{} '{name}'", kind.kind);
        let may_come = matches!(
            kind,
            INFERENCE_SERVICE | LLM_INFERENCE_SERVICE | SELDON_DEPLOYMENT | MODEL_DEPLOYMENT
        );
        let message = if may_come {
            format!("{what} does not say yet where it answers: wait, or set runtime.targetURL")
        } else {
            format!(
                "runtime.targetURL is required: {what} does not say where its model answers (no container port, no Service of its own); give its Service, or http://127.0.0.1:PORT with TemplatePatch"
            )
        };
        return Err(Unresolved {
            reason: if may_come {
                "TargetURLUnknown"
            } else {
                "TargetURLRequired"
            },
            message,
            may_come,
        });
    };
    // A status is somebody else's word.
    check_url(&url).map(|()| url.clone()).map_err(|_| {
        never(
            "TargetURLRequired",
            format!(
                "{} '{name}' says that it answers at {url}, which is not allowed: set runtime.targetURL",
                kind.kind
            ),
        )
    })
}

fn loopback(port: i64) -> String {
    format!("http://127.0.0.1:{port}")
}

fn first_port(workload: &DynamicObject) -> Option<i64> {
    let containers = workload.data.pointer("/spec/template/spec/containers")?.as_array()?;
    containers.iter().find_map(|c| c["ports"][0]["containerPort"].as_i64())
}

fn kserve_port(service: &DynamicObject) -> i64 {
    let predictor = &service.data["spec"]["predictor"];
    let model = predictor["model"]["ports"][0]["containerPort"].as_i64();
    let own = || predictor["containers"][0]["ports"][0]["containerPort"].as_i64();
    model.or_else(own).unwrap_or(8080)
}

fn here<'a>(found: &'a Objects, key: &Key) -> Option<&'a DynamicObject> {
    match found.get(key) {
        Some(Found::Here { object, .. }) => Some(object),
        _ => None,
    }
}

fn coming(reason: &'static str, message: String) -> Unresolved {
    Unresolved {
        reason,
        message,
        may_come: true,
    }
}

fn never(reason: &'static str, message: String) -> Unresolved {
    Unresolved {
        reason,
        message,
        may_come: false,
    }
}

/// A number of replicas that an object asks for.
pub fn replicas_asked(object: &DynamicObject) -> Option<i64> {
    object.data.pointer("/spec/replicas").and_then(Value::as_i64)
}
