//! All objects of one kind, watched, and kept as compressed text.

use std::collections::HashMap;
use std::mem;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt;
use kube::Api;
use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta, PartialObjectMetaExt};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde::Deserialize;
use tokio::sync::watch as latest;

use crate::packed::{Packed, Text};
use crate::watch::key;

/// Objects by namespace and name.
type ByKey = HashMap<(String, String), Text>;

/// The objects of one kind, as a watch has shown them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Texts {
    texts: Arc<RwLock<ByKey>>,
    listed: latest::Receiver<bool>,
}

/// Takes in what the watch shows.
#[derive(Debug)]
pub struct Writer {
    texts: Arc<RwLock<ByKey>>,
    listed: latest::Sender<bool>,
    /// What a list has brought so far. It counts when it is complete.
    arriving: ByKey,
}

/// An empty store, and its only writer.
pub fn texts() -> (Texts, Writer) {
    let texts = Arc::<RwLock<ByKey>>::default();
    let (told, listed) = latest::channel(false);
    let writer = Writer {
        texts: texts.clone(),
        listed: told,
        arriving: ByKey::new(),
    };
    (Texts { texts, listed }, writer)
}

/// Watches what `api` shows, without managed fields, for as long as it is polled. `changed` is told of each object that
/// changed by its metadata, and whether it is gone.
pub async fn follow(
    api: Api<Packed<DynamicObject>>,
    config: watcher::Config,
    mut writer: Writer,
    changed: impl Fn(&PartialObjectMeta, bool),
) {
    let mut events = pin!(watch(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => writer.take_in(event, &changed),
            Err(error) => tracing::warn!(%error, "watch interrupted"),
        }
    }
}

impl Texts {
    /// The object of this namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let texts = self.texts.read().unwrap_or_else(PoisonError::into_inner);
        let text = texts.get(&(namespace.to_owned(), name.to_owned()))?;
        text.read().ok().map(Arc::new)
    }

    /// Returns when everything has been listed once, or nobody writes any more.
    pub async fn listed(&self) {
        let _ = self.listed.clone().wait_for(|listed| *listed).await;
    }
}

impl Writer {
    fn take_in(&mut self, event: Event<Packed<DynamicObject>>, changed: impl Fn(&PartialObjectMeta, bool)) {
        match event {
            Event::Init => self.arriving.clear(),
            Event::InitApply(packed) => {
                self.arriving.insert(key(&packed), packed.text);
            }
            Event::InitDone => self.list_is_complete(changed),
            Event::Apply(packed) => {
                let metadata = metadata(&packed.text);
                self.write(|texts| texts.insert(key(&packed), packed.text));
                metadata.inspect(|object| changed(object, false));
            }
            Event::Delete(packed) => {
                self.write(|texts| texts.remove(&key(&packed)));
                metadata(&packed.text).inspect(|object| changed(object, true));
            }
        }
    }

    /// Tells of what changed while nothing was watched, the end of objects included.
    fn list_is_complete(&mut self, changed: impl Fn(&PartialObjectMeta, bool)) {
        let listed = mem::take(&mut self.arriving);
        let before = self.write(|texts| mem::replace(texts, listed));
        self.listed.send_replace(true);
        let now = self.texts.read().unwrap_or_else(PoisonError::into_inner);
        let new = now.iter().filter(|(key, text)| before.get(*key) != Some(*text));
        let gone = before.iter().filter(|(key, _)| !now.contains_key(*key));
        for object in new.filter_map(|(_, text)| metadata(text)) {
            changed(&object, false);
        }
        for object in gone.filter_map(|(_, text)| metadata(text)) {
            changed(&object, true);
        }
    }

    fn write<T>(&self, change: impl FnOnce(&mut ByKey) -> T) -> T {
        change(&mut self.texts.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Only the metadata of an object, and no tree of the rest, which reading a `PartialObjectMeta` makes. It was written by us:
/// none is expected not to be readable.
fn metadata(text: &Text) -> Option<PartialObjectMeta> {
    #[derive(Deserialize)]
    struct Head {
        metadata: ObjectMeta,
    }
    let head: Head = text.read().ok()?;
    Some(head.metadata.into_response_partial())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use kube::ResourceExt;
    use serde_json::json;

    use super::*;

    fn at(name: &str, revision: &str) -> Packed<DynamicObject> {
        serde_json::from_value(json!({
            "apiVersion": "ray.io/v1", "kind": "RayService",
            "metadata": {"namespace": "ns", "name": name, "resourceVersion": revision},
            "spec": {"suspend": true},
        }))
        .unwrap()
    }

    /// What changed by these events, with `-` before what is gone.
    fn changes(writer: &mut Writer, events: impl IntoIterator<Item = Event<Packed<DynamicObject>>>) -> Vec<String> {
        let told = RefCell::new(Vec::new());
        for event in events {
            writer.take_in(event, |object, gone| {
                let sign = if gone { "-" } else { "" };
                told.borrow_mut().push(format!("{sign}{}", object.name_any()));
            });
        }
        let mut told = told.into_inner();
        told.sort();
        told
    }

    #[test]
    fn what_is_read_is_what_was_shown() {
        let (texts, mut writer) = texts();
        changes(&mut writer, [Event::Apply(at("a", "1"))]);
        assert_eq!(texts.get("ns", "a").as_deref(), Some(&at("a", "1").unpack().unwrap()));
        assert_eq!(texts.get("ns", "b"), None);
        changes(&mut writer, [Event::Delete(at("a", "1"))]);
        assert_eq!(texts.get("ns", "a"), None);
    }

    #[test]
    fn a_list_counts_when_it_is_complete() {
        let (texts, mut writer) = texts();
        assert!(changes(&mut writer, [Event::Init, Event::InitApply(at("a", "1"))]).is_empty());
        assert_eq!(texts.get("ns", "a"), None);
        assert_eq!(changes(&mut writer, [Event::InitDone]), ["a"]);
        assert!(texts.get("ns", "a").is_some());
    }

    #[test]
    fn a_second_list_tells_what_was_missed() {
        let (_, mut writer) = texts();
        let first = ["kept", "changed", "gone"].map(|name| Event::Apply(at(name, "1")));
        changes(&mut writer, first);
        let second = [
            Event::Init,
            Event::InitApply(at("kept", "1")),
            Event::InitApply(at("changed", "2")),
            Event::InitApply(at("new", "3")),
            Event::InitDone,
        ];
        assert_eq!(changes(&mut writer, second), ["-gone", "changed", "new"]);
    }
}
