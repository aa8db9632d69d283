//! Changes, objects and errors that a watch reports.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::watcher;
use runway_operator::telemetry::chain;

use crate::kind::Kind;

/// An object changed, was made, or is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The plural of its kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Change {
    /// A change of `object`.
    pub fn of<K: Kind>(object: &K) -> Self {
        Self {
            kind: K::plural(&()).into_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }

    /// Any object of the kind may have changed.
    pub fn of_all<K: Kind>() -> Self {
        Self {
            kind: K::plural(&()).into_owned(),
            namespace: String::new(),
            name: String::new(),
        }
    }
}

/// News for browsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Something changed.
    Changed(Change),
    /// The watches of the user were dropped to make room for those of others; the next request starts them again.
    Dropped,
}

/// Reason why a kind cannot be shown, or only its last known state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The user may not list it anywhere that is known.
    Forbidden(String),
    /// The cluster does not know the kind.
    NotInstalled(String),
    /// The cluster rejects the user's credential.
    SignedOut(String),
    /// The cluster does not answer.
    Away(String),
    /// The objects exceed the memory limit of the console.
    TooMuch,
}

impl Trouble {
    /// Classifies an error of the client.
    pub fn of(kind: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(kind, status),
            other => Self::Away(chain(other)),
        }
    }

    fn of_status(kind: &str, status: &kube::core::Status) -> Self {
        match status.code {
            401 => Self::SignedOut(status.message.clone()),
            403 => Self::Forbidden(status.message.clone()),
            404 => Self::NotInstalled(format!("the cluster does not serve {kind}")),
            _ => Self::Away(status.message.clone()),
        }
    }

    /// The error of a watch.
    pub fn of_watch(kind: &str, error: &watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(e)
            | watcher::Error::WatchStartFailed(e)
            | watcher::Error::WatchFailed(e) => Self::of(kind, e),
            watcher::Error::WatchError(status) => Self::of_status(kind, status),
            watcher::Error::NoResourceVersion => Self::Away(error.to_string()),
        }
    }
}

/// Objects of a kind.
#[derive(Clone, Debug)]
pub struct Seen<K> {
    /// The objects, in the order of namespace and name.
    pub items: Vec<Arc<K>>,
    /// Reason why there are no objects, or no newer ones.
    pub trouble: Option<Trouble>,
    /// The namespaces that are looked into, if not all are.
    pub only_in: Option<Vec<String>>,
}

impl<K> Seen<K> {
    /// No objects, and the reason.
    pub fn nothing(trouble: Trouble) -> Self {
        Self {
            items: Vec::new(),
            trouble: Some(trouble),
            only_in: None,
        }
    }

    /// Whether there may be objects that could not be read.
    pub fn is_incomplete(&self) -> bool {
        !matches!(self.trouble, None | Some(Trouble::NotInstalled(_)))
    }
}
