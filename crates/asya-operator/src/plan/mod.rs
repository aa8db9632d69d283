//! What must exist, what must go, and what to say of it. Pure and deterministic: no client, no clock, no memory.

mod binding;
mod conflict;
mod containers;
mod fields;
mod objects;
mod pods;
mod removal;
mod scaling;
mod standalone;
mod status;

use std::collections::BTreeSet;
use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::AsyncActor;
use runway_api::async_actor::{ActorState, AsyncActorStatus, Mode, TRANSPORT_READY};
use runway_api::condition::{self, no, yes};
use runway_operator::plan::{Apply, Finalizer, Note, Plan as KubePlan};
use runway_operator::{apply, child};

use crate::names;
use crate::observe::{Key, Kind, Objects, Observed, QueueState, Settings};
use crate::request::{Request, Work};
use crate::targets::{self, DEPLOYMENT, STATEFUL_SET};
use crate::transports::{Transport, Transports};

pub use objects::{CONFIG_MAP, SCALED_OBJECT, TRIGGER_AUTHENTICATION};
pub use pods::WORDS as POD_TROUBLES;

/// While something must go first, look again this often, in case its end is not seen.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Longest name of a queue of SQS.
const SQS_NAME_MAX: usize = 80;

/// What is wanted for one actor.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In the cluster.
    pub kube: KubePlan,
    /// At the broker. It is done first; then everything is looked at and planned again.
    pub queue: Option<QueueWork>,
}

impl Plan {
    /// Whether carrying it out would send nothing.
    pub fn is_silent(&self) -> bool {
        self.kube.is_silent() && self.queue.is_none()
    }
}

/// What is to be done at a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueWork {
    /// The queues must exist.
    Ensure(Queues),
    /// They must go, unless they hold messages.
    Remove(Queues),
}

/// The queues of an actor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queues {
    /// Name of the transport.
    pub transport: String,
    /// The actor's own.
    pub name: String,
    /// Its dead-letter queue, if there is to be one.
    pub dead_letters: Option<String>,
    /// Those of the namespace that every route may end in: made with the first actor, never removed with one.
    pub ends: Vec<String>,
    /// Seconds a message may stay with one who works on it.
    pub visibility: u32,
}

/// The plan for one AsyncActor.
pub fn plan(seen: &Observed) -> Plan {
    if seen.actor.is_deleting() {
        return removal::for_deletion(seen);
    }
    if seen.actor.is_paused() {
        return status::paused(seen);
    }
    let request = match Request::new(&seen.actor) {
        Ok(request) => request,
        Err(wrong) => return status::invalid(seen, &wrong),
    };
    let mut draft = Draft::new(seen, &request);
    let transport = draft.transport();
    match &request.work {
        Work::Standalone(workload) => standalone::plan(&mut draft, workload, transport),
        Work::Bound(bound) => binding::plan(&mut draft, bound, transport),
    }
    draft.finish()
}

/// What to say when the server did not take what [`plan`] asked for. Silent when trying again may help.
pub fn after_failure(seen: &Observed, error: &apply::Error) -> Plan {
    match error {
        apply::Error::NameTaken {
            kind, name, manager, ..
        } => {
            let message = objects::taken_text(kind, name, manager);
            status::refused(seen, (kind, name), ActorState::NameTaken, message)
        }
        apply::Error::Apply { kind, name, source } if error.is_conflict() => {
            let message = format!(
                "{kind} '{name}' was refused: somebody else holds what the operator must set; rename their container, or set binding.strategy to Proxy: {source}"
            );
            status::refused(seen, (kind, name), ActorState::FieldConflict, message)
        }
        apply::Error::Apply { kind, name, source } if error.is_refusal() => status::refused(
            seen,
            (kind, name),
            ActorState::Refused,
            format!("{kind} '{name}' was refused: {source}"),
        ),
        _ => Plan::default(),
    }
}

/// The objects a plan looks for, given those it found already.
pub fn needs(actor: &AsyncActor, found: &Objects) -> Vec<Key> {
    let mut all = children(actor);
    if let Some(reference) = &actor.spec.workload_ref {
        all.extend(targets::needs(reference, found));
    }
    all.extend(binding::previous_holder(actor));
    all
}

