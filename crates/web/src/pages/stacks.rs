//! LlamaStackDistributions: the server, and every external provider with how far it has come.

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::{LlamaStackDistribution, reason};
use runway_client::source::Source;
use runway_operator::clock;

use super::entries::{Entry, amiss, of_condition_once};
use super::list::{self, List, Listed};
use super::objects::{self, Objects, Selected};
use super::overview::stack_state;
use crate::guard::{Asker, Of};
use crate::moment::Moment;
use crate::page::{self, Shell};
use crate::refusal;
use crate::said::{Once, Said};

struct External {
    id: String,
    api: String,
    image: String,
    mood: &'static str,
    phase: &'static str,
    reason: String,
    message: String,
    resolution: String,
    since: Option<Moment>,
}

struct Stack {
    namespace: String,
    name: String,
    mood: &'static str,
    state: String,
    paused: bool,
    message: String,
    distribution: String,
    version: String,
    replicas: String,
    url: String,
    route: String,
    age: Option<Moment>,
    external: Vec<External>,
    running: Vec<(String, String, String)>,
}

impl Stack {
    fn href(&self) -> String {
        format!("/stacks/{}/{}", self.namespace, self.name)
    }

    fn ready(&self) -> usize {
        self.external.iter().filter(|p| p.mood == "good").count()
    }
}

#[derive(Template)]
#[template(path = "stacks.html")]
struct Stacks {
    shell: Shell,
    list: List<LlamaStackDistribution>,
    rows: Vec<Stack>,
    /// Texts that a search finds.
    searched: &'static str,
}

#[derive(Template)]
#[template(path = "stack.html")]
struct One {
    shell: Shell,
    stack: Stack,
    /// State in a message, said once.
    said: Said,
    objects: Objects,
    conditions: Vec<Entry>,
    yaml: String,
}

impl Listed for LlamaStackDistribution {
    fn phase(&self) -> String {
        stack_state(self).0
    }

    fn urgency(&self) -> usize {
        page::urgency(stack_state(self).1)
    }

    fn texts(&self) -> Vec<Option<&str>> {
        let distribution = &self.spec.server.distribution;
        vec![
            distribution.name.as_deref(),
            distribution.image.as_deref(),
            self.status.as_ref().and_then(|status| status.message.as_deref()),
        ]
    }
}

/// The list.
pub async fn show(Asker(session): Asker, Query(filter): Query<list::Filter>) -> Response {
    let seen = session.view.distributions().await;
    let mut shell = Shell::new(&session, "stacks", "Llama Stack").live("llamastackdistributions");
    shell.note("LlamaStackDistributions", &seen);
    let list = List::new("/stacks", seen.items, filter);
    let now = clock::now();
    refusal::html(&Stacks {
        shell,
        rows: list.items.iter().map(|d| stack(d, now)).collect(),
        searched: "name, phase, distribution, message",
        list,
    })
}

/// One of them.
pub async fn one(Asker(session): Asker, Of { namespace, name }: Of, Query(selected): Query<Selected>) -> Response {
    let Some(found) = session.view.distribution(&namespace, &name).await else {
        return refusal::absent("LlamaStackDistribution");
    };
    let now = clock::now();
    let conditions = found.status.iter().flat_map(|s| &s.conditions);
    let tree = Source::from(session.view.cluster()).tree_of_distribution(&found).await;
    let shown = stack(&found, now);
    let mut once = Once::default();
    once.is_new(&shown.message);
    let objects = objects::of(&session.view, tree, &selected, &mut once).await;
    refusal::html(&One {
        shell: Shell::new(&session, "stacks", name.to_string()).live_of("llamastackdistributions", &namespace, &name),
        said: Said::new(
            &shown.message,
            found.status.as_ref().and_then(|s| amiss(&s.conditions)),
            reason::LLAMA_STACK_DISTRIBUTION,
        ),
        stack: shown,
        objects,
        conditions: conditions.map(|c| of_condition_once(c, &mut once, now)).collect(),
        yaml: page::yaml(found.as_ref()),
    })
}

fn stack(found: &LlamaStackDistribution, now: Timestamp) -> Stack {
    let status = found.status.clone().unwrap_or_default();
    let (state, mood) = stack_state(found);
    let distribution = &found.spec.server.distribution;
    let external = status.external_providers.iter().map(|p| External {
        id: p.provider_id.clone(),
        api: p.api.clone().unwrap_or_default(),
        image: p.image.clone(),
        mood: page::class(p.phase.tone()),
        phase: p.phase.as_str(),
        reason: p.reason.clone().unwrap_or_default(),
        message: p.message.clone().unwrap_or_default(),
        resolution: p.resolution.clone().unwrap_or_default(),
        since: p.last_transition_time.as_ref().map(|t| Moment::new(t.0, now)),
    });
    let running = status.distribution_config.iter().flat_map(|c| &c.providers).map(|p| {
        let health = p.health.as_ref().map_or_else(|| "–".to_owned(), |h| h.status.clone());
        (
            p.api.clone(),
            format!("{} ({})", p.provider_id, p.provider_type),
            health,
        )
    });
    Stack {
        namespace: found.namespace().unwrap_or_default(),
        name: found.name_any(),
        mood,
        state,
        paused: found.is_paused(),
        message: status.message.clone().unwrap_or_default(),
        distribution: distribution
            .name
            .clone()
            .or_else(|| distribution.image.clone())
            .unwrap_or_default(),
        version: status
            .version
            .as_ref()
            .and_then(|v| v.llama_stack_server_version.clone())
            .unwrap_or_else(|| "–".to_owned()),
        replicas: format!(
            "{}/{}",
            status.available_replicas.unwrap_or_default(),
            found.spec.replicas.unwrap_or(1)
        ),
        url: status.service_url.clone().unwrap_or_default(),
        route: status.route_url.clone().unwrap_or_default(),
        age: found.creation_timestamp().map(|t| Moment::new(t.0, now)),
        external: external.collect(),
        running: running.collect(),
    }
}
