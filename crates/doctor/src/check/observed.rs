//! Objects and facts read from a cluster. They can be written as documents and read back, to check a cluster elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment};
use runway_client::diagnostic::Diagnostic;
use runway_client::documents::{Document, Documents};
use runway_manifests::{self as manifests, NAMESPACE};
use runway_operator::clock;
use runway_operator::scope::Namespaces;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Skip;

/// API version of the document that holds [`Facts`].
const API_VERSION: &str = "check.kubeairunway.ai/v1";
/// Kind of that document.
const KIND: &str = "Observation";

/// Observations that are not objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Facts {
    /// Time of the observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Timestamp>,
    /// Address of the API server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The server's version, as v1.36.3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Error, if the API server does not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
    /// Error, if the API server rejects the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unauthorized: Option<String>,
    /// Namespace of the check; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The only namespace that was read, because the user may not list all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<String>,
    /// Kinds that could not be read, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unread: BTreeMap<String, Unread>,
    /// Permissions that the user does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub may_not: Vec<String>,
    /// Permissions that the user has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub may: Vec<String>,
    /// Response of admission to an invalid ModelDeployment.
    pub admission: Admission,
    /// The certificate authority that the core controller uses, from its Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
}

/// Reason why a kind could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unread {
    /// The server does not serve the kind.
    NotInstalled,
    /// The user may not.
    Forbidden(String),
    /// Any other error.
    Failed(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str("the cluster does not serve this kind"),
            Self::Forbidden(message) | Self::Failed(message) => f.write_str(message),
        }
    }
}

/// Response of admission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Admission {
    /// Not called, for a reason that another check reports.
    #[default]
    NotAsked,
    /// Admission rejected the invalid object.
    Answers,
    /// The invalid object was accepted: admission does not respond.
    Silent,
    /// Something else rejected the object, with this message.
    Refused(String),
}

