//! The reader: version of the server, permissions of the user, existing objects, and changes of an apply.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, ValidationDirective};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use kube::discovery::{self, Scope};
use kube::{Api, Client, ResourceExt};
use runway_api::{Namespace, labels};

use super::args::Step;
use super::{Error, kinds};
use crate::terminal::Terminal;
use runway_client::access::{self, Right};
use runway_client::change::{Action, Change, place};
use runway_client::cluster::{self, Cluster, only};
use runway_client::components;
use runway_client::documents::typed;
use runway_manifests::roles::USERS;
use runway_manifests::{AGGREGATE, COMPONENT_LABEL, NAMESPACE, OLDEST_KUBERNETES, PERMISSION_POLICY, Release, policy};
use serde_json::json;

/// Field manager of objects from third-party manifests.
pub const MANAGER_OF_OTHERS: &str = "kubeairunway-file";

/// The cluster, and the version of its API server.
pub struct Survey<'a> {
    cluster: &'a Cluster,
    minor: u32,
    version: String,
}

impl<'a> Survey<'a> {
    /// Asks the server what it is; one that is too old is refused.
    ///
    /// # Errors
    /// The server cannot be reached, or is too old.
    pub async fn of(cluster: &'a Cluster, terminal: &mut Terminal<'_>) -> Result<Self, Error> {
        let info = cluster
            .client()
            .apiserver_version()
            .await
            .map_err(|e| cluster.explain(e, "read the server version".to_owned(), "its version"))?;
        let survey = Self {
            cluster,
            minor: minor(&info.minor),
            version: info.git_version,
        };
        survey.at_least(OLDEST_KUBERNETES, "KubeAIRunway requires")?;
        terminal.say(&format!("cluster {}, Kubernetes {}", cluster.url(), survey.version));
        Ok(survey)
    }

    /// Minor version of the server's Kubernetes 1.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Checks whether the server supports the options of a release.
    ///
    /// # Errors
    /// The server is too old for an option.
    pub fn suits(&self, release: &Release) -> Result<(), Error> {
        if release.policy {
            self.at_least(policy::OLDEST_KUBERNETES, "--provider-policy requires")?;
        }
        Ok(())
    }

    fn at_least(&self, oldest: u32, what: &'static str) -> Result<(), Error> {
        at_least(self.minor, &self.version, oldest, what)
    }

    /// A client of the user.
    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// Converts an error of the client to one that names the action.
    pub fn failed(&self, error: kube::Error, doing: impl Into<String>) -> Error {
        self.cluster.explain(error, doing.into(), "it").into()
    }

    /// The Deployment of a component, if it is there.
    ///
    /// # Errors
    /// The cluster cannot be read.
    pub async fn deployment(&self, component: &str) -> Result<Option<Deployment>, Error> {
        let api: Api<Deployment> = Api::namespaced(self.client(), NAMESPACE);
        let found = api.get_opt(component).await;
        found.map_err(|e| self.failed(e, format!("read Deployment/{component}")))
    }

    /// Whether the roles of users are aggregated, and whether single fields require permissions, as a role of users records it; true
    /// if it does not exist yet. A user who may not read it lacks other rights, too, which are named together.
    ///
    /// # Errors
    /// The cluster cannot be read.
    pub async fn choices(&self) -> Result<(bool, bool), Error> {
        let name = format!("{USERS}view");
        let found = match Api::<ClusterRole>::all(self.client()).get_opt(&name).await {
            Err(kube::Error::Api(status)) if status.is_forbidden() => None,
            found => found.map_err(|e| self.failed(e, format!("read ClusterRole/{name}")))?,
        };
        Ok(found.map_or((true, true), |role| {
            let label = role.labels().get(&format!("{AGGREGATE}view"));
            let annotation = role.annotations().get(PERMISSION_POLICY);
            (
                label.is_some_and(|value| value == "true"),
                annotation.is_none_or(|value| value == "true"),
            )
        }))
    }

