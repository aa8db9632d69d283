//! The overview: problems first, then counts.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::llama_stack_distribution::DistributionPhase;
use runway_api::provider_config::Health;
use runway_api::{
    AsyncActor, AsyncActorStatus, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, Phase, Tone,
};
use runway_client::why;
use runway_operator::clock;

use super::deployments::urgency;
use crate::guard::Asker;
use crate::moment::Moment;
use crate::page::{self, Shell};
use crate::refusal;
use crate::seen::Seen;

/// Faults that are shown; the rest is a number.
const MAX_PROBLEMS: usize = 50;

/// An object that needs attention.
pub struct Problem {
    urgency: usize,
    /// CSS class: `bad`, `open` or `none`.
    pub mood: &'static str,
    /// The kind of object.
    pub kind: &'static str,
    /// The object, for people.
    pub what: String,
    /// URL of its page.
    pub href: String,
    /// State.
    pub state: String,
    /// Cause and remedy.
    pub why: String,
    /// Since when.
    pub since: Option<Moment>,
}

/// Number of objects of a kind, by state.
pub struct Tile {
    /// The kind, for people.
    pub title: &'static str,
    /// URL of its page.
    pub href: &'static str,
    /// Total. None if the objects could not be read.
    pub all: Option<usize>,
    /// State, number and mood of each that is not 0.
    pub parts: Vec<(String, usize, &'static str)>,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    shell: Shell,
    problems: Vec<Problem>,
    more: usize,
    tiles: Vec<Tile>,
    empty: bool,
    /// Whether the absence of problems is known.
    complete: bool,
}

/// The page.
pub async fn show(Asker(session): Asker) -> Response {
    let lens = &session.lens;
    let (models, providers, actors, stacks) = tokio::join!(
        lens.deployments(),
        lens.providers(),
        lens.actors(),
        lens.distributions()
    );
    let mut shell = Shell::new(&session, "overview", "Overview").live("");
    shell.note("ModelDeployments", &models);
    shell.note("InferenceProviderConfigs", &providers);
    // These two are extras: a cluster without them is whole.
    let now = clock::now();
    let mut problems: Vec<Problem> = models.items.iter().filter_map(|md| of_deployment(md, now)).collect();
    problems.extend(providers.items.iter().filter_map(|p| of_provider(p, now)));
    problems.extend(actors.items.iter().filter_map(|a| of_actor(a, now)));
    problems.extend(stacks.items.iter().filter_map(|d| of_distribution(d, now)));
    problems.sort_by_key(|p| (p.mood != "bad", p.urgency));
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    let tiles = vec![
        tile("Models", "/deployments", &models, |md| {
            let phase = md.status.as_ref().and_then(|s| s.phase);
            (phase.map_or("New", Phase::as_str).to_owned(), page::mood(phase))
        }),
        tile("Providers", "/providers", &providers, |p| match p.health(now) {
            Health::Healthy => ("Ready".to_owned(), "good"),
            Health::NotReady(_) => ("Not ready".to_owned(), "bad"),
            Health::Silent => ("Silent".to_owned(), "bad"),
        }),
        tile("Actors", "/actors", &actors, actor_state),
        tile("Llama Stack", "/stacks", &stacks, stack_state),
    ];
    let empty = models.items.is_empty() && models.trouble.is_none();
    let complete = !models.is_incomplete() && !providers.is_incomplete();
    refusal::html(&Overview {
        shell,
        problems,
        more,
        tiles,
        empty,
        complete,
    })
}

fn tile<K>(
    title: &'static str,
    href: &'static str,
    seen: &Seen<K>,
    state: impl Fn(&K) -> (String, &'static str),
) -> Tile {
    let all = seen.items.len();
    let mut parts = Vec::<(String, usize, &'static str)>::new();
    for (state, mood) in seen.items.iter().map(|item| state(item.as_ref())) {
        match parts.iter_mut().find(|(s, _, _)| *s == state) {
            Some((_, count, _)) => *count += 1,
            None => parts.push((state, 1, mood)),
        }
    }
    let order = |mood: &str| ["bad", "open", "none", "good"].iter().position(|m| *m == mood);
    parts.sort_by_key(|(state, _, mood)| (order(mood), state.clone()));
    Tile {
        title,
        href,
        all: (all > 0 || !seen.is_incomplete()).then_some(all),
        parts,
    }
}

fn of_deployment(md: &ModelDeployment, now: Timestamp) -> Option<Problem> {
    let status = md.status.as_ref();
    let phase = status.and_then(|s| s.phase);
    let conditions = md.conditions();
    let abnormal = [
        condition::STALLED,
        condition::PROVIDER_UNAVAILABLE,
        condition::STALE_STATUS,
        condition::OVERRIDES_IGNORED,
        condition::FIELDS_IGNORED,
    ];
    let held = abnormal.iter().find_map(|type_| conditions.when_true(type_));
    let refused = conditions.when_false(condition::PROVIDER_SELECTED);
    let said = held.or(refused);
    let bad = phase == Some(Phase::Failed) || held.is_some_and(|c| c.type_ == condition::STALLED);
    if !bad && said.is_none() && md.serving_state().is_as_desired() {
        return None;
    }
    let message = said
        .map(|c| c.message.clone())
        .or_else(|| status.and_then(|s| s.message.clone()));
    let since = said
        .or_else(|| conditions.get_condition(condition::READY))
        .map(|c| c.last_transition_time.0);
    let since = since.or_else(|| md.creation_timestamp().map(|t| t.0));
    Some(Problem {
        urgency: urgency(phase),
        mood: match phase {
            _ if bad => "bad",
            Some(Phase::Running) => "open",
            phase => page::mood(phase),
        },
        kind: "Model",
        what: format!("{}/{}", md.namespace().unwrap_or_default(), md.name_any()),
        href: format!("/deployments/{}/{}", md.namespace().unwrap_or_default(), md.name_any()),
        state: match (phase, held) {
            (_, Some(c)) if phase != Some(Phase::Failed) => c.reason.clone(),
            _ => phase.map_or("New", Phase::as_str).to_owned(),
        },
        why: message
            .unwrap_or_else(|| "not reconciled by a controller yet (is the core controller running?)".to_owned()),
        since: since.map(|t| Moment::new(t, now)),
    })
}

fn of_provider(config: &InferenceProviderConfig, now: Timestamp) -> Option<Problem> {
    let status = config.status.as_ref();
    let bad_rules = status.and_then(|s| s.conditions.when_false(condition::RULES_VALID));
    let (state, why) = match (config.health(now), bad_rules) {
        (Health::Healthy, None) => return None,
        (Health::Healthy, Some(rules)) => ("Rules skipped".to_owned(), rules.message.clone()),
        (Health::NotReady(why), _) => ("Not ready".to_owned(), why),
        (health @ Health::Silent, _) => (
            "Silent".to_owned(),
            format!("{} (is its controller running?)", why::health(&health)),
        ),
    };
    let beat = status.and_then(|s| s.last_heartbeat.as_ref());
    Some(Problem {
        urgency: 0,
        mood: "bad",
        kind: "Provider",
        what: config.name_any(),
        href: format!("/providers#{}", config.name_any()),
        state,
        why,
        since: beat.map(|t| Moment::new(t.0, now)),
    })
}

/// The state of an actor in a word, and how good it is.
pub fn actor_state(actor: &AsyncActor) -> (String, &'static str) {
    let status = actor.status.as_ref();
    let word = status.and_then(|s| s.status.clone());
    let tone = status.map_or(Tone::Unknown, AsyncActorStatus::tone);
    (word.unwrap_or_else(|| "New".to_owned()), page::class(tone))
}

fn of_actor(actor: &AsyncActor, now: Timestamp) -> Option<Problem> {
    let status = actor.status.as_ref();
    let conditions = status.map_or(&[][..], |s| &s.conditions);
    of_operated(
        actor,
        ("Actor", "actors"),
        actor_state(actor),
        status.and_then(|s| s.message.clone()),
        conditions.get_condition(condition::READY),
        now,
    )
}

/// The state of a distribution in a word, and how good it is.
pub fn stack_state(distribution: &LlamaStackDistribution) -> (String, &'static str) {
    let phase = distribution.status.as_ref().and_then(|s| s.phase);
    let tone = phase.map_or(Tone::Unknown, DistributionPhase::tone);
    let word = phase.map_or("New", DistributionPhase::as_str);
    (word.to_owned(), page::class(tone))
}

fn of_distribution(distribution: &LlamaStackDistribution, now: Timestamp) -> Option<Problem> {
    let status = distribution.status.as_ref();
    of_operated(
        distribution,
        ("Llama Stack", "stacks"),
        stack_state(distribution),
        status.and_then(|s| s.message.clone()),
        status.and_then(|s| s.conditions.iter().find(|c| c.status == "False")),
        now,
    )
}

/// Problem of an AsyncActor or LlamaStackDistribution. `said` is the condition that dates it.
fn of_operated(
    object: &impl ResourceExt,
    (kind, pages): (&'static str, &str),
    (state, mood): (String, &'static str),
    message: Option<String>,
    said: Option<&Condition>,
    now: Timestamp,
) -> Option<Problem> {
    if mood == "good" {
        return None;
    }
    let what = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
    Some(Problem {
        urgency: 1,
        mood,
        kind,
        href: format!("/{pages}/{what}"),
        what,
        state,
        why: message
            .or_else(|| said.map(|c| c.message.clone()))
            .unwrap_or_else(|| "not reconciled by an operator yet".to_owned()),
        since: said.map(|c| Moment::new(c.last_transition_time.0, now)),
    })
}
