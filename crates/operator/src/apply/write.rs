//! Single writes, each with the guard that keeps it from changing another object than the one that was observed.

use std::time::Instant;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions, ValidationDirective};
use kube::core::{ApiResource, DynamicObject, Status};
use kube::{Api, Client, ResourceExt};
use runway_api::Namespace;
use runway_api::name::{Invalid, Segment};
use serde_json::{Value, json};

use super::error::{Error, is_another, is_conflict, is_field_conflict, is_internal};
use super::executor::{Executor, Owner};
use crate::echo::{self, Key};
use crate::object;
use crate::plan::{Admission, Apply, Delete, Edit};

/// A resource version that no object has: etcd gives the first write a later one. The server compares it when it changes an
/// object, and not when it creates one.
pub(crate) const NO_VERSION: &str = "1";

impl<K: Owner> Executor<K> {
    /// An unknown field is an error, never pruned in silence.
    pub(super) async fn send(&self, apply: &Apply, dry_run: bool) -> Result<DynamicObject, Error> {
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
                lasting: (!dry_run || apply.admission != Admission::NeedsOthers) && self.is_lasting(key, &source),
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

    pub(super) async fn edit(&self, owner: &K, edit: &Edit) -> Result<(), Error> {
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

    pub(super) async fn delete(&self, delete: &Delete) -> Result<(), Error> {
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
    pub(super) async fn status(
        &self,
        owner: &K,
        manager: &str,
        status: &Value,
        guarded: bool,
    ) -> Result<Option<K>, Error> {
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
    pub(super) async fn set_finalizer(&self, owner: &K, present: bool) -> Result<Option<K>, Error> {
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
pub(super) async fn find(
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
