//! Any text as a rule: compiling and evaluating end, do not panic, stay within the cost limit and
//! give the same answer twice.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use runway_core::rules::{Input, MAX_COST, Rule};
use serde_json::json;

static INPUT: LazyLock<Input> = LazyLock::new(|| {
    let objects: Vec<_> = (0..100)
        .map(|i| json!({"key1": format!("value {i}"), "key2": i, "key3": [i, null, 1.5]}))
        .collect();
    let spec = json!({"l": objects, "s": "a".repeat(4000), "n": 1, "engine": {"type": "vllm"}});
    Input::new(&spec, &json!({"name": "m", "labels": {"a": "b", "c": "d"}}))
});

fuzz_target!(|text: &str| {
    if let Ok(rule) = Rule::compile(text) {
        assert!(rule.cost() <= MAX_COST);
        assert_eq!(rule.evaluate(&INPUT), rule.evaluate(&INPUT));
    }
});
