//! Interface of a provider: a name, a registration, the upstream schemas it knows, and two pure functions.
//!
//! The loop does the rest: watch, apply, delete, handover, drift, finalizer, staleness, dry run. `docs/reference/provider-contract.md`
//! lists the rules by number.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use runway_api::model_deployment::{Endpoint, Phase};
use runway_api::{InferenceProviderConfigSpec, ProviderReason};
pub use runway_operator::object::Kind;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use crate::model_pods::{Container, Controller};
use crate::request::Request;
use crate::settings::{CommonSettings, InvalidSettings};
use crate::upstream::{Installed, Upstream};

/// Version of the contract, as in `docs/reference/provider-contract.md`.
pub const VERSION: &str = "v1alpha1";

/// A provider: translates a ModelDeployment into upstream objects, and their status back. Both directions are pure.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use runway_api::{InferenceProviderConfigSpec, ModelDeployment, Phase};
/// use runway_provider::{
///     ChildRef, Installed, Kind, Object, Provider, Reading, Refusal, Request, Schema, Translation, Upstream, refuse,
/// };
/// use serde_json::{Value, json};
///
/// const SERVER: Kind = Kind::new("example.com", "v1", "ModelServer", "modelservers");
///
/// struct Example;
///
/// impl Provider for Example {
///     fn name(&self) -> &'static str {
///         "example"
///     }
///
///     fn version(&self) -> String {
///         "example-provider:v1.0.0".to_owned()
///     }
///
///     fn registration(&self) -> InferenceProviderConfigSpec {
///         InferenceProviderConfigSpec::default()
///     }
///
///     fn upstreams(&self) -> Vec<Upstream> {
///         const SCHEMA: Schema = Schema {
///             version: "v1",
///             fields: &[("spec.model", "string"), ("status.ready", "boolean")],
///         };
///         vec![Upstream {
///             kind: SERVER,
///             schemas: &[SCHEMA],
///         }]
///     }
///
///     fn children(&self, name: &str) -> Vec<ChildRef> {
///         vec![ChildRef {
///             kind: SERVER,
///             name: name.to_owned(),
///         }]
///     }
///
///     fn translate(&self, request: &Request, _: &Installed) -> Result<Translation, Refusal> {
///         let Some(model) = &request.model_id else {
///             return refuse("spec.model.id is required: set it to the ID of a model on Hugging Face");
///         };
///         Ok(Translation {
///             objects: vec![Object {
///                 kind: SERVER,
///                 version: "v1".to_owned(),
///                 name: request.name.clone(),
///                 annotations: BTreeMap::new(),
///                 body: json!({"spec": {"model": model}}),
///                 immutable: BTreeMap::new(),
///                 not_rolled_out: BTreeMap::new(),
///                 reset: BTreeMap::new(),
///             }],
///             ignored: Vec::new(),
///             scaling_limit: None,
///             endpoint: None,
///             model_name: Some(model.clone()),
///             components: Vec::new(),
///             replicas: request.topology.replicas(),
///             pod_label: None,
///         })
///     }
///
///     fn read_status(&self, request: &Request, object: &Value) -> Reading {
///         if object["status"]["ready"] != true {
///             return Reading::silent();
///         }
///         Reading {
///             phase: Phase::Running,
///             reason: "Ready".to_owned(),
///             ready: request.topology.replicas(),
///             available: request.topology.replicas(),
///             ..Reading::silent()
///         }
///     }
/// }
///
/// let deployment: ModelDeployment = serde_json::from_value(json!({
///     "apiVersion": "kubeairunway.ai/v1alpha1",
///     "kind": "ModelDeployment",
///     "metadata": {"name": "gemma", "namespace": "default"},
///     "spec": {"model": {"id": "google/gemma-3-1b-it"}, "engine": {"type": "vllm"}},
/// }))?;
/// let request = Request::try_from(&deployment)?;
/// let installed = Installed::newest(&Example.upstreams());
/// let translation = Example.translate(&request, &installed)?;
/// assert_eq!(translation.objects[0].body["spec"]["model"], "google/gemma-3-1b-it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Provider: Send + Sync + 'static {
    /// Name of the provider and of its InferenceProviderConfig, such as `kaito`.
    fn name(&self) -> &'static str;

    /// Name in messages, such as `KAITO`. Defaults to [`name`](Self::name).
    fn title(&self) -> &'static str {
        self.name()
    }

    /// Name and version of the provider's controller, such as `kaito-provider:v0.1.0`.
    fn version(&self) -> String;

    /// Capabilities, rules and documented overrides.
    fn registration(&self) -> InferenceProviderConfigSpec;

    /// Settings of an installation that the provider reads, with the way to the provider that follows them. `None` by default:
    /// every setting is rejected. [`registration`](Self::registration), [`translate`](Self::translate) and
    /// [`read_status`](Self::read_status) may depend on them, the other methods may not.
    fn settings(&self) -> Option<Settings> {
        None
    }

    /// Upstream kinds that the provider creates, with the schemas that it knows. The first is the main kind: without it the
    /// provider is not ready. Auxiliary kinds, such as ConfigMap, are listed in [`children`](Self::children) only.
    fn upstreams(&self) -> Vec<Upstream>;

    /// Whether an object is recreated only after everything that the upstream created from it is deleted. Required if the upstream
    /// finds these objects by name, and would take those of the old object for those of the new one. Defaults to false: the pods
    /// of both may exist for a moment.
    fn recreates_after_dependents(&self) -> bool {
        false
    }

    /// Names of the upstream operator's Deployment, as its chart sets them. If one exists in any namespace and none has an
    /// available replica, the provider is not ready. Defaults to none: the operator is not observed.
    fn operator_deployments(&self) -> &'static [&'static str] {
        &[]
    }

    /// Values of the label `app.kubernetes.io/name` that the upstream operator's Deployment may have, as its charts set it.
    /// `kubeairunway check` looks for it. Defaults to none.
    fn operator_labels(&self) -> &'static [&'static str] {
        &[]
    }

    /// Every object that [`translate`](Self::translate) may create for a ModelDeployment of this name, for any spec.
    fn children(&self, name: &str) -> Vec<ChildRef>;

    /// Labels that select the model's pods; the value is the name of the ModelDeployment. The loop reads from these pods whether
    /// the model serves, and if not, why: a model without a ready pod is never Ready. Every pod has at least one of the labels.
    fn pod_labels(&self) -> Vec<&'static str> {
        vec![runway_api::labels::DEPLOYMENT]
    }

    /// Labels that distinguish the pods of a model's [`Component`]s and rollouts, such as that of a cluster. Defaults to none.
    fn component_labels(&self) -> &'static [&'static str] {
        &[]
    }

    /// Names of the containers that [`Component::container`] compares. Of others nothing is kept. Defaults to none.
    fn compared_containers(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether a pod with one of [`pod_labels`](Self::pod_labels) was created for the ModelDeployment of this name, by the object
    /// that controls the pod. By default that object has the name, or a name that begins with it and a hyphen.
    fn owns_pod(&self, deployment: &str, controller: Option<&Controller>) -> bool {
        // Names with a random end are shortened to fit.
        const KEPT: usize = 40;
        controller.is_some_and(|controller| {
            let rest = controller.name.strip_prefix(deployment);
            let is_short = deployment.len() <= KEPT;
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
                || !is_short && deployment.is_char_boundary(KEPT) && controller.name.starts_with(&deployment[..KEPT])
        })
    }

    /// The object to delete so that the upstream creates the pods of this controller anew, from the latest spec. Defaults to the
    /// controller itself.
    fn replaceable(&self, controller: &Controller) -> Controller {
        controller.clone()
    }

    /// Objects that the upstream creates for each replica of the main object, if their status explains what the model waits for.
    /// Defaults to none.
    fn replica_objects(&self) -> Option<ReplicaObjects> {
        None
    }

    /// Translates a request for the installed upstream schemas.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] for a request that the provider does not support. It names the field, the reason and the remedy.
    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal>;

    /// Reads the status of the main object of a [`Translation`], if it exists. An object that the provider does not understand
    /// is never an error: see [`Reading::silent`].
    fn read_status(&self, request: &Request, object: &Value) -> Reading;

    /// Reads the status of the main object together with its [`replica_objects`](Self::replica_objects). Defaults to that of the
    /// main object alone.
    fn read_replicas(&self, request: &Request, object: &Value, _replicas: &[Value]) -> Reading {
        self.read_status(request, object)
    }
}

