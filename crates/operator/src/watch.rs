//! Reflected watches that one bad object cannot stop.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::future::ready;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::error_boundary::InvalidObject;
use kube::core::{ApiResource, ObjectMeta, PartialObjectMeta, Resource};
use kube::runtime::reflector::store::{Store, Writer};
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher as watch;
use kube::runtime::watcher::{self, Event, ExponentialBackoff};
use kube::{Api, Client, ResourceExt};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::breaker::Open;
use crate::crd::Crd;
use crate::echo::{Echo, revision};
use crate::health::Pending;

/// First wait after a failure of a watch; it doubles with every further one.
const FIRST_WAIT: Duration = Duration::from_millis(800);
/// Status of a watch that begins before the oldest change that the API server knows.
const EXPIRED: u16 = 410;
/// Longest wait, to which up to the same is added at random: a controller resumes its work so long after an outage.
const LONGEST_WAIT: Duration = Duration::from_secs(4);

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
    without_errors(resource, resumed(relisted(api, config)))
}

/// Watches `api`, and lists everything again after each failure. Continuing from the last resource version would deliver nothing
/// after a restore of etcd from a backup, until the API server has reached that version again.
fn relisted<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = move || watch(api.clone(), config.clone()).boxed();
    stream::unfold((begin(), begin), async |(mut events, begin)| {
        let event = events.next().await?;
        if event.is_err() {
            events = begin();
        }
        Some((event, (events, begin)))
    })
}

/// Delays a watch after an error, twice as long after each further one. Only the first wait follows, however many errors came before,
/// if the watch has expired (410), because the server works, or if the breaker sent no request, because it limits them itself.
fn resumed<T: Send>(
    events: impl Stream<Item = watcher::Result<T>> + Send,
) -> impl Stream<Item = watcher::Result<T>> + Send {
    let events = events.filter_map(|event| async {
        match event {
            Err(watcher::Error::WatchError(status)) if status.code == EXPIRED => {
                tokio::time::sleep(FIRST_WAIT).await;
                None
            }
            Err(error) if Open::interrupted(&error) => {
                tokio::time::sleep(FIRST_WAIT).await;
                Some(Ok(Err(error)))
            }
            event => Some(event.map(Ok)),
        }
    });
    let waits = ExponentialBuilder::new()
        .with_min_delay(FIRST_WAIT)
        .with_max_delay(LONGEST_WAIT)
        .with_jitter()
        .without_max_times();
    StreamBackoff::new(events, ExponentialBackoff::from(waits)).map(Result::flatten)
}

