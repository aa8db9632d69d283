//! The table of targets: the workload behind each kind, the possible strategies, and the URL of the model. Pure.
//!
//! | target | pods | added containers | Auto |
//! |---|---|---|---|
//! | Deployment, StatefulSet | its own | stay | TemplatePatch |
//! | the same, with a controller owner | its own | may be removed by the owner | as for the owner if this table has it, else Proxy |
//! | KAITO Workspace | StatefulSet of its name | stay until an upgrade | TemplatePatch; Proxy with scaling, because its replicas are ranks |
//! | KAITO InferenceSet | several Workspaces | | Proxy, `targetURL` required |
//! | KServe InferenceService, Standard | Deployment NAME-predictor | are removed by KServe | ParentSpec; Proxy with scaling, unless its autoscaler is external |
//! | the same, with a transformer or on several nodes | | | Proxy to its address |
//! | KServe InferenceService, Knative | Knative's | are removed by Knative | Proxy |
//! | KServe LLMInferenceService, RayService, RayCluster, SeldonDeployment | | are removed, or pods are immutable | Proxy |
//! | Seldon 2 Server, BentoDeployment | StatefulSet, Deployment | stay until the object changes | TemplatePatch |
//! | ModelDeployment | its provider's | | Proxy to its endpoint |
//! | any other kind | unknown | unknown | refused: Proxy and `targetURL` must be set |
//!
//! Pods that use the network of their node, and a StatefulSet that never replaces its pods, are not changed: Auto is Proxy.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::ActorReason;
use runway_api::async_actor::{AskedStrategy, Strategy, WorkloadRef};
use runway_operator::address::{check_url, is_loopback};
use runway_operator::object::Kind;
use serde_json::Value;

use crate::object::{Found, Key, Objects};
use crate::ports;
use crate::request::Bound;

/// Deployment.
pub const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments");
/// StatefulSet.
pub const STATEFUL_SET: Kind = Kind::new("apps", "v1", "StatefulSet", "statefulsets");
/// KAITO: one model on a set of nodes.
pub const WORKSPACE: Kind = Kind::new("kaito.sh", "v1beta1", "Workspace", "workspaces");
/// KAITO: several Workspaces of one model.
pub const INFERENCE_SET: Kind = Kind::new("kaito.sh", "v1beta1", "InferenceSet", "inferencesets");
/// KServe.
pub const INFERENCE_SERVICE: Kind = Kind::new("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices");
/// KServe for language models.
pub const LLM_INFERENCE_SERVICE: Kind = Kind::new(
    "serving.kserve.io",
    "v1alpha2",
    "LLMInferenceService",
    "llminferenceservices",
);
/// KubeRay: a Ray cluster with Ray Serve.
pub const RAY_SERVICE: Kind = Kind::new("ray.io", "v1", "RayService", "rayservices");
/// KubeRay: a Ray cluster.
pub const RAY_CLUSTER: Kind = Kind::new("ray.io", "v1", "RayCluster", "rayclusters");
/// Seldon Core 1.
pub const SELDON_DEPLOYMENT: Kind = Kind::new(
    "machinelearning.seldon.io",
    "v1",
    "SeldonDeployment",
    "seldondeployments",
);
/// Seldon Core 2.
pub const SELDON_SERVER: Kind = Kind::new("mlops.seldon.io", "v1alpha1", "Server", "servers");
/// BentoML's Yatai.
pub const BENTO_DEPLOYMENT: Kind = Kind::new("serving.yatai.ai", "v2alpha1", "BentoDeployment", "bentodeployments");
/// ModelDeployment of this project.
pub const MODEL_DEPLOYMENT: Kind = Kind::new("kubeairunway.ai", "v1alpha1", "ModelDeployment", "modeldeployments");