/// The settings that a provider reads: their schema, and the way to a provider that follows them.
pub struct Settings {
    schema: Schema,
    configure: Configure,
}

type Configure = Box<dyn Fn(&Value) -> Result<Arc<dyn Provider>, InvalidSettings> + Send + Sync>;

impl Settings {
    /// Settings of the type `S`, from which `make` creates the provider. `S` needs `deny_unknown_fields` and a default for every
    /// field; its doc comments are the documentation for administrators.
    pub fn of<S, P>(make: fn(S) -> P) -> Self
    where
        S: DeserializeOwned + JsonSchema + 'static,
        P: Provider,
    {
        let mut schema = schemars::generate::SchemaSettings::openapi3()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator()
            .into_root_schema_for::<S>();
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.extend(CommonSettings::properties());
        }
        Self {
            schema,
            configure: Box::new(move |value| {
                let settings = serde_path_to_error::deserialize(value).map_err(InvalidSettings::from)?;
                Ok(Arc::new(make(settings)))
            }),
        }
    }

    /// The provider with these settings.
    ///
    /// # Errors
    /// The first setting that is unknown or has a wrong value.
    pub fn configure(&self, settings: &Value) -> Result<Arc<dyn Provider>, InvalidSettings> {
        (self.configure)(settings)
    }

    /// JSON schema of the settings, with descriptions; those that the loop reads for every provider included.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// `ConfigMap`, for upstreams that read settings from one.
