//! A folder for each case in `tests/plan`:
//! - `llsd.yaml`: the LlamaStackDistribution;
//! - `given.yaml`: what else is there, see [`Given`];
//! - `plan.yaml`: what is done. `{}` is nothing at all.
//!
//! After every plan is carried out, the next one must have nothing to do. `UPDATE_CASES=1 cargo test` writes the plans anew:
//! read what you commit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

#[path = "../../provider/tests/common/told.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with other tests")]
mod told;
mod world;

use std::path::Path;

use runway_llama_stack_operator::plan::plan;
use world::{World, yaml};

#[test]
fn every_case_gives_what_is_expected() {
    let mut differences = Vec::new();
    let folders = told::folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan"));
    assert!(folders.len() > 40, "cases are missing");
    for folder in folders {
        let mut world = World::new(yaml(&folder.join("llsd.yaml")), yaml(&folder.join("given.yaml")));
        let first = plan(&world.observed());
        differences.extend(told::difference(&folder.join("plan.yaml"), &world::told(&first)));
        world.carry_out(&first);
        let mut next = plan(&world.observed());
        // That the objects are there is news.
        if first.apply.iter().any(|a| !a.unchanged) {
            world.carry_out(&next);
            next = plan(&world.observed());
        }
        if !next.is_silent() {
            differences.push(format!(
                "{}: not silent after it\n{}",
                folder.display(),
                told::plan(&next)
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
