//! The one place that writes.

use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions, ValidationDirective};
use kube::core::response::StatusCause;
use kube::core::{ApiResource, DynamicObject, Status};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::Namespace;
use runway_api::name::{Invalid, Segment};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::echo::{self, Deletions, Echo, Key};
use crate::events::Events;
use crate::failing::Failing;
use crate::object;
use crate::packed::Packed;
use crate::plan::{Apply, Delete, Edit, Finalizer, Note, Plan, Rehearsal};
use crate::scope::Namespaces;
use crate::trace::{Recording, Traces};
use crate::watch::{Event, mapped, reporting_missed, watched};

/// Start of the server's message if an applied object does not match its schema, such as an unknown field, or cannot be read as
/// its kind, such as an invalid quantity. The code is then 500.
const UNFIT: [&str; 2] = ["failed to create typed patch object", "failed to convert new object"];

/// A resource version that no object has: etcd gives the first write a later one. The server compares it when it changes an
/// object, and not when it creates one.
pub(crate) const NO_VERSION: &str = "1";

/// Failed write.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server rejected an object, or failed.
    #[error("cannot apply {kind} '{name}'")]
    Apply {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Whether this has failed for a minute.
        lasting: bool,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object of this name has another owner. It was not changed.
    #[error("cannot apply {kind} '{name}': an object of this name exists and is not ours ({manager})")]
    NameTaken {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Owner of the existing object, such as `controlled by Deployment 'web'`.
        manager: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object was created, changed or deleted after it was observed. Observing and planning again helps.
    #[error("cannot apply {kind} '{name}': it is not as observed any more")]
    Outdated {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object of this name exists, and a lookup of its owner failed.
    #[error("cannot look up {kind} '{name}'")]
    Lookup {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// An object could not be deleted.
    #[error("cannot delete {kind} '{name}'")]
    Delete {
        /// Kind of the object, such as `Deployment`.
        kind: String,
        /// Name of the object, without the namespace.
        name: String,
        /// Whether this has failed for a minute.
        lasting: bool,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// The server rejected the status.
    #[error("cannot write the status of {name}")]
    Status {
        /// The object's name.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// The finalizer could not be added or removed.
    #[error("cannot change the finalizer of {name}")]
    Finalizer {
        /// The object's name.
        name: String,
        /// Error of the request.
        source: Box<kube::Error>,
    },
}

impl Error {
    /// Error of the request.
    pub fn cause(&self) -> &kube::Error {
        match self {
            Self::Apply { source, .. }
            | Self::NameTaken { source, .. }
            | Self::Outdated { source, .. }
            | Self::Lookup { source, .. }
            | Self::Delete { source, .. }
            | Self::Status { source, .. }
            | Self::Finalizer { source, .. } => source,
        }
    }

    /// Whether the status reports it: the server rejected the write, or has failed to carry it out for a minute.
    pub fn is_refusal(&self) -> bool {
        let is_lasting = matches!(
            self,
            Self::Apply { lasting: true, .. } | Self::Delete { lasting: true, .. }
        );
        is_lasting
            || matches!(self.cause(), kube::Error::Api(status)
                if matches!(status.code, 400 | 403 | 422) || UNFIT.iter().any(|unfit| status.message.starts_with(unfit)))
    }

    /// A refusal as a message for the user, such as `Service 'm' was refused: WHY`. `None` for errors after which a retry may
    /// succeed, and for those of the status and the finalizer.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Apply { kind, name, .. } if self.is_refusal() => {
                Some(format!("{kind} '{name}' was refused: {}", self.message()))
            }
            Self::Delete { kind, name, .. } if self.is_refusal() => {
                Some(format!("{kind} '{name}' cannot be deleted: {}", self.message()))
            }
            _ => None,
        }
    }

    /// It was a webhook that refused. One that looks for other objects may change its mind when they are there.
    fn is_denial(&self) -> bool {
        matches!(self.cause(), kube::Error::Api(status) if status.message.contains("admission webhook"))
    }

    /// The answer to a rehearsal may be another one when the other objects of the plan are there.
    fn may_be_for_want_of_another(&self) -> bool {
        !matches!(self, Self::NameTaken { .. }) && (self.is_denial() || !self.is_refusal())
    }

    /// Whether another field manager owns a field of the write, or the object has changed.
    pub fn is_conflict(&self) -> bool {
        is_conflict(self.cause())
    }

    /// Cause, as a message for the user: what the server said, without the rest of its response.
    pub fn message(&self) -> String {
        match self.cause() {
            kube::Error::Api(status) => status.message.clone(),
            other => crate::telemetry::chain(other),
        }
    }

    /// Category of the error, for metrics.
    pub(crate) fn category(&self) -> &'static str {
        match self.cause() {
            kube::Error::Api(status) if status.is_conflict() => "conflict",
            kube::Error::Api(status) if status.is_forbidden() => "forbidden",
            kube::Error::Api(status) if status.is_not_found() => "not_found",
            kube::Error::Api(status) if matches!(status.code, 400 | 422) => "invalid",
            kube::Error::Api(_) => "api",
            _ => "connection",
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

/// The server could have taken the object, and something that it depends on failed.
fn is_internal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 500)
}

/// Another object stands under the name than the one with the uid that was sent.
fn is_another(error: &kube::Error) -> bool {
    causes(error).any(|cause| cause.field == "metadata.uid")
}

/// A field that we do not force is held by another field manager.
fn is_field_conflict(error: &kube::Error) -> bool {
    causes(error).any(|cause| cause.reason == "FieldManagerConflict")
}

fn causes(error: &kube::Error) -> impl Iterator<Item = &StatusCause> {
    let details = match error {
        kube::Error::Api(status) => status.details.as_ref(),
        _ => None,
    };
    details.into_iter().flat_map(|details| &details.causes)
}

/// Carries out plans for objects of kind `K`, under one field manager.
pub struct Executor<K> {
    client: Client,
    manager: String,
    finalizer: &'static str,
    events: Events,
    /// The controller's own writes of `K`.
    pub own: Arc<Echo<K>>,
    /// The controller's own writes of other kinds.
    pub children: Arc<Echo<DynamicObject>>,
    deletions: Deletions,
    failing: Failing,
    traces: Traces,
    namespaces: Namespaces,
}

impl<K> Executor<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    /// Writes as `manager`; `finalizer` is the finalizer that plans add and remove.
    pub fn new(client: Client, manager: impl Into<String>, finalizer: &'static str, events: Events) -> Self {
        Self {
            client,
            manager: manager.into(),
            finalizer,
            events,
            own: Arc::default(),
            children: Arc::default(),
            deletions: Deletions::default(),
            failing: Failing::default(),
            traces: Traces::default(),
            namespaces: Namespaces::default(),
        }
    }

    /// Watches only these namespaces.
    #[must_use]
    pub fn within(mut self, namespaces: &Namespaces) -> Self {
        self.namespaces = namespaces.clone();
        self
    }

    /// Also records what it writes.
    #[must_use]
    pub fn traced(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// Watches the objects of `K`, for a reflector's store. A list replaces the answers to earlier writes of them.
    pub fn watch(&self) -> impl Stream<Item = Event<Packed<K>>> + Send + use<K>
    where
        K: Send + Sync + 'static,
    {
        let objects = watched(self.namespaces.apis(&self.client), watcher::Config::default());
        let objects = reporting_missed(objects, self.own.clone(), K::kind(&()).into_owned(), |_| {});
        objects.filter_map(|event| ready(mapped(event, |packed: Packed<K>| Some(packed.delivered()))))
    }

    /// The owner after our own writes to it.
    pub fn latest(&self, owner: &K) -> Arc<K> {
        self.own.latest(&K::kind(&()), Arc::new(owner.clone()))
    }

    /// The newer of what a watch delivered of the owner and our own last write to it.
    pub fn newest(&self, owner: Arc<K>) -> Arc<K> {
        let (namespace, name) = (owner.namespace().unwrap_or_default(), owner.name_any());
        let newest = self.own.newest(&K::kind(&()), &namespace, &name, Some(owner.clone()));
        newest.unwrap_or(owner)
    }

    /// Carries out a plan, in order, stopping at the first write that fails.
    ///
    /// # Errors
    /// A write failed, or an object with a planned name has another owner.
    pub async fn execute(&self, owner: &K, plan: &Plan) -> Result<(), Error> {
        let mut span = (!plan.is_silent())
            .then(|| {
                self.traces
                    .about(owner.meta(), format!("reconcile by {}", self.manager))
            })
            .flatten();
        let done = self.carry_out(owner, plan, span.as_ref()).await;
        if let Some(span) = &mut span {
            for note in &plan.events {
                span.event(note.reason, &note.message);
            }
            if let Err(error) = &done {
                span.failed(error);
            }
        }
        done
    }

    async fn carry_out(&self, owner: &K, plan: &Plan, span: Option<&Recording>) -> Result<(), Error> {
        // Guarded writes that follow refer to the object with its finalizer.
        let with_finalizer = match plan.finalizer {
            Finalizer::Add => self.set_finalizer(owner, true).await?,
            _ => None,
        };
        let owner = with_finalizer.as_ref().unwrap_or(owner);
        let (alone, together): (Vec<&Apply>, Vec<&Apply>) =
            plan.apply.iter().filter(|o| !o.unchanged).partition(|o| o.alone);
        if plan.status_first {
            self.rehearse(&together, plan.rehearsal).await?;
            self.own_status(owner, plan, span).await?;
        }
        for delete in &plan.delete {
            let name = || format!("delete {}", delete.resource.kind);
            within(span, name, self.delete(delete)).await?;
        }
        if !plan.status_first {
            self.rehearse(&together, plan.rehearsal).await?;
        }
        self.apply_all(owner, &together, span).await?;
        for edit in &plan.edit {
            let name = || format!("edit {}", edit.resource.kind);
            within(span, name, self.edit(owner, edit)).await?;
        }
        self.rehearse(&alone, Rehearsal::AllButFirst).await?;
        self.apply_all(owner, &alone, span).await?;
        let after_other = match &plan.status_of {
            Some(of) => self.status(owner, &of.manager, &of.status, of.guarded).await?,
            None => None,
        };
        if !plan.status_first {
            self.own_status(after_other.as_ref().unwrap_or(owner), plan, span)
                .await?;
        }
        for note in &plan.events {
            self.events.say(owner.object_ref(&()), note.clone());
        }
        if plan.finalizer == Finalizer::Remove {
            self.set_finalizer(owner, false).await?;
        }
        Ok(())
    }

    async fn own_status(&self, owner: &K, plan: &Plan, span: Option<&Recording>) -> Result<(), Error> {
        let Some(status) = &plan.status else { return Ok(()) };
        let why = || {
            plan.events
                .first()
                .map_or_else(|| "status".to_owned(), |note| format!("status: {}", note.reason))
        };
        within(
            span,
            why,
            self.status(owner, &self.manager, status, plan.status_guarded),
        )
        .await?;
        if self.traces.is_on() && becomes_ready(owner, status) {
            self.traces.since_creation(owner.meta(), "Ready");
        }
        Ok(())
    }

    /// Sends changed objects as a dry run.
    async fn rehearse(&self, changed: &[&Apply], rehearsal: Rehearsal) -> Result<(), Error> {
        let sent = match rehearsal {
            Rehearsal::None => &[],
            Rehearsal::AllButFirst => changed.get(1..).unwrap_or_default(),
            Rehearsal::All => changed,
        };
        for object in sent {
            match self.send(object, true).await {
                // Only a rejection by the API server itself counts.
                Err(error) if !object.rehearsed && error.may_be_for_want_of_another() => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Applies the changed objects, in order.
    async fn apply_all(&self, owner: &K, changed: &[&Apply], span: Option<&Recording>) -> Result<(), Error> {
        let mut news = Vec::new();
        let mut outcome = Ok(());
        for object in changed {
            let name = || format!("apply {}", object.resource.kind);
            match within(span, name, self.send(object, false)).await {
                Ok(answer) => {
                    self.children.wrote(&object.resource.kind, answer);
                    add(&mut news, object.note.as_ref());
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        for note in news {
            self.events.say(owner.object_ref(&()), note);
        }
        outcome
    }

    /// An unknown field is an error, never pruned in silence.
    async fn send(&self, apply: &Apply, dry_run: bool) -> Result<DynamicObject, Error> {
        let params = PatchParams {
            dry_run,
            force: apply.force,
            field_manager: Some(self.manager.clone()),
            field_validation: Some(ValidationDirective::Strict),
        };
        let (namespace, name) = (apply.object.namespace().unwrap_or_default(), apply.object.name_any());
        let key = echo::key(&apply.resource.kind, &namespace, &name);
        let sent = async {
            let (api, name) = self.at(&apply.resource, &namespace, &name)?;
            api.patch(&name, &params, &Patch::Apply(&guarded(apply))).await
        };
        match sent.await {
            Ok(answer) => {
                if !dry_run {
                    self.failing.succeeded(&key);
                }
                Ok(answer)
            }
            Err(source) if is_conflict(&source) || is_another(&source) => Err(self.conflict(apply, source).await),
            Err(source) => Err(Error::Apply {
                kind: apply.resource.kind.clone(),
                name,
                // Before other objects of the plan are there, the error may be a consequence.
                lasting: (!dry_run || apply.rehearsed) && self.is_lasting(key, &source),
                source: Box::new(source),
            }),
        }
    }

    /// Error for a conflict: the name is taken, another field manager owns a field, or the observation is out of date.
    async fn conflict(&self, apply: &Apply, source: kube::Error) -> Error {
        let (kind, name) = (apply.resource.kind.clone(), apply.object.name_any());
        let namespace = apply.object.namespace().unwrap_or_default();
        let source = Box::new(source);
        if apply.live.is_some() {
            if is_field_conflict(&source) {
                return Error::Apply {
                    kind,
                    name,
                    lasting: false,
                    source,
                };
            }
            self.children.gone(&kind, &namespace, &name);
            return Error::Outdated { kind, name, source };
        }
        match find(&self.client, &apply.resource, &namespace, &name).await {
            Ok(Some(found)) if !object::is_same(&apply.object, &found, &self.manager) => Error::NameTaken {
                manager: object::manager_of(&found),
                kind,
                name,
                source,
            },
            Ok(found) => {
                // The next plan sees it, also where only objects with our labels are watched and it has lost them.
                if let Some(found) = found {
                    self.children.wrote(&kind, found);
                }
                Error::Outdated { kind, name, source }
            }
            Err(source) => Error::Lookup {
                kind,
                name,
                source: Box::new(source),
            },
        }
    }

    async fn edit(&self, owner: &K, edit: &Edit) -> Result<(), Error> {
        let params = PatchParams {
            field_manager: Some(self.manager.clone()),
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::default()
        };
        let sent = async {
            let (api, name) = self.at(&edit.resource, &edit.namespace, &edit.name)?;
            api.patch(&name, &params, &Patch::Merge(&edit.patch)).await
        };
        let key = echo::key(&edit.resource.kind, &edit.namespace, &edit.name);
        let answer = match sent.await {
            Ok(answer) => answer,
            Err(source) => {
                let (kind, name) = (edit.resource.kind.clone(), edit.name.clone());
                return Err(if is_conflict(&source) {
                    let source = Box::new(source);
                    Error::Outdated { kind, name, source }
                } else {
                    Error::Apply {
                        kind,
                        name,
                        lasting: self.is_lasting(key, &source),
                        source: Box::new(source),
                    }
                });
            }
        };
        self.failing.succeeded(&key);
        self.children.wrote(&edit.resource.kind, answer);
        if let Some(note) = &edit.note {
            self.events.say(owner.object_ref(&()), note.clone());
        }
        Ok(())
    }

    /// Time after which deletions of a plan are sent again if the watch has not shown them by then, such as after a restore of etcd
    /// from a backup.
    pub(crate) fn resend_after(&self, plan: &Plan) -> Option<Duration> {
        let is_any = plan
            .delete
            .iter()
            .any(|delete| self.deletions.is_under_way(&delete.uid));
        is_any.then_some(echo::LIFE)
    }

    async fn delete(&self, delete: &Delete) -> Result<(), Error> {
        if self.deletions.is_under_way(&delete.uid) {
            return Ok(());
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(delete.uid.clone()),
                resource_version: None,
            }),
            ..if delete.foreground {
                DeleteParams::foreground()
            } else {
                DeleteParams::background()
            }
        };
        let sent = async {
            let (api, name) = self.at(&delete.resource, &delete.namespace, &delete.name)?;
            api.delete(&name, &params).await
        };
        let key = echo::key(&delete.resource.kind, &delete.namespace, &delete.name);
        match sent.await {
            Ok(_) => {
                self.failing.succeeded(&key);
                self.deletions.accepted(&delete.uid);
                Ok(())
            }
            // Gone already, or another one stands in its place.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(source) => Err(Error::Delete {
                kind: delete.resource.kind.clone(),
                name: delete.name.clone(),
                lasting: self.is_lasting(key, &source),
                source: Box::new(source),
            }),
        }
    }

    /// Writes the status without `force`: a conflict means that two writers claim one field, which is a bug and must be visible.
    /// Returns the object as it is then; `None` if it is gone.
    async fn status(&self, owner: &K, manager: &str, status: &Value, guarded: bool) -> Result<Option<K>, Error> {
        let mut patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": owner.name_any(), "uid": owner.uid() },
            "status": status,
        });
        if guarded {
            patch["metadata"]["resourceVersion"] = json!(owner.resource_version());
        }
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(manager)
        };
        match self
            .typed(owner)
            .patch_status(&owner.name_any(), &params, &Patch::Apply(&patch))
            .await
        {
            Ok(answer) => {
                self.own.wrote(&K::kind(&()), answer.clone());
                Ok(Some(answer))
            }
            // Deleted meanwhile: there is no status to write.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(source) => Err(Error::Status {
                name: owner.name_any(),
                source: Box::new(source),
            }),
        }
    }

    /// Adds or removes the finalizer, and returns the object as it is then; `None` if it is gone.
    async fn set_finalizer(&self, owner: &K, present: bool) -> Result<Option<K>, Error> {
        let mut finalizers: Vec<&str> = owner
            .finalizers()
            .iter()
            .map(String::as_str)
            .filter(|f| *f != self.finalizer)
            .collect();
        if present {
            finalizers.push(self.finalizer);
        }
        // The resource version guards the list, so that no other finalizer is lost.
        let patch = json!({ "metadata": { "resourceVersion": owner.resource_version(), "finalizers": finalizers } });
        let params = PatchParams {
            field_manager: Some(self.manager.clone()),
            ..PatchParams::default()
        };
        match self
            .typed(owner)
            .patch(&owner.name_any(), &params, &Patch::Merge(&patch))
            .await
        {
            Ok(answer) => {
                self.own.wrote(&K::kind(&()), answer.clone());
                Ok(Some(answer))
            }
            Err(kube::Error::Api(status)) if status.is_not_found() && !present => Ok(None),
            Err(source) => Err(Error::Finalizer {
                name: owner.name_any(),
                source: Box::new(source),
            }),
        }
    }

    /// Whether the write of an object has failed with an internal error for a minute.
    fn is_lasting(&self, object: Key, error: &kube::Error) -> bool {
        is_internal(error) && self.failing.failed(object, Instant::now())
    }

    fn typed(&self, owner: &K) -> Api<K> {
        Api::namespaced(self.client.clone(), &owner.namespace().unwrap_or_default())
    }

    /// API for the namespace of an object. Names in a plan may come from fields of users' objects.
    fn at(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<(Api<DynamicObject>, Segment), kube::Error> {
        let namespace: Namespace = namespace.parse().map_err(|invalid| refused(&invalid))?;
        let name = name.parse().map_err(|invalid| refused(&invalid))?;
        Ok((Api::namespaced_with(self.client.clone(), &namespace, resource), name))
    }
}