    /// The object of this kind and name as it is in the cluster, if it is part of the product.
    ///
    /// # Errors
    /// The cluster cannot be read.
    pub async fn ours(&self, object: &DynamicObject) -> Result<Option<DynamicObject>, Error> {
        let found = self.api(object).await?.get_opt(&object.name_any()).await;
        let found = found.map_err(|e| self.failed(e, format!("read {}", place(object))))?;
        Ok(found
            .filter(|live| live.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_VALUE)))
    }

    /// The version of a component that is there, by its label.
    ///
    /// # Errors
    /// The cluster cannot be read.
    pub async fn version_of(&self, component: &str) -> Result<Option<String>, Error> {
        let found = self.deployment(component).await?;
        Ok(found.map(|deployment| {
            let label = deployment.labels().get("app.kubernetes.io/version");
            label.cloned().unwrap_or_else(|| "unknown".to_owned())
        }))
    }

    /// Refuses if Helm has installed the core into another namespace, whose objects a second installation would fight with.
    ///
    /// # Errors
    /// The core is in another namespace, or the cluster cannot be read.
    pub async fn not_elsewhere(&self) -> Result<(), Error> {
        let found = match components::deployments(self.cluster).await {
            // A user without this right lacks others, which are named together.
            Err(cluster::Error::Forbidden { .. }) => return Ok(()),
            found => found?,
        };
        let is_core = |deployment: &&Deployment| deployment.name_any() == labels::CORE_MANAGER;
        let namespaces = found.iter().filter(is_core).filter_map(ResourceExt::namespace);
        match namespaces.into_iter().find(|namespace| namespace != NAMESPACE) {
            Some(namespace) => Err(Error::Elsewhere(namespace)),
            None => Ok(()),
        }
    }

    /// API for objects of a kind, in a namespace or cluster-scoped.
    fn api_of(&self, resource: &ApiResource, namespaced: bool, namespace: &str) -> Api<DynamicObject> {
        if namespaced {
            Api::namespaced_with(self.client(), namespace, resource)
        } else {
            Api::all_with(self.client(), resource)
        }
    }

    /// API for an object.
    ///
    /// # Errors
    /// The server does not serve the kind.
    pub async fn api(&self, object: &DynamicObject) -> Result<Api<DynamicObject>, Error> {
        let api = self.api_if_installed(object).await?;
        api.ok_or_else(|| unknown_kind(object))
    }

    /// Like [`Self::api`], but `None` if the server does not serve the kind.
    ///
    /// # Errors
    /// The cluster cannot be read.
    pub async fn api_if_installed(&self, object: &DynamicObject) -> Result<Option<Api<DynamicObject>>, Error> {
        let namespace = object.namespace().unwrap_or_else(|| NAMESPACE.to_owned());
        let found = self.resource(object).await?;
        Ok(found.map(|(resource, namespaced)| self.api_of(&resource, namespaced, &namespace)))
    }

    /// API resource and scope of an object's kind; `None` if the server does not serve it.
    async fn resource(&self, object: &DynamicObject) -> Result<Option<(ApiResource, bool)>, Error> {
        if let Some(known) = kinds::resource(object) {
            return Ok(Some(known));
        }
        let types = object.types.clone().unwrap_or_default();
        let gvk = GroupVersionKind::try_from(&types).map_err(|_| unknown_kind(object))?;
        match discovery::pinned_kind(&self.client(), &gvk).await {
            Ok((resource, capabilities)) => Ok(Some((resource, capabilities.scope == Scope::Namespaced))),
            Err(kube::Error::Discovery(_)) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(self.failed(error, format!("look up the kind of {}", place(object)))),
        }
    }

    /// Refuses if a right is missing, and names each.
    ///
    /// # Errors
    /// A permission is missing, or the review fails.
    pub async fn rights(&self, wanted: &[DynamicObject], obsolete: &[DynamicObject]) -> Result<(), Error> {
        let mut asked = BTreeSet::new();
        for object in wanted {
            asked.extend(self.needs(object, &["get", "create", "patch"]).await?);
        }
        for object in obsolete {
            asked.extend(self.needs(object, &["delete"]).await?);
        }
        self.may(&asked).await
    }

    /// Refuses if an object may not be deleted, and names each right that is missing.
    ///
    /// # Errors
    /// A permission is missing, or the review fails.
    pub async fn rights_to_delete(&self, objects: &[DynamicObject]) -> Result<(), Error> {
        let mut asked = BTreeSet::new();
        for object in objects {
            asked.extend(self.needs(object, &["delete"]).await?);
        }
        self.may(&asked).await
    }

    async fn needs(&self, object: &DynamicObject, verbs: &[&str]) -> Result<Vec<Right>, Error> {
        // A kind whose CRD is installed together with the object is covered by the check of the CRD.
        let Some((resource, namespaced)) = self.resource(object).await? else {
            return Ok(Vec::new());
        };
        let namespace = object.namespace().unwrap_or_else(|| NAMESPACE.to_owned());
        Ok(verbs
            .iter()
            .map(|verb| Right {
                verb: (*verb).to_owned(),
                group: resource.group.clone(),
                plural: resource.plural.clone(),
                namespace: namespaced.then(|| namespace.clone()),
            })
            .collect())
    }

    async fn may(&self, asked: &BTreeSet<Right>) -> Result<(), Error> {
        let mut missing = Vec::new();
        for right in asked {
            let allowed = access::may(&self.client(), right).await;
            if !allowed.map_err(|e| self.failed(e, "check your permissions"))? {
                missing.push(right.to_string());
            }
        }
        if missing.is_empty() {
            Ok(())
        } else {
            Err(Error::Rights(missing))
        }
    }

    /// Changes of an apply, by dry run. Fails if an object has another owner, or if the server rejects it.
    ///
    /// # Errors
    /// An object has another owner, or the server rejects the dry run.
    pub async fn changes(&self, wanted: Vec<DynamicObject>, manager: &str, force: bool) -> Result<Vec<Change>, Error> {
        let parameters = PatchParams {
            dry_run: true,
            force,
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(manager)
        };
        let mut refused = Vec::new();
        let mut changes = Vec::new();
        let mut new_namespaces = BTreeSet::new();
        for object in &wanted {
            let (resource, namespaced) = match self.resource(object).await? {
                Some(found) => found,
                None if is_made_by(&wanted, object) => {
                    changes.push(Change {
                        object: object.clone(),
                        action: Action::Create,
                    });
                    continue;
                }
                None => return Err(unknown_kind(object)),
            };
            let name = object.name_any();
            let namespace = object.namespace().unwrap_or_else(|| NAMESPACE.to_owned());
            let api = self.api_of(&resource, namespaced, &namespace);
            let live = match api.get_opt(&name).await {
                Ok(live) => live,
                // The path itself is unknown: a kind that is not installed.
                Err(kube::Error::Api(status)) if status.code == 404 && is_made_by(&wanted, object) => None,
                Err(kube::Error::Api(status)) if status.code == 404 => return Err(unknown_kind(object)),
                Err(error) => return Err(self.failed(error, format!("read {}", place(object)))),
            };
            if resource.kind == "Namespace" {
                match &live {
                    None => {
                        new_namespaces.insert(name.clone());
                    }
                    Some(live) if live.metadata.deletion_timestamp.is_some() => {
                        let text =
                            format!("Namespace/{name} is being deleted: try again when the deletion is complete");
                        return Err(Error::Refused(vec![text]));
                    }
                    Some(_) => {}
                }
            }
            let whose = match &live {
                Some(live) => self.other_owner(live, manager, force).await?,
                None => None,
            };
            if let Some(whose) = whose {
                refused.push(format!("{} already exists and {whose}", place(object)));
                continue;
            }
            if let Some(complaint) = live.as_ref().and_then(|live| stored_version_lost(live, object)) {
                refused.push(complaint);
                continue;
            }
            // In a namespace that is yet to be made nothing can be tried; another one will do to see whether it would be taken.
            let (tried, api) = if namespaced && new_namespaces.contains(&namespace) {
                let mut tried = object.clone();
                tried.metadata.namespace = Some("default".to_owned());
                (tried, self.api_of(&resource, namespaced, "default"))
            } else {
                (object.clone(), api)
            };
            match api.patch(&name, &parameters, &Patch::Apply(&tried)).await {
                Ok(then) => changes.push(Change {
                    object: object.clone(),
                    action: Action::between(live.as_ref(), &then),
                }),
                Err(kube::Error::Api(status)) if status.is_conflict() => refused.push(format!(
                    "{} was changed by another field manager ({}): use --force-conflicts to take over the fields",
                    place(object),
                    status.message
                )),
                Err(kube::Error::Api(status)) if is_made_by(&wanted, object) && status.is_not_found() => {
                    changes.push(Change {
                        object: object.clone(),
                        action: Action::Create,
                    });
                }
                Err(kube::Error::Api(status)) => {
                    return Err(Error::DryRun {
                        what: place(object),
                        message: status.message,
                    });
                }
                Err(error) => return Err(self.failed(error, format!("dry-run {}", place(object)))),
            }
        }
        if refused.is_empty() {
            Ok(changes)
        } else {
            Err(Error::Refused(refused))
        }
    }

    /// Description of the owner of an object that is not ours. What a deleted Helm release left, such as CRDs, is taken over by force.
    async fn other_owner(&self, live: &DynamicObject, manager: &str, force: bool) -> Result<Option<String>, Error> {
        let annotation = |key: &str| live.annotations().get(key).map(String::as_str);
        let Some(release) = annotation("meta.helm.sh/release-name") else {
            return Ok(stranger(live, manager));
        };
        let namespace = annotation("meta.helm.sh/release-namespace").unwrap_or_default();
        if self.has_release(namespace, release).await? {
            let text = format!("belongs to the Helm release '{release}': use helm, or uninstall that release first");
            return Ok(Some(text));
        }
        if force {
            return Ok(stranger(live, manager));
        }
        Ok(Some(format!(
            "was left by the Helm release '{release}', which is gone: use --force-conflicts to take it over"
        )))
    }

    /// Whether Helm knows a release. True if the user may not look.
    async fn has_release(&self, namespace: &str, release: &str) -> Result<bool, Error> {
        let Ok(namespace) = namespace.parse::<Namespace>() else {
            return Ok(true);
        };
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client(), &namespace);
        let of_release = ListParams::default()
            .labels(&format!("owner=helm,name={release}"))
            .limit(1);
        match secrets.list_metadata(&of_release).await {
            Ok(found) => Ok(!found.items.is_empty()),
            Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(true),
            Err(error) => Err(self.failed(error, format!("list Secrets of Helm in namespace '{namespace}'"))),
        }
    }

    /// Every object there of these components that a step applies, in apply order. Roles are found in all namespaces, except in a
    /// single step, whose user may not be allowed to list them.
    ///
    /// # Errors
    /// The cluster cannot be read.
    pub async fn labelled(&self, components: &[String], step: Step) -> Result<Vec<DynamicObject>, Error> {
        let selector = format!(
            "{}={},{COMPONENT_LABEL} in ({})",
            labels::MANAGED_BY,
            labels::MANAGED_BY_VALUE,
            components.join(",")
        );
        let mut all = Vec::new();
        let of_components = |kind: &str| !kinds::MADE_BY_OTHERS.contains(&kind);
        for (resource, namespaced) in
            kinds::all().filter(|(resource, namespaced)| of_components(&resource.kind) && step.includes(*namespaced))
        {
            let is_anywhere = kinds::IN_WATCHED_NAMESPACES.contains(&resource.kind.as_str()) && step == Step::All;
            let api = self.api_of(&resource, namespaced && !is_anywhere, NAMESPACE);
            let found = match api.list(&ListParams::default().labels(&selector)).await {
                Ok(found) => found.items,
                // A kind that this server does not know.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 404 => Vec::new(),
                Err(error) => return Err(self.failed(error, format!("list {}", resource.plural))),
            };
            let types = TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            };
            all.extend(found.into_iter().map(|mut object| {
                object.types = Some(types.clone());
                object
            }));
        }
        Ok(all)
    }

    /// Deletes an object as it was seen; one that is gone is fine.
    ///
    /// # Errors
    /// The server rejects the deletion.
    pub async fn delete(&self, object: &DynamicObject) -> Result<(), Error> {
        match self
            .api(object)
            .await?
            .delete(&object.name_any(), &only(&object.uid().unwrap_or_default()))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(source) => Err(Error::Write {
                doing: format!("delete {}", place(object)),
                source: Box::new(source),
            }),
        }
    }
}

