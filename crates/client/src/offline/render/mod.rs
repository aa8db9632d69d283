//! `kubeairunway render`: the offline face of `plan`. Pure: documents, a time and what to show go in, documents and lines
//! come out.
//!
//! Each ModelDeployment goes through what it would meet in a cluster: admission, the core's plan, then the plan of every
//! built-in provider, each asked once. Each AsyncActor and LlamaStackDistribution goes through its validation and its
//! operator's plan (`actor.rs`, `llama_stack.rs`).

mod actor;
mod admission;
mod llama_stack;
mod merge;
mod note;
mod standalone;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::{ApiResource, DynamicObject};
use runway_api::{
    InferenceProviderConfig, InferenceProviderConfigStatus, ModelDeployment, ModelDeploymentStatus, Phase, condition,
    labels,
};
use runway_operator::plan::{Apply, Delete, Finalizer, Plan};
use runway_provider::Configured;
use runway_provider::observe::{self, Observed, Verification};
use runway_provider::plan::Decision;
use runway_provider::probe::ProbeDecision;
use serde_json::json;

use crate::diagnostic::{Diagnostic, Level};
use crate::offline::documents::{Document, Documents};
use crate::offline::state::{SeenBy, State};
use crate::text;
use note::event;

pub use actor::Actors;
pub(crate) use admission::{admit, parsed};

/// Options of [`render`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Documents to show.
    pub show: Show,
    /// The time.
    pub now: Timestamp,
}

/// Documents to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Show {
    /// Objects that the controllers would apply, in apply order
    #[default]
    Objects,
    /// Given documents with the status and finalizers that the controllers would write
    Status,
}

/// Result.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// For stdout.
    pub documents: Vec<DynamicObject>,
    /// For stderr.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether a part of the request failed.
    pub failed: bool,
}

/// Renders ModelDeployments, AsyncActors and LlamaStackDistributions; other documents are the state of the cluster. No
/// transport is configured.
pub fn render(documents: Documents, options: &Options) -> Rendered {
    render_with(documents, options, &Actors::default())
}

/// Like [`render`], with settings of the AsyncActor operator.
pub fn render_with(documents: Documents, options: &Options, actors: &Actors) -> Rendered {
    let (state, diagnostics) = State::new(documents);
    let mut rendered = Rendered {
        diagnostics,
        ..Rendered::default()
    };
    let providers = state.built_in_providers();
    for document in &state.deployments {
        let Some(outcome) = follow(document, &state, &providers, options.now, &mut rendered.diagnostics) else {
            continue;
        };
        match options.show {
            Show::Objects => {
                rendered.diagnostics.extend(outcome.why_nothing(document, &providers));
                rendered.documents.extend(outcome.objects());
            }
            Show::Status => rendered.documents.push(outcome.document),
        }
    }
    for document in &state.actors {
        let outcome = actor::follow(document, &state, actors, options.now, &mut rendered.diagnostics);
        rendered
            .documents
            .extend(outcome.into_iter().flat_map(|outcome| match options.show {
                Show::Objects => outcome.objects,
                Show::Status => vec![outcome.document],
            }));
    }
    for document in &state.distributions {
        let Some(outcome) = llama_stack::follow(document, &state, options.now, &mut rendered.diagnostics) else {
            continue;
        };
        match options.show {
            Show::Objects => rendered.documents.extend(outcome.objects),
            Show::Status => rendered.documents.push(outcome.document),
        }
    }
    if options.show == Show::Status {
        rendered.documents.extend(registrations(&state, options.now));
    }
    let nothing = state.deployments.is_empty() && state.actors.is_empty() && state.distributions.is_empty();
    if nothing && rendered.diagnostics.is_empty() {
        let text = "nothing to render: no ModelDeployment, AsyncActor or LlamaStackDistribution among the documents";
        rendered.diagnostics.push(Diagnostic {
            level: Level::Note,
            subject: None,
            text: text.to_owned(),
        });
    }
    rendered.failed = rendered.diagnostics.iter().any(|d| d.level == Level::Error);
    rendered
}

/// Result of rendering a ModelDeployment.
struct RenderedModel {
    /// The ModelDeployment with the status so far.
    md: ModelDeployment,
    /// The document as written, with added fields.
    document: DynamicObject,
    /// Objects to apply.
    apply: Vec<Apply>,
    /// Objects to delete.
    delete: Vec<Delete>,
    /// Request to the endpoint.
    probe: ProbeDecision,
    /// Events, as text for the user.
    reported: Vec<String>,
    /// Earliest requeue.
    look_again: Option<Duration>,
}