pub const CONFIG_MAP: Kind = Kind::new("", "v1", "ConfigMap", "configmaps");

/// `PersistentVolumeClaim`, which the loop creates for volumes with a size.
pub const CLAIM: Kind = Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");

/// Reference to an object that may exist for a ModelDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildRef {
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object, in the namespace of the ModelDeployment.
    pub name: String,
}

/// Kind of the objects that an upstream creates for each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaObjects {
    /// Kind of the objects, one of [`Provider::upstreams`].
    pub kind: Kind,
    /// Label whose value is the name of the ModelDeployment.
    pub label: &'static str,
}

/// Upstream objects for a ModelDeployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// Objects in apply order. The last one is the main object, whose status is read.
    pub objects: Vec<Object>,
    /// Fields of the spec without effect, each with the reason in one sentence. They are reported in the condition
    /// `FieldsIgnored`.
    pub ignored: Vec<String>,
    /// Reason why a change of the number of replicas would be refused or interrupt the model, with the remedy. It is reported in
    /// the condition `ScalingLimited`, before the model is scaled.
    pub scaling_limit: Option<String>,
    /// Endpoint of the model.
    pub endpoint: Option<Endpoint>,
    /// Name of the model in `/v1/models` of the endpoint; `None` if the image decides it.
    pub model_name: Option<String>,
    /// The kinds of its pods. Empty if every pod is a replica behind the endpoint.
    pub components: Vec<Component>,
    /// Desired number of workers that serve the model.
    pub replicas: i32,
    /// The label of [`Provider::pod_labels`] that its pods have, for autoscalers; `None` if no label distinguishes them.
    pub pod_label: Option<&'static str>,
}

/// Pods of a model with the same template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Component {
    /// Name in messages; empty if the model has no other component.
    pub name: String,
    /// Labels of its pods, some of [`Provider::component_labels`].
    pub labels: Vec<(&'static str, String)>,
    /// Number of its pods: with fewer ready ones, the component is not rolled out.
    pub pods: i32,
    /// Number of the model's replicas that these pods are; 0 for others, such as frontends.
    pub replicas: i32,
    /// Whether requests to the endpoint reach these pods.
    pub serves: bool,
    /// Whether a pod is ready only when the model is loaded. If not, `status.replicas` counts no more replicas than the upstream
    /// reports.
    pub ready_when_loaded: bool,
    /// Desired container of these pods, for comparison; `None` if the upstream replaces pods that run anything else.
    pub container: Option<Container>,
}

