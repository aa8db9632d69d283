//! The overview: faults of the user's objects first, each once, then counts, then the rest of the platform; in an empty cluster,
//! the steps to the first answer.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::llama_stack_distribution::DistributionPhase;
use runway_api::provider_config::Health;
use runway_api::reason::{self, Explained};
use runway_api::{
    AsyncActor, AsyncActorStatus, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, Phase, Tone,
};
use runway_client::providers;
use runway_client::why;
use runway_operator::clock;

use super::deployments::urgency;
use crate::guard::Asker;
use crate::moment::Moment;
use crate::page::{self, Shell};
use crate::refusal;
use crate::said::Said;
use crate::seen::{Seen, Trouble};

/// Faults that are shown; the rest is a number.
const MAX_PROBLEMS: usize = 50;
/// Kind of a ModelDeployment, for people.
const MODEL: &str = "Model";
/// Objects that are named for one fault.
const MAX_NAMED: usize = 8;

/// An object of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Name, for people.
    pub what: String,
    /// URL of its page.
    pub href: String,
}

/// A fault, with all objects that have it.
pub struct Problem {
    urgency: usize,
    /// CSS class: `bad`, `open` or `none`.
    pub mood: &'static str,
    /// The kind of object.
    pub kind: &'static str,
    /// The objects, at least one.
    pub objects: Vec<Object>,
    /// Models that cannot be served because of it.
    pub affected: Vec<Object>,
    /// State.
    pub state: String,
    /// Cause and remedy.
    pub said: Said,
    /// Since when.
    pub since: Option<Moment>,
}

impl Problem {
    fn id(&self) -> String {
        let first = self.objects.first().map_or("", |object| &object.what);
        format!("p-{}-{}-{first}", self.kind, self.state).replace(' ', "-")
    }

    /// Objects that the page names.
    fn named(&self) -> &[Object] {
        &self.objects[..self.objects.len().min(MAX_NAMED)]
    }

    fn unnamed(&self) -> usize {
        self.objects.len() - self.named().len()
    }
}

/// A step from an empty cluster to an answer.
pub struct Step {
    /// Id of the element.
    pub id: &'static str,
    /// Whether it is done.
    pub is_done: bool,
    /// Step.
    pub what: &'static str,
    /// Command for it.
    pub command: &'static str,
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
    /// Faults of the user's objects, and of what they need.
    problems: Vec<Problem>,
    more: usize,
    /// Faults that affect no object.
    platform: Vec<Problem>,
    tiles: Vec<Tile>,
    /// Steps to the first answer; empty if there are objects.
    steps: Vec<Step>,
    /// Whether the absence of problems is known.
    complete: bool,
}

/// The page.
pub async fn show(Asker(session): Asker) -> Response {
    let view = &session.view;
    let (models, providers, actors, stacks) = tokio::join!(
        view.deployments(),
        view.providers(),
        view.actors(),
        view.distributions()
    );
    let mut shell = Shell::new(&session, "overview", "Overview").live("");
    let installed = !matches!(models.trouble, Some(Trouble::NotInstalled(_)));
    if installed {
        shell.note("ModelDeployments", &models);
        shell.note("InferenceProviderConfigs", &providers);
    }
    // Actors and distributions are extras: a cluster without them is whole.
    let now = clock::now();
    let mut problems: Vec<Problem> = models.items.iter().filter_map(|md| of_deployment(md, now)).collect();
    problems.extend(actors.items.iter().filter_map(|a| of_actor(a, now)));
    problems.extend(stacks.items.iter().filter_map(|d| of_distribution(d, now)));
    let is_unused =
        |config: &InferenceProviderConfig| providers::is_unused(config, models.items.iter().map(Arc::as_ref), now);
    let mut faults: Vec<Problem> = providers
        .items
        .iter()
        .filter(|config| !is_unused(config))
        .filter_map(|config| of_provider(config, now))
        .collect();
    attribute(&mut problems, &mut faults, &models.items);
    let (mut of_use, platform): (Vec<_>, Vec<_>) = faults.into_iter().partition(|fault| !fault.affected.is_empty());
    of_use.extend(merged(problems));
    let mut problems = of_use;
    problems.sort_by_key(|p| (p.mood != "bad", p.urgency));
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    let tiles = vec![
        tile("Models", "/deployments", &models, |md| {
            let phase = md.status.as_ref().and_then(|s| s.phase);
            (phase.map_or("New", Phase::as_str).to_owned(), page::mood(phase))
        }),
        tile("Providers", "/providers", &providers, |p| match p.health(now) {
            _ if is_unused(p) => ("Not used".to_owned(), "none"),
            Health::Healthy => ("Ready".to_owned(), "good"),
            Health::NotReady(_) => ("Not ready".to_owned(), "bad"),
            Health::Silent => ("Silent".to_owned(), "bad"),
        }),
        tile("Actors", "/actors", &actors, actor_state),
        tile("Llama Stack", "/stacks", &stacks, stack_state),
    ];
    let is_empty = models.items.is_empty() && actors.items.is_empty() && stacks.items.is_empty();
    let steps = if is_empty && (models.trouble.is_none() || !installed) {
        let has_provider = providers.items.iter().any(|p| p.health(now) == Health::Healthy);
        steps(installed, has_provider)
    } else {
        Vec::new()
    };
    let complete = !models.is_incomplete() && !providers.is_incomplete();
    refusal::html(&Overview {
        shell,
        problems,
        more,
        platform,
        tiles,
        steps,
        complete,
    })
}

