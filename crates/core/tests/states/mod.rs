//! Explores the states that a ModelDeployment reaches with the production plans of the core and two providers: the caches of each
//! controller lag by up to three changes, and a controller may crash between any two writes.
//!
//! Walks start at a new ModelDeployment. At every state of a walk, the results of all possible reconciles and of some other steps
//! are checked, and one of them is the next state. Each write is checked (see [`World`]), and from each new state everything must settle, and deletion must complete.
//!
//! `RUNWAY_STATES` is the number of different states, `RUNWAY_SEED` the first walk. `cargo xtask storm` explores many.

use std::collections::HashSet;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, available_parallelism};

use parking_lot::Mutex;
use runway_api::labels;
use serde_json::json;

use crate::world::{Lag, Settled, Step, Who, World};

/// States in the tests.
const STATES: u64 = 400;
/// States for which it is worth to start another thread.
const STATES_PER_THREAD: usize = 10_000;
/// Steps of a walk.
const STEPS: usize = 24;
/// Steps other than reconciles that are checked at each state of a walk.
const OTHERS: usize = 3;

/// Limits of a walk, besides its number of steps.
#[derive(Clone, Copy)]
struct Budget {
    edits: u8,
    crashes: u8,
    events: u8,
    waits: u8,
}

impl Budget {
    const WALK: Self = Self {
        edits: 3,
        crashes: 2,
        events: 4,
        waits: 4,
    };

    fn without(mut self, step: &Step) -> Self {
        match step {
            Step::Reconcile(..) | Step::Rest => {}
            Step::Crash(..) => self.crashes -= 1,
            Step::Edit(_) | Step::Annotate(..) | Step::Delete => self.edits -= 1,
            Step::Seconds(_) => self.waits -= 1,
            Step::Upstream(_) | Step::Hold(_) | Step::Alive(..) | Step::Installed(..) | Step::Meddle => {
                self.events -= 1;
            }
        }
        self
    }

    /// Steps of the user, the upstream, the cluster and the clock.
    fn steps(self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.edits > 0 {
            steps.extend([
                Step::Edit(json!({"provider": {"name": "acme"}})),
                Step::Edit(json!({"provider": {"name": "zenith"}})),
                Step::Edit(json!({"provider": null})),
                Step::Edit(json!({"scaling": {"replicas": 3}})),
                Step::Edit(json!({"scaling": {"replicas": 1}})),
                Step::Edit(json!({"engine": {"type": "sglang"}})),
                // Invalid.
                Step::Edit(json!({"engine": {"type": ""}})),
                Step::Edit(json!({"engine": {"type": "vllm", "args": {"max-num-seqs": "64"}}})),
                Step::Annotate(labels::PAUSED, true),
                Step::Annotate(labels::PAUSED, false),
                Step::Delete,
            ]);
        }
        if self.events > 0 {
            steps.extend(["Loading", "Ready", "Broken"].map(Step::Upstream));
            steps.extend([true, false].map(Step::Hold));
            steps.extend([false, true].map(|alive| Step::Alive(0, alive)));
            steps.extend([false, true].map(|there| Step::Installed(0, there)));
            steps.push(Step::Meddle);
        }
        if self.waits > 0 {
            steps.extend([1, 61, 301].map(Step::Seconds));
        }
        steps
    }
}

/// Pseudo-random numbers by Steele, Lea and Flood ("Fast splittable pseudorandom number generators", 2014).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }
}