/// Everything that may be made for an actor and belongs to it.
fn children(actor: &AsyncActor) -> Vec<Key> {
    let name = actor.name_any();
    vec![
        Key::new(CONFIG_MAP, names::RUNTIME_CONFIG_MAP),
        Key::new(DEPLOYMENT, &name),
        Key::new(STATEFUL_SET, &name),
        Key::new(DEPLOYMENT, names::proxy(&name)),
        Key::new(SCALED_OBJECT, names::scaler(&name)),
        Key::new(SCALED_OBJECT, names::target_scaler(&name)),
        Key::new(CONFIG_MAP, names::authentication(&name)),
        Key::new(TRIGGER_AUTHENTICATION, names::authentication(&name)),
    ]
}

/// The queues of an actor, if its transport is configured.
pub fn queues_of(actor: &AsyncActor, transports: &Transports) -> Option<Queues> {
    transports
        .get(&actor.spec.transport)
        .ok()
        .map(|transport| queues(actor, transport))
}

/// Whether queues of the transport are made and removed here, or by the sidecars.
fn manages(settings: &Settings, transport: &Transport) -> bool {
    settings.manages_queues && transport.queues().auto_create
}

fn queues(actor: &AsyncActor, transport: &Transport) -> Queues {
    let namespace = actor.namespace().unwrap_or_default();
    let name = names::queue(&namespace, &actor.name_any());
    let end = |end: &str| names::queue(&namespace, end);
    let processing = u32::try_from(actor.spec.processing_seconds()).unwrap_or(300);
    let visibility = match transport {
        Transport::Sqs(sqs) => sqs.visibility_timeout,
        Transport::RabbitMq(_) => None,
    };
    Queues {
        transport: actor.spec.transport.clone(),
        dead_letters: transport.queues().dlq.enabled.then(|| names::dead_letters(&name)),
        ends: [end(names::HAPPY_END), end(names::ERROR_END)]
            .into_iter()
            .filter(|end| *end != name)
            .collect(),
        name,
        visibility: visibility.unwrap_or_else(|| processing.saturating_mul(2)),
    }
}

/// A plan that is being made.
struct Draft<'a> {
    seen: &'a Observed,
    request: &'a Request,
    kube: KubePlan,
    queue: Option<QueueWork>,
    wanted: BTreeSet<Key>,
    /// Children that are left alone although they are not wanted: what is not known is not torn down.
    keep_children: bool,
    conditions: Vec<condition::Draft>,
    warnings: Vec<String>,
    status: AsyncActorStatus,
    /// The workload whose replicas are told.
    shown: Option<Key>,
}

impl<'a> Draft<'a> {
    fn new(seen: &'a Observed, request: &'a Request) -> Self {
        let mode = if request.is_bound() {
            Mode::Binding
        } else {
            Mode::Standalone
        };
        Self {
            seen,
            request,
            kube: KubePlan::default(),
            queue: None,
            wanted: BTreeSet::new(),
            keep_children: false,
            conditions: Vec::new(),
            warnings: Vec::new(),
            status: AsyncActorStatus {
                mode: Some(mode),
                observed_generation: seen.actor.metadata.generation,
                ..AsyncActorStatus::default()
            },
            shown: None,
        }
    }

