//! Verdicts: on which nodes pods fit, and why not on the others, in the words of kube-scheduler 1.36
//! (pkg/scheduler/framework/plugins). The order of the checks is that of its plugins, since only the first one that fails
//! gives the reasons of a node.
//!
//! A verdict is about the moment of the snapshot. It is conservative: [`Verdict::Yes`] means that the pods fit in whatever
//! order and on whichever of the nodes the scheduler places them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};
use serde::Serialize;

use super::amount::{Amounts, PODS};
use super::nodes::{Devices, Place, Refusal, Snapshot, Used};
use super::pod::Ask;

/// Whether pods fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All pods fit on the present nodes.
    Yes,
    /// A setting that is not evaluated decides.
    Unknown,
    /// Not all pods fit on the present nodes.
    No,
}

impl Verdict {
    /// The word for users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Unknown => "unknown",
            Self::No => "no",
        }
    }
}

/// Whether one pod fits on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// This many pods fit, and so many more if pods of lower priority are evicted.
    Fits(i64, i64),
    /// A setting that is not evaluated decides, for at most this many pods.
    Maybe(i64, String),
    /// It does not fit.
    No(Vec<String>),
}

/// Result for pods that are all alike.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether all of them fit.
    pub verdict: Verdict,
    /// Nodes that take at least one of them.
    pub nodes: usize,
    /// Pods that these nodes take.
    pub room: i64,
    /// Pods that further nodes may take, depending on settings that are not evaluated.
    pub possible: i64,
    /// Reasons against nodes, with the number of nodes.
    pub reasons: BTreeMap<String, usize>,
    /// Reasons for which the verdict is unknown.
    pub unknown: Vec<String>,
}

/// Pods that are all alike, and their number.
pub type Batch<'a> = (&'a Ask, i64);

/// Result for groups of pods.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Result for each group.
    pub outcomes: Vec<Outcome>,
    /// Whether the groups together request more than the nodes have: some of the pods do not fit, whichever they are.
    pub is_short: bool,
}

impl Decision {
    /// Verdict for all groups together.
    pub fn verdict(&self) -> Verdict {
        let worst = self.outcomes.iter().map(|outcome| outcome.verdict).max();
        match worst {
            _ if self.is_short => Verdict::No,
            Some(worst) => worst,
            None => Verdict::Unknown,
        }
    }
}

