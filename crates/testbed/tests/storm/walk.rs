//! Walks through the specs of an object: the schema's values of each field in a random order, then the first spec again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_manifests as manifests;
use runway_provider::Kind;
use runway_testbed::{fault, fields};
use serde_json::{Value, json};

use crate::scenario::{ACTOR, MODEL, STACK, Scenario, Step};

/// Scenarios with walks: their object stays, and no pods are rolled out for it, which never become ready here.
const WALKED: [&str; 10] = [
    "kaito-create",
    "kaito-create-with-args",
    "direct-create",
    "dynamo-create",
    "kuberay-create",
    "actor-create-asleep",
    "bind-create",
    "stack-create",
    "stack-create-with-storage",
    "stack-create-with-network",
];
/// Changes of a walk.
const CHANGES: usize = 25;
/// One in so many steps goes back to the first spec: an object that is stalled for one field shows nothing about the next.
const BACK: usize = 3;

/// Whether walks follow a scenario.
pub(crate) fn is_walked(scenario: &Scenario) -> bool {
    WALKED.contains(&scenario.name)
}

/// Numbers of the walks of each scenario for so many changes in all.
pub(crate) fn numbers(changes: u64) -> Range<u64> {
    0..changes.div_ceil((CHANGES * WALKED.len()) as u64)
}

/// Walks of a scenario.
pub(crate) struct Walks<'a> {
    pub(crate) scenario: &'a Scenario,
    kind: Kind,
    name: &'static str,
    spec: &'a Value,
    /// Changes of all fields of the spec.
    changes: Vec<Value>,
}

impl<'a> Walks<'a> {
    pub(crate) fn of(scenario: &'a Scenario) -> Result<Self> {
        let (kind, name, spec) = object(scenario).context("the scenario creates no object of the product")?;
        Ok(Self {
            scenario,
            kind,
            name,
            spec,
            changes: fields::changes(&schema(kind)?, spec),
        })
    }

    /// The scenario with the walk of this number at its end. Enough walks try every change, and then again in another order.
    pub(crate) fn walked(&self, number: u64) -> Scenario {
        let (kind, name) = (self.kind, self.name);
        let mut walked = self.scenario.clone();
        for (n, change) in chosen(&self.changes, number).into_iter().enumerate() {
            walked.steps.push(Step::Try(kind, name, json!({ "spec": change })));
            if n % BACK == BACK - 1 || n == CHANGES - 1 {
                walked.steps.push(Step::Replace(kind, name, self.spec.clone()));
            }
        }
        walked
    }
}

/// Changes of a walk. Walks continue one another through all changes, shuffled anew each time.
fn chosen(changes: &[Value], walk: u64) -> Vec<&Value> {
    let all = changes.len() as u64;
    let first = walk * CHANGES as u64;
    let (begin, rest) = (first / all, usize::try_from(first % all).unwrap_or_default());
    let rounds = (begin..).flat_map(|round| shuffled(changes, round));
    rounds.skip(rest).take(CHANGES).collect()
}

fn shuffled(changes: &[Value], round: u64) -> Vec<&Value> {
    let mut order: Vec<(u64, &Value)> = (0..).zip(changes).map(|(n, c)| (fault::number(round, n), c)).collect();
    order.sort_by_key(|(random, _)| *random);
    order.into_iter().map(|(_, change)| change).collect()
}

/// The object of a scenario.
fn object(scenario: &Scenario) -> Option<(Kind, &'static str, &Value)> {
    let created = scenario.steps.iter().find_map(|step| match step {
        Step::Create(kind, object) if [MODEL, ACTOR, STACK].contains(kind) => Some((*kind, object)),
        _ => None,
    });
    let (kind, object) = created?;
    let name = if kind == MODEL {
        "m"
    } else if kind == ACTOR {
        "a"
    } else {
        "s"
    };
    (object["metadata"]["name"] == name).then_some((kind, name, &object["spec"]))
}

/// Our CRDs, generated once: that takes tens of milliseconds.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(manifests::all_crds);

/// Schema of the spec.
fn schema(kind: Kind) -> Result<Value> {
    let crd = CRDS.iter().find(|crd| crd.spec.names.kind == kind.kind);
    let crd = crd.context("no CRD of ours")?;
    let schema = crd.spec.versions.first().and_then(|version| version.schema.as_ref());
    Ok(json!(schema)["openAPIV3Schema"]["properties"]["spec"].take())
}

#[test]
fn walks_try_every_change_once_and_go_back_to_the_first_spec() -> Result<()> {
    let scenarios = crate::scenarios::scenarios();
    let scenario = scenarios.iter().find(|s| s.name == "kaito-create").context("missing")?;
    let walks = Walks::of(scenario)?;
    let mut tried = BTreeSet::new();
    for number in 0..walks.changes.len().div_ceil(CHANGES) as u64 {
        let walked = walks.walked(number);
        assert!(matches!(walked.steps.last(), Some(Step::Replace(_, "m", last)) if last == walks.spec));
        tried.extend(walked.steps.into_iter().filter_map(|step| match step {
            Step::Try(_, _, change) => Some(change["spec"].to_string()),
            _ => None,
        }));
    }
    assert!(walks.changes.iter().all(|change| tried.contains(&change.to_string())));
    Ok(())
}