/// Row of the table: everything that depends on the kind of a target.
struct Row {
    kind: Kind,
    /// Deployment or StatefulSet whose pods serve the model: its kind, and the suffix of its name.
    workload: Option<(Kind, &'static str)>,
    /// Whether the workload exists for this object and answers its callers, or the reason against it.
    has_workload: fn(&DynamicObject) -> Result<(), &'static str>,
    /// Strategy for `Auto`, if nothing speaks against it.
    auto: Strategy,
    /// Whether KEDA may scale the workload (the key) with a strategy in place, or the reason against it.
    scale: fn(&DynamicObject, &Key) -> Result<(), String>,
    /// Whether KEDA can scale the target itself, beside a proxy.
    scales: bool,
    /// Port of the model in its pods; by default the first container port.
    port: Option<i64>,
    address: Address,
}

/// Source of the address at which a target answers other pods.
enum Address {
    /// The user sets runtime.targetURL.
    Given,
    /// A Service: its name, and its port.
    Service(fn(&DynamicObject) -> (String, i64)),
    /// The status, once the target's controller writes it. Arguments are the object and its namespace.
    Status(fn(&DynamicObject, &str) -> Option<String>),
}

impl Row {
    const fn of(kind: Kind) -> Self {
        Self {
            kind,
            workload: None,
            has_workload: |_| Ok(()),
            auto: Strategy::Proxy,
            scale: |_, _| Ok(()),
            scales: false,
            port: None,
            address: Address::Given,
        }
    }
}

const TABLE: [Row; 12] = [
    Row {
        workload: Some((DEPLOYMENT, "")),
        auto: Strategy::TemplatePatch,
        scales: true,
        ..Row::of(DEPLOYMENT)
    },
    Row {
        workload: Some((STATEFUL_SET, "")),
        auto: Strategy::TemplatePatch,
        scales: true,
        ..Row::of(STATEFUL_SET)
    },
    Row {
        workload: Some((STATEFUL_SET, "")),
        auto: Strategy::TemplatePatch,
        scale: |_, _| {
            Err("replicas of a KAITO Workspace are ranks of one model: set binding.strategy to Proxy, or bind to an InferenceSet".to_owned())
        },
        port: Some(5000),
        address: Address::Service(|workspace| (workspace.name_any(), 80)),
        ..Row::of(WORKSPACE)
    },
    Row {
        scales: true,
        ..Row::of(INFERENCE_SET)
    },
    Row {
        workload: Some((DEPLOYMENT, "-predictor")),
        has_workload: kserve_has_workload,
        auto: Strategy::ParentSpec,
        scale: kserve_scale,
        address: Address::Status(kserve_address),
        ..Row::of(INFERENCE_SERVICE)
    },
    Row {
        address: Address::Status(kserve_llm_address),
        ..Row::of(LLM_INFERENCE_SERVICE)
    },
    Row {
        address: Address::Service(ray_serve_service),
        ..Row::of(RAY_SERVICE)
    },
    Row {
        address: Address::Service(ray_head_service),
        ..Row::of(RAY_CLUSTER)
    },
    Row {
        address: Address::Status(status_address),
        ..Row::of(SELDON_DEPLOYMENT)
    },
    Row {
        workload: Some((STATEFUL_SET, "")),
        auto: Strategy::TemplatePatch,
        ..Row::of(SELDON_SERVER)
    },
    Row {
        workload: Some((DEPLOYMENT, "")),
        auto: Strategy::TemplatePatch,
        ..Row::of(BENTO_DEPLOYMENT)
    },
    Row {
        scales: true,
        address: Address::Status(endpoint),
        ..Row::of(MODEL_DEPLOYMENT)
    },
];

/// Kinds of the table.
pub const KNOWN: [Kind; TABLE.len()] = {
    let mut kinds = [DEPLOYMENT; TABLE.len()];
    let mut row = 0;
    while row < TABLE.len() {
        kinds[row] = TABLE[row].kind;
        row += 1;
    }
    kinds
};

/// A target that can be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Object that serves the model.
    pub target: Target,
    /// URL of the model, as the handler calls it.
    pub url: String,
    /// Strategy, with the objects that it affects.
    pub way: Way,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(key) => write!(f, "{key}"),
            Self::Unknown(WorkloadRef { kind, name, .. }) => write!(f, "{kind} '{name}'"),
        }
    }
}

/// Object that serves the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The workload, or the object that workloadRef names if its workload is unknown.
    Known(Key),
    /// An object of a kind that is not in the table. It is called and never read.
    Unknown(WorkloadRef),
}

/// Strategy, with the objects that it affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// With containers in the target's pods.
    InPlace(InPlace),
    /// With a Deployment that calls the target.
    Proxy {
        /// Object that KEDA can scale along with the proxy.
        scale_target: Option<Key>,
    },
}

