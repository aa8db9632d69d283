//! Tells browsers what has changed: the answer to `/live` goes on for as long as somebody looks.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;

use crate::guard::Asker;
use crate::server::App;
use crate::watches::{Change, Connection};

/// A line that says nothing, so often: what lies between notices that somebody is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What a page is about.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Interest {
    /// Plurals of kinds, separated by commas; none: all.
    #[serde(default)]
    pub kinds: String,
    /// Of this namespace only.
    #[serde(default)]
    pub namespace: String,
    /// Of this name only.
    #[serde(default)]
    pub name: String,
}

impl Interest {
    fn covers(&self, change: &Change) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.split(',').any(|kind| kind == change.kind);
        // After a new list anything may have changed.
        let all = change.name.is_empty();
        let first = self.kinds.split(',').next() == Some(change.kind.as_str());
        let one = self.name.is_empty() || !first || (self.name == change.name && self.namespace == change.namespace);
        kind && (all || one)
    }
}

/// `change` with the object that has changed, `cluster` with `up` or what is wrong.
pub async fn events(
    State(app): State<Arc<App>>,
    Asker(session): Asker,
    Query(interest): Query<Interest>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let lens = session.lens.clone();
    let changes = stream::unfold((lens.changes(), interest), async |(mut changes, interest)| {
        loop {
            let event = match changes.recv().await {
                Ok(change) if interest.covers(&change) => told(&change),
                Ok(_) => continue,
                Err(RecvError::Lagged(_)) => Event::default().event("change").data("*"),
                Err(RecvError::Closed) => return None,
            };
            return Some((event, (changes, interest)));
        }
    });
    let connection = stream::unfold((lens.connection(), true), async |(mut connection, first)| {
        if !first {
            connection.changed().await.ok()?;
        }
        let text = match &*connection.borrow_and_update() {
            Connection::Up => "up".to_owned(),
            Connection::Down(_, why) => format!("down {why}"),
        };
        Some((
            Event::default().event("cluster").data(text.replace(['\n', '\r'], " ")),
            (connection, false),
        ))
    });
    // The lens lives as long as somebody looks through it.
    let held = stream::select(changes, connection).map(move |event| {
        let _ = &lens;
        Ok(event)
    });
    let until = app.end.clone();
    Sse::new(held.take_until(async move { until.cancelled().await })).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

fn told(change: &Change) -> Event {
    let text = format!("{}/{}/{}", change.kind, change.namespace, change.name);
    Event::default().event("change").data(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_about_one_object_sleeps_through_changes_of_others() {
        let page = Interest {
            kinds: "modeldeployments,inferenceproviderconfigs".to_owned(),
            namespace: "default".to_owned(),
            name: "a".to_owned(),
        };
        let change = |kind: &str, namespace: &str, name: &str| Change {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        assert!(page.covers(&change("modeldeployments", "default", "a")));
        assert!(page.covers(&change("modeldeployments", "", "")));
        assert!(page.covers(&change("inferenceproviderconfigs", "", "kaito")));
        assert!(!page.covers(&change("modeldeployments", "other", "a")));
        assert!(!page.covers(&change("modeldeployments", "default", "b")));
        assert!(!page.covers(&change("asyncactors", "default", "a")));
    }
}
