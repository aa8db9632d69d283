//! Reflected watches that one bad object cannot stop.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::ready;
use std::hash::Hash;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::error_boundary::InvalidObject;
use kube::core::{ApiResource, ObjectMeta, PartialObjectMeta, Resource};
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::admin::Pending;
use crate::crd::Crd;

/// Body of a [`Resource`] implementation for a wrapper of an object: it has the object's kind.
macro_rules! same_kind {
    ($held:ident) => {
        type DynamicType = $held::DynamicType;
        type Scope = $held::Scope;

        fn kind(dt: &$held::DynamicType) -> std::borrow::Cow<'_, str> {
            $held::kind(dt)
        }

        fn group(dt: &$held::DynamicType) -> std::borrow::Cow<'_, str> {
            $held::group(dt)
        }

        fn version(dt: &$held::DynamicType) -> std::borrow::Cow<'_, str> {
            $held::version(dt)
        }

        fn plural(dt: &$held::DynamicType) -> std::borrow::Cow<'_, str> {
            $held::plural(dt)
        }
    };
}
pub(crate) use same_kind;

/// An object, or why it cannot be read. As kube's `DeserializeGuard`, but read straight from the text: that one makes a tree of
/// each object, and copies it before it reads.
#[derive(Clone, Debug)]
pub struct Guarded<K>(Result<K, InvalidObject>);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let object = match serde_json::from_str(text.get()) {
            Ok(object) => Ok(object),
            Err(error) => Err(InvalidObject {
                error: error.to_string(),
                metadata: serde_json::from_str::<PartialObjectMeta>(text.get())
                    .map_err(D::Error::custom)?
                    .metadata,
            }),
        };
        Ok(Self(object))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    same_kind!(K);

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|bad| &bad.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|bad| &mut bad.metadata, K::meta_mut)
    }
}

/// Watches `api`. Failures are logged, and the watch is resumed after a wait.
pub fn events<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let resource = api.resource_url().to_owned();
    watch(api, config).default_backoff().filter_map(move |event| {
        let event = event.inspect_err(|error| tracing::warn!(resource, %error, "watch interrupted"));
        ready(event.ok())
    })
}

/// Watches `api`. Objects that do not deserialize are skipped and logged. Managed fields are dropped, because no controller
/// reads them.
pub fn watched<K>(api: Api<Guarded<K>>, config: watcher::Config) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    events(api, config).filter_map(|event| ready(readable(event)))
}

