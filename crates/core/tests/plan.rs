//! A folder for each case in `tests/plan`:
//! - `deployment.yaml`: the ModelDeployment;
//! - `given.yaml`: the time, the registered providers with their health, and whether the built-in selector is enabled;
//! - `autoscalers.yaml`: existing autoscalers, if there are any;
//! - `provider-NAME.yaml`: registration of a provider, unless `tests/providers` has one of that name;
//! - `plan.yaml`: the expected plan. `{}` is silent.
//!
//! After every plan the next one must be silent. `UPDATE_CASES=1 cargo test` writes the actual plans: review them before you
//! commit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

mod registered;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use registered::{How, registered};
use runway_api::labels;
use runway_core::autoscalers::{Autoscaler, Autoscalers, KINDS};
use runway_core::observe::Observed;
use runway_core::plan;
use runway_core::providers::Providers;
use runway_golden::ssa::{self, Applied};
use runway_golden::yaml;
use runway_golden::{Case, reported};
use runway_operator::plan::{Finalizer, Plan};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    now: Timestamp,
    providers: BTreeMap<String, How>,
    #[serde(default = "enabled")]
    selector: bool,
    #[serde(default = "enabled")]
    keda: bool,
}

fn enabled() -> bool {
    true
}

#[test]
fn every_case_gives_what_is_expected() {
    runway_golden::check(&tests().join("plan"), 40, |case| {
        let seen = observed(case);
        let plan = plan::plan(&seen);
        case.compare("plan.yaml", Some(reported::plan(&plan)));
        let (next, shared) = carried_out(&seen, &plan);
        if !shared.is_empty() {
            case.problem(&format!("owned by two: {}", shared.join(", ")));
        }
        let mut next = plan::plan(&next);
        if let Some(of) = next.status_of.take() {
            // A provider that was selected a while ago without a status: the core's stand-in is written once.
            let manager = labels::provider_manager(plan_names(&plan));
            assert_eq!(of.manager, manager, "{}", case.name());
        }
        if plan.finalizer != Finalizer::Remove && !next.is_silent() {
            case.problem(&format!("not silent after it\n{}", reported::plan(&next)));
        }
    });
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Name of the provider in a plan.
fn plan_names(plan: &Plan) -> &str {
    let status = plan.status.as_ref();
    status.and_then(|s| s["provider"]["name"].as_str()).unwrap_or_default()
}

/// Events of the design that the core sends: one per change.
#[test]
fn each_event_is_sent_once_per_change() {
    let table: [(&str, &[&str]); 8] = [
        (
            "auto-selected",
            &[
                "Normal ProviderSelected: Selected provider 'dynamo': matched capabilities: engine=vllm, gpu=true, mode=aggregated",
            ],
        ),
        (
            "explicit",
            &["Normal ProviderSelected: Selected provider 'kuberay': explicit provider selection"],
        ),
        ("chosen-stays", &[]),
        ("chosen-stays-though-spec-changed", &[]),
        ("deletion-provider-gone-one-second-left", &[]),
        (
            "deletion-provider-gone-timed-out",
            &[
                "Warning FinalizerTimeout: Finalizer removed after timeout, provider resource may be orphaned: DynamoGraphDeployment 'llama' (provider 'dynamo' did not clean up)",
            ],
        ),
        ("hand-over-one-second-left", &[]),
        (
            "hand-over-timed-out",
            &[
                "Warning FinalizerTimeout: Provider 'dynamo' did not clean up in time, DynamoGraphDeployment 'llama' may be orphaned",
            ],
        ),
    ];
    for (case, expected) in table {
        let seen = observed(&Case::new(tests().join("plan").join(case)));
        let plan = plan::plan(&seen);
        assert_eq!(reported::events(&plan), expected, "{case}");
        // Without its finalizer the object is gone.
        if plan.finalizer != Finalizer::Remove {
            let (next, _) = carried_out(&seen, &plan);
            assert_eq!(reported::events(&plan::plan(&next)), [""; 0], "{case}, once more");
        }
    }
}

fn observed(case: &Case) -> Observed {
    let given: Given = case.yaml("given.yaml");
    let configs = given.providers.iter().map(|(name, how)| {
        let shared = || yaml(&tests().join("providers").join(format!("{name}.yaml")));
        let spec = case
            .optional_yaml(&format!("provider-{name}.yaml"))
            .unwrap_or_else(shared);
        Arc::new(registered(name, spec, *how, given.now))
    });
    Observed {
        md: Arc::new(case.yaml("deployment.yaml")),
        providers: Arc::new(Providers::compile(configs, &Providers::default())),
        selector_enabled: given.selector,
        autoscalers: Autoscalers {
            without_keda: !given.keda,
            found: autoscalers(case),
        },
        now: given.now,
    }
}

fn autoscalers(case: &Case) -> Vec<Autoscaler> {
    let objects: Option<Vec<DynamicObject>> = case.optional_yaml("autoscalers.yaml");
    objects.into_iter().flatten().map(autoscaler).collect()
}

fn autoscaler(object: DynamicObject) -> Autoscaler {
    let types = object.types.as_ref().unwrap();
    Autoscaler {
        kind: KINDS.into_iter().find(|kind| kind.kind == types.kind).unwrap(),
        object: Arc::new(object),
    }
}

/// The state after a plan, and fields with two owners.
fn carried_out(seen: &Observed, plan: &Plan) -> (Observed, Vec<String>) {
    let mut md = serde_json::to_value(&*seen.md).unwrap();
    let before = seen.md.status.clone().unwrap_or_default();
    let mine = ssa::fields(&serde_json::to_value(plan::owned(&before, !seen.selector_enabled)).unwrap());
    let mut theirs = ssa::fields(&serde_json::to_value(&before).unwrap());
    // The user's own selector owns its selection, whatever the core owned before.
    let own_selector =
        !seen.selector_enabled && seen.md.spec.provider_name().is_none() && seen.md.selected_provider().is_some();
    let is_choice = |path: &[String]| path[0] == "provider" || path.get(1).is_some_and(|p| p == "ProviderSelected");
    theirs.retain(|path, _| !mine.contains_key(path) || own_selector && is_choice(path));
    let mut status = Applied::default();
    // Written for a provider: replaces all of its fields.
    match &plan.status_of {
        None => status.apply("others", &ssa::whole(&theirs)).unwrap(),
        Some(of) => status.apply(&of.manager, &of.status).unwrap(),
    }
    if let Some(wanted) = &plan.status {
        status.apply(labels::CORE_MANAGER, wanted).unwrap();
        md["status"] = status.merged();
    }
    let mut next = seen.clone();
    next.md = Arc::new(serde_json::from_value::<runway_api::ModelDeployment>(md).unwrap());
    let found = &mut next.autoscalers.found;
    for delete in &plan.delete {
        let is_it = |found: &&mut Autoscaler| found.object.metadata.uid.as_ref() == Some(&delete.uid);
        // Its finalizers take a while.
        let gone = Arc::make_mut(&mut found.iter_mut().find(is_it).unwrap().object);
        gone.metadata.deletion_timestamp = Some(Time(seen.now));
    }
    for apply in plan.apply.iter().filter(|apply| !apply.unchanged) {
        let mut object = apply.object.clone();
        let is_it = |found: &Autoscaler| found.object.metadata.uid == apply.live && apply.live.is_some();
        let before = found.iter().position(is_it).map(|at| found.remove(at));
        object.metadata.uid = Some("uid-of-an-autoscaler".to_owned());
        object.data["status"] = before.map_or(serde_json::Value::Null, |before| before.object.data["status"].clone());
        found.push(autoscaler(object));
    }
    (next, status.shared())
}
