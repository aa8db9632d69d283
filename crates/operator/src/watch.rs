//! Reflected watches that one bad object cannot stop. A kind is watched in all namespaces, or in each of some
//! ([`crate::scope`]): these watches are one stream, and a namespace that cannot be read does not hold up the others.

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
use kube::runtime::watcher::{self, ExponentialBackoff};
use kube::{Api, Client, ResourceExt};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::breaker::Open;
use crate::crd::Crd;
use crate::echo::{Echo, revision};
use crate::health::Pending;
use crate::scope::Apis;
pub use crate::scope::Part;

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

/// An event of the watches of a kind.
#[derive(Clone, Debug)]
pub enum Event<K> {
    /// An object was created or changed.
    Apply(K),
    /// An object was deleted.
    Delete(K),
    /// A list begins. Lists of several namespaces may overlap.
    Init(Part),
    /// An object of a list.
    InitApply(K),
    /// A list is complete: objects of this part that it lacks are gone.
    InitDone(Part),
    /// Every part has been listed. Sent once. A namespace that may not be read counts as listed.
    Listed,
}

impl<K> Event<K> {
    fn of(part: &Part, event: watcher::Event<K>) -> Self {
        match event {
            watcher::Event::Apply(object) => Self::Apply(object),
            watcher::Event::Delete(object) => Self::Delete(object),
            watcher::Event::Init => Self::Init(part.clone()),
            watcher::Event::InitApply(object) => Self::InitApply(object),
            watcher::Event::InitDone => Self::InitDone(part.clone()),
        }
    }
}

impl<K> From<watcher::Event<K>> for Event<K> {
    fn from(event: watcher::Event<K>) -> Self {
        Self::of(&Part::All, event)
    }
}

/// Watches `apis`. Failures are logged, and the watch is resumed after a wait.
pub fn events<K>(apis: Apis<K>, config: watcher::Config) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let apis = apis.into_parts();
    let mut unsettled = apis.len();
    let watches = apis
        .into_iter()
        .zip(std::iter::repeat(config))
        .map(|((part, api), config)| watch_of_part(part, api, config).boxed());
    stream::select_all(watches).filter_map(move |event| {
        if event.is_none() {
            unsettled -= 1;
        }
        ready(event.or_else(|| (unsettled == 0).then_some(Event::Listed)))
    })
}

/// Events of one watch. `None`, once: its first list is complete, or its namespace may not be read.
fn watch_of_part<K>(part: Part, api: Api<K>, config: watcher::Config) -> impl Stream<Item = Option<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let resource = api.resource_url().to_owned();
    let mut is_settled = false;
    resumed(relisted(api, config)).flat_map(move |event| {
        let settles = match &event {
            Ok(event) => matches!(event, watcher::Event::InitDone),
            Err(error) => part != Part::All && is_forbidden(error),
        };
        let settled = (settles && !is_settled).then_some(None);
        is_settled |= settles;
        let event = reported(&resource, event).map(|event| Some(Event::of(&part, event)));
        stream::iter(event.into_iter().chain(settled))
    })
}

/// Whether the right to list the objects is missing.
fn is_forbidden(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.is_forbidden())
}

/// Watches `api`, and lists everything again after each failure. Continuing from the last resource version would deliver nothing
/// after a restore of etcd from a backup, until the API server has reached that version again.
fn relisted<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
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

/// Logs the error of a watch, except for those of an outage, which the breaker reports once for all requests.
fn reported<T>(resource: &str, event: watcher::Result<T>) -> Option<T> {
    if let Err(error) = event.as_ref()
        && !Open::interrupted(error)
    {
        tracing::warn!(resource, %error, "watch interrupted");
    }
    event.ok()
}

/// Watches `apis`. Objects that do not deserialize are skipped and logged. Managed fields are dropped, because no controller
/// reads them.
pub fn watched<K>(apis: Apis<Guarded<K>>, config: watcher::Config) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    events(apis, config).filter_map(|event| ready(readable(event)))
}

/// Takes the events of a watch into `writer`. Objects that went while the watch was interrupted are reported as deleted.
pub fn reflect<K>(events: impl Stream<Item = Event<K>> + Send, writer: Writer<K>) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Clone + Eq + Hash + Send + Sync,
{
    let mut reflection = Reflection::of(writer);
    events.flat_map(move |event| {
        let gone = reflection.take_in(&event);
        stream::iter(gone.into_iter().map(Event::Delete).chain([event]))
    })
}

