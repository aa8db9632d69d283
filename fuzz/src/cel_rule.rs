//! Any text as the rules of a provider, one a line: compiling and evaluating end in the time that is promised, do not panic, stay
//! within the cost limits and give the same answer twice.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use runway_core::rules::{Budget, Input, MAX_COST, Rule};
use serde_json::json;

/// Sanitizers, coverage and assertions make a program slower; a release build has 5 ms for a rule and 50 ms for all of them.
const SLOWER: u32 = 4;
const RULE: Duration = Duration::from_millis(5);
const RULES: Duration = Duration::from_millis(50);

static INPUT: LazyLock<Input> = LazyLock::new(|| {
    let objects: Vec<_> = (0..100)
        .map(|i| json!({"key1": format!("value {i}"), "key2": i, "key3": [i, null, 1.5]}))
        .collect();
    let spec = json!({"l": objects, "s": "a".repeat(4000), "n": 1, "engine": {"type": "vllm"}});
    Input::new(&spec, &json!({"name": "m", "labels": {"a": "b", "c": "d"}}))
});

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    LazyLock::force(&INPUT);
    if let Ok(rule) = Rule::compile(text) {
        assert!(rule.cost() <= MAX_COST);
        assert_eq!(rule.evaluate(&INPUT), rule.evaluate(&INPUT));
    }
    within(RULE, || {
        let _ = Rule::compile(text).map(|rule| rule.evaluate(&INPUT));
    });
    within(RULES, || {
        let mut budget = Budget::default();
        for rule in text.lines().take(64).filter_map(|line| budget.compile(line).ok()) {
            let _ = rule.evaluate(&INPUT);
        }
    });
}

/// Whatever else the machine does may make a run slow, but not all of them. The clock counts while fuzzing only: tests replay the
/// corpus without optimization, and on machines that are busy.
fn within(limit: Duration, run: impl Fn()) {
    if !cfg!(feature = "libfuzzer") {
        return run();
    }
    let is_slow = |_| {
        let start = Instant::now();
        run();
        start.elapsed() > limit * SLOWER
    };
    assert!(!(0..5).all(is_slow), "slower than {limit:?}");
}