/// Decides whether groups of pods fit together.
pub fn decide(snapshot: &Snapshot, batches: &[Batch<'_>]) -> Decision {
    let statuses: Vec<Vec<Status>> = batches.iter().map(|(ask, _)| statuses(snapshot, ask)).collect();
    let needed = batches.iter().filter(|(_, count)| *count > 0).count();
    let is_short = needed > 1 && is_short(snapshot, batches, &statuses);
    let mut outcomes: Vec<Outcome> = batches
        .iter()
        .zip(&statuses)
        .map(|((ask, count), statuses)| alone(statuses, ask, *count))
        .collect();
    if needed < 2 {
        return Decision { outcomes, is_short };
    }
    for (index, (_, count)) in batches.iter().enumerate() {
        let (Some(outcome), Some(own)) = (outcomes.get_mut(index), statuses.get(index)) else {
            continue;
        };
        if outcome.verdict != Verdict::Yes || *count == 0 {
            continue;
        }
        let others = batches
            .iter()
            .enumerate()
            .filter(|(i, (_, count))| *i != index && *count > 0);
        if is_short {
            outcome.doubt("all pods of the deployment together request more than the nodes have");
        } else if others.map(|(_, (ask, _))| ask).any(|ask| ask.repels) {
            outcome.doubt("other pods of the deployment keep these away by anti-affinity");
        } else if room_beside_others(snapshot, batches, index, own) < *count {
            outcome.doubt(
                "the pods fit alone; beside the other pods of the deployment it depends on the order of scheduling",
            );
        }
    }
    doubt_evictions(batches, &mut outcomes);
    Decision { outcomes, is_short }
}

/// A group that does not certainly fit may evict pods of lower priority: those of another group, or others, which frees room.
fn doubt_evictions(batches: &[Batch<'_>], outcomes: &mut [Outcome]) {
    let evicting = batches
        .iter()
        .zip(outcomes.iter())
        .filter(|((ask, count), outcome)| *count > 0 && ask.evicts_below.is_some() && outcome.verdict != Verdict::Yes);
    let Some(highest) = evicting.map(|((ask, _), _)| ask.priority).max() else {
        return;
    };
    for ((ask, count), outcome) in batches.iter().zip(outcomes) {
        if *count > 0 && ask.priority < highest {
            outcome.doubt("other pods of the deployment have a higher priority, and may evict pods");
        }
    }
}

impl Outcome {
    /// Makes the verdict unknown, for a reason.
    fn doubt(&mut self, reason: &str) {
        self.verdict = Verdict::Unknown;
        self.unknown.push(reason.to_owned());
    }
}

fn statuses(snapshot: &Snapshot, ask: &Ask) -> Vec<Status> {
    let about = |r: &Refusal| Refusal::is_about(r, &ask.namespace, &ask.labels);
    let refusals: Vec<_> = snapshot
        .refusals
        .iter()
        .filter_map(|refusal| match about(refusal) {
            Some(false) => None,
            Some(true) => Some((refusal, true)),
            None => Some((refusal, false)),
        })
        .collect();
    let refused = |place: &Place, certain: bool| {
        refusals.iter().any(|(r, is_certain)| {
            *is_certain == certain && place.labels.get(&r.topology_key) == Some(&r.topology_value)
        })
    };
    let each = |place: &Place| {
        let status = check(place, ask, &snapshot.devices);
        match status {
            Status::No(_) => status,
            _ if refused(place, true) => evicted(place, ask).unwrap_or_else(|| {
                Status::No(vec![
                    "node(s) didn't satisfy existing pods anti-affinity rules".to_owned(),
                ])
            }),
            Status::Fits(slots, more) if refused(place, false) => {
                let text = "anti-affinity of an existing pod depends on namespace labels, which are not read";
                Status::Maybe(slots.saturating_add(more), text.to_owned())
            }
            _ => status,
        }
    };
    snapshot.places.iter().map(each).collect()
}

/// Nodes that take a pod, or would if they had no pods yet, where none takes it now.
pub(super) fn takers<'a>(snapshot: &'a Snapshot, ask: &Ask) -> Vec<&'a Place> {
    let statuses = statuses(snapshot, ask);
    let takes = |status: &Status| !matches!(status, Status::No(_));
    let now = snapshot.places.iter().zip(&statuses);
    let now: Vec<_> = now
        .filter(|(_, status)| takes(status))
        .map(|(place, _)| place)
        .collect();
    if !now.is_empty() {
        return now;
    }
    let places = snapshot.places.iter();
    places
        .filter(|place| takes(&check(&place.emptied(), ask, &snapshot.devices)))
        .collect()
}

/// Reason for which more pods may fit.
const EVICTION: &str = "pods of lower priority may be evicted";

/// If eviction of pods of lower priority could help.
fn evicted(place: &Place, ask: &Ask) -> Option<Status> {
    let used = place.without_below(ask.evicts_below?)?;
    // Without limits: which pods are evicted is up to the scheduler.
    let slots = slots(place, &used, ask).max(0);
    (slots > 0).then(|| Status::Maybe(slots, EVICTION.to_owned()))
}