/// A store that is filled by a watch. kube's writer knows lists of everything only: objects in the list of one namespace are
/// applied one by one.
struct Reflection<K: Resource + Clone + 'static>
where
    K::DynamicType: Eq + Hash + Clone,
{
    store: Store<K>,
    writer: Writer<K>,
    /// Names in the unfinished list of each namespace.
    arriving: HashMap<Arc<str>, HashSet<String>>,
    is_by_namespace: bool,
}

impl<K: Resource + Clone + 'static> Reflection<K>
where
    K::DynamicType: Clone + Eq + Hash,
{
    fn of(writer: Writer<K>) -> Self {
        Self {
            store: writer.as_reader(),
            writer,
            arriving: HashMap::new(),
            is_by_namespace: false,
        }
    }

    fn write(&mut self, event: &watcher::Event<K>) {
        self.writer.apply_watcher_event(event);
    }

    /// Applies an event to the store. Returns the objects that a new list lacks: their deletion was missed.
    fn take_in(&mut self, event: &Event<K>) -> Vec<K> {
        match event {
            Event::Apply(object) => self.write(&watcher::Event::Apply(object.clone())),
            Event::Delete(object) => self.write(&watcher::Event::Delete(object.clone())),
            Event::Init(Part::All) => self.write(&watcher::Event::Init),
            Event::Init(Part::Of(namespace)) => {
                self.is_by_namespace = true;
                self.arriving.insert(Arc::clone(namespace), HashSet::new());
            }
            Event::InitApply(object) => {
                let listed = object
                    .meta()
                    .namespace
                    .as_deref()
                    .and_then(|of| self.arriving.get_mut(of));
                match listed {
                    Some(names) => {
                        names.insert(object.name_any());
                        self.write(&watcher::Event::Apply(object.clone()));
                    }
                    None => self.write(&watcher::Event::InitApply(object.clone())),
                }
            }
            Event::InitDone(part) => return self.finish(part),
            Event::Listed if self.is_by_namespace => self.begin(),
            Event::Listed => {}
        }
        Vec::new()
    }

    /// Ends a list.
    fn finish(&mut self, part: &Part) -> Vec<K> {
        let before = self.store.state();
        let is_gone: Box<dyn Fn(&K) -> bool> = match part {
            Part::All => {
                self.write(&watcher::Event::InitDone);
                if before.is_empty() {
                    return Vec::new();
                }
                let now: HashSet<_> = self.store.state().iter().map(|object| key(object.as_ref())).collect();
                Box::new(move |object| !now.contains(&key(object)))
            }
            Part::Of(namespace) => {
                let now = self.arriving.remove(namespace).unwrap_or_default();
                let part = part.clone();
                Box::new(move |object| {
                    part.covers(object.namespace().as_deref().unwrap_or_default()) && !now.contains(&object.name_any())
                })
            }
        };
        let gone: Vec<K> = before
            .iter()
            .map(AsRef::as_ref)
            .filter(|object| is_gone(object))
            .cloned()
            .collect();
        if *part != Part::All {
            for object in &gone {
                self.write(&watcher::Event::Delete(object.clone()));
            }
        }
        gone
    }

    /// Marks the store as complete, which kube does at the end of a list only.
    fn begin(&mut self) {
        let all = self.store.state();
        self.write(&watcher::Event::Init);
        for object in all {
            self.write(&watcher::Event::InitApply(K::clone(&object)));
        }
        self.write(&watcher::Event::InitDone);
    }
}