impl Way {
    /// Strategy, as the status shows it.
    pub fn strategy(&self) -> Strategy {
        match self {
            Self::InPlace(place) => place.strategy,
            Self::Proxy { .. } => Strategy::Proxy,
        }
    }
}

/// Containers in the target's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// TemplatePatch or ParentSpec.
    pub strategy: Strategy,
    /// Workload whose pods get the containers.
    pub workload: Key,
    /// Object whose spec gets the containers: the workload, or its parent.
    pub holder: Key,
    /// Workload that KEDA scales, or the reason why KEDA must not scale it.
    pub scale: Result<Key, String>,
}

/// Reason why a target cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Reason of the condition.
    pub reason: ActorReason,
    /// Message of the condition.
    pub message: String,
    /// Whether this can change without a change of the actor.
    pub may_come: bool,
}

fn row(api_version: &str, kind: &str) -> Option<&'static Row> {
    const ROWS: &[Row] = &TABLE;
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    ROWS.iter().find(|row| row.kind.group == group && row.kind.kind == kind)
}

/// The kind of the table with this name, in any version of its group.
pub fn known(api_version: &str, kind: &str) -> Option<Kind> {
    row(api_version, kind).map(|row| row.kind)
}

/// The object that a reference names, if its kind is in the table.
pub fn source(reference: &WorkloadRef) -> Option<Key> {
    known(&reference.api_version, &reference.kind).map(|kind| Key::new(kind, &reference.name))
}

/// The objects to read for a reference: the named one and, once that is found, its workload.
pub fn needs(reference: &WorkloadRef, found: &Objects) -> Vec<Key> {
    let Some(row) = row(&reference.api_version, &reference.kind) else {
        return Vec::new();
    };
    let key = Key::new(row.kind, &reference.name);
    let object = found.get(&key).and_then(Found::object);
    let workload = object.and_then(|object| row.workload_of(object));
    [Some(key), workload].into_iter().flatten().collect()
}

/// Every object that a reference can resolve to. Two actors with a common claim cannot both be bound in place.
pub fn claims(reference: &WorkloadRef) -> Vec<Key> {
    let Some(row) = row(&reference.api_version, &reference.kind) else {
        return Vec::new();
    };
    let own = Key::new(row.kind, &reference.name);
    [Some(own), row.workload_named(&reference.name)]
        .into_iter()
        .flatten()
        .collect()
}

impl Row {
    fn workload_named(&self, name: &str) -> Option<Key> {
        self.workload
            .map(|(kind, suffix)| Key::new(kind, format!("{name}{suffix}")))
    }

    fn workload_of(&self, object: &DynamicObject) -> Option<Key> {
        self.workload_named(&object.name_any())
            .filter(|_| (self.has_workload)(object).is_ok())
    }
}

/// Resolves the target of a binding. `scaling` is whether the actor asks for scaling.
///
/// # Errors
/// If the target does not exist (yet), or cannot be bound as the actor asks for.
pub fn resolve(bound: &Bound, namespace: &str, scaling: bool, found: &Objects) -> Result<Resolved, Unresolved> {
    let reference = &bound.reference;
    let Some(row) = row(&reference.api_version, &reference.kind) else {
        return resolve_unknown(bound);
    };
    let source = Source::find(row, &reference.name, namespace, found)?;
    let target = source.workload.clone().unwrap_or_else(|| source.key.clone());
    let scale = source.scale(&target).map(|()| target.clone());
    let strategy = source.choose(bound.strategy, scaling && scale.is_err(), found)?;
    let workload = match strategy {
        // A proxy takes messages as soon as it runs, so it waits for the workload too.
        Strategy::TemplatePatch | Strategy::Proxy => source.workload(&target, found)?,
        Strategy::ParentSpec => None,
    };
    let url = match &bound.runtime.target_url {
        Some(given) if strategy == Strategy::Proxy && is_loopback(given) => {
            let own = source.url(namespace, strategy, workload);
            let own = own.map_err(|why| {
                if why.may_come {
                    why
                } else {
                    never(
                        ActorReason::TargetURLRequired,
                        loopback_text(given, &source.key.to_string()),
                    )
                }
            })?;
            with_path_of(own, given)
        }
        Some(given) => given.clone(),
        None => source.url(namespace, strategy, workload)?,
    };
    let in_place = |holder: &Key| {
        Way::InPlace(InPlace {
            strategy,
            workload: target.clone(),
            holder: holder.clone(),
            scale,
        })
    };
    let way = match strategy {
        Strategy::TemplatePatch => in_place(&target),
        Strategy::ParentSpec => in_place(&source.key),
        Strategy::Proxy => Way::Proxy {
            scale_target: row.scales.then_some(source.key),
        },
    };
    Ok(Resolved {
        target: Target::Known(target),
        url,
        way,
    })
}

