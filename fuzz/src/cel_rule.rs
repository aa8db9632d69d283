//! Any text as the rules of a provider, one a line: compiling and evaluating end in the time that is promised, do not panic, stay
//! within the cost limits and give the same answer twice.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use runway_core::rules::{Budget, Input, MAX_COST, Rule};
use serde_json::json;

/// Factor for coverage and assertions, which make a program slower. A release build has 5 ms for a rule and 50 ms for all of them.
const SLOWER: u32 = if cfg!(debug_assertions) { 4 } else { 1 };
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

/// Fails if every run takes longer than the limit: other load on the machine can make some of them slow, but not all. Without
/// optimization, as in the tests that replay the corpus, the time is not measured; `cargo test --release -p runway-fuzz` does.
fn within(limit: Duration, run: impl Fn()) {
    if cfg!(all(debug_assertions, not(feature = "libfuzzer"))) {
        return run();
    }
    let is_slow = |_| {
        let start = Instant::now();
        run();
        start.elapsed() > limit * SLOWER
    };
    assert!(!(0..5).all(is_slow), "slower than {limit:?}");
}
