//! `kubeairunway why` for AsyncActors and LlamaStackDistributions: which condition blocks one, where its chain breaks, and what to
//! do. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runway_api::condition;
use serde::Serialize;

use crate::text::{self, Look, Mood};
use crate::view::tree::{Broken, Health, Tree};

/// State of an object, and the conditions that block it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
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
    pub blocked: bool,
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
pub fn explain(tree: &Tree, conditions: &[Condition]) -> Explanation {
    let (sums, causes): (Vec<_>, Vec<_>) = conditions
        .iter()
        .filter(|c| condition::is_amiss(c))
        .partition(|c| [condition::READY, condition::STALLED].contains(&c.type_.as_str()));
    // These two only repeat what others say, if others say something.
    let causes = if causes.is_empty() { sums } else { causes };
    Explanation {
        kind: tree.root.kind.clone(),
        name: tree.name.clone(),
        namespace: tree.namespace.clone(),
        state: tree.root.state.clone(),
        message: tree.root.text.clone(),
        blocked: tree.root.health != Health::Good,
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
pub fn screen(explained: &Explanation, look: Look) -> String {
    let name = look.strong(&format!("{}/{}", explained.namespace, explained.name));
    let state = if explained.blocked {
        look.paint(Mood::Bad, &explained.state)
    } else {
        look.paint(Mood::Good, &format!("{}, not blocked", explained.state))
    };
    let mut lines = vec![format!("{name}: {state}")];
    if !explained.message.is_empty() {
        lines.push(format!("  {}", text::cell(&explained.message)));
    }
    if let Some(broken) = &explained.broken {
        let stops = format!("Blocked at {}: {}", broken.object, broken.reason);
        lines.push(format!("  {}", text::cell(&stops)));
    }
    let mut screen = text::lines(lines.into_iter());
    if !explained.conditions.is_empty() {
        let mut table = text::table(&["CONDITION", "STATUS", "REASON", "MESSAGE"]);
        for c in &explained.conditions {
            table.add_row([&c.condition, &c.status, &c.reason, &text::cell(&c.message)]);
        }
        screen = format!("{screen}\n{}", text::aligned(&table));
    }
    let missing = explained
        .missing
        .iter()
        .map(|m| format!("Not shown: {}", text::cell(m)));
    screen + &text::lines(missing)
}

#[cfg(test)]
mod tests {
    use runway_api::condition::{ENV_IGNORED, IMAGES_NOT_PINNED, PAUSED, PREFLIGHT_BYPASSED, READY, no, settle, yes};

    use super::*;
    use crate::view::tree::Node;

    #[test]
    fn explanation_lists_each_unusual_condition() {
        let unusual = [PREFLIGHT_BYPASSED, IMAGES_NOT_PINNED, ENV_IGNORED, PAUSED];
        let mut drafts: Vec<_> = unusual.iter().map(|type_| yes(type_, "Reason", "")).collect();
        drafts.insert(0, no(READY, "Reason", ""));
        drafts.insert(0, yes(runway_api::condition::SERVICE_READY, "Reason", ""));
        let conditions = settle(drafts, &[], None, "2026-11-21T10:00:00Z".parse().unwrap());
        let tree = Tree {
            name: "stack".to_owned(),
            namespace: "default".to_owned(),
            broken: None,
            root: Node {
                kind: "LlamaStackDistribution".to_owned(),
                name: "stack".to_owned(),
                state: "Ready".to_owned(),
                text: String::new(),
                health: Health::Good,
                broken: false,
                children: Vec::new(),
            },
            missing: Vec::new(),
        };
        let listed = explain(&tree, &conditions).conditions;
        assert_eq!(listed.iter().map(|c| c.condition.as_str()).collect::<Vec<_>>(), unusual);
    }
}
