//! One watch per kind and place, however many browsers look and however many sessions a user has.
//!
//! A watch reads as one of the user's sessions. A cluster that goes away is noticed by the watches and asked every second until
//! it is back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use runway_operator::watch::{Event, Guarded, readable};
use tokio::sync::{broadcast, watch as latest};
use tokio_util::task::AbortOnDropHandle;

use crate::health::{FIRST_LIST, Health};
use crate::history::{Histories, State};
use crate::kind::Kind;
use crate::seen::{Change, News, Trouble};
use crate::store::{Store, Used};

/// Objects in one answer to a list.
const CHUNK: u32 = 100;
/// After so long a kind that was too much is tried again.
const TOO_MUCH_FOR: Duration = Duration::from_mins(1);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Starting,
    Listed,
    Failed(Trouble),
}

/// Owner of the watches of one user.
pub trait Owner: Send + Sync {
    /// Whether another session of the user may still be accepted by the cluster.
    fn has_another_holder(&self) -> bool;

    /// Makes room for new objects. `false` if this user alone exceeds the limit.
    fn make_room(&self) -> bool;
}

/// Connections of a watch to the rest of the console.
pub struct Feed {
    /// Owner of the watch.
    pub owner: Weak<dyn Owner>,
    /// Client of the user.
    pub client: Client,
    /// Counter of the bytes in use.
    pub used: Used,
    /// Receivers of changes.
    pub changes: broadcast::Sender<News>,
    /// Health of the connection.
    pub health: Arc<Health>,
}

/// A kind, watched in one namespace or in all.
pub struct Watched<K: Kind> {
    store: Arc<Store<K>>,
    standing: latest::Receiver<Standing>,
    /// The replicas of its objects.
    pub histories: Arc<Histories>,
    task: AbortOnDropHandle<()>,
}

impl<K: Kind> Watched<K> {
    /// Starts a watch in a namespace, or in all.
    pub fn start(feed: Feed, namespace: Option<&str>) -> Self {
        let api = match namespace {
            None => Some(Api::all(feed.client)),
            Some(namespace) => K::within(feed.client, namespace),
        };
        let store = Arc::new(Store::new(feed.used));
        let histories = Arc::new(Histories::default());
        let (standing, seen) = latest::channel(Standing::Starting);
        let follower = Follower {
            store: store.clone(),
            histories: histories.clone(),
            standing,
            owner: feed.owner,
            changes: feed.changes,
            health: feed.health,
        };
        let task = tokio::spawn(async move {
            if let Some(api) = api {
                follower.run(api).await;
            }
        });
        Self {
            store,
            standing: seen,
            histories,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Whether the watch has ended.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it, and forgets what it has shown.
    pub fn end(&self) {
        self.task.abort();
        self.store.clear();
    }

    /// Waits for the first result; returns the reason if there are no objects, or no newer ones.
    pub async fn trouble(&self) -> Option<Trouble> {
        let mut standing = self.standing.clone();
        let known = standing.wait_for(|standing| *standing != Standing::Starting);
        match tokio::time::timeout(FIRST_LIST, known).await {
            Ok(Ok(standing)) => match &*standing {
                Standing::Failed(trouble) => Some(trouble.clone()),
                Standing::Starting | Standing::Listed => None,
            },
            Ok(Err(_)) => None,
            Err(_) => Some(Trouble::Away("no response within 5 seconds".to_owned())),
        }
    }

    /// All objects, shortened for lists.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.store.all()
    }

    /// One complete object.
    pub fn one(&self, namespace: &str, name: &str) -> Option<K> {
        self.store.one(namespace, name)
    }
}

/// Continuation of a watch after an error.
enum After {
    /// It restarts automatically.
    Again,
    /// It has ended.
    Over,
}

/// Stores the events of a watch, and notifies browsers.
struct Follower<K: Kind> {
    store: Arc<Store<K>>,
    histories: Arc<Histories>,
    standing: latest::Sender<Standing>,
    owner: Weak<dyn Owner>,
    changes: broadcast::Sender<News>,
    health: Arc<Health>,
}

impl<K: Kind> Follower<K> {
    async fn run(self, api: Api<Guarded<K>>) {
        let config = watcher::Config::default().page_size(CHUNK);
        let events = watch(api, config).backoff(Patience::default());
        let mut events = std::pin::pin!(events);
        let mut listed = false;
        while let Some(event) = events.next().await {
            match event.map(readable) {
                Ok(event) => {
                    self.health.found();
                    listed |= matches!(event, Some(Event::InitDone(_)));
                    if let Some(event) = event {
                        self.take_in(event);
                    }
                    if listed {
                        self.stand(Standing::Listed);
                    }
                }
                Err(error) => {
                    if matches!(self.judge(&error, listed), After::Over) {
                        return;
                    }
                }
            }
            if !self.has_room() {
                return self.rest().await;
            }
        }
    }