/// The checks of one node, for one pod.
fn check(place: &Place, ask: &Ask, devices: &Devices) -> Status {
    let mut maybe = None;
    let unschedulable = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if place.is_unschedulable && tolerated(&unschedulable, ask) == Some(false) {
        return Status::No(vec!["node(s) were unschedulable".to_owned()]);
    }
    for taint in &place.taints {
        if !matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") {
            continue;
        }
        match tolerated(taint, ask) {
            Some(true) => {}
            Some(false) => {
                let value = taint.value.as_deref().unwrap_or_default();
                let text = format!("node(s) had untolerated taint {{{}: {value}}}", taint.key);
                return Status::No(vec![text]);
            }
            None => maybe = Some(format!("toleration of taint '{}' is not evaluated", taint.key)),
        }
    }
    if !selects(place, ask) {
        return Status::No(vec!["node(s) didn't match Pod's node affinity/selector".to_owned()]);
    }
    if !place.is_ready && maybe.is_none() {
        maybe = Some("node(s) not Ready, and without a taint for it yet".to_owned());
    }
    if ask
        .ports
        .iter()
        .any(|port| place.used.ports.iter().any(|used| used.conflicts(port)))
    {
        let text = "node(s) didn't have free ports for the requested pod ports";
        return evicted(place, ask).unwrap_or_else(|| Status::No(vec![text.to_owned()]));
    }
    let (insufficient, delegated) = insufficient(place, &place.used, ask, devices);
    if !insufficient.is_empty() {
        return evicted(place, ask).unwrap_or(Status::No(insufficient));
    }
    let slots = slots_except(place, &place.used, ask, &delegated);
    if let Some(resource) = delegated.first() {
        maybe = Some(format!(
            "{resource} is allocated by DRA through a DeviceClass, which is not evaluated"
        ));
    }
    let emptied = ask.evicts_below.and_then(|priority| place.without_below(priority));
    let most = emptied.map_or(slots, |used| slots_except(place, &used, ask, &delegated).max(slots));
    match maybe {
        None => Status::Fits(slots, most.saturating_sub(slots)),
        Some(reason) => Status::Maybe(most, reason),
    }
}

/// Whether a taint is tolerated; `None` if that is not known.
fn tolerated(taint: &Taint, ask: &Ask) -> Option<bool> {
    let about = |t: &&Toleration| {
        let is = |given: Option<&String>, held: &str| given.is_none_or(|given| given.is_empty() || given == held);
        is(t.effect.as_ref(), &taint.effect) && is(t.key.as_ref(), &taint.key)
    };
    let mut unknown = ask.may_tolerate;
    for toleration in ask.tolerations.iter().filter(about) {
        match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => return Some(true),
            "" | "Equal" => {
                let (given, held) = (toleration.value.as_deref(), taint.value.as_deref());
                if given.unwrap_or_default() == held.unwrap_or_default() {
                    return Some(true);
                }
            }
            // Lt and Gt: an alpha feature.
            _ => unknown = true,
        }
    }
    // The admission plugin ExtendedResourceToleration, where it is enabled.
    unknown |= !ask.is_complete && ask.requests.contains_key(&taint.key);
    if unknown { None } else { Some(false) }
}

/// Node selector and required node affinity.
fn selects(place: &Place, ask: &Ask) -> bool {
    let equal = ask
        .selector
        .iter()
        .all(|(key, value)| place.labels.get(key) == Some(value));
    let Some(affinity) = &ask.affinity else {
        return equal;
    };
    equal
        && affinity
            .node_selector_terms
            .iter()
            .any(|term| term_matches(place, term))
}

fn term_matches(place: &Place, term: &NodeSelectorTerm) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let by_label = |r: &NodeSelectorRequirement| requirement_matches(r, place.labels.get(&r.key).map(String::as_str));
    let by_field = |r: &NodeSelectorRequirement| {
        r.key == "metadata.name"
            && matches!(r.operator.as_str(), "In" | "NotIn")
            && requirement_matches(r, Some(&place.name))
    };
    expressions.iter().all(by_label) && fields.iter().all(by_field)
}

