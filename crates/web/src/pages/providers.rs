//! The providers: what each can do, by which rules it is chosen, and whether it is alive; its controller and the upstream
//! operator it translates for are shown apart.

use std::sync::Arc;

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::provider_config::{Health, SelectionPolicy};
use runway_api::{InferenceProviderConfig, labels};
use runway_client::providers::is_unused;
use runway_manifests as manifests;
use runway_operator::clock;

use crate::guard::Asker;
use crate::moment::Moment;
use crate::page::Shell;
use crate::refusal;

/// State of the controller or of the operator of a provider.
struct Half {
    mood: &'static str,
    state: &'static str,
    text: String,
}

/// An engine and how it is served.
struct Engine {
    name: String,
    modes: String,
    cpu: bool,
    gpu: bool,
}

struct Card {
    name: String,
    controller: Half,
    upstream: Half,
    version: String,
    heartbeat: Option<Moment>,
    explicit: bool,
    engines: Vec<Engine>,
    rules: Vec<(i32, String)>,
    validation: Vec<(String, String)>,
    overrides: Vec<(String, String)>,
    bad_rules: Option<String>,
    documentation: String,
    installation: String,
    models: usize,
}

#[derive(Template)]
#[template(path = "providers.html")]
struct All {
    shell: Shell,
    cards: Vec<Card>,
    absent: Vec<&'static str>,
}

/// The page.
pub async fn show(Asker(session): Asker) -> Response {
    let (seen, models) = tokio::join!(session.view.providers(), session.view.deployments());
    let mut shell = Shell::new(&session, "providers", "Providers").live("inferenceproviderconfigs");
    shell.note("InferenceProviderConfigs", &seen);
    let now = clock::now();
    let serves = |name: &str| {
        models
            .items
            .iter()
            .filter(|md| md.selected_provider() == Some(name))
            .count()
    };
    let cards: Vec<Card> = seen
        .items
        .iter()
        .map(|config| {
            let mut card = provider(config, serves(&config.name_any()), now);
            if is_unused(config, models.items.iter().map(Arc::as_ref), now) {
                (card.upstream.mood, card.upstream.state) = ("none", "Not used");
            }
            card
        })
        .collect();
    let built_in = manifests::built_in_providers();
    let absent = built_in
        .iter()
        .map(|p| p.name())
        .filter(|name| cards.iter().all(|p| p.name != *name));
    let absent = if seen.trouble.is_none() {
        absent.collect()
    } else {
        Vec::new()
    };
    refusal::html(&All { shell, cards, absent })
}

fn provider(config: &InferenceProviderConfig, models: usize, now: Timestamp) -> Card {
    let spec = &config.spec;
    let status = config.status.clone().unwrap_or_default();
    let conditions = status.conditions.as_slice();
    let engines = spec.capabilities.engine_names().into_iter().filter_map(|name| {
        let can = spec.capabilities.for_engine(name)?;
        let served: Vec<&str> = can.serving_modes.iter().map(|m| m.as_str()).collect();
        Some(Engine {
            name: name.to_owned(),
            modes: served.join(", "),
            cpu: can.cpu,
            gpu: can.gpu,
        })
    });
    Card {
        name: config.name_any(),
        controller: controller(config, now),
        upstream: upstream(config),
        version: status.version.clone().unwrap_or_default(),
        heartbeat: status.last_heartbeat.as_ref().map(|t| Moment::new(t.0, now)),
        explicit: config.policy() == SelectionPolicy::Explicit,
        engines: engines.collect(),
        rules: spec
            .selection_rules
            .iter()
            .map(|r| (r.priority, r.condition.clone()))
            .collect(),
        validation: spec
            .validation_rules
            .iter()
            .map(|r| (r.rule.clone(), r.message.clone()))
            .collect(),
        overrides: spec
            .overrides
            .iter()
            .flatten()
            .map(|o| {
                (
                    format!("{} ({})", o.path, o.kind),
                    o.description.clone().unwrap_or_default(),
                )
            })
            .collect(),
        bad_rules: conditions.when_false(condition::RULES_VALID).map(|c| c.message.clone()),
        documentation: spec
            .documentation
            .clone()
            .filter(|url| url.starts_with("https://") || url.starts_with("http://"))
            .unwrap_or_default(),
        installation: spec.installation.clone().unwrap_or_default(),
        models,
    }
}

/// The controller that translates: alive if its heart beats.
fn controller(config: &InferenceProviderConfig, now: Timestamp) -> Half {
    match config.health(now) {
        Health::Silent => Half {
            mood: "bad",
            state: "Silent",
            text: format!(
                "No heartbeat for 180 seconds (is {} running?)",
                labels::provider_manager(&config.name_any())
            ),
        },
        Health::Healthy | Health::NotReady(_) => Half {
            mood: "good",
            state: "Running",
            text: String::new(),
        },
    }
}

/// The upstream operator: there if its CRD is, and known.
fn upstream(config: &InferenceProviderConfig) -> Half {
    let status = config.status.clone().unwrap_or_default();
    let ready = status.conditions.as_slice().get_condition(condition::UPSTREAM_READY);
    let version = status.upstream_crd_version.unwrap_or_default();
    match ready {
        Some(c) if c.status == "True" => Half {
            mood: "good",
            state: "Installed",
            text: version,
        },
        Some(c) => Half {
            mood: "bad",
            state: "Missing",
            text: c.message.clone(),
        },
        None => Half {
            mood: "none",
            state: "Unknown",
            text: "not reported by its controller".to_owned(),
        },
    }
}