/// Admission, the core's plan, the providers' plans.
fn follow(
    document: &Document,
    state: &State,
    providers: &[Configured],
    now: Timestamp,
    said: &mut Vec<Diagnostic>,
) -> Option<RenderedModel> {
    let admitted = admit(document, state, said)?;
    let mut outcome = RenderedModel {
        md: admitted.md,
        document: admitted.document,
        apply: Vec::new(),
        delete: Vec::new(),
        probe: ProbeDecision::Forget,
        reported: Vec::new(),
        look_again: None,
    };
    if let Err(error) = outcome.plan_all(state, providers, &Verification::Assumed, now) {
        let text = format!("cannot parse the computed status: {error}");
        said.push(Diagnostic::about(Level::Error, document.subject(), text));
        return None;
    }
    let notes = outcome.notes().into_iter();
    said.extend(notes.map(|text| Diagnostic::about(Level::Note, document.subject(), text)));
    outcome.write_back();
    Some(outcome)
}

fn observe(
    configured: &Configured,
    md: &ModelDeployment,
    state: &State,
    verification: &Verification,
    now: Timestamp,
) -> Observed {
    let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
    let provider = configured.provider.as_ref();
    Observed {
        md: Arc::new(md.clone()),
        installed: state.installed(provider),
        invalid_settings: configured.invalid.clone(),
        children: observe::children(&SeenBy { state, provider }, provider, md),
        pods: state.pods_of_model(provider, &namespace, &name),
        outage: None,
        verification: verification.clone(),
        answer_timeout: configured.answer_timeout,
        now,
    }
}

/// Plans of core and provider for an existing ModelDeployment.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The ModelDeployment with the status that they would write.
    pub md: ModelDeployment,
    /// Objects that the provider would apply.
    pub apply: Vec<Apply>,
    /// Objects that it would delete.
    pub delete: Vec<Delete>,
    /// Request that it would send to the endpoint.
    pub probe: ProbeDecision,
}

/// Asks the core and every provider about a ModelDeployment that is past admission. No endpoint is asked: the plan is the one
/// after the model has answered.
///
/// # Errors
/// A computed status cannot be parsed.
pub fn plans(md: ModelDeployment, state: &State, now: Timestamp) -> Result<Planned, serde_json::Error> {
    plans_verified(md, state, &Verification::Assumed, now)
}

/// Like [`plans`], with the last response of the endpoint.
///
/// # Errors
/// A computed status cannot be parsed.
pub fn plans_verified(
    md: ModelDeployment,
    state: &State,
    verification: &Verification,
    now: Timestamp,
) -> Result<Planned, serde_json::Error> {
    let mut outcome = RenderedModel {
        md,
        document: DynamicObject::new("", &ApiResource::erase::<ModelDeployment>(&())),
        apply: Vec::new(),
        delete: Vec::new(),
        probe: ProbeDecision::Forget,
        reported: Vec::new(),
        look_again: None,
    };
    outcome.plan_all(state, &state.built_in_providers(), verification, now)?;
    Ok(Planned {
        md: outcome.md,
        apply: outcome.apply,
        delete: outcome.delete,
        probe: outcome.probe,
    })
}

impl RenderedModel {
    /// The objects that would be applied.
    fn objects(self) -> impl Iterator<Item = DynamicObject> {
        self.apply.into_iter().map(|apply| apply.object)
    }

    /// Asks every controller once, the core first.
    fn plan_all(
        &mut self,
        state: &State,
        providers: &[Configured],
        verification: &Verification,
        now: Timestamp,
    ) -> Result<(), serde_json::Error> {
        let core = runway_core::plan::plan(&runway_core::observe::Observed {
            md: Arc::new(self.md.clone()),
            providers: state.providers.clone(),
            selector_enabled: true,
            autoscalers: state.autoscalers(&self.md),
            now,
        });
        let had_phase = self.has_phase();
        self.carry_out(core, |status| runway_core::plan::owned(status, false))?;
        let core_again = self.look_again.take();
        for configured in providers {
            let seen = observe(configured, &self.md, state, verification, now);
            let Decision { plan, probe } = runway_provider::plan::decide(configured.provider.as_ref(), &seen);
            if probe != ProbeDecision::Forget {
                self.probe = probe;
            }
            self.carry_out(plan, runway_provider::plan::owned)?;
        }
        // The core waits for the provider's first word, which is there now.
        if had_phase || !self.has_phase() {
            self.look_again = self.look_again.into_iter().chain(core_again).min();
        }
        Ok(())
    }

    fn has_phase(&self) -> bool {
        self.md.status.as_ref().is_some_and(|status| status.phase.is_some())
    }