/// Resolves a target of a kind that is not in the table: only with an explicit proxy and URL, since the operator reads no object of
/// such a kind.
fn resolve_unknown(bound: &Bound) -> Result<Resolved, Unresolved> {
    let reference = &bound.reference;
    let what = format!("{} of {}", reference.kind, reference.api_version);
    if bound.strategy != AskedStrategy::Proxy {
        return Err(never(
            ActorReason::TargetNotSupported,
            format!(
                "workloadRef.kind: the operator cannot bind to a {what}, because the kind is not in the table of targets: correct apiVersion and kind, or set binding.strategy to Proxy and runtime.targetURL"
            ),
        ));
    }
    let Some(url) = &bound.runtime.target_url else {
        return Err(never(
            ActorReason::TargetURLRequired,
            format!(
                "runtime.targetURL is required: the URL of a {what} is not known, because the kind is not in the table of targets; set it to its Service"
            ),
        ));
    };
    if is_loopback(url) {
        return Err(never(
            ActorReason::TargetURLRequired,
            loopback_text(url, &format!("{} '{}'", reference.kind, reference.name)),
        ));
    }
    Ok(Resolved {
        target: Target::Unknown(reference.clone()),
        url: url.clone(),
        way: Way::Proxy { scale_target: None },
    })
}

fn loopback_text(url: &str, target: &str) -> String {
    format!("runtime.targetURL {url} leads to the pod of the proxy itself: set it to the Service of {target}")
}

/// A URL with the path of another one, unless it has its own.
fn with_path_of(url: String, given: &str) -> String {
    let path = |url: &str| {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        rest.find(['/', '?']).map(|at| rest[at..].to_owned())
    };
    match path(given) {
        Some(of_given) if path(&url).is_none() => url + &of_given,
        _ => url,
    }
}

/// The object that workloadRef names.
struct Source<'a> {
    row: &'static Row,
    key: Key,
    object: &'a DynamicObject,
    /// Workload whose pods serve the model, which need not exist yet.
    workload: Option<Key>,
}

impl<'a> Source<'a> {
    fn find(row: &'static Row, name: &str, namespace: &str, found: &'a Objects) -> Result<Self, Unresolved> {
        let kind = row.kind;
        let key = Key::new(kind, name);
        match found.get(&key) {
            Some(Found::Here { object, .. }) if object.metadata.deletion_timestamp.is_some() => {
                Err(coming(ActorReason::TargetNotFound, format!("{key} is being deleted")))
            }
            Some(Found::Here { object, .. }) => Ok(Self {
                row,
                object,
                workload: row.workload_of(object),
                key,
            }),
            Some(Found::NotInstalled) => Err(coming(
                ActorReason::TargetKindNotInstalled,
                format!("{key} cannot exist yet: the CRD {} is not installed", kind.crd_name()),
            )),
            _ => Err(coming(
                ActorReason::TargetNotFound,
                format!("{key} does not exist in namespace '{namespace}'; the actor is bound as soon as it does"),
            )),
        }
    }