/// Follows the walk of a seed, and adds the states that it finds.
fn walk(seed: u64, known: &Mutex<HashSet<u64>>, settled: &Settled) {
    let mut numbers = Numbers(seed);
    let mut world = World::new();
    let mut budget = Budget::WALK;
    for _ in 0..STEPS {
        let reconciles = world.reconciles(budget.crashes > 0);
        let others = budget.steps();
        // As many reconciles as other events, although there are fewer of them.
        let from = if numbers.below(2) == 0 && !reconciles.is_empty() || others.is_empty() {
            &reconciles
        } else {
            &others
        };
        let Some(chosen) = (!from.is_empty()).then(|| from[numbers.below(from.len())].clone()) else {
            return;
        };
        let some: Vec<Step> = (0..OTHERS.min(others.len()))
            .map(|_| others[numbers.below(others.len())].clone())
            .collect();
        for step in reconciles.iter().chain(&some).chain([&chosen]) {
            let mut next = world.clone();
            next.take(step);
            let state = next.fingerprint();
            if !known.lock().insert(state) {
                continue;
            }
            next.clone().settles(settled);
            if state.is_multiple_of(8) {
                next.take(&Step::Delete);
                next.deletion_ends();
            }
        }
        world.take(&chosen);
        budget = budget.without(&chosen);
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var_os(variable).map_or(default, |text| text.to_str().unwrap().parse().unwrap())
}

#[test]
fn every_state_settles_without_a_second_upstream_object() {
    let limit = usize::try_from(number("RUNWAY_STATES", STATES)).unwrap();
    let first = number("RUNWAY_SEED", 1);
    let (known, settled) = (Mutex::default(), Settled::default());
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let explore = || {
        while count(&known) < limit && !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if let Err(failure) = catch_unwind(AssertUnwindSafe(|| walk(seed, &known, &settled))) {
                println!(
                    "replay: RUNWAY_SEED={seed} RUNWAY_STATES=1 cargo test -p runway-core --test properties states"
                );
                failed.store(true, Ordering::Relaxed);
                resume_unwind(failure);
            }
            if seed.is_multiple_of(1000) {
                println!("{} states", count(&known));
            }
        }
    };
    let most = available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..limit.div_ceil(STATES_PER_THREAD).min(most) {
            scope.spawn(explore);
        }
    });
    println!("{} states on {} walks", count(&known), next.into_inner() - first);
}

fn count(known: &Mutex<HashSet<u64>>) -> usize {
    known.lock().len()
}

/// Found by the walks of seeds 98 and 861. The core stops waiting for a provider and removes its status; that provider writes once
/// more. The next provider could then never write its status.
#[test]
fn provider_that_hands_over_too_late_does_not_keep_the_next_one_from_its_status() {
    let (core, acme) = (Who::Core, Who::Provider(0));
    let lag = |owner, children| Lag { owner, children };
    let hand_over = [
        Step::Reconcile(core, lag(0, 0)),
        Step::Reconcile(acme, lag(0, 0)),
        Step::Edit(json!({"provider": {"name": "zenith"}})),
        Step::Reconcile(core, lag(0, 0)),
        Step::Seconds(301),
    ];
    let core_reads_the_state_before = [
        Step::Crash(core, lag(0, 0), 1),
        Step::Reconcile(acme, lag(0, 0)),
        Step::Reconcile(core, lag(1, 0)),
    ];
    let provider_reads_the_state_before = [Step::Reconcile(core, lag(0, 0)), Step::Reconcile(acme, lag(2, 0))];
    for late in [&core_reads_the_state_before[..], &provider_reads_the_state_before] {
        let mut world = World::new();
        for step in hand_over.iter().chain(late) {
            world.take(step);
        }
        world.settles(&Settled::default());
    }
}

/// Found by walk 170175. The core removes the status of a provider that does not hand over and selects the next one; the first one
/// reports the invalid spec of its stale cache. The next provider could then never write its status.
#[test]
fn provider_with_a_stale_cache_does_not_keep_the_next_one_from_its_status() {
    let (core, acme) = (Who::Core, Who::Provider(0));
    let lag = |owner, children| Lag { owner, children };
    let mut world = World::new();
    for step in [
        Step::Reconcile(core, lag(0, 0)),
        Step::Reconcile(acme, lag(0, 0)),
        Step::Edit(json!({"provider": {"name": "zenith"}})),
        Step::Reconcile(core, lag(0, 0)),
        // Invalid.
        Step::Edit(json!({"engine": {"type": ""}})),
        Step::Reconcile(core, lag(0, 0)),
        Step::Edit(json!({"engine": {"type": "vllm"}})),
        Step::Seconds(301),
        Step::Reconcile(core, lag(0, 0)),
        Step::Crash(acme, lag(3, 0), 1),
        Step::Reconcile(acme, lag(3, 0)),
    ] {
        world.take(&step);
    }
    world.settles(&Settled::default());
}
