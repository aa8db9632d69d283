//! Earlier states of the cluster, and how far each controller has read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kube::core::DynamicObject;
use runway_api::ModelDeployment;
use runway_provider::Kind;
use serde::Deserialize;
use serde_json::Value;

/// Largest lag of a cache, in changes.
pub(crate) const MOST_LAG: u64 = 3;

/// Lag of the caches of a controller, in changes: that of the ModelDeployment, and those of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lag {
    pub(crate) owner: u64,
    pub(crate) children: u64,
}

impl Lag {
    pub(crate) const NONE: Self = Self { owner: 0, children: 0 };

    /// Every lag, the smallest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..=MOST_LAG).flat_map(|owner| (0..=MOST_LAG).map(move |children| Self { owner, children }))
    }
}

/// Everything that is watched, at one time.
pub(super) struct View {
    pub(super) md: Option<Arc<ModelDeployment>>,
    children: Vec<(Kind, Arc<DynamicObject>)>,
    /// The same as text, without the resource version.
    text: String,
}

impl View {
    pub(super) fn new(mut shown: Option<Value>, objects: &[(Kind, Value)]) -> Self {
        let md = shown
            .as_ref()
            .map(|md| Arc::new(ModelDeployment::deserialize(md).unwrap()));
        if let Some(metadata) = shown.as_mut().and_then(|md| md["metadata"].as_object_mut()) {
            metadata.remove("resourceVersion");
        }
        let text = serde_json::to_string(&(shown, objects.iter().map(|(_, o)| o).collect::<Vec<_>>())).unwrap();
        let read = |(kind, object): &(Kind, Value)| (*kind, Arc::new(serde_json::from_value(object.clone()).unwrap()));
        let children = objects.iter().map(read).collect();
        Self { md, children, text }
    }
}

/// The last states, oldest first.
#[derive(Clone, Default)]
pub(super) struct Past {
    views: VecDeque<Arc<View>>,
    /// Number of the newest.
    version: u64,
}

impl Past {
    /// Adds a state, if it is another than the newest.
    pub(super) fn add(&mut self, view: View) {
        let version = |view: &View| view.md.as_ref().and_then(|md| md.metadata.resource_version.clone());
        let same = |newest: &Arc<View>| newest.text == view.text && version(newest) == version(&view);
        if self.views.back().is_some_and(same) {
            return;
        }
        self.version += 1;
        self.views.push_back(Arc::new(view));
        while self.views.len() as u64 > MOST_LAG + 1 {
            self.views.pop_front();
        }
    }

    pub(super) fn newest(&self) -> &View {
        self.at(self.version)
    }

    /// The state of that number, or the oldest that is known.
    fn at(&self, version: u64) -> &View {
        let back = usize::try_from(self.version - version).unwrap();
        let last = self.views.len() - 1;
        &self.views[last - back.min(last)]
    }

    /// The states as text.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.views.iter().map(|view| view.text.as_str())
    }

    pub(super) fn age(&self, version: u64) -> u64 {
        (self.version - version).min(MOST_LAG)
    }
}

/// The caches of a controller.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Reader {
    /// Version of the ModelDeployment that it has read last, from a watch or in the response to a write of its own.
    owner: u64,
    /// Version of the children that its watches have delivered.
    children: u64,
    /// Versions of its own writes.
    wrote: BTreeMap<(&'static str, String), u64>,
}

impl Reader {
    /// A controller that has just listed everything.
    pub(super) fn started(past: &Past) -> Self {
        Self {
            owner: past.version,
            children: past.version,
            wrote: BTreeMap::new(),
        }
    }

    /// The caches after the watches have delivered everything but the last changes. What has been read is not read again in an
    /// older version.
    pub(super) fn reading(&self, past: &Past, lag: Lag) -> Self {
        let children = self.children.max(past.version.saturating_sub(lag.children));
        let newer = self.wrote.iter().filter(|(_, version)| **version > children);
        Self {
            owner: self.owner.max(past.version.saturating_sub(lag.owner)),
            children,
            wrote: newer.map(|(object, version)| (object.clone(), *version)).collect(),
        }
    }

    pub(super) fn owner(&self, past: &Past) -> Option<Arc<ModelDeployment>> {
        past.at(self.owner).md.clone()
    }

    pub(super) fn child(&self, past: &Past, kind: Kind, name: &str) -> Option<Arc<DynamicObject>> {
        let own = self.wrote.get(&(kind.kind, name.to_owned())).copied();
        let view = past.at(own.unwrap_or_default().max(self.children));
        let is =
            |(of, object): &&(Kind, Arc<DynamicObject>)| *of == kind && object.metadata.name.as_deref() == Some(name);
        view.children.iter().find(is).map(|(_, object)| object.clone())
    }

    pub(super) fn wrote_owner(&mut self, past: &Past) {
        self.owner = past.version;
    }

    pub(super) fn wrote_child(&mut self, past: &Past, kind: Kind, name: String) {
        self.wrote.insert((kind.kind, name), past.version);
    }

    /// Lags in changes, for [`super::World::fingerprint`].
    pub(super) fn lags(&self, past: &Past) -> Vec<u64> {
        let own = self.wrote.values().map(|version| past.age(*version));
        [past.age(self.owner), past.age(self.children)]
            .into_iter()
            .chain(own)
            .collect()
    }
}