    fn choose(&self, asked: AskedStrategy, scaling_needs_proxy: bool, found: &Objects) -> Result<Strategy, Unresolved> {
        let refuse = |strategy: Strategy, why: &str| {
            Err(never(
                ActorReason::StrategyNotPossible,
                format!(
                    "binding.strategy: {} is not possible for {}: {why}; use Auto or Proxy",
                    strategy.as_str(),
                    self.key
                ),
            ))
        };
        let against = self.against_in_place(found);
        match (asked, against) {
            (AskedStrategy::TemplatePatch, Some(why)) => refuse(Strategy::TemplatePatch, why),
            (AskedStrategy::TemplatePatch, None) => Ok(Strategy::TemplatePatch),
            (AskedStrategy::ParentSpec, None) if self.row.auto == Strategy::ParentSpec => Ok(Strategy::ParentSpec),
            (AskedStrategy::ParentSpec, Some(why)) if self.row.auto == Strategy::ParentSpec => {
                refuse(Strategy::ParentSpec, why)
            }
            (AskedStrategy::ParentSpec, _) => refuse(
                Strategy::ParentSpec,
                "only a KServe InferenceService in Standard mode accepts additional containers",
            ),
            (AskedStrategy::Auto, None) if !scaling_needs_proxy && !self.is_reverted() && !self.never_rolls() => {
                Ok(self.row.auto)
            }
            (AskedStrategy::Auto | AskedStrategy::Proxy, _) => Ok(Strategy::Proxy),
        }
    }

    /// Reason why no containers can be added to the pods.
    fn against_in_place(&self, found: &Objects) -> Option<&'static str> {
        let Some(workload) = &self.workload else {
            let why = self
                .row
                .workload
                .and_then(|_| (self.row.has_workload)(self.object).err());
            return Some(why.unwrap_or("its pods are not created by a Deployment or StatefulSet that can be changed"));
        };
        let template = found.get(workload).and_then(Found::object).map(pod_spec);
        let declared = &self.object.data["spec"]["predictor"];
        let on_the_host = |pod: &Value| pod["hostNetwork"] == true;
        // Their abstract socket would be that of all pods of the node.
        (template.is_some_and(on_the_host) || on_the_host(declared)).then_some("its pods use the network of their node")
    }

    /// Whether the workload replaces its pods only if they are deleted, so that they would never get the containers.
    fn never_rolls(&self) -> bool {
        self.object
            .data
            .pointer("/spec/updateStrategy/type")
            .is_some_and(|type_| type_ == "OnDelete")
    }

    /// Whether the named object is itself a workload, and its owner may revert changes. Only owners of the table are known not to.
    fn is_reverted(&self) -> bool {
        let reverts = |owner: &OwnerReference| {
            row(&owner.api_version, &owner.kind).is_none_or(|row| row.auto != Strategy::TemplatePatch)
        };
        self.workload.as_ref() == Some(&self.key) && self.owner().is_some_and(reverts)
    }

    fn owner(&self) -> Option<&OwnerReference> {
        let mut owners = self.object.owner_references().iter();
        owners.find(|owner| owner.controller == Some(true))
    }

    /// Whether KEDA may scale the workload with a strategy in place. The owner of a workload that is named directly counts as well.
    fn scale(&self, target: &Key) -> Result<(), String> {
        let owner = self.owner().and_then(|owner| row(&owner.api_version, &owner.kind));
        owner.map_or(Ok(()), |row| (row.scale)(self.object, target))?;
        (self.row.scale)(self.object, target)
    }

    /// The live workload, which must exist and belong to the named object.
    fn workload(&self, key: &Key, found: &'a Objects) -> Result<Option<&'a DynamicObject>, Unresolved> {
        let workload = found.get(key).and_then(Found::object);
        if *key == self.key {
            return Ok(workload);
        }
        let Some(object) = workload else {
            return Err(coming(
                ActorReason::TargetNotFound,
                format!("{} has not created its {key} yet", self.key),
            ));
        };
        let uid = self.object.metadata.uid.as_ref();
        if uid.is_none_or(|uid| object.owner_references().iter().any(|o| o.uid == *uid)) {
            return Ok(workload);
        }
        Err(coming(
            ActorReason::TargetNotFound,
            format!("{key} exists and does not belong to {}", self.key),
        ))
    }

    fn url(&self, namespace: &str, strategy: Strategy, workload: Option<&DynamicObject>) -> Result<String, Unresolved> {
        let loopback = |port: i64| format!("http://127.0.0.1:{port}");
        let what = &self.key;
        let chosen = |pod: &Value| {
            ports::choose(pod).map_err(|why| never(ActorReason::TargetURLRequired, format!("runtime.targetURL is required: {what} {why}; set it to http://127.0.0.1:PORT, or to its Service with binding.strategy Proxy")))
        };
        let url = match strategy {
            // In the same pod: a Service would lead to another replica.
            Strategy::TemplatePatch => match (self.row.port, workload) {
                (Some(port), _) => Some(port),
                (None, Some(workload)) => chosen(pod_spec(workload))?,
                (None, None) => None,
            }
            .map(loopback),
            Strategy::ParentSpec => {
                let port = chosen(&predictor_pod(self.object))?.unwrap_or(KSERVE_PORT);
                Some(loopback(port))
            }
            Strategy::Proxy => match self.row.address {
                Address::Given => None,
                Address::Service(of) => {
                    let (name, port) = of(self.object);
                    Some(format!("http://{name}.{namespace}.svc:{port}"))
                }
                Address::Status(read) => read(self.object, namespace),
            },
        };
        let Some(url) = url else {
            return Err(match self.row.address {
                Address::Status(_) => coming(
                    ActorReason::TargetURLUnknown,
                    format!("{what} does not report its URL yet: wait, or set runtime.targetURL"),
                ),
                Address::Given | Address::Service(..) => never(
                    ActorReason::TargetURLRequired,
                    format!(
                        "runtime.targetURL is required: {what} does not report the URL of its model (no container port, no Service of its own); set it to its Service, or http://127.0.0.1:PORT with TemplatePatch"
                    ),
                ),
            });
        };
        // Other controllers write the status: check the URL like one in the spec.
        match check_url(&url) {
            Ok(()) => Ok(url),
            Err(_) => Err(never(
                ActorReason::TargetURLRequired,
                format!("{what} reports the URL {url}, which is not allowed: set runtime.targetURL"),
            )),
        }
    }
}

