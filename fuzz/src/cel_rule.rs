//! Any text as a rule: compiling and evaluating end, do not panic, stay within the cost limit and
//! give the same answer twice.

use std::sync::LazyLock;

use runway_core::rules::{Input, MAX_COST, Rule};
use serde_json::json;

static INPUT: LazyLock<Input> = LazyLock::new(|| {
    let objects: Vec<_> = (0..100)
        .map(|i| json!({"key1": format!("value {i}"), "key2": i, "key3": [i, null, 1.5]}))
        .collect();
    let spec = json!({"l": objects, "s": "a".repeat(4000), "n": 1, "engine": {"type": "vllm"}});
    Input::new(&spec, &json!({"name": "m", "labels": {"a": "b", "c": "d"}}))
});

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    if let Ok(rule) = Rule::compile(text) {
        assert!(rule.cost() <= MAX_COST);
        assert_eq!(rule.evaluate(&INPUT), rule.evaluate(&INPUT));
    }
}