/// Passes the events on, and calls `missed` with each object that we wrote before a list began and that the list lacks: it was
/// deleted before the watch showed it, so no event reports the deletion. A version that is later than the listed one is forgotten:
/// etcd was restored from a backup.
pub fn reporting_missed<K, W>(
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
        Event::Init(part) => {
            let answers = written.all(kind.as_ref()).into_iter();
            let answers = answers.map(|answer| (key(answer.as_ref()), answer));
            unseen.extend(answers.filter(|((namespace, _), _)| part.covers(namespace)));
        }
        Event::InitApply(object) if !unseen.is_empty() => {
            let answer = unseen.remove(&key(object));
            if let Some(later) = answer.filter(|answer| revision(answer.as_ref()) > revision(object)) {
                written.forget(kind.as_ref(), &later);
            }
        }
        Event::InitDone(part) => {
            for (_, answer) in unseen.extract_if(|(namespace, _), _| part.covers(namespace)) {
                written.forget(kind.as_ref(), &answer);
                missed(&answer);
            }
        }
        Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) | Event::Listed => {}
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
    resumed(object(api, name)).filter_map(move |event| ready(reported(&resource, event)))
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
                Ok(watcher::Event::Init) => {
                    *listed = None;
                    None
                }
                Ok(watcher::Event::InitApply(found)) => {
                    *listed = Some(found);
                    None
                }
                Ok(watcher::Event::InitDone) => Some(Ok(listed.take())),
                Ok(watcher::Event::Apply(found)) => Some(Ok(Some(found))),
                Ok(watcher::Event::Delete(_)) => Some(Ok(None)),
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
        if matches!(event, Event::Listed)
            && let Some(listed) = listed.take()
        {
            listed.done();
        }
    })
}

/// The event of an object that can be read, without managed fields; what cannot be read is logged and left out.
pub fn readable<K: Resource>(event: impl Into<Event<Guarded<K>>>) -> Option<Event<K>> {
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
    mapped(event.into(), read)
}

/// The event of another form of its object, if there is one.
pub fn mapped<K, T>(event: Event<K>, form: impl FnOnce(K) -> Option<T>) -> Option<Event<T>> {
    Some(match event {
        Event::Apply(object) => Event::Apply(form(object)?),
        Event::Delete(object) => Event::Delete(form(object)?),
        Event::Init(part) => Event::Init(part),
        Event::InitApply(object) => Event::InitApply(form(object)?),
        Event::InitDone(part) => Event::InitDone(part),
        Event::Listed => Event::Listed,
    })
}