fn requirement_matches(requirement: &NodeSelectorRequirement, held: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let contains = |held: &str| values.iter().any(|value| value == held);
    let compare = |is: fn(i64, i64) -> bool| {
        let (Some(held), [value]) = (held, values) else {
            return false;
        };
        match (held.parse(), value.parse()) {
            (Ok(held), Ok(value)) => is(held, value),
            _ => false,
        }
    };
    match requirement.operator.as_str() {
        "In" => held.is_some_and(contains),
        "NotIn" => held.is_none_or(|held| !contains(held)),
        "Exists" => held.is_some(),
        "DoesNotExist" => held.is_none(),
        "Gt" => compare(|held, value| held > value),
        "Lt" => compare(|held, value| held < value),
        _ => false,
    }
}

/// Reasons for which one more pod does not fit, and requests that DRA serves on this node.
fn insufficient(place: &Place, used: &Used, ask: &Ask, devices: &Devices) -> (Vec<String>, Vec<String>) {
    let (mut reasons, mut delegated) = (Vec::new(), Vec::new());
    if used.pods + 1 > amount(&place.allocatable, PODS) {
        reasons.push("Too many pods".to_owned());
    }
    for (name, requested) in ask.requests.iter().filter(|(_, requested)| **requested > 0) {
        let allocatable = amount(&place.allocatable, name);
        if allocatable == 0 && devices.serves(name) {
            delegated.push(name.clone());
        } else if *requested > allocatable.saturating_sub(amount(&used.amounts, name)) {
            reasons.push(format!("Insufficient {name}"));
        }
    }
    (reasons, delegated)
}

fn amount(amounts: &Amounts, name: &str) -> i64 {
    amounts.get(name).copied().unwrap_or(0)
}

/// Number of pods that fit.
fn slots(place: &Place, used: &Used, ask: &Ask) -> i64 {
    slots_except(place, used, ask, &[])
}

fn slots_except(place: &Place, used: &Used, ask: &Ask, delegated: &[String]) -> i64 {
    if ask
        .ports
        .iter()
        .any(|port| used.ports.iter().any(|used| used.conflicts(port)))
    {
        return 0;
    }
    let by_resource = ask
        .requests
        .iter()
        .filter(|(name, requested)| **requested > 0 && !delegated.contains(name))
        .map(|(name, requested)| {
            let free = amount(&place.allocatable, name).saturating_sub(amount(&used.amounts, name));
            free.div_euclid(*requested)
        });
    let pods = amount(&place.allocatable, PODS).saturating_sub(used.pods);
    let most = if ask.ports.is_empty() { i64::MAX } else { 1 };
    by_resource.fold(pods.min(most), i64::min).max(0)
}

/// The verdict for pods that are all alike, without others. Their order does not matter: each node takes the same number.
fn alone(statuses: &[Status], ask: &Ask, count: i64) -> Outcome {
    let mut outcome = Outcome {
        verdict: Verdict::Yes,
        nodes: 0,
        room: 0,
        possible: 0,
        reasons: BTreeMap::new(),
        unknown: Vec::new(),
    };
    let mut doubts = BTreeMap::<&str, usize>::new();
    for status in statuses {
        match status {
            Status::Fits(slots, more) => {
                outcome.nodes += 1;
                if *more > 0 {
                    outcome.possible = outcome.possible.saturating_add(*more);
                    *doubts.entry(EVICTION).or_default() += 1;
                }
                outcome.room = outcome.room.saturating_add(*slots);
            }
            Status::Maybe(slots, reason) => {
                outcome.possible = outcome.possible.saturating_add(*slots);
                *doubts.entry(reason).or_default() += 1;
            }
            Status::No(reasons) => {
                for reason in reasons {
                    *outcome.reasons.entry(reason.clone()).or_default() += 1;
                }
            }
        }
    }
    let doubts = doubts
        .into_iter()
        .map(|(reason, nodes)| format!("{nodes} node(s): {reason}"));
    if count == 0 {
        return outcome;
    }
    if !ask.opaque.is_empty() {
        outcome.verdict = Verdict::Unknown;
        outcome.unknown.extend(ask.opaque.iter().cloned());
    } else if outcome.room.saturating_add(outcome.possible) < count {
        outcome.verdict = Verdict::No;
    } else if outcome.room < count || !ask.limits.is_empty() {
        outcome.verdict = Verdict::Unknown;
        if outcome.room < count {
            outcome.unknown.extend(doubts);
        }
        outcome.unknown.extend(ask.limits.iter().cloned());
    }
    outcome
}

