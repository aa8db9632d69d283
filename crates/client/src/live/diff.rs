//! `kubeairunway diff`: changes that the controllers would make in the cluster for a ModelDeployment. The controllers' plans
//! give the desired objects, and a dry run on the server shows the changes with defaults and webhooks applied.
//! [`operated`](crate::live::operated) does the same for the other kinds.

use std::fmt::{Debug, Write as _};

use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, ValidationDirective};
use kube::core::{ApiResource, DynamicObject, NamespaceResourceScope, TypeMeta};
use kube::{Api, Resource, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, Name, Namespace, Phase, labels};
use runway_core::autoscalers::{KINDS, SCALED_OBJECT};
use runway_manifests::built_in_providers;
use runway_operator::apply::guarded;
use runway_operator::plan::Apply;
use runway_provider::upstream::{Installed, api_resource, crd_name, detect};
use runway_provider::{CLAIM, Provider};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::diagnostic::one_line;
use crate::live::cluster::{self, Cluster};
use crate::offline::render::{Planned, plans};
use crate::offline::state::State;
use crate::target::Ours;
use crate::view::change::{self, Action, Change};

/// Field manager of what users have applied by this command.
pub const MANAGER: &str = "kubeairunway";

/// Changes for an object and the objects created for it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// The kind of the object that this is about.
    pub kind: &'static str,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// The provider that would serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Changes of the object itself, if a manifest was given, and of each object created for it.
    pub changes: Vec<Change>,
    /// Objects to delete, such as `Workspace/gemma`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<String>,
    /// Additional notes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Diff {
    /// Whether anything would change.
    pub fn is_empty(&self) -> bool {
        self.deletes.is_empty() && self.changes.iter().all(|c| c.action == Action::Unchanged)
    }
}

/// Changes that the controllers would make for an existing ModelDeployment.
///
/// # Errors
/// A name is invalid, or the cluster rejects a read or the dry run.
pub async fn of_live(cluster: &Cluster, md: ModelDeployment, now: Timestamp) -> Result<Diff, cluster::Error> {
    upstream(cluster, md, Vec::new(), now).await
}

/// Changes if a ModelDeployment was applied: in itself, and upstream. Admission runs, but nothing is written.
///
/// # Errors
/// A name is invalid, or the cluster rejects a read or the dry run.
pub async fn of_new(cluster: &Cluster, written: &DynamicObject, now: Timestamp) -> Result<Diff, cluster::Error> {
    let (live, then) = tried_as_written::<ModelDeployment>(cluster, written).await?;
    let change = Change {
        action: Action::between(live.as_ref().map(dynamic).as_ref(), &dynamic(&then)),
        object: dynamic(&then),
    };
    upstream(cluster, then, vec![change], now).await
}

/// The live object, and the result of applying `written` as a dry run.
pub(crate) async fn tried_as_written<K>(
    cluster: &Cluster,
    written: &DynamicObject,
) -> Result<(Option<K>, K), cluster::Error>
where
    K: Ours + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let kind = K::NAME;
    let namespace = written
        .namespace()
        .map_or_else(|| Ok(cluster.namespace.clone()), Namespace::try_from)?;
    let name: Name = written.name_any().parse()?;
    let api: Api<K> = Api::namespaced(cluster.client(), &namespace);
    let doing = || format!("dry-run {kind} '{name}' in namespace '{namespace}'");
    let live = api.get_opt(&name).await;
    let live = live.map_err(|e| cluster.explain(e, doing(), kind))?;
    let mut written = written.clone();
    written.metadata.namespace = Some(namespace.to_string());
    written.metadata.managed_fields = None;
    if let Some(data) = written.data.as_object_mut() {
        data.remove("status");
    }
    let then = api.patch(&name, &dry_run(MANAGER, true), &Patch::Apply(&written)).await;
    let then = then.map_err(|e| cluster.explain(e, doing(), kind))?;
    Ok((live, then))
}