    /// The transport and its queue.
    fn transport(&mut self) -> Option<&'a Transport> {
        let seen = self.seen;
        let transport = match seen.transports.get(&self.request.transport) {
            Ok(transport) => transport,
            Err(unusable) => {
                self.conditions
                    .push(no(TRANSPORT_READY, "TransportNotConfigured", unusable.to_string()));
                self.keep_children = true;
                return None;
            }
        };
        let queues = queues(&seen.actor, transport);
        self.status.queue = Some(queues.name.clone());
        let longest = queues.dead_letters.as_ref().unwrap_or(&queues.name);
        if matches!(transport, Transport::Sqs(_)) && longest.len() > SQS_NAME_MAX {
            let message = format!(
                "SQS queue names have at most {SQS_NAME_MAX} characters, and '{longest}' has {}: shorten the name of the actor or of the namespace",
                longest.len()
            );
            self.conditions.push(no(TRANSPORT_READY, "QueueNameTooLong", message));
            self.keep_children = true;
            return None;
        }
        if !manages(&seen.settings, transport) {
            let message = format!(
                "Queue '{}' is not managed by the operator: the sidecar makes it",
                queues.name
            );
            self.conditions.push(yes(TRANSPORT_READY, "NotManaged", message));
            return Some(transport);
        }
        if !seen.actor.has_finalizer() {
            self.kube.finalizer = Finalizer::Add;
        }
        match &seen.queue {
            QueueState::Ready { drift: None } => {
                let message = format!("Queue '{}' exists", queues.name);
                self.conditions.push(yes(TRANSPORT_READY, "QueueReady", message));
            }
            QueueState::Ready { drift: Some(drift) } => {
                let message = format!(
                    "Queue '{}' exists and is used as it is, though it differs: {drift}",
                    queues.name
                );
                self.conditions.push(yes(TRANSPORT_READY, "QueueDiffers", message));
            }
            QueueState::Failed { message } => {
                let message = format!("Queue '{}': {message}", queues.name);
                self.conditions.push(no(TRANSPORT_READY, "QueueFailed", message));
            }
            QueueState::Unknown | QueueState::Removed { .. } => {
                self.conditions.push(no(
                    TRANSPORT_READY,
                    "QueuePending",
                    format!("Queue '{}' is being made", queues.name),
                ));
                self.queue = Some(QueueWork::Ensure(queues));
            }
        }
        Some(transport)
    }

    /// Wants an object.
    fn want(&mut self, key: &Key, apply: Apply) {
        self.wanted.insert(key.clone());
        self.kube.apply.push(apply);
    }

    /// Says something, if the condition was not there with this reason before.
    fn news(&mut self, type_: &str, note: Note) {
        let told = self
            .seen
            .actor
            .conditions()
            .iter()
            .any(|c| c.type_ == type_ && c.reason == note.reason);
        if !told {
            self.kube.events.push(note);
        }
    }

    fn look_again(&mut self, after: Duration) {
        self.kube.look_again = Some(self.kube.look_again.map_or(after, |before| before.min(after)));
    }

    /// Whether an object that is not ours has the name of one that is needed. That is said in a condition of this type and in
    /// an Event, and what is there is left as it is.
    fn is_taken(&mut self, key: &Key, type_: &'static str) -> bool {
        let Some(live) = self
            .seen
            .live(key)
            .filter(|live| !objects::is_ours(self.seen, key, live))
        else {
            return false;
        };
        let message = objects::taken_text(key.kind.kind, &key.name, &child::manager_of(live));
        self.keep_children = true;
        self.news(type_, Note::warning("NameTaken", &message));
        self.conditions.push(no(type_, "NameTaken", message));
        true
    }

    fn finish(mut self) -> Plan {
        if !self.keep_children {
            let superfluous = children(&self.seen.actor).into_iter().filter(|key| {
                !self.wanted.contains(key) && self.seen.live(key).is_some_and(|live| is_leftover(self.seen, live))
            });
            let deletions: Vec<_> = superfluous
                .filter_map(|key| objects::deletion(self.seen, &key))
                .collect();
            self.kube.delete.extend(deletions);
        }
        status::settle(self)
    }
}

/// Made for this actor, and not on its way out already.
fn is_leftover(seen: &Observed, live: &DynamicObject) -> bool {
    child::is_made_for(seen.actor.as_ref(), live) && live.metadata.deletion_timestamp.is_none()
}

/// The kinds that are made for actors and are never a target.
pub const MADE: [Kind; 3] = [CONFIG_MAP, SCALED_OBJECT, TRIGGER_AUTHENTICATION];

/// The kinds that are made for actors, and those that they may be bound to.
pub fn kinds() -> Vec<Kind> {
    MADE.into_iter().chain(targets::KNOWN).collect()
}