/// A name that no object can have: refused as the server would, without a request that leads elsewhere.
fn refused(invalid: &Invalid) -> kube::Error {
    kube::Error::Api(Status::failure(&invalid.to_string(), "Invalid").with_code(422).boxed())
}

/// The object of an apply as it is sent. It carries the guard of [`Apply::live`]. With a uid the server answers 409 when no
/// object is there and 422 when another one is; without one it answers 409 when any is.
pub fn guarded(apply: &Apply) -> DynamicObject {
    let mut object = apply.object.clone();
    match &apply.live {
        Some(uid) => object.metadata.uid = Some(uid.clone()),
        None => object.metadata.resource_version = Some(NO_VERSION.to_owned()),
    }
    object
}

/// An object by its name, whatever its labels: it may be ours and have lost them. As a list: for that there is a right already
/// where there is a watch.
async fn find(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    name: &str,
) -> Result<Option<DynamicObject>, kube::Error> {
    let namespace: Namespace = namespace.parse().map_err(|invalid| refused(&invalid))?;
    let name: Segment = name.parse().map_err(|invalid| refused(&invalid))?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, resource);
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    Ok(api.list(&named).await?.items.pop())
}

/// Adds a note. Notes with the same type and reason become one Event.
fn add(news: &mut Vec<Note>, note: Option<&Note>) {
    let Some(note) = note else { return };
    let told = news
        .iter_mut()
        .find(|n| (n.warning, n.reason) == (note.warning, note.reason));
    match told {
        Some(told) if told.message.split("; ").any(|message| message == note.message) => {}
        Some(told) => told.message = format!("{}; {}", told.message, note.message),
        None => news.push(note.clone()),
    }
}