    fn take_in(&self, event: Event<K>) {
        self.note(&event);
        let change = match &event {
            Event::Apply(object) | Event::Delete(object) => Some(Change::of(object)),
            Event::InitDone(_) => Some(Change::of_all::<K>()),
            Event::Init(_) | Event::InitApply(_) | Event::Listed => None,
        };
        for (namespace, name) in self.store.apply(event) {
            self.histories.forget(namespace, name);
        }
        self.report(change);
    }

    fn report(&self, change: Option<Change>) {
        if let Some(change) = change {
            // There may be no receiver.
            let _ = self.changes.send(News::Changed(change));
        }
    }

    /// Keeps the replicas and the state of an object that was seen.
    fn note(&self, event: &Event<K>) {
        let (Event::Apply(object) | Event::InitApply(object)) = event else {
            return;
        };
        let state = State {
            generation: object.meta().generation,
            failed: object.has_failed(),
        };
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        self.histories
            .note(namespace, name, clock::now(), object.replicas(), state);
    }

    fn stand(&self, now: Standing) {
        self.standing.send_if_modified(|before| {
            let differs = *before != now;
            *before = now;
            differs
        });
    }

    fn judge(&self, error: &watcher::Error, listed: bool) -> After {
        let trouble = Trouble::of_watch(&K::plural(&()), error);
        match trouble {
            // Another session of the user may still be accepted, and is asked with next.
            Trouble::SignedOut(_) if self.has_holder() => After::Again,
            Trouble::SignedOut(_) | Trouble::Forbidden(_) => {
                self.forget(trouble);
                After::Over
            }
            Trouble::NotInstalled(_) => {
                self.forget(trouble);
                After::Again
            }
            Trouble::Away(_) | Trouble::TooMuch => {
                // A watch that the server ends, as for an old version, begins anew by itself.
                let harmless = matches!(error, watcher::Error::WatchError(status) if status.code == 410);
                if !harmless {
                    self.health.lost(chain(error));
                }
                // What has been listed stays on show; the page says that the cluster is away.
                if !listed {
                    self.stand(Standing::Failed(trouble));
                }
                After::Again
            }
        }
    }

    fn has_holder(&self) -> bool {
        self.owner.upgrade().is_some_and(|owner| owner.has_another_holder())
    }

    /// The objects may not be shown any more, or do not exist.
    fn forget(&self, trouble: Trouble) {
        self.store.clear();
        if *self.standing.borrow() != Standing::Failed(trouble.clone()) {
            self.stand(Standing::Failed(trouble));
            self.report(Some(Change::of_all::<K>()));
        }
    }

    fn has_room(&self) -> bool {
        self.owner.upgrade().is_none_or(|owner| owner.make_room())
    }

    /// Even alone, the user's objects are too many.
    async fn rest(&self) {
        self.forget(Trouble::TooMuch);
        tokio::time::sleep(TOO_MUCH_FOR).await;
    }
}

/// Backoff of at most 2 seconds, because a user is waiting.
#[derive(Default)]
struct Patience(u32);

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = Duration::from_millis(250 << self.0.min(3));
        self.0 += 1;
        Some(wait)
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        self.0 = 0;
    }
}