    /// Does to the ModelDeployment what the executor does in a cluster, and keeps in mind what happens beside it.
    fn carry_out(
        &mut self,
        plan: Plan,
        owned: impl Fn(&ModelDeploymentStatus) -> ModelDeploymentStatus,
    ) -> Result<(), serde_json::Error> {
        if plan.finalizer == Finalizer::Add {
            let finalizers = self.md.metadata.finalizers.get_or_insert_default();
            finalizers.push(labels::FINALIZER.to_owned());
        }
        let deleted = plan.delete.iter();
        self.reported
            .extend(deleted.map(|d| format!("deletes {} '{}'", d.resource.kind, d.name)));
        self.delete.extend(plan.delete);
        for apply in plan.apply {
            let news = apply.note.as_ref().filter(|_| !apply.unchanged);
            self.reported.extend(news.map(event));
            self.apply.push(apply);
        }
        let mut status = self.md.status.take().unwrap_or_default();
        if let Some(of) = &plan.status_of {
            status = merge::apply(&status, &runway_provider::plan::owned(&status), &of.status)?;
        }
        if let Some(sent) = &plan.status {
            status = merge::apply(&status, &owned(&status), sent)?;
        }
        self.md.status = Some(status).filter(|s| *s != ModelDeploymentStatus::default());
        self.reported.extend(plan.events.iter().map(event));
        if plan.finalizer == Finalizer::Remove {
            self.reported.push(format!("removes finalizer {}", labels::FINALIZER));
            let others = self.md.metadata.finalizers.take().map(without_ours);
            self.md.metadata.finalizers = others.filter(|f| !f.is_empty());
        }
        self.look_again = self.look_again.into_iter().chain(plan.look_again).min();
        Ok(())
    }

    /// Notes about Events, deletions and requeues.
    fn notes(&self) -> Vec<String> {
        let gone = self.md.is_deleting() && !self.md.has_finalizer();
        let later = self
            .look_again
            .filter(|_| !gone)
            .map(|wait| format!("requeues after {}", text::age(wait)));
        self.reported.iter().cloned().chain(later).collect()
    }

    /// Puts what the controllers wrote into the document.
    fn write_back(&mut self) {
        self.document
            .metadata
            .finalizers
            .clone_from(&self.md.metadata.finalizers);
        if let Some(data) = self.document.data.as_object_mut() {
            match &self.md.status {
                Some(status) => data.insert("status".to_owned(), json!(status)),
                None => data.remove("status"),
            };
        }
    }

    /// Silence must be explained.
    fn why_nothing(&self, document: &Document, providers: &[Configured]) -> Option<Diagnostic> {
        if !self.apply.is_empty() {
            return None;
        }
        let status = self.md.status.as_ref();
        let phase = status.and_then(|s| s.phase).map_or("no phase", Phase::as_str);
        let message = status.and_then(|s| s.message.as_deref());
        // What an Event says already is not said again.
        let message = message.filter(|m| !self.reported.iter().any(|reported| reported.ends_with(m)));
        let foreign = self
            .md
            .selected_provider()
            .filter(|name| !providers.iter().any(|p| p.provider.name() == *name));
        let why = match (foreign, message) {
            _ if self.md.is_deleting() => "it is being deleted".to_owned(),
            _ if self.md.is_paused() => format!("it is paused by annotation {}", labels::PAUSED),
            (Some(name), _) => format!("provider '{name}' is not built in: this command cannot render its objects"),
            (None, Some(message)) => format!("{phase}, {message}"),
            (None, None) => phase.to_owned(),
        };
        let text = format!("nothing to apply: {why}");
        Some(Diagnostic::about(Level::Note, document.subject(), text))
    }
}

fn without_ours(finalizers: Vec<String>) -> Vec<String> {
    finalizers.into_iter().filter(|f| f != labels::FINALIZER).collect()
}

/// The registrations given, with what the core writes into their status.
fn registrations(state: &State, now: Timestamp) -> Vec<DynamicObject> {
    state
        .configs
        .iter()
        .filter_map(|(document, config)| registration(document, config, state, now))
        .collect()
}

fn registration(
    document: &Document,
    config: &InferenceProviderConfig,
    state: &State,
    now: Timestamp,
) -> Option<DynamicObject> {
    let mut shown: DynamicObject = serde_json::from_value(document.value.clone()).ok()?;
    let registered = state.providers.get(&config.name_any());
    if let Some(sent) = registered.and_then(|r| r.status_to_write(now)) {
        let live = config.status.clone().unwrap_or_default();
        let ours = live.conditions.iter().filter(|c| c.type_ == condition::RULES_VALID);
        let owned = InferenceProviderConfigStatus {
            conditions: ours.cloned().collect(),
            ..Default::default()
        };
        shown.data["status"] = json!(merge::apply(&live, &owned, &sent).ok()?);
    }
    Some(shown)
}
