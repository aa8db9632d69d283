//! `kubeairunway why`: who serves a ModelDeployment, and what every registered provider was worth.

use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::ModelDeployment;
use runway_api::provider_config::Health;
use runway_core::providers::Providers;
use runway_core::selection::{self, NO_HEALTHY_PROVIDERS, NoProvider, RuleOutcome, Verdict};
use serde::Serialize;

use crate::text::{self, Look, Mood};

/// The explanation of a choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The ModelDeployment.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// The provider that serves it, or would be chosen now; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Kind of selection.
    pub choice: Choice,
    /// Explanation for the user.
    pub because: String,
    /// Every registered provider, the best first.
    pub providers: Vec<Considered>,
}

/// Kind of selection of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Choice {
    /// The spec names it.
    Explicit,
    /// Selected earlier; an existing selection is kept.
    Kept,
    /// Selected now.
    Automatic,
    /// No provider.
    None,
}

/// A provider that was considered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Considered {
    /// Name.
    pub name: String,
    /// Whether it is eligible.
    pub eligible: bool,
    /// The highest priority of its rules that hold, 0 if none does.
    pub priority: i32,
    /// Reason of the result.
    pub reason: String,
    /// Health of its controller.
    pub health: String,
    /// Selection rules.
    pub rules: Vec<RuleValue>,
    /// Rules that are skipped because they do not compile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Result of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleValue {
    /// The condition, as written.
    pub condition: String,
    /// Priority.
    pub priority: i32,
    /// Result; absent if the rule cannot be evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<bool>,
    /// Error of the evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Explains who serves `md`, or who would be chosen.
pub fn explain(md: &ModelDeployment, providers: &Providers, now: Timestamp) -> Why {
    let mut verdicts = selection::explain(md, providers, now);
    verdicts.sort_by_key(|v| (v.obstacle.is_some(), std::cmp::Reverse(v.priority), v.provider.clone()));
    let winner = selection::select(md, providers, now).winner;
    let (provider, choice, because) = chosen(md, &winner);
    let providers = verdicts
        .iter()
        .map(|verdict| {
            let registered = providers.get(&verdict.provider);
            Considered {
                name: verdict.provider.clone(),
                eligible: verdict.obstacle.is_none(),
                priority: verdict.priority,
                reason: reason(verdict, &verdicts, provider.as_deref()),
                health: registered.map_or_else(String::new, |r| health(&r.health(now))),
                rules: verdict.rules.iter().map(rule).collect(),
                problems: registered.map_or_else(Vec::new, |r| r.problems.clone()),
            }
        })
        .collect();
    let (name, namespace) = (md.name_any(), md.namespace().unwrap_or_default());
    Why {
        name,
        namespace,
        provider,
        choice,
        because,
        providers,
    }
}

/// Asked for, kept, or won: in this order, as the core controller does it.
fn chosen(md: &ModelDeployment, winner: &Result<String, NoProvider>) -> (Option<String>, Choice, String) {
    let status = md.status.as_ref().and_then(|s| s.provider.as_ref());
    match (md.spec.provider_name(), md.selected_provider()) {
        (Some(named), Some(current)) if named != current => {
            let text =
                format!("requested by spec.provider.name; '{current}' serves the model until its cleanup is complete");
            (Some(named.to_owned()), Choice::Explicit, text)
        }
        (Some(named), _) => (
            Some(named.to_owned()),
            Choice::Explicit,
            "requested by spec.provider.name".to_owned(),
        ),
        (None, Some(kept)) => {
            let reason = status
                .and_then(|p| p.selected_reason.as_deref())
                .unwrap_or("no reason recorded");
            let today = match winner {
                Ok(now) if now == kept => String::new(),
                Ok(now) => format!("; '{now}' would be selected now, but an existing selection is kept"),
                Err(_) => "; no provider would be selected now, but an existing selection is kept".to_owned(),
            };
            (
                Some(kept.to_owned()),
                Choice::Kept,
                format!("selected earlier and kept ({reason}){today}"),
            )
        }
        (None, None) => match winner {
            Ok(winner) => (Some(winner.clone()), Choice::Automatic, selection::matched(&md.spec)),
            Err(NoProvider::NoneHealthy) => (None, Choice::None, NO_HEALTHY_PROVIDERS.to_owned()),
            Err(NoProvider::NoneSuitable(message)) => (None, Choice::None, message.clone()),
        },
    }
}