/// Steps to the first answer.
fn steps(installed: bool, has_provider: bool) -> Vec<Step> {
    let step = |id, is_done, what, command| Step {
        id,
        is_done,
        what,
        command,
    };
    vec![
        step(
            "step-install",
            installed,
            "Install the control plane",
            "kubeairunway controller install",
        ),
        step(
            "step-provider",
            has_provider,
            "Install a provider that is ready, such as direct, which needs no operator",
            "kubeairunway provider install direct",
        ),
        step(
            "step-deploy",
            false,
            "Deploy a model: this one runs without a GPU",
            "kubeairunway deploy google/gemma-3-1b-it-qat-q8_0-gguf --name gemma",
        ),
        step("step-chat", false, "Send it a message", "kubeairunway chat gemma"),
    ]
}

/// Moves models that wait for a provider with a fault of its own to that fault.
fn attribute(problems: &mut Vec<Problem>, faults: &mut [Problem], models: &[Arc<ModelDeployment>]) {
    let waiting = models
        .iter()
        .filter(|md| md.conditions().is_true(condition::PROVIDER_UNAVAILABLE));
    for md in waiting {
        let at = |fault: &&mut Problem| md.selected_provider() == fault.objects.first().map(|o| o.what.as_str());
        let Some(fault) = faults.iter_mut().find(at) else {
            continue;
        };
        let model = deployment(md);
        problems.retain(|problem| problem.kind != MODEL || problem.objects != [model.clone()]);
        fault.affected.push(model);
    }
}

/// One problem for each fault: objects with the same state and message are listed together.
fn merged(problems: Vec<Problem>) -> Vec<Problem> {
    let mut all: Vec<Problem> = Vec::new();
    let mut known = HashMap::new();
    for mut problem in problems {
        let key = (problem.kind, problem.state.clone(), problem.said.clone());
        if let Some(same) = known.get(&key).and_then(|at: &usize| all.get_mut(*at)) {
            same.objects.append(&mut problem.objects);
        } else {
            known.insert(key, all.len());
            all.push(problem);
        }
    }
    all
}

fn deployment(md: &ModelDeployment) -> Object {
    let what = format!("{}/{}", md.namespace().unwrap_or_default(), md.name_any());
    Object {
        href: format!("/deployments/{what}"),
        what,
    }
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
        kind: MODEL,
        objects: vec![deployment(md)],
        affected: Vec::new(),
        state: match (phase, held) {
            (_, Some(c)) if phase != Some(Phase::Failed) => c.reason.clone(),
            _ => phase.map_or("New", Phase::as_str).to_owned(),
        },
        said: match message {
            Some(text) => Said::new(
                &text,
                said.or_else(|| conditions.get_condition(condition::READY)),
                reason::MODEL_DEPLOYMENT,
            ),
            None => Said::plain("not reconciled by a controller yet (is the core controller running?)"),
        },
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
        objects: vec![Object {
            what: config.name_any(),
            href: format!("/providers#{}", config.name_any()),
        }],
        affected: Vec::new(),
        state,
        said: Said::plain(&why),
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
        (conditions.get_condition(condition::READY), reason::ASYNC_ACTOR),
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
        (
            status.and_then(|s| s.conditions.iter().find(|c| c.status == "False")),
            reason::LLAMA_STACK_DISTRIBUTION,
        ),
        now,
    )
}

/// Problem of an AsyncActor or LlamaStackDistribution. `said` is the condition that dates it, with the reasons of the kind.
fn of_operated(
    object: &impl ResourceExt,
    (kind, pages): (&'static str, &str),
    (state, mood): (String, &'static str),
    message: Option<String>,
    (said, reasons): (Option<&Condition>, &[&[Explained]]),
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
        objects: vec![Object {
            href: format!("/{pages}/{what}"),
            what,
        }],
        affected: Vec::new(),
        state,
        said: match message.or_else(|| said.map(|c| c.message.clone())) {
            Some(text) => Said::new(&text, said, reasons),
            None => Said::plain("not reconciled by an operator yet (is it running?)"),
        },
        since: said.map(|c| Moment::new(c.last_transition_time.0, now)),
    })
}
