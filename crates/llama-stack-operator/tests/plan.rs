//! A folder for each case in `tests/plan`:
//! - `llsd.yaml`: the LlamaStackDistribution;
//! - `given.yaml`: what else is there, see [`Given`];
//! - `plan.yaml`: what is done. `{}` is nothing at all.
//!
//! After every plan is carried out, the next one must have nothing to do. `UPDATE_CASES=1 cargo test` writes the plans anew:
//! read what you commit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};

use runway_golden::{Case, reported};
use runway_llama_stack_operator::kinds;
use runway_llama_stack_operator::plan::{after_failure, plan};
use runway_operator::apply::Error;
use runway_worlds::distribution::{self, World};
use serde_json::json;

#[test]
fn every_case_gives_what_is_expected() {
    runway_golden::check(&cases(), 40, |case| {
        let mut world = World::new(case.yaml("llsd.yaml"), case.yaml("given.yaml"));
        let first = plan(&world.observed());
        case.compare("plan.yaml", Some(distribution::reported(&first)));
        world.carry_out(&first);
        let mut next = plan(&world.observed());
        // That the objects are there is news.
        if first.apply.iter().any(|a| !a.unchanged) {
            world.carry_out(&next);
            next = plan(&world.observed());
        }
        if !next.is_silent() {
            case.problem(&format!("not silent after it\n{}", reported::plan(&next)));
        }
    });
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan")
}

#[test]
fn object_of_another_owner_is_kept_and_named_whether_observed_or_found() {
    let case = Case::new(cases().join("storage-bound"));
    for (kind, name) in [
        (kinds::CLAIM, "stack-pvc"),
        (kinds::SERVICE, "stack-service"),
        (kinds::DEPLOYMENT, "stack"),
    ] {
        let mut world = World::new(case.yaml("llsd.yaml"), serde_json::from_value(json!({})).unwrap());
        let error = Error::NameTaken {
            kind: kind.kind.to_owned(),
            name: name.to_owned(),
            manager: "controlled by StatefulSet 'db'".to_owned(),
            source: Box::new(kube::Error::LinesCodecMaxLineLengthExceeded),
        };
        let met = after_failure(&world.observed(), &error);
        let theirs = json!({ "apiVersion": kind.resource().api_version, "kind": kind.kind, "metadata": { "name": name, "uid": "theirs",
            "labels": { "app.kubernetes.io/managed-by": "llama-stack-operator" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db", "controller": true }] } });
        world
            .live
            .insert((kind, name.to_owned()), serde_json::from_value(theirs).unwrap());
        let seen = plan(&world.observed());
        assert_eq!(reported::plan(&met), reported::plan(&seen));
        let reported = reported::plan(&seen);
        assert!(seen.apply.is_empty() && seen.delete.is_empty(), "{reported}");
        assert!(reported.contains("reason: NameTaken"), "{reported}");
        assert!(
            reported.contains(&format!("{} '{name}' exists and was not created for this", kind.kind)),
            "{reported}"
        );
        assert!(reported.contains("controlled by StatefulSet 'db'"), "{reported}");
    }
}

#[test]
fn address_of_a_server_that_exists_is_kept_while_a_change_is_refused() {
    let case = Case::new(cases().join("ready-plain"));
    let mut world = World::new(case.yaml("llsd.yaml"), case.yaml("given.yaml"));
    world.carry_out(&plan(&world.observed()));
    let address = |world: &World| world.llsd.status.as_ref().and_then(|status| status.service_url.clone());
    let before = address(&world);
    assert!(before.is_some());

    world.llsd.spec.server.distribution.name = Some("nothing".to_owned());
    world.llsd.metadata.generation = Some(2);
    let refused = plan(&world.observed());
    assert!(
        reported::plan(&refused).contains("reason: UnknownDistribution"),
        "{}",
        reported::plan(&refused)
    );
    world.carry_out(&refused);
    assert_eq!(address(&world), before);

    world.live.remove(&(kinds::SERVICE, "stack-service".to_owned()));
    world.carry_out(&plan(&world.observed()));
    assert_eq!(address(&world), None);
}