/// Whether KServe runs the service as a Deployment. The status counts before the annotation; without either it is Standard,
/// KServe's default.
fn kserve_is_standard(service: &DynamicObject) -> bool {
    let observed = service.data["status"]["deploymentMode"].as_str();
    let desired = service
        .annotations()
        .get("serving.kserve.io/deploymentMode")
        .map(String::as_str);
    matches!(observed.or(desired), None | Some("Standard" | "RawDeployment"))
}

fn kserve_scale(service: &DynamicObject, workload: &Key) -> Result<(), String> {
    let class = service.annotations().get("serving.kserve.io/autoscalerClass");
    // With `none`, KServe writes the replicas of its own spec back.
    if class.is_some_and(|class| class == "external") {
        return Ok(());
    }
    Err(format!(
        "KServe scales {workload} itself: set the annotation serving.kserve.io/autoscalerClass to external on the InferenceService, or binding.strategy to Proxy"
    ))
}

/// Whether the Deployment of the predictor answers the callers of the service.
fn kserve_has_workload(service: &DynamicObject) -> Result<(), &'static str> {
    let spec = &service.data["spec"];
    if !kserve_is_standard(service) {
        Err("Knative creates its pods")
    } else if !spec["transformer"].is_null() {
        Err("its callers get the answers of its transformer, not those of the pods of its predictor")
    } else if !spec["predictor"]["workerSpec"].is_null() {
        Err("one replica of it consists of several pods")
    } else {
        Ok(())
    }
}

fn kserve_address(service: &DynamicObject, namespace: &str) -> Option<String> {
    // What answers the callers: KServe writes the Service of the transformer here, if there is one.
    let component = if service.data["spec"]["transformer"].is_null() {
        "predictor"
    } else {
        "transformer"
    };
    let paths = [
        "/status/address/url",
        &format!("/status/components/{component}/address/url"),
        &format!("/status/components/{component}/url"),
    ];
    let default = || format!("http://{}-{component}.{namespace}.svc", service.name_any());
    first_url(service, &paths).or_else(|| kserve_is_standard(service).then(default))
}

/// An address in the cluster if it reports one, otherwise that of its router, which can be public, or that of the Service of its pods
/// if it has none. KServe reports the latter without the port
/// (`pkg/controller/v1alpha2/llmisvc/router.go`, updateRoutingStatus), which is the same for all of them (`workload.go`,
/// reconcileWorkloadService).
fn kserve_llm_address(service: &DynamicObject, _namespace: &str) -> Option<String> {
    let reported = service.data["status"]["addresses"].as_array().into_iter().flatten();
    let internal = reported
        .filter_map(|address| address["url"].as_str())
        .find(|url| is_in_cluster(url));
    let url = match internal {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => first_url(
            service,
            &["/status/address/url", "/status/url", "/status/addresses/0/url"],
        )?,
    };
    let authority = url.split_once("://").map_or(url.as_str(), |(_, authority)| authority);
    let host = authority.split('.').next().unwrap_or_default();
    if host.ends_with("-kserve-workload-svc") && !authority.contains([':', '/']) {
        return Some(format!("{url}:8000"));
    }
    Some(url)
}