/// One write, as a span of its own.
async fn within<T>(
    span: Option<&Recording>,
    name: impl FnOnce() -> String,
    write: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut step = span.and_then(|span| span.within(name()));
    let done = write.await;
    if let (Some(step), Err(error)) = (&mut step, &done) {
        step.failed(error);
    }
    done
}

/// Whether the condition Ready is true in the new status and was not before.
fn becomes_ready(owner: &impl Serialize, status: &Value) -> bool {
    let ready = |status: &Value| object::condition(status, "Ready").is_some_and(|c| c.is_true());
    ready(status) && !serde_json::to_value(owner).is_ok_and(|owner| ready(&owner["status"]))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use runway_api::EventReason;

    use super::*;

    fn answer(code: u16, message: &str) -> Error {
        let status = kube::core::Status::failure(message, "").with_code(code);
        Error::Apply {
            kind: "Toy".to_owned(),
            name: "bear".to_owned(),
            lasting: false,
            source: Box::new(kube::Error::Api(Box::new(status))),
        }
    }

    #[test]
    fn one_event_tells_of_several_objects() {
        let mut news = Vec::new();
        for note in [
            Note::new(EventReason::ResourceCreated, "Created Service 'a'"),
            Note::new(EventReason::DriftDetected, "Changed directly, putting it back"),
            Note::new(EventReason::ResourceCreated, "Created Deployment 'a'"),
            Note::new(EventReason::DriftDetected, "Changed directly, putting it back"),
        ] {
            add(&mut news, Some(&note));
        }
        add(&mut news, None);
        let told: Vec<&str> = news.iter().map(|note| note.message.as_str()).collect();
        assert_eq!(
            told,
            [
                "Created Service 'a'; Created Deployment 'a'",
                "Changed directly, putting it back"
            ]
        );
    }

    #[test]
    fn an_object_that_does_not_fit_its_schema_is_refused_with_code_500() {
        let unfit =
            "failed to create typed patch object (/p; /v1, Kind=Service): .spec.wheels: field not declared in schema";
        assert!(answer(500, unfit).is_refusal());
        let unreadable = "failed to convert new object (default/a; apps/v1, Kind=Deployment) to proper version: \
            unable to convert unstructured object to apps/v1, Kind=Deployment: quantities must match the regular expression '…'";
        assert!(answer(500, unreadable).is_refusal());
        assert!(answer(422, "Invalid value").is_refusal());
        assert!(!answer(500, "etcdserver: request timed out").is_refusal());
        assert!(!answer(409, "Apply failed with 1 conflict").is_refusal());
    }

    #[test]
    fn a_denial_comes_from_a_webhook() {
        assert!(answer(400, "admission webhook \"a.b.c\" denied the request: no ConfigMap").is_denial());
        assert!(!answer(422, "Toy \"bear\" is invalid").is_denial());
    }

    /// A name with `?` or `#` would delete every object of the namespace.
    #[tokio::test]
    async fn nothing_is_sent_for_a_name_that_leads_elsewhere() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let server = tower::service_fn(move |_: http::Request<Body>| {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty())))
        });
        let client = Client::new(server, "default");
        let events = Events::start(client.clone(), "toy");
        let executor = Executor::<ConfigMap>::new(client.clone(), "toy", "toy", events);
        let resource = ApiResource::erase::<ConfigMap>(&());
        for name in ["", "?", "#", "/", "..", "a/b", "%2F", "a?b", "a\n"] {
            let delete = Delete {
                resource: resource.clone(),
                namespace: "default".to_owned(),
                name: name.to_owned(),
                uid: "1".to_owned(),
                foreground: false,
            };
            let error = executor.delete(&delete).await.unwrap_err();
            assert!(
                error.is_refusal() && error.cause().to_string().contains("invalid name"),
                "{name:?}: {error:?}"
            );
            let elsewhere = Delete {
                namespace: name.to_owned(),
                name: "bear".to_owned(),
                ..delete
            };
            let error = executor.delete(&elsewhere).await.unwrap_err();
            assert!(
                error.cause().to_string().contains("invalid namespace"),
                "{name:?}: {error:?}"
            );
            let edit = Edit {
                resource: resource.clone(),
                namespace: "default".to_owned(),
                name: name.to_owned(),
                patch: json!({}),
                note: None,
            };
            assert!(executor.edit(&ConfigMap::default(), &edit).await.is_err(), "{name:?}");
            let apply = Apply {
                resource: resource.clone(),
                object: DynamicObject::new(name, &resource).within("default"),
                live: None,
                force: false,
                rehearsed: false,
                alone: false,
                unchanged: false,
                note: None,
            };
            assert!(executor.send(&apply, false).await.is_err(), "{name:?}");
            assert!(find(&client, &resource, "default", name).await.is_err(), "{name:?}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 0);
    }

    fn refused(code: u16, causes: &Value) -> (u16, Value) {
        let reason = match code {
            409 => "Conflict",
            422 => "Invalid",
            _ => "InternalError",
        };
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "refused",
            "reason": reason, "code": code, "details": {"causes": causes}});
        (code, status)
    }

    fn listed(objects: &Value) -> (u16, Value) {
        let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": objects});
        (200, list)
    }

    fn toys(controller: &str) -> Value {
        json!([{"metadata": {"name": "toys", "namespace": "ns", "uid": "7", "resourceVersion": "5", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "box", "uid": controller, "controller": true}]}}])
    }

    /// Sends an apply to a server that gives this answer to it, and this one to a lookup.
    async fn sent(live: Option<&str>, answer: (u16, Value), lookup: (u16, Value)) -> (Executor<ConfigMap>, Error) {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let is_lookup = request.method() == http::Method::GET;
            let (code, body) = if is_lookup { lookup.clone() } else { answer.clone() };
            let mut response = http::Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
            std::future::ready(Ok::<_, kube::Error>(response))
        });
        let client = Client::new(service, "ns");
        let executor = Executor::new(client.clone(), "toys", "toys/finalizer", Events::start(client, "toys"));
        let mut object: DynamicObject = serde_json::from_value(toys("1")[0].clone()).unwrap();
        object.metadata.uid = None;
        let apply = Apply {
            resource: ApiResource::erase::<ConfigMap>(&()),
            object,
            live: live.map(str::to_owned),
            force: live.is_some(),
            rehearsed: true,
            alone: false,
            unchanged: false,
            note: None,
        };
        let error = executor.send(&apply, false).await.unwrap_err();
        (executor, error)
    }

    /// The requests for a plan with two new objects, of which the server rejects the second.
    async fn requests(alone: bool, rehearsal: Rehearsal) -> Vec<String> {
        let log = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&log);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let dry = request.uri().query().is_some_and(|query| query.contains("dryRun=All"));
            let (code, body) = match name.as_str() {
                "second" => refused(422, &json!([])),
                _ => (201, toys("1")[0].clone()),
            };
            seen.lock()
                .unwrap()
                .push(format!("{name}{}", if dry { " dry" } else { "" }));
            let mut response = http::Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
            std::future::ready(Ok::<_, kube::Error>(response))
        });
        let client = Client::new(service, "ns");
        let executor =
            Executor::<ConfigMap>::new(client.clone(), "toys", "toys/finalizer", Events::start(client, "toys"));
        let resource = ApiResource::erase::<ConfigMap>(&());
        let apply = |name| Apply {
            resource: resource.clone(),
            object: DynamicObject::new(name, &resource).within("ns"),
            live: None,
            force: false,
            rehearsed: true,
            alone,
            unchanged: false,
            note: None,
        };
        let plan = Plan {
            apply: ["first", "second"].map(apply).into(),
            rehearsal,
            ..Plan::default()
        };
        let error = executor.execute(&ConfigMap::default(), &plan).await.unwrap_err();
        assert!(error.is_refusal(), "{error:?}");
        let log = log.lock().unwrap();
        log.clone()
    }

    #[tokio::test]
    async fn rejected_object_leaves_no_other_behind() {
        assert_eq!(requests(false, Rehearsal::AllButFirst).await, ["second dry"]);
        assert_eq!(requests(true, Rehearsal::AllButFirst).await, ["second dry"]);
        assert_eq!(requests(false, Rehearsal::All).await, ["first dry", "second dry"]);
        assert_eq!(requests(false, Rehearsal::None).await, ["first", "second"]);
    }

    #[tokio::test]
    async fn an_object_in_the_way_that_is_not_ours_takes_the_name() {
        let (executor, error) = sent(None, refused(409, &json!([])), listed(&toys("2"))).await;
        assert!(
            matches!(&error, Error::NameTaken { manager, .. } if manager == "controlled by ConfigMap 'box'"),
            "{error:?}"
        );
        assert!(executor.children.newest("ConfigMap", "ns", "toys", None).is_none());
    }

    #[tokio::test]
    async fn our_own_object_in_the_way_is_seen_by_the_next_plan() {
        let (executor, error) = sent(None, refused(409, &json!([])), listed(&toys("1"))).await;
        assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
        let seen = executor.children.newest("ConfigMap", "ns", "toys", None);
        assert_eq!(seen.and_then(|toys| toys.uid()).as_deref(), Some("7"));
    }

    #[tokio::test]
    async fn a_lookup_that_fails_is_no_answer() {
        let (_, error) = sent(None, refused(409, &json!([])), refused(500, &json!([]))).await;
        assert!(matches!(error, Error::Lookup { .. }), "{error:?}");
        let (_, error) = sent(None, refused(409, &json!([])), listed(&json!([]))).await;
        assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn an_object_that_was_replaced_is_observed_again_and_a_held_field_is_a_conflict() {
        let nothing = listed(&json!([]));
        for answer in [
            refused(409, &json!([])),
            refused(422, &json!([{"reason": "FieldValueInvalid", "field": "metadata.uid"}])),
        ] {
            let (_, error) = sent(Some("7"), answer, nothing.clone()).await;
            assert!(matches!(error, Error::Outdated { .. }), "{error:?}");
        }
        let held = refused(409, &json!([{"reason": "FieldManagerConflict", "field": ".data.a"}]));
        let (_, error) = sent(Some("7"), held, nothing).await;
        assert!(
            matches!(&error, Error::Apply { .. }) && error.is_conflict(),
            "{error:?}"
        );
    }
}
