//! `kubeairunway why` for AsyncActors and LlamaStackDistributions: which condition holds one, where its chain breaks, and what to
//! do. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runway_api::async_actor;
use runway_api::condition;
use serde::Serialize;

use crate::text::{self, Look, Mood};
use crate::view::tree::{Broken, Health, Tree};

/// Conditions that are there only while something is unusual.
const UNUSUAL: [&str; 5] = [
    condition::STALLED,
    condition::PROVIDER_OVERRIDES,
    condition::PREFLIGHT_BYPASSED,
    condition::ENV_IGNORED,
    async_actor::WARNING,
];

/// State of an object, and the conditions that block it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// State, in one word.
    pub state: String,
    /// State, in a sentence.
    pub message: String,
    /// Whether it is blocked.
    pub held: bool,
    /// The conditions that are not as they should be, the cause first.
    pub conditions: Vec<Cause>,
    /// First failure in its chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<Broken>,
    /// Lookups that failed, as messages for the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A condition that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// Type, such as `TransportReady`.
    pub condition: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
}

/// Explains an object by its conditions, in the order of causes, and its chain.
pub fn explain(tree: &Tree, conditions: &[Condition]) -> Held {
    let is_amiss = |c: &&Condition| (c.status == "True") == UNUSUAL.contains(&c.type_.as_str());
    let (sums, causes): (Vec<_>, Vec<_>) = conditions
        .iter()
        .filter(is_amiss)
        .partition(|c| [condition::READY, condition::STALLED].contains(&c.type_.as_str()));
    // These two only repeat what others say, if others say something.
    let causes = if causes.is_empty() { sums } else { causes };
    Held {
        kind: tree.root.kind.clone(),
        name: tree.name.clone(),
        namespace: tree.namespace.clone(),
        state: tree.root.state.clone(),
        message: tree.root.text.clone(),
        held: tree.root.health != Health::Good,
        conditions: causes.into_iter().map(cause).collect(),
        broken: tree.broken.clone(),
        missing: tree.missing.clone(),
    }
}

fn cause(condition: &Condition) -> Cause {
    Cause {
        condition: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    }
}

/// The explanation on a screen.
pub fn screen(held: &Held, look: Look) -> String {
    let name = look.strong(&format!("{}/{}", held.namespace, held.name));
    let state = if held.held {
        look.paint(Mood::Bad, &held.state)
    } else {
        look.paint(Mood::Good, &format!("{}, not blocked", held.state))
    };
    let mut lines = vec![format!("{name}: {state}")];
    if !held.message.is_empty() {
        lines.push(format!("  {}", text::cell(&held.message)));
    }
    if let Some(broken) = &held.broken {
        let stops = format!("Blocked at {}: {}", broken.object, broken.reason);
        lines.push(format!("  {}", text::cell(&stops)));
    }
    let mut screen = text::lines(lines.into_iter());
    if !held.conditions.is_empty() {
        let mut table = text::table(&["CONDITION", "STATUS", "REASON", "MESSAGE"]);
        for c in &held.conditions {
            table.add_row([&c.condition, &c.status, &c.reason, &text::cell(&c.message)]);
        }
        screen = format!("{screen}\n{}", text::aligned(&table));
    }
    let missing = held.missing.iter().map(|m| format!("Not shown: {}", text::cell(m)));
    screen + &text::lines(missing)
}