fn status_address(object: &DynamicObject, _namespace: &str) -> Option<String> {
    first_url(object, &["/status/address/url", "/status/url"])
}

fn first_url(object: &DynamicObject, paths: &[&str]) -> Option<String> {
    let url = paths.iter().find_map(|path| object.data.pointer(path)?.as_str());
    url.map(|url| url.trim_end_matches('/').to_owned())
}

/// The Service in the status of a ModelDeployment.
fn endpoint(model: &DynamicObject, namespace: &str) -> Option<String> {
    let endpoint = &model.data["status"]["endpoint"];
    let (service, port) = (endpoint["service"].as_str()?, endpoint["port"].as_i64().unwrap_or(80));
    Some(format!("http://{service}.{namespace}.svc:{port}"))
}

fn pod_spec(workload: &DynamicObject) -> &Value {
    &workload.data["spec"]["template"]["spec"]
}

/// Port of KServe's own servers.
const KSERVE_PORT: i64 = 8080;

/// The pod of a predictor, as far as the user states it: its containers are that of the model and the user's.
fn predictor_pod(service: &DynamicObject) -> Value {
    let mut predictor = service.data["spec"]["predictor"].clone();
    let own = predictor["containers"].as_array().cloned().unwrap_or_default();
    let model = Some(predictor["model"].take()).filter(|model| !model.is_null());
    predictor["containers"] = model.into_iter().chain(own).collect();
    predictor
}

/// The pod spec of an object to which a strategy adds containers.
pub(crate) fn pod_of(holder: &DynamicObject, strategy: Strategy) -> Value {
    match strategy {
        Strategy::ParentSpec => predictor_pod(holder),
        Strategy::TemplatePatch | Strategy::Proxy => pod_spec(holder).clone(),
    }
}

/// Service of the applications (`ray-operator/controllers/ray/utils/util.go`, GenerateServeServiceName), whose name the user may set.
fn ray_serve_service(service: &DynamicObject) -> (String, i64) {
    let spec = &service.data["spec"];
    ray_service(service, &spec["serveService"], &spec["rayClusterConfig"], "serve-svc")
}

/// Service of the head (`ray-operator/controllers/ray/utils/util.go`, GenerateHeadServiceName), whose name the user may set.
fn ray_head_service(cluster: &DynamicObject) -> (String, i64) {
    let spec = &cluster.data["spec"];
    ray_service(cluster, &spec["headGroupSpec"]["headService"], spec, "head-svc")
}

/// The Service that the user describes, and the port that the head names for applications.
fn ray_service(object: &DynamicObject, described: &Value, cluster: &Value, suffix: &str) -> (String, i64) {
    let name = described["metadata"]["name"].as_str().filter(|name| !name.is_empty());
    let name = name.map_or_else(|| format!("{}-{suffix}", object.name_any()), str::to_owned);
    let head = &cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"];
    let port_of = |ports: &Value, field: &str| {
        let mut ports = ports.as_array().into_iter().flatten();
        ports.find(|port| port["name"] == "serve")?[field].as_i64()
    };
    let port = port_of(&described["spec"]["ports"], "port").or_else(|| port_of(head, "containerPort"));
    (name, port.unwrap_or(RAY_SERVE_PORT))
}

/// Port of Ray Serve.
const RAY_SERVE_PORT: i64 = 8000;

/// Whether the host of a URL is a Service.
fn is_in_cluster(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = authority.split([':', '/']).next().unwrap_or_default();
    format!("{host}.").contains(".svc.")
}

fn coming(reason: ActorReason, message: String) -> Unresolved {
    Unresolved {
        reason,
        message,
        may_come: true,
    }
}

fn never(reason: ActorReason, message: String) -> Unresolved {
    Unresolved {
        reason,
        message,
        may_come: false,
    }
}

/// Desired replicas of an object.
pub fn replicas_asked(object: &DynamicObject) -> Option<i64> {
    object.data.pointer("/spec/replicas").and_then(Value::as_i64)
}
