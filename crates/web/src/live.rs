//! Server-sent events about changes: the response of `/live` stays open as long as the browser reads it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Query;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;

use crate::guard::Asker;
use crate::health::Connection;
use crate::seen::{Change, News};
use crate::sessions::Session;

/// Interval of keep-alive comments, so that proxies do not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Kinds and object of a page.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Interest {
    /// Plurals of kinds, separated by commas; none: all.
    #[serde(default)]
    pub kinds: String,
    /// Namespace; empty for all.
    #[serde(default)]
    pub namespace: String,
    /// Name; empty for all.
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

/// `change` with the object that has changed, `cluster` with `up` or what is wrong, `dropped` when the console no longer follows.
/// It ends with the session.
pub async fn events(
    Asker(session): Asker,
    Query(interest): Query<Interest>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let over = session.over();
    let events = stream::select_all([
        changes(session.clone(), interest).boxed(),
        connection(&session).boxed(),
        checks(session).boxed(),
    ]);
    Sse::new(events.map(Ok).take_until(over)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

/// Changes that the session may see.
fn changes(session: Arc<Session>, interest: Interest) -> impl Stream<Item = Event> {
    let news = session.view.news();
    stream::unfold((news, session, interest), async |(mut news, session, interest)| {
        loop {
            let event = match news.recv().await {
                Ok(News::Changed(change)) if interest.covers(&change) => {
                    if !session.is_accepted().await {
                        return None;
                    }
                    if !session.view.may_hear(&change).await {
                        continue;
                    }
                    reported(&change)
                }
                Ok(News::Changed(_)) => continue,
                Ok(News::Dropped) => Event::default().event("dropped").data("*"),
                Err(RecvError::Lagged(_)) => Event::default().event("change").data("*"),
                Err(RecvError::Closed) => return None,
            };
            return Some((event, (news, session, interest)));
        }
    })
}

/// Health of the connection.
fn connection(session: &Session) -> impl Stream<Item = Event> + use<> {
    stream::unfold((session.view.connection(), true), async |(mut connection, first)| {
        if !first {
            connection.changed().await.ok()?;
        }
        let text = match &*connection.borrow_and_update() {
            Connection::Up => "up".to_owned(),
            Connection::Down(_, why) => format!("down {why}"),
        };
        let event = Event::default().event("cluster").data(text.replace(['\n', '\r'], " "));
        Some((event, (connection, false)))
    })
}

/// Stream without events that ends when the session is no longer accepted. It checks the session periodically.
fn checks(session: Arc<Session>) -> impl Stream<Item = Event> {
    stream::once(async move {
        while session.is_accepted().await {
            tokio::time::sleep(KEEP_ALIVE).await;
        }
    })
    .filter_map(async |()| None)
}

fn reported(change: &Change) -> Event {
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