/// Whether all groups together request more of a resource than the nodes of any of them have.
fn is_short(snapshot: &Snapshot, batches: &[Batch<'_>], statuses: &[Vec<Status>]) -> bool {
    if batches.iter().any(|(ask, _)| !ask.opaque.is_empty()) {
        return false;
    }
    let mut wanted = BTreeMap::<&str, i64>::new();
    for (ask, count) in batches {
        let pods = (PODS, 1);
        let all = ask.requests.iter().map(|(name, amount)| (name.as_str(), *amount));
        for (name, amount) in all.chain([pods]) {
            let sum = wanted.entry(name).or_default();
            *sum = sum.saturating_add(amount.saturating_mul(*count));
        }
    }
    let is_open = |node: usize| {
        statuses
            .iter()
            .any(|of| !matches!(of.get(node), None | Some(Status::No(_))))
    };
    // Where eviction or DRA could help, what is in use says little.
    let is_clear = |node: usize| {
        statuses
            .iter()
            .all(|of| !matches!(of.get(node), Some(Status::Maybe(..) | Status::Fits(_, 1..))))
    };
    let mut free = BTreeMap::<&str, i64>::new();
    for (node, place) in snapshot.places.iter().enumerate().filter(|(node, _)| is_open(*node)) {
        if !is_clear(node) {
            return false;
        }
        for name in wanted.keys() {
            let used = if *name == PODS {
                place.used.pods
            } else {
                amount(&place.used.amounts, name)
            };
            let left = amount(&place.allocatable, name).saturating_sub(used).max(0);
            let sum = free.entry(*name).or_default();
            *sum = sum.saturating_add(left);
        }
    }
    wanted
        .iter()
        .any(|(name, amount)| *amount > free.get(name).copied().unwrap_or(0))
}

/// Lower bound of the pods of a group that fit, wherever the pods of the other groups are placed.
fn room_beside_others(snapshot: &Snapshot, batches: &[Batch<'_>], index: usize, own: &[Status]) -> i64 {
    let Some((ask, _)) = batches.get(index) else { return 0 };
    let others: Vec<&Batch<'_>> = batches
        .iter()
        .enumerate()
        .filter(|(i, (_, count))| *i != index && *count > 0)
        .map(|(_, batch)| batch)
        .collect();
    // Each node as if all other pods that could be there were there.
    let (mut crowded, mut all) = (0_i64, 0_i64);
    for (place, status) in snapshot.places.iter().zip(own) {
        let Status::Fits(slots_alone, _) = status else { continue };
        let mut used = place.used.clone();
        for (other, count) in &others {
            let there = slots(place, &place.used, other).min(*count);
            for (name, amount) in &other.requests {
                let sum = used.amounts.entry(name.clone()).or_default();
                *sum = sum.saturating_add(amount.saturating_mul(there));
            }
            used.pods += there;
            if there > 0 {
                used.ports.extend(other.ports.iter().cloned());
            }
        }
        all = all.saturating_add(*slots_alone);
        crowded = crowded.saturating_add(slots(place, &used, ask));
    }
    // Or: each other pod takes the room of a limited number of ours.
    let mut taken = 0_i64;
    for (other, count) in &others {
        let mut each = 1_i64;
        for (name, requested) in ask.requests.iter().filter(|(_, requested)| **requested > 0) {
            let theirs = amount(&other.requests, name);
            each = each.max(theirs.div_euclid(*requested) + i64::from(theirs.rem_euclid(*requested) != 0));
        }
        taken = taken.saturating_add(each.saturating_mul(*count));
    }
    crowded.max(all.saturating_sub(taken))
}

#[cfg(test)]
mod tests;
