//! AsyncActors: their state, queue, replicas, binding and conflicts.

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::async_actor::{Mode, Strategy};
use runway_api::{AsyncActor, Name, Namespace, reason};
use runway_client::source::Source;
use runway_operator::clock;

use super::entries::{Entry, amiss, of_condition_once};
use super::list::{self, List, Listed};
use super::objects::{self, Objects, Selected};
use super::overview::actor_state;
use crate::asya_gateway;
use crate::guard::{Asker, Of};
use crate::history::Chart;
use crate::moment::Moment;
use crate::page::{self, Shell};
use crate::refusal;
use crate::said::{Once, Said};
use crate::session_view::SessionView;

struct Actor {
    namespace: String,
    name: String,
    mood: &'static str,
    state: String,
    paused: bool,
    message: String,
    mode: &'static str,
    target: String,
    strategy: &'static str,
    fallback: bool,
    queue: String,
    transport: String,
    replicas: String,
    scaling: String,
    conflicts: i32,
    last_conflict: Option<Moment>,
    age: Option<Moment>,
}

impl Actor {
    fn href(&self) -> String {
        format!("/actors/{}/{}", self.namespace, self.name)
    }
}

#[derive(Template)]
#[template(path = "actors.html")]
struct Actors {
    shell: Shell,
    list: List<AsyncActor>,
    rows: Vec<Actor>,
    /// Texts that a search finds.
    searched: &'static str,
}

#[derive(Template)]
#[template(path = "actor.html")]
struct One {
    shell: Shell,
    actor: Actor,
    /// Queue length.
    depth: String,
    /// Numbers of messages.
    messages: String,
    chart: Option<Chart>,
    /// State in a message, said once.
    said: Said,
    objects: Objects,
    conditions: Vec<Entry>,
    yaml: String,
}

impl Listed for AsyncActor {
    fn phase(&self) -> String {
        actor_state(self).0
    }

    fn urgency(&self) -> usize {
        page::urgency(actor_state(self).1)
    }

    fn texts(&self) -> Vec<Option<&str>> {
        let status = self.status.as_ref();
        vec![
            status.and_then(|status| status.queue.as_deref()),
            status.and_then(|status| status.message.as_deref()),
            Some(&self.spec.transport),
        ]
    }
}

/// The list.
pub async fn show(Asker(session): Asker, Query(filter): Query<list::Filter>) -> Response {
    let seen = session.view.actors().await;
    let mut shell = Shell::new(&session, "actors", "Actors").live("asyncactors");
    shell.note("AsyncActors", &seen);
    let list = List::new("/actors", seen.items, filter);
    let now = clock::now();
    refusal::html(&Actors {
        shell,
        rows: list.items.iter().map(|a| actor(a, now)).collect(),
        searched: "name, state, queue, message",
        list,
    })
}

/// One of them.
pub async fn one(Asker(session): Asker, Of { namespace, name }: Of, Query(selected): Query<Selected>) -> Response {
    let Some(found) = session.view.actor(&namespace, &name).await else {
        return refusal::absent("AsyncActor");
    };
    let now = clock::now();
    let conditions = found.status.iter().flat_map(|s| &s.conditions);
    let source = Source::from(session.view.cluster());
    let ((depth, tree), messages) = tokio::join!(source.actor(&found), messages(&session.view, &namespace, &name));
    let shown = actor(&found, now);
    let mut once = Once::default();
    once.is_new(&shown.message);
    let objects = objects::of(&session.view, tree, &selected, &mut once).await;
    refusal::html(&One {
        shell: Shell::new(&session, "actors", name.to_string()).live_of("asyncactors", &namespace, &name),
        said: Said::new(
            &shown.message,
            found.status.as_ref().and_then(|s| amiss(&s.conditions)),
            reason::ASYNC_ACTOR,
        ),
        actor: shown,
        depth: depth.to_string(),
        messages,
        objects,
        chart: Chart::of_replicas(&session.view.actor_history(&namespace, &name), now),
        conditions: conditions.map(|c| of_condition_once(c, &mut once, now)).collect(),
        yaml: page::yaml(found.as_ref()),
    })
}

/// Numbers of messages from asya-gateway, or the reason why they are unknown.
async fn messages(view: &SessionView, namespace: &Namespace, name: &Name) -> String {
    let asked = asya_gateway::ask(view, asya_gateway::LOOK, async |gateway| {
        gateway.numbers(namespace, name).await
    })
    .await;
    asked.map_or_else(
        |failed| format!("unknown: {}", failed.message),
        |numbers| numbers.to_string(),
    )
}

fn actor(actor: &AsyncActor, now: Timestamp) -> Actor {
    let status = actor.status.clone().unwrap_or_default();
    let (state, mood) = actor_state(actor);
    let number = |n: Option<i32>| n.map_or_else(|| "–".to_owned(), |n| n.to_string());
    let target = status.resolved_target.as_ref().or(status.workload_ref.as_ref());
    let binding = status.binding.clone().unwrap_or_default();
    let scaling = match (status.scaling_mode, status.min_replicas, status.max_replicas) {
        (None, ..) => "not scaled".to_owned(),
        (Some(mode), Some(min), Some(max)) => format!("{mode}, {min} to {max} by queue length"),
        (Some(mode), ..) => mode.to_string(),
    };
    Actor {
        namespace: actor.namespace().unwrap_or_default(),
        name: actor.name_any(),
        mood,
        state,
        paused: actor.is_paused(),
        message: status.message.clone().unwrap_or_default(),
        mode: status.mode.map_or("–", Mode::as_str),
        target: target.map_or_else(|| "–".to_owned(), |t| format!("{}/{}", t.kind, t.name)),
        strategy: binding.strategy.map_or("", Strategy::as_str),
        fallback: binding.fallback.unwrap_or_default(),
        queue: status.queue.clone().unwrap_or_else(|| "–".to_owned()),
        transport: actor.spec.transport.clone(),
        replicas: format!("{}/{}", number(status.ready_replicas), number(status.desired_replicas)),
        scaling,
        conflicts: status.conflict_count.unwrap_or_default(),
        last_conflict: status.last_conflict_time.as_ref().map(|t| Moment::new(t.0, now)),
        age: actor.creation_timestamp().map(|t| Moment::new(t.0, now)),
    }
}