fn at_least(minor: u32, version: &str, oldest: u32, what: &'static str) -> Result<(), Error> {
    if minor >= oldest {
        return Ok(());
    }
    Err(Error::TooOld {
        found: version.to_owned(),
        what,
        oldest,
    })
}

/// Some servers say `27+`.
fn minor(text: &str) -> u32 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_default()
}

fn unknown_kind(object: &DynamicObject) -> Error {
    let types = object.types.clone().unwrap_or_default();
    Error::DryRun {
        what: place(object),
        message: format!(
            "no kind {} in {}: install its CRD first, or remove the object",
            types.kind, types.api_version
        ),
    }
}

/// Whether one of the objects is the CRD of this object.
fn is_made_by(wanted: &[DynamicObject], object: &DynamicObject) -> bool {
    let kind = kinds::kind(object);
    wanted.iter().any(|other| {
        kinds::kind(other) == "CustomResourceDefinition"
            && other.data.pointer("/spec/names/kind").and_then(|k| k.as_str()) == Some(kind)
    })
}

/// Description of the owner of an object that is not ours. A Namespace may exist before.
fn stranger(live: &DynamicObject, manager: &str) -> Option<String> {
    let ours = live.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_VALUE);
    // The provider's controller creates its registration; of ours are its settings only.
    let is_shared = ["Namespace", "InferenceProviderConfig"].contains(&kinds::kind(live));
    if ours || is_shared || manager == MANAGER_OF_OTHERS {
        return None;
    }
    let managers: BTreeSet<&str> = live
        .managed_fields()
        .iter()
        .filter_map(|entry| entry.manager.as_deref())
        .collect();
    let label = live
        .labels()
        .get(labels::RECOMMENDED_MANAGED_BY)
        .map(|l| format!(", managed by {l}"));
    Some(format!(
        "is not part of KubeAIRunway: its field managers are {}{}. Delete it if it is not needed",
        managers.into_iter().collect::<Vec<_>>().join(", "),
        label.unwrap_or_default()
    ))
}

