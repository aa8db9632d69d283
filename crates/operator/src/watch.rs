//! Reflected watches that one bad object cannot stop.

use std::fmt::Debug;
use std::hash::Hash;

use futures::{Stream, StreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, DeserializeGuard, Resource};
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;

use crate::admin::Pending;
use crate::crd::Crd;

/// Watches `api` into `writer`. Objects that do not deserialize are left out and logged; managed fields are dropped, since
/// nobody here reads them and they are a fifth of the memory.
pub fn reflect<K>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    writer: Writer<K>,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Clone + Eq + Hash + Default + Debug + Send + Sync,
{
    watch(api, config)
        .default_backoff()
        .filter_map(|event| async move {
            event
                .inspect_err(|error| tracing::warn!(%error, "watch interrupted"))
                .ok()
        })
        .filter_map(|event| async move { readable(event) })
        .scan(writer, |writer, event| {
            writer.apply_watcher_event(&event);
            futures::future::ready(Some(event))
        })
}

/// One CRD as it comes, changes and goes; the first item says whether it is there at all.
pub fn crd(client: Client, name: String) -> impl Stream<Item = Option<Crd>> + Send {
    let only_this = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let resource = ApiResource::erase::<CustomResourceDefinition>(&());
    watch(Api::<Crd>::all_with(client, &resource), only_this)
        .default_backoff()
        .scan(None, move |crd, event| {
            // An Init is followed by what there is: only then is it known.
            let mut known = !matches!(event, Ok(Event::Init | Event::InitApply(_)));
            match event {
                Ok(Event::Apply(found) | Event::InitApply(found)) => *crd = Some(found),
                Ok(Event::Delete(_) | Event::Init) => *crd = None,
                Ok(Event::InitDone) => {}
                Err(error) => {
                    tracing::warn!(crd = name, %error, "cannot watch the CRD");
                    known = false;
                }
            }
            // Nobody looks at it twice, and some are megabytes.
            futures::future::ready(Some(known.then(|| crd.take())))
        })
        .filter_map(futures::future::ready)
}

/// The same events; the process is ready when the first list is through.
pub fn ready_when_listed<K: Send>(
    events: impl Stream<Item = Event<K>> + Send,
    listed: Pending,
) -> impl Stream<Item = Event<K>> + Send {
    let mut listed = Some(listed);
    events.inspect(move |event| {
        if matches!(event, Event::InitDone)
            && let Some(listed) = listed.take()
        {
            listed.done();
        }
    })
}

/// The event of an object that can be read, without managed fields; what cannot be read is logged and left out.
pub fn readable<K: Resource>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
    let read = |guarded: DeserializeGuard<K>| match guarded.0 {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None;
            Some(object)
        }
        Err(bad) => {
            tracing::warn!(
                name = bad.metadata.name,
                namespace = bad.metadata.namespace,
                error = bad.error,
                "object left out"
            );
            None
        }
    };
    Some(match event {
        Event::Apply(object) => Event::Apply(read(object)?),
        Event::Delete(object) => Event::Delete(read(object)?),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(read(object)?),
        Event::InitDone => Event::InitDone,
    })
}

/// The object an event is about, and whether it is gone.
pub fn subject<K>(event: &Event<K>) -> Option<(&K, bool)> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => Some((object, false)),
        Event::Delete(object) => Some((object, true)),
        Event::Init | Event::InitDone => None,
    }
}

/// Namespace and name of an object.
pub fn key<K: ResourceExt>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}