/// Takes the events of a watch into `writer`. Objects that went while the watch was interrupted are reported as deleted.
pub fn reflect<K>(
    events: impl Stream<Item = Event<K>> + Send,
    mut writer: Writer<K>,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Clone + Eq + Hash + Send + Sync,
{
    let store = writer.as_reader();
    events.flat_map(move |event| {
        let gone = apply(&store, &mut writer, &event);
        stream::iter(gone.into_iter().map(Event::Delete).chain([event]))
    })
}

/// Applies an event to a store. Returns the objects that a new list lacks: their deletion was missed.
pub fn apply<K>(store: &Store<K>, writer: &mut Writer<K>, event: &Event<K>) -> Vec<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Clone + Eq + Hash,
{
    if !matches!(event, Event::InitDone) {
        writer.apply_watcher_event(event);
        return Vec::new();
    }
    let before = store.state();
    writer.apply_watcher_event(event);
    if before.is_empty() {
        return Vec::new();
    }
    let now: HashSet<_> = store.state().iter().map(|object| key(object.as_ref())).collect();
    let gone = before.iter().filter(|object| !now.contains(&key(object.as_ref())));
    gone.map(|object| object.as_ref().clone()).collect()
}

/// One CRD as it comes, changes and goes; the first item says whether it is there at all.
pub fn crd(client: Client, name: String) -> impl Stream<Item = Option<Crd>> + Send {
    let resource = ApiResource::erase::<CustomResourceDefinition>(&());
    single(Api::<Crd>::all_with(client, &resource), name)
}

/// One object without a namespace as it comes, changes and goes; the first item says whether it is there at all.
pub fn single<K>(api: Api<K>, name: String) -> impl Stream<Item = Option<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let only_this = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let resource = api.resource_url().to_owned();
    watch(api, only_this)
        .default_backoff()
        .scan(None, move |last, event| {
            // An Init is followed by what there is: only then is it known.
            let mut known = !matches!(event, Ok(Event::Init | Event::InitApply(_)));
            match event {
                Ok(Event::Apply(found) | Event::InitApply(found)) => *last = Some(found),
                Ok(Event::Delete(_) | Event::Init) => *last = None,
                Ok(Event::InitDone) => {}
                Err(error) => {
                    tracing::warn!(resource, name, %error, "cannot watch the object");
                    known = false;
                }
            }
            // The receiver reads it once, and some CRDs are megabytes.
            ready(Some(known.then(|| last.take())))
        })
        .filter_map(ready)
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
pub fn readable<K: Resource>(event: Event<Guarded<K>>) -> Option<Event<K>> {
    let read = |guarded: Guarded<K>| match guarded.0 {
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
    mapped(event, read)
}

/// The event of another form of its object, if there is one.
pub fn mapped<K, T>(event: Event<K>, form: impl FnOnce(K) -> Option<T>) -> Option<Event<T>> {
    Some(match event {
        Event::Apply(object) => Event::Apply(form(object)?),
        Event::Delete(object) => Event::Delete(form(object)?),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(form(object)?),
        Event::InitDone => Event::InitDone,
    })
}

/// The object an event is about, and whether it is gone.
pub fn subject<K>(event: Event<K>) -> Option<(K, bool)> {
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::WatchEvent;

    use super::*;

    /// An object as a watch brings it.
    fn brought(object: &str) -> Guarded<Pod> {
        let line = format!(r#"{{"type":"ADDED","object":{object}}}"#);
        match serde_json::from_str(&line).unwrap() {
            WatchEvent::Added(object) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn objects_that_a_new_list_lacks_are_gone() {
        let pod = |name: &str| Pod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some("team-a".to_owned()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        let (store, mut writer) = kube::runtime::reflector::store::<Pod>();
        let mut list = |names: &[&str]| -> Vec<String> {
            let found = names.iter().map(|name| Event::InitApply(pod(name)));
            let events = [Event::Init].into_iter().chain(found).chain([Event::InitDone]);
            let gone = events.flat_map(|event| apply(&store, &mut writer, &event));
            let mut gone: Vec<String> = gone.map(|pod| pod.name_any()).collect();
            gone.sort();
            gone
        };
        assert_eq!(list(&["a", "b", "c"]), Vec::<String>::new());
        assert_eq!(list(&["b"]), ["a", "c"].map(str::to_owned).to_vec());
        assert_eq!(list(&["b", "d"]), Vec::<String>::new());
    }

    #[test]
    fn an_object_is_read_without_its_managed_fields() {
        let pod =
            brought(r#"{"metadata": {"name": "a", "managedFields": [{"manager": "m"}]}, "spec": {"containers": []}}"#);
        let Some(Event::Apply(pod)) = readable(Event::Apply(pod)) else {
            panic!("it can be read");
        };
        assert_eq!(pod.metadata.name.as_deref(), Some("a"));
        assert_eq!(pod.metadata.managed_fields, None);
    }

    #[test]
    fn an_object_that_cannot_be_read_is_known_by_name_and_left_out() {
        let pod = brought(r#"{"metadata": {"name": "bad", "namespace": "ns"}, "spec": {"containers": "none"}}"#);
        assert_eq!(key(&pod), ("ns".to_owned(), "bad".to_owned()));
        assert!(
            pod.0.as_ref().is_err_and(|bad| bad.error.contains("a sequence")),
            "{pod:?}"
        );
        assert!(readable(Event::Apply(pod)).is_none());
    }
}