/// A CRD must still serve every version in which objects are stored.
fn stored_version_lost(live: &DynamicObject, wanted: &DynamicObject) -> Option<String> {
    if kinds::kind(wanted) != "CustomResourceDefinition" {
        return None;
    }
    let parse = |object: &DynamicObject| typed::<CustomResourceDefinition>(&json!(object)).ok();
    let (live, wanted) = (parse(live)?, parse(wanted)?);
    let stored = live.status?.stored_versions?;
    let lost: Vec<String> = stored
        .into_iter()
        .filter(|version| wanted.spec.versions.iter().all(|v| v.name != *version))
        .collect();
    (!lost.is_empty()).then(|| {
        format!(
            "CustomResourceDefinition/{} has objects stored as {}, which this version does not serve: see 'Stored versions' in docs/operate/upgrade.md",
            live.metadata.name.unwrap_or_default(),
            lost.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn server(minor: u32) -> Option<Error> {
        at_least(
            minor,
            &format!("v1.{minor}.3"),
            OLDEST_KUBERNETES,
            "KubeAIRunway requires",
        )
        .and_then(|()| {
            at_least(
                minor,
                "v1.29.0",
                policy::OLDEST_KUBERNETES,
                "--provider-policy requires",
            )
        })
        .err()
    }

    #[test]
    fn an_old_server_is_refused_with_its_version() {
        assert_eq!(minor("27+"), 27);
        let said = server(25).unwrap().to_string();
        assert_eq!(
            said,
            "the cluster runs Kubernetes v1.25.3, but KubeAIRunway requires 1.26 or newer: upgrade the cluster. Nothing was changed"
        );
        assert!(
            server(29)
                .unwrap()
                .to_string()
                .contains("--provider-policy requires 1.30")
        );
        assert!(server(30).is_none());
    }

    #[test]
    fn an_object_of_another_owner_is_described() {
        let object = |metadata: serde_json::Value| -> DynamicObject {
            serde_json::from_value(json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata })).unwrap()
        };
        let ours = object(json!({ "name": "a", "labels": { "kubeairunway.ai/managed-by": "kubeairunway" } }));
        assert_eq!(stranger(&ours, runway_client::diff::MANAGER), None);
        let theirs = object(json!({ "name": "a", "managedFields": [{ "manager": "kubectl" }] }));
        let said = stranger(&theirs, runway_client::diff::MANAGER).unwrap();
        assert_eq!(
            said,
            "is not part of KubeAIRunway: its field managers are kubectl. Delete it if it is not needed"
        );
    }
}