/// An upstream object. The loop adds labels, annotations and the owner reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Kind of the object.
    pub kind: Kind,
    /// API version within the group, such as `v1beta1`.
    pub version: String,
    /// Name of the object, in the namespace of the ModelDeployment.
    pub name: String,
    /// Additional annotations.
    pub annotations: BTreeMap<String, String>,
    /// The object without `apiVersion`, `kind` and `metadata`.
    pub body: Value,
    /// Values that the upstream does not allow to change, by a name for the user. A difference recreates the object.
    pub immutable: BTreeMap<String, Value>,
    /// Values whose changes the upstream accepts but does not roll out, by a name for the user. A difference recreates the
    /// object, unless the object was created before the value was recorded on it.
    pub not_rolled_out: BTreeMap<String, Value>,
    /// Values to which fields outside of `body` are reset if another writer has set them, by JSON pointer. They are written only
    /// then: an upstream may drop a field with its default value.
    pub reset: BTreeMap<&'static str, Value>,
}

/// Reason why a provider does not support a ModelDeployment. It results in `ProviderCompatible=False` and phase Failed.
///
/// ```
/// use runway_provider::Refusal;
///
/// let refusal = Refusal::incompatible("spec.engine.type is sglang: set it to vllm, or use another provider");
/// assert_eq!(refusal.reason, "Incompatible");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Reason of the condition: CamelCase, stable.
    pub reason: &'static str,
    /// The field, the reason and the remedy.
    pub message: String,
}

impl Refusal {
    /// The provider does not support the request.
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self {
            reason: ProviderReason::Incompatible.into(),
            message: message.into(),
        }
    }
}

/// Refuses a request that the provider does not support.
///
/// # Errors
/// Always: [`Refusal::incompatible`] with the message.
pub fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::incompatible(message))
}

/// Status of an upstream object.
///
/// ```
/// use runway_api::Phase;
/// use runway_provider::Reading;
/// use serde_json::{Value, json};
///
/// fn read_status(object: &Value, desired: i32) -> Reading {
///     let Some(ready) = object["status"]["readyReplicas"].as_i64() else {
///         return Reading::silent();
///     };
///     let ready = i32::try_from(ready).unwrap_or(i32::MAX);
///     let (phase, reason) = if ready < desired {
///         (Phase::Deploying, "Deploying")
///     } else {
///         (Phase::Running, "Ready")
///     };
///     Reading {
///         phase,
///         reason: reason.to_owned(),
///         message: format!("{ready} of {desired} replicas ready"),
///         ready,
///         available: ready,
///         ..Reading::silent()
///     }
/// }
///
/// assert_eq!(read_status(&json!({}), 2), Reading::silent());
/// assert_eq!(read_status(&json!({"status": {"readyReplicas": 2}}), 2).phase, Phase::Running);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Phase of the model.
    pub phase: Phase,
    /// Reason of the condition Ready: CamelCase.
    pub reason: String,
    /// Message of the upstream; empty if it has none.
    pub message: String,
    /// Number of ready workers.
    pub ready: i32,
    /// Number of workers that have been ready for long enough; the same as `ready` if the upstream does not report it.
    pub available: i32,
    /// Time of the upstream's last change, if it reports one.
    pub last_change: Option<jiff::Timestamp>,
    /// Labels of the pods that the upstream sends requests to, some of [`Provider::component_labels`]. Other pods are left from
    /// earlier rollouts, or of one in progress. Empty if the upstream does not distinguish them.
    pub current: Vec<(&'static str, String)>,
    /// Time from which `phase: Running` and `phase: Failed` are about the latest spec. Until then an upstream may report the state
    /// before it, for the new generation.
    pub settled_at: Option<jiff::Timestamp>,
}

impl Reading {
    /// The upstream has not reported anything yet.
    pub fn silent() -> Self {
        Self {
            phase: Phase::Deploying,
            reason: "Deploying".to_owned(),
            message: String::new(),
            ready: 0,
            available: 0,
            last_change: None,
            current: Vec::new(),
            settled_at: None,
        }
    }
}