/// The object an event is about, and whether it is gone.
pub fn subject<K>(event: Event<K>) -> Option<(K, bool)> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => Some((object, false)),
        Event::Delete(object) => Some((object, true)),
        Event::Init(_) | Event::InitDone(_) | Event::Listed => None,
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
        let mut reflection = Reflection::of(kube::runtime::reflector::store::<Pod>().1);
        let mut list = |names: &[&str]| -> Vec<String> {
            let found = names.iter().map(|name| Event::InitApply(pod(name)));
            let list = [Event::Init(Part::All)]
                .into_iter()
                .chain(found)
                .chain([Event::InitDone(Part::All)]);
            let gone = list.flat_map(|event| reflection.take_in(&event));
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
        let (noted, mut missed) = futures::channel::mpsc::unbounded();
        let mut events = std::pin::pin!(reporting_missed(events, written.clone(), "Pod", |pod: &Pod| {
            noted.unbounded_send(pod.name_any()).unwrap();
        }));
        let mut pass = async |event: Event<Pod>| {
            sender.unbounded_send(event).unwrap();
            events.next().await.unwrap();
        };
        written.wrote("Pod", pod("gone", "1"));
        written.wrote("Pod", pod("there", "2"));
        written.wrote("Pod", pod("restored", "5"));
        written.wrote("Other", pod("of-another-kind", "3"));
        pass(Event::Init(Part::All)).await;
        // Its list may have been made before it.
        written.wrote("Pod", pod("later", "4"));
        pass(Event::InitApply(pod("there", "2"))).await;
        pass(Event::InitApply(pod("restored", "1"))).await;
        pass(Event::InitDone(Part::All)).await;
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
            Err::<watcher::Event<Pod>, _>(watcher::Error::WatchError(Box::new(status)))
        };
        let outage = std::iter::repeat_n((), 10).map(|()| status(503));
        let events = outage.chain([status(410), Ok(watcher::Event::Init)]);
        let mut events = std::pin::pin!(resumed(stream::iter(events)));
        let mut last = tokio::time::Instant::now();
        for _ in 0..10 {
            assert!(events.next().await.unwrap().is_err());
            assert!(last.elapsed() <= 2 * LONGEST_WAIT, "{:?}", last.elapsed());
            last = tokio::time::Instant::now();
        }
        assert!(matches!(events.next().await, Some(Ok(watcher::Event::Init))));
        assert!(last.elapsed() <= 2 * LONGEST_WAIT + FIRST_WAIT, "{:?}", last.elapsed());
    }

    /// A server with a pod in each namespace, whose watches stay silent. Lists in `team-b` are forbidden at first.
    fn two_namespaces(refusals: usize) -> kube::Client {
        let refusals = Arc::new(std::sync::atomic::AtomicUsize::new(refusals));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (path, query) = (
                request.uri().path().to_owned(),
                request.uri().query().unwrap_or_default().to_owned(),
            );
            let refusals = Arc::clone(&refusals);
            async move {
                let namespace = path.split('/').nth(4).unwrap_or_default();
                if query.contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let left = |left: usize| left.checked_sub(1);
                let order = std::sync::atomic::Ordering::SeqCst;
                let is_refused = namespace == "team-b" && refusals.fetch_update(order, order, left).is_ok();
                let (status, body) = if is_refused {
                    let status = serde_json::json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden",
                        "message": "no", "code": 403 });
                    (403, status)
                } else {
                    let pod = serde_json::json!({ "metadata": { "name": "pod", "namespace": namespace } });
                    (
                        200,
                        serde_json::json!({ "metadata": { "resourceVersion": "1" }, "items": [pod] }),
                    )
                };
                let response = http::Response::builder().status(status);
                let response = response.body(kube::client::Body::from(body.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        kube::Client::new(service, "default")
    }

    fn shown(event: &Event<Pod>) -> String {
        let part = |part: &Part| match part {
            Part::All => "all".to_owned(),
            Part::Of(namespace) => namespace.to_string(),
        };
        match event {
            Event::Init(of) => format!("begin {}", part(of)),
            Event::InitApply(pod) => format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
            Event::InitDone(of) => format!("end {}", part(of)),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn namespace_that_may_not_be_read_does_not_hold_up_the_others() {
        let namespaces: crate::scope::Namespaces = "team-a,team-b".parse().unwrap();
        let (store, writer) = kube::runtime::reflector::store();
        let pods = watched::<Pod>(namespaces.apis(&two_namespaces(2)), watcher::Config::default());
        let mut pods = std::pin::pin!(reflect(pods, writer));
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| last != "Listed") {
            seen.push(shown(&pods.next().await.unwrap()));
        }
        assert!(
            seen.contains(&"team-a/pod".to_owned()) && seen.contains(&"end team-a".to_owned()),
            "{seen:?}"
        );
        assert!(!seen.contains(&"end team-b".to_owned()), "{seen:?}");
        store.wait_until_ready().await.unwrap();
        assert_eq!(store.state().len(), 1);
        while seen.last().is_none_or(|last| last != "end team-b") {
            seen.push(shown(&pods.next().await.unwrap()));
        }
        assert_eq!(store.state().len(), 2, "{seen:?}");
        assert_eq!(seen.iter().filter(|event| *event == "Listed").count(), 1);
    }

    #[test]
    fn list_of_a_namespace_reports_only_objects_of_this_namespace_as_gone() {
        let pod = |namespace: &str, name: &str| Pod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        let (store, writer) = kube::runtime::reflector::store();
        let mut reflection = Reflection::of(writer);
        let mut list = |namespace: &str, names: &[&str]| -> Vec<(String, String)> {
            let part = Part::Of(namespace.into());
            let found = names.iter().map(|name| Event::InitApply(pod(namespace, name)));
            let list = [Event::Init(part.clone())].into_iter().chain(found);
            let gone = list
                .chain([Event::InitDone(part)])
                .flat_map(|event| reflection.take_in(&event));
            let mut gone: Vec<_> = gone.map(|pod| key(&pod)).collect();
            gone.sort();
            gone
        };
        assert_eq!(list("a", &["x", "y"]), []);
        assert_eq!(list("b", &["x"]), []);
        assert_eq!(list("a", &["y"]), [("a".to_owned(), "x".to_owned())]);
        reflection.take_in(&Event::Listed);
        let mut left: Vec<_> = store.state().iter().map(|pod| key(pod.as_ref())).collect();
        left.sort();
        assert_eq!(
            left,
            [("a", "y"), ("b", "x")].map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
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