/// Logs the errors of a watch, except for those of an outage, which the breaker reports once for all requests.
fn without_errors<T: Send>(
    resource: String,
    events: impl Stream<Item = watcher::Result<T>> + Send,
) -> impl Stream<Item = T> + Send {
    events.filter_map(move |event| {
        if let Err(error) = event.as_ref()
            && !Open::interrupted(error)
        {
            tracing::warn!(resource, %error, "watch interrupted");
        }
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

/// Passes the events on, and calls `missed` with each object that we wrote before a list began and that the list lacks: it was
/// deleted before the watch showed it, so no event reports the deletion. A version that is later than the listed one is forgotten:
/// etcd was restored from a backup.
pub fn noticing<K, W>(
    events: impl Stream<Item = Event<K>> + Send,
    written: Arc<Echo<W>>,
    kind: impl AsRef<str> + Send,
    missed: impl Fn(&W) + Send,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Send,
    W: Resource + Send + Sync,
{
    let mut unseen = HashMap::new();
    events.inspect(move |event| match event {
        Event::Init => {
            let answers = written.all(kind.as_ref()).into_iter();
            unseen = answers.map(|answer| (key(answer.as_ref()), answer)).collect();
        }
        Event::InitApply(object) if !unseen.is_empty() => {
            let answer = unseen.remove(&key(object));
            if let Some(later) = answer.filter(|answer| revision(answer.as_ref()) > revision(object)) {
                written.forget(kind.as_ref(), &later);
            }
        }
        Event::InitDone => {
            for (_, answer) in unseen.drain() {
                written.forget(kind.as_ref(), &answer);
                missed(&answer);
            }
        }
        Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => {}
    })
}

/// One CRD as it comes, changes and goes; the first item says whether it is there at all.
pub fn crd(client: Client, name: &str) -> impl Stream<Item = Option<Crd>> + Send + use<> {
    let resource = ApiResource::erase::<CustomResourceDefinition>(&());
    single(Api::<Crd>::all_with(client, &resource), name)
}

/// One object as it comes, changes and goes; the first item says whether it is there at all.
pub fn single<K>(api: Api<K>, name: &str) -> impl Stream<Item = Option<K>> + Send + use<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let resource = format!("{}/{name}", api.resource_url());
    without_errors(resource, resumed(object(api, name)))
}

/// As [`single`], with the errors of the watch, and without a delay after them.
pub(crate) fn object<K>(api: Api<K>, name: &str) -> impl Stream<Item = watcher::Result<Option<K>>> + Send + use<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let only_this = watcher::Config::default().fields(&format!("metadata.name={name}"));
    relisted(api, only_this)
        .scan(None, |listed, event| {
            let known = match event {
                Ok(Event::Init) => {
                    *listed = None;
                    None
                }
                Ok(Event::InitApply(found)) => {
                    *listed = Some(found);
                    None
                }
                Ok(Event::InitDone) => Some(Ok(listed.take())),
                Ok(Event::Apply(found)) => Some(Ok(Some(found))),
                Ok(Event::Delete(_)) => Some(Ok(None)),
                Err(error) => Some(Err(error)),
            };
            ready(Some(known))
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

    #[tokio::test]
    async fn objects_that_were_written_and_deleted_while_the_watch_was_away_are_noticed() {
        let pod = |name: &str, version: &str| Pod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        let written = Arc::new(Echo::default());
        let (sender, events) = futures::channel::mpsc::unbounded();
        let (told, mut missed) = futures::channel::mpsc::unbounded();
        let mut events = std::pin::pin!(noticing(events, written.clone(), "Pod", |pod: &Pod| {
            told.unbounded_send(pod.name_any()).unwrap();
        }));
        let mut pass = async |event: Event<Pod>| {
            sender.unbounded_send(event).unwrap();
            events.next().await.unwrap();
        };
        written.wrote("Pod", pod("gone", "1"));
        written.wrote("Pod", pod("there", "2"));
        written.wrote("Pod", pod("restored", "5"));
        written.wrote("Other", pod("of-another-kind", "3"));
        pass(Event::Init).await;
        // Its list may have been made before it.
        written.wrote("Pod", pod("later", "4"));
        pass(Event::InitApply(pod("there", "2"))).await;
        pass(Event::InitApply(pod("restored", "1"))).await;
        pass(Event::InitDone).await;
        assert_eq!(missed.try_recv().unwrap(), "gone");
        assert!(missed.try_recv().is_err(), "the others are not missed");
        let newest = |kind: &str, name: &str| written.newest(kind, "", name, None).is_some();
        assert!(!newest("Pod", "gone") && !newest("Pod", "restored"));
        assert!(newest("Pod", "there") && newest("Pod", "later") && newest("Other", "of-another-kind"));
    }

    #[tokio::test(start_paused = true)]
    async fn expired_watch_is_listed_again_at_once_and_an_outage_is_waited_for() {
        let status = |code: u16| {
            let status = kube::core::Status {
                code,
                ..kube::core::Status::default()
            };
            Err::<Event<Pod>, _>(watcher::Error::WatchError(Box::new(status)))
        };
        let outage = std::iter::repeat_n((), 10).map(|()| status(503));
        let events = outage.chain([status(410), Ok(Event::Init)]);
        let mut events = std::pin::pin!(resumed(stream::iter(events)));
        let mut last = tokio::time::Instant::now();
        for _ in 0..10 {
            assert!(events.next().await.unwrap().is_err());
            assert!(last.elapsed() <= 2 * LONGEST_WAIT, "{:?}", last.elapsed());
            last = tokio::time::Instant::now();
        }
        assert!(matches!(events.next().await, Some(Ok(Event::Init))));
        assert!(last.elapsed() <= 2 * LONGEST_WAIT + FIRST_WAIT, "{:?}", last.elapsed());
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