async fn upstream(
    cluster: &Cluster,
    mut md: ModelDeployment,
    mut changes: Vec<Change>,
    now: Timestamp,
) -> Result<Diff, cluster::Error> {
    let mut notes = Vec::new();
    if md.is_paused() {
        let text = format!(
            "paused by annotation {}: the changes below would follow a resume",
            labels::PAUSED
        );
        notes.push(text);
        md.annotations_mut().remove(labels::PAUSED);
    }
    let planned = planned(cluster, md, now, &mut notes).await?;
    let md = &planned.md;
    let provider_manager = labels::provider_manager(md.selected_provider().unwrap_or_default());
    for apply in &planned.apply {
        let is_of_core = KINDS.iter().any(|kind| kind.kind == apply.resource.kind);
        let manager = if is_of_core {
            labels::CORE_MANAGER
        } else {
            &provider_manager
        };
        changes.push(tried(cluster, apply, manager, md.uid().is_none()).await?);
    }
    let status = md.status.clone().unwrap_or_default();
    let provider = md.selected_provider().map(str::to_owned);
    if planned.apply.is_empty() && planned.delete.is_empty() {
        notes.push(match (&provider, status.phase, &status.message) {
            (Some(name), ..) if !built_in_providers().iter().any(|p| p.name() == name) => {
                format!("provider '{name}' is not built in: this command cannot show the objects that it would create")
            }
            (_, Some(phase @ (Phase::Pending | Phase::Failed)), Some(message)) => {
                format!("no upstream object: {}: {message}", phase.as_str())
            }
            _ => "no upstream object".to_owned(),
        });
    }
    Ok(Diff {
        kind: "ModelDeployment",
        name: md.name_any(),
        namespace: md.namespace().unwrap_or_default(),
        provider,
        changes,
        deletes: planned
            .delete
            .iter()
            .map(|d| format!("{}/{}", d.resource.kind, d.name))
            .collect(),
        notes,
    })
}

/// Asks the plans: the core's first, to know whose schemas and objects must be read.
pub(crate) async fn planned(
    cluster: &Cluster,
    md: ModelDeployment,
    now: Timestamp,
    notes: &mut Vec<String>,
) -> Result<Planned, cluster::Error> {
    let configs = cluster.configs().await?;
    let failed = |source: serde_json::Error| cluster::Error::Other {
        doing: format!("plan for ModelDeployment '{}'", md.name_any()),
        source: Box::new(kube::Error::SerdeError(source)),
    };
    let bare = State::of(configs.clone(), [], []);
    let chosen = plans(md.clone(), &bare, now).map_err(failed)?.md;
    let involved = [
        md.selected_provider(),
        chosen.selected_provider(),
        md.spec.provider_name(),
    ];
    let (mut crds, mut objects) = (Vec::new(), Vec::new());
    for provider in built_in_providers() {
        if !involved.contains(&Some(provider.name())) {
            continue;
        }
        let found = schemas(cluster, provider.as_ref(), notes).await?;
        objects.extend(children(cluster, provider.as_ref(), &md, &found.installed).await?);
        crds.extend(found.crds);
    }
    if is_autoscaled(&md) {
        let crd = cluster.crd(&SCALED_OBJECT.crd_name()).await?;
        objects.extend(Box::pin(autoscalers(cluster, crd.is_some(), &md)).await?);
        crds.extend(crd);
    }
    let state = State::of(configs, crds, objects);
    plans(md.clone(), &state, now).map_err(failed)
}

struct Schemas {
    installed: Installed,
    crds: Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>,
}

async fn schemas(
    cluster: &Cluster,
    provider: &dyn Provider,
    notes: &mut Vec<String>,
) -> Result<Schemas, cluster::Error> {
    let (mut crds, mut states) = (Vec::new(), Vec::new());
    for upstream in provider.upstreams() {
        let crd = cluster.crd(&crd_name(upstream.kind)).await?;
        if crd.is_none() && !upstream.kind.is_built_in() {
            notes.push(format!("{} is not installed", crd_name(upstream.kind)));
        }
        states.push((upstream.kind, detect(&upstream, crd.as_ref())));
        crds.extend(crd);
    }
    Ok(Schemas {
        installed: Installed::new(states),
        crds,
    })
}