/// Reason of the result of a provider. `all` is sorted, the best first.
fn reason(verdict: &Verdict, all: &[Verdict], provider: Option<&str>) -> String {
    if let Some(obstacle) = &verdict.obstacle {
        return obstacle.reason().to_owned();
    }
    let mut eligible = all.iter().filter(|v| v.obstacle.is_none());
    let Some(first) = eligible.next() else {
        return String::new();
    };
    if first.provider != verdict.provider {
        return if first.priority == verdict.priority {
            format!("same priority as {}, whose name comes first", first.provider)
        } else {
            format!(
                "lower priority than {} ({} < {})",
                first.provider, verdict.priority, first.priority
            )
        };
    }
    let wins = match eligible.next() {
        None => "the only eligible provider".to_owned(),
        Some(second) if second.priority == verdict.priority => {
            format!("same priority as {}, and its name comes first", second.provider)
        }
        Some(second) => format!("highest priority ({} > {})", verdict.priority, second.priority),
    };
    match provider {
        Some(provider) if provider != verdict.provider => format!("would be selected: {wins}"),
        _ => wins,
    }
}

fn rule(outcome: &RuleOutcome) -> RuleValue {
    RuleValue {
        condition: outcome.condition.clone(),
        priority: outcome.priority,
        holds: outcome.holds.as_ref().ok().copied(),
        error: outcome.holds.as_ref().err().cloned(),
    }
}

/// The health of a provider, for people.
pub fn health(health: &Health) -> String {
    match health {
        Health::Healthy => "ready".to_owned(),
        Health::NotReady(why) => format!("not ready: {why}"),
        Health::Silent => "no heartbeat for 180 seconds".to_owned(),
    }
}

/// The explanation on a screen.
pub fn screen(why: &Why, look: Look) -> String {
    let name = look.strong(&format!("{}/{}", why.namespace, why.name));
    let headline = match (&why.provider, why.choice) {
        (None, _) => look.paint(Mood::Bad, "no provider"),
        (Some(provider), Choice::Automatic) => look.paint(Mood::Good, &format!("{provider} wins")),
        (Some(provider), Choice::Kept) => look.paint(Mood::Good, &format!("{provider} is kept")),
        (Some(provider), _) => look.paint(Mood::Good, &format!("{provider} is requested")),
    };
    let mut screen = format!("{name}: {headline}\n  {}\n", text::cell(&why.because));
    if why.providers.is_empty() {
        return screen + "\nNo provider is registered.\n";
    }
    let mut table = text::table(&["PROVIDER", "ELIGIBLE", "PRIORITY", "HEALTH", "REASON"]);
    for p in &why.providers {
        let health = p.health.split(':').next().unwrap_or_default();
        table.add_row([
            p.name.as_str(),
            if p.eligible { "yes" } else { "no" },
            &p.priority.to_string(),
            health,
            &text::cell(&p.reason),
        ]);
    }
    screen.push('\n');
    screen.push_str(&text::aligned(&table));
    screen + &rules(why)
}

fn rules(why: &Why) -> String {
    let mut table = text::table(&["PROVIDER", "PRIORITY", "VALUE", "RULE"]);
    for p in &why.providers {
        for rule in &p.rules {
            let value = match (&rule.holds, &rule.error) {
                (Some(holds), _) => holds.to_string(),
                (None, error) => format!("error: {}", error.as_deref().unwrap_or_default()),
            };
            table.add_row([
                p.name.as_str(),
                &rule.priority.to_string(),
                &text::cell(&value),
                &text::cell(&rule.condition),
            ]);
        }
        for problem in &p.problems {
            table.add_row([p.name.as_str(), "-", "skipped", &text::cell(problem)]);
        }
    }
    if table.is_empty() {
        String::new()
    } else {
        format!("\n{}", text::aligned(&table))
    }
}