macro_rules! observed {
    ($($(#[$doc:meta])* $field:ident: $type:ident;)*) => {
        /// Everything that was read.
        #[derive(Clone, Debug, Default)]
        pub struct Observed {
            /// Observations that are not objects.
            pub facts: Facts,
            $(pub(super) $field: Vec<$type>,)*
            /// Objects of other kinds, such as upstream objects and policies.
            pub(super) others: Vec<DynamicObject>,
        }

        impl Observed {
            $($(#[$doc])*
            ///
            /// # Errors
            /// The objects could not be read: a check that needs them is skipped.
            pub fn $field(&self) -> Result<&[$type], Skip> {
                self.readable(stringify!($type))?;
                Ok(&self.$field)
            })*

            /// Takes an object in.
            fn take_in_object(&mut self, document: &Document) -> Result<(), runway_client::documents::Error> {
                match document.kind() {
                    $(stringify!($type) => self.$field.push(document.parse()?),)*
                    _ => self.others.push(document.parse()?),
                }
                Ok(())
            }

            /// All objects as JSON.
            fn objects(&self) -> Vec<Value> {
                let mut all = Vec::new();
                $(all.extend(self.$field.iter().filter_map(|o| serde_json::to_value(o).ok()));)*
                all.extend(self.others.iter().filter_map(|o| serde_json::to_value(o).ok()));
                all
            }
        }
    };
}

observed! {
    /// CRDs: ours, and those upstream that are needed.
    crds: CustomResourceDefinition;
    /// Our namespace.
    namespaces: Namespace;
    /// Our mutating webhooks.
    mutating: MutatingWebhookConfiguration;
    /// Our validating webhooks.
    validating: ValidatingWebhookConfiguration;
    /// Services of our namespace.
    services: Service;
    /// EndpointSlices of our namespace.
    slices: EndpointSlice;
    /// Deployments of our namespace, and of the upstream operators.
    deployments: Deployment;
    /// Pods of our namespace, and those that serve.
    pods: Pod;
    /// The limits of the model router.
    configmaps: ConfigMap;
    /// Leases of our namespace.
    leases: Lease;
    /// Our ClusterRoles.
    cluster_roles: ClusterRole;
    /// Bindings of these roles.
    cluster_role_bindings: ClusterRoleBinding;
    /// Our Roles, in our namespace and in those of the installation.
    roles: Role;
    /// Bindings of these roles.
    role_bindings: RoleBinding;
    /// Nodes.
    nodes: Node;
    /// Events that say why no pod could be made.
    events: Event;
    /// Classes of storage.
    storage_classes: StorageClass;
    /// Registered providers.
    configs: InferenceProviderConfig;
    /// ModelDeployments.
    models: ModelDeployment;
    /// AsyncActors.
    actors: AsyncActor;
    /// LlamaStackDistributions.
    distributions: LlamaStackDistribution;
}

impl Observed {
    /// Reads documents; invalid documents become diagnostics.
    pub fn from_documents(documents: Documents) -> (Self, Vec<Diagnostic>) {
        let mut said: Vec<Diagnostic> = documents.errors.iter().map(Diagnostic::error).collect();
        let mut observed = Self::default();
        for document in documents.found {
            let taken = if document.kind() == KIND {
                let facts = document.value.get("facts").cloned().unwrap_or_default();
                serde_json::from_value(facts)
                    .map(|facts| observed.facts = facts)
                    .map_err(|e| format!("{}: {e}", document.origin))
            } else {
                observed
                    .take_in_object(&document)
                    .map_err(|e| runway_operator::telemetry::chain(&e))
            };
            if let Err(text) = taken {
                said.push(Diagnostic::about(
                    runway_client::diagnostic::Level::Error,
                    document.subject(),
                    text,
                ));
            }
        }
        (observed, said)
    }

    /// Documents, the facts first.
    pub fn documents(&self) -> Vec<Value> {
        let facts = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": "check" }, "facts": self.facts,
        });
        std::iter::once(facts).chain(self.objects()).collect()
    }

    /// Time of the observation; the current time if it is not recorded.
    pub fn now(&self) -> Timestamp {
        self.facts.now.unwrap_or_else(clock::now)
    }

    /// Namespaces that a component watches; all if it is not installed.
    pub fn watched_by(&self, component: &str) -> Namespaces {
        let is_it = |d: &&Deployment| d.name_any() == component && d.namespace().as_deref() == Some(NAMESPACE);
        let deployment = self.deployments.iter().find(is_it);
        deployment.map(manifests::watched_by).unwrap_or_default()
    }

    /// Objects of a kind that has no list of its own.
    ///
    /// # Errors
    /// The kind could not be read, or the API server does not respond.
    pub fn others<'a>(&'a self, kind: &'a str) -> Result<impl Iterator<Item = &'a DynamicObject>, Skip> {
        self.readable(kind)?;
        let is = move |o: &&DynamicObject| o.types.as_ref().is_some_and(|t| t.kind == kind);
        Ok(self.others.iter().filter(is))
    }

    /// Skips what cannot be judged because a kind was not read.
    ///
    /// # Errors
    /// The kind could not be read, or the API server does not respond.
    pub fn readable(&self, kind: &str) -> Result<(), Skip> {
        self.answers()?;
        match self.facts.unread.get(kind) {
            None => Ok(()),
            Some(Unread::NotInstalled) => Err(Skip(format!("the cluster does not serve {kind}"))),
            Some(Unread::Forbidden(_)) => Err(Skip(format!("not allowed to read {kind}"))),
            Some(Unread::Failed(why)) => Err(Skip(format!("cannot read {kind}: {why}"))),
        }
    }

    /// Skips all checks if the API server does not respond or rejects the credentials.
    ///
    /// # Errors
    /// The API server does not respond, or rejects the credentials.
    pub fn answers(&self) -> Result<(), Skip> {
        if self.facts.unreachable.is_some() {
            return Err(Skip("the API server does not respond".to_owned()));
        }
        if self.facts.unauthorized.is_some() {
            return Err(Skip("the API server rejects the credentials".to_owned()));
        }
        Ok(())
    }
}