/// Existing objects among those that the provider could own.
async fn children(
    cluster: &Cluster,
    provider: &dyn Provider,
    md: &ModelDeployment,
    installed: &Installed,
) -> Result<Vec<DynamicObject>, cluster::Error> {
    let (namespace, _) = cluster::place(md)?;
    let mut found = Vec::new();
    for child in provider.children(&md.name_any()) {
        let Some(version) = installed.visible_version(child.kind) else {
            continue;
        };
        let object = cluster
            .upstream(child.kind, &version, &namespace, &child.name.parse()?)
            .await?;
        let resource = api_resource(child.kind, &version);
        found.extend(object.map(|mut object| {
            object.types.get_or_insert_with(|| TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            });
            object
        }));
    }
    let of = format!("{}={}", labels::DEPLOYMENT, md.name_any());
    let claims: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &namespace, &CLAIM.resource());
    let claims = match claims.list(&ListParams::default().labels(&of)).await {
        Ok(claims) => claims.items,
        // Most users have no volumes of this kind, and need no right to see them.
        Err(kube::Error::Api(status)) if status.is_forbidden() && !has_claims(md) => Vec::new(),
        Err(error) => return Err(cluster.explain(error, "list PersistentVolumeClaims".to_owned(), "them")),
    };
    found.extend(claims.into_iter().map(|claim| DynamicObject {
        types: Some(TypeMeta {
            api_version: CLAIM.version.to_owned(),
            kind: CLAIM.kind.to_owned(),
        }),
        ..claim
    }));
    Ok(found)
}

/// Whether an autoscaler is desired, or was.
fn is_autoscaled(md: &ModelDeployment) -> bool {
    let scaling = md.spec.scaling.as_ref();
    scaling.is_some_and(|scaling| scaling.autoscaling.is_some())
        || md.conditions().get_condition(condition::AUTOSCALER_READY).is_some()
}

/// All autoscalers in the namespace of a ModelDeployment.
async fn autoscalers(
    cluster: &Cluster,
    with_keda: bool,
    md: &ModelDeployment,
) -> Result<Vec<DynamicObject>, cluster::Error> {
    let (namespace, _) = cluster::place(md)?;
    let mut found = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| kind.is_built_in() || with_keda) {
        let resource = kind.resource();
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &namespace, &resource);
        let listed = api.list(&ListParams::default()).await;
        let listed = listed.map_err(|error| cluster.explain(error, format!("list {}s", kind.kind), "them"))?;
        found.extend(listed.items.into_iter().map(|object| DynamicObject {
            types: Some(TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            }),
            ..object
        }));
    }
    Ok(found)
}

/// Whether claims are created for volumes of a ModelDeployment.
fn has_claims(md: &ModelDeployment) -> bool {
    let mut volumes = md.spec.model.storage.iter().flat_map(|storage| &storage.volumes);
    volumes.any(|volume| volume.size.is_some())
}

/// Change by an apply, from a server-side dry run. `is_new`: the owner does not exist yet.
pub(crate) async fn tried(
    cluster: &Cluster,
    apply: &Apply,
    manager: &str,
    is_new: bool,
) -> Result<Change, cluster::Error> {
    let (namespace, name) = cluster::place(&apply.object)?;
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &namespace, &apply.resource);
    let doing = || format!("dry-run {} '{name}' with your credentials", apply.resource.kind);
    let live = api.get_opt(&name).await;
    let live = live.map_err(|e| cluster.explain(e, doing(), "it"))?;
    let mut object = guarded(apply);
    // One that is being created has no uid to refer to yet; the API server rejects a reference without one.
    if is_new {
        object.metadata.owner_references = None;
    }
    let then = api
        .patch(&name, &dry_run(manager, apply.force), &Patch::Apply(&object))
        .await;
    let then = then.map_err(|e| cluster.explain(e, doing(), "it"))?;
    Ok(Change {
        action: Action::between(live.as_ref(), &then),
        object: apply.object.clone(),
    })
}

fn dry_run(manager: &str, force: bool) -> PatchParams {
    PatchParams {
        dry_run: true,
        force,
        field_manager: Some(manager.to_owned()),
        field_validation: Some(ValidationDirective::Strict),
    }
}

pub(crate) fn dynamic<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> DynamicObject {
    let value = serde_json::to_value(object).and_then(serde_json::from_value);
    value.unwrap_or_else(|_| DynamicObject::new(&object.name_any(), &ApiResource::erase::<K>(&())))
}

/// The changes as text.
pub fn screen(diff: &Diff) -> String {
    let mut text = format!("{}/{}", diff.namespace, diff.name);
    // Writing to a String does not fail.
    let _ = match &diff.provider {
        Some(provider) => writeln!(text, ", served by {provider}"),
        None if diff.kind == "ModelDeployment" => writeln!(text, ", without a provider"),
        None => writeln!(text, ", {}", diff.kind),
    };
    text.push_str(&change::show(&diff.changes, &[]));
    for id in &diff.deletes {
        let _ = writeln!(text, "delete  {id}");
    }
    for note in &diff.notes {
        let _ = writeln!(text, "note: {}", one_line(note));
    }
    text
}
