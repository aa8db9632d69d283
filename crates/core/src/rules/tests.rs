//! Rules that must work, limits from both sides, and hostile rules.
//!
//! A stack overflow aborts the process: a test that completes on a small stack shows that there was none.

use std::thread;
use std::time::{Duration, Instant};

use cel::common::ast::{EntryExpr, Expr};
use cel::parser::Expression;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

/// Stack size of the threads that run hostile rules. A debug build needs up to 40 KiB per level, and gets the size of a tokio
/// worker's stack.
const STACK: usize = if cfg!(debug_assertions) { 2 << 20 } else { 512 << 10 };

fn on_small_stack(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, test);
        thread.unwrap().join().unwrap();
    });
}

fn input(spec: &Json) -> Input {
    Input::new(
        spec,
        &json!({"name": "m", "namespace": "team-a", "labels": {"tier": "gold"}}),
    )
}

fn evaluate(rule: &str, spec: &Json) -> Result<bool, EvalError> {
    Rule::compile(rule).unwrap().evaluate(&input(spec))
}

fn refused(rule: &str) -> String {
    Rule::compile(rule).unwrap_err().to_string()
}

fn spec() -> Json {
    json!({
        "model": {"id": "meta-llama/Llama-3", "source": "huggingface"},
        "engine": {"type": "vllm", "args": {"a": "1", "b": "2", "c": "3"}},
        "serving": {"mode": "aggregated"},
        "resources": {"gpu": {"count": 2, "type": "nvidia.com/gpu"}, "memory": "16Gi"},
        "scaling": {
            "replicas": 1,
            "prefill": {"replicas": 2, "gpu": {"count": 4}},
            "decode": {"replicas": 1, "gpu": {"count": 8}}
        },
        "env": [{"name": "HF_HOME", "value": "/cache"}, {"name": "LOG", "value": "debug"}],
    })
}

/// Inputs at the limits, of different kinds.
fn largest_inputs() -> Vec<Input> {
    let objects = |entries: usize, keys: usize| -> Json {
        let object = |i: usize| {
            (0..keys)
                .map(|k| (format!("key{k}"), json!(format!("v{i}-{k}"))))
                .collect()
        };
        (0..entries).map(|i| Json::Object(object(i))).collect()
    };
    let texts = |entries: usize, bytes: usize| -> Json { (0..entries).map(|i| format!("{i:0bytes$}")).collect() };
    let labels: Json = Json::Object((0..100).map(|k| (format!("{k:0500}"), json!("v"))).collect());
    [
        objects(100, 18),
        texts(100, 580),
        texts(14, 4090),
        labels,
        json!([[[[1, 2], 3], 4], null, 1.5, true]),
    ]
    .into_iter()
    .map(|l| input(&json!({"l": l, "s": "a".repeat(4090), "n": 1})))
    .inspect(|input| assert!(input.variables().is_ok()))
    .collect()
}

/// Invariants for any text: compiling ends, an accepted rule is within the cost limit, and its result is deterministic.
fn check_any(rule: &str, inputs: &[Input]) {
    let Ok(rule) = Rule::compile(rule) else {
        return;
    };
    assert!(rule.cost() <= MAX_COST, "{rule:?}");
    for input in inputs {
        assert_eq!(rule.evaluate(input), rule.evaluate(input), "{rule:?}");
    }
}

// ---- What rules are for

#[test]
fn documented_rules_give_their_documented_answers() {
    let none = json!({"engine": {"type": "llamacpp"}, "model": {"id": "newframework/x"}, "resources": {}});
    let zero = json!({"engine": {"type": "vllm"}, "model": {"id": "a"}, "resources": {"gpu": {"count": 0}}});
    let two = json!({"engine": {"type": "vllm"}, "model": {"id": "a"}, "resources": {"gpu": {"count": 2}}});
    for (rule, answers) in [
        (
            "!has(spec.resources.gpu) || spec.resources.gpu.count == 0",
            [true, true, false],
        ),
        ("spec.engine.type == 'llamacpp'", [true, false, false]),
        ("spec.model.id.startsWith('newframework/')", [true, false, false]),
        (
            "has(spec.resources.gpu) && spec.resources.gpu.count > 1",
            [false, false, true],
        ),
        (
            "has(spec.resources.gpu) && spec.resources.gpu.count > 0",
            [false, false, true],
        ),
    ] {
        let found = [&none, &zero, &two].map(|spec| evaluate(rule, spec).unwrap());
        assert_eq!(found, answers, "{rule}");
    }
}

#[test]
fn rules_read_spec_and_metadata_with_the_standard_functions() {
    for rule in [
        "metadata.namespace == 'team-a' && metadata.labels.tier in ['gold', 'silver']",
        "spec.engine.type in ['vllm', 'sglang'] && spec.serving.mode == \"aggregated\"",
        "spec.env.exists(e, e.name == 'LOG' && e.value != '')",
        "spec.env.all(e, e.name.size() > 0) && spec.env.exists_one(e, e.name == 'LOG')",
        "spec.env.map(e, e.name) == ['HF_HOME', 'LOG']",
        "spec.env.filter(e, e.name.startsWith('HF')).size() == 1",
        "['HF_HOME', 'LOG'].all(n, spec.env.exists(e, e.name == n))",
        "spec.engine.args.all(k, k in ['a', 'b', 'c']) && 'a' in spec.engine.args",
        "spec.scaling.prefill.replicas * spec.scaling.prefill.gpu.count + spec.scaling.decode.replicas * spec.scaling.decode.gpu.count == 16",
        "spec.model.id.matches('^meta-llama/[\\\\w-]+$') && !spec.model.id.matches(r'\\d{2}')",
        "spec.env.exists(e, e.value.matches('^/'))",
        "int(spec.engine.args.a) + 1 == int(spec.engine.args['b'])",
        "string(spec.resources.gpu.count) + 'x' == '2x' && double('1.5') < 2.0 && uint(3) == 3u",
        "spec.env[0].name.endsWith('HOME') && spec.env[1].name.contains('O')",
        "(spec.resources.gpu.count > 1 ? 'many' : 'few') == 'many' // and a comment",
        "'''it's''' == \"it's\" && r'\\' != '' && b'a' == b'a' && size({'a': [1]}) == 1",
    ] {
        assert_eq!(evaluate(rule, &spec()), Ok(true), "{rule}");
    }
}

#[test]
fn a_chain_of_forty_alternatives_does_not_count_as_nesting() {
    let rule = (0..40)
        .map(|i| format!("spec.model.id == 'org/model-{i}'"))
        .collect::<Vec<_>>()
        .join(" || ");
    assert_eq!(evaluate(&rule, &spec()), Ok(false));
}

#[test]
fn a_missing_key_is_named() {
    let error = evaluate("spec.resources.tpu.count > 0", &spec()).unwrap_err();
    assert_eq!(error, EvalError::NoSuchKey { key: "tpu".to_owned() });
    assert_eq!(error.to_string(), "no such key: tpu; test it with has() first");
}

#[test]
fn anything_but_a_bool_is_an_error_that_names_the_type() {
    for (rule, found) in [
        ("spec.engine.type", "a string"),
        ("spec.resources.gpu.count", "an int"),
        ("spec", "a map"),
        ("[true]", "a list"),
        ("null", "a null_type"),
        ("1.0", "a double"),
    ] {
        let expected = EvalError::NotBool {
            found: found.to_owned(),
        };
        assert_eq!(evaluate(rule, &spec()), Err(expected), "{rule}");
    }
}

#[test]
fn failing_operations_say_what_failed_and_never_panic() {
    for (rule, reason) in [
        ("1 / 0 == 1", "division by zero"),
        ("1 % 0 == 1", "division by zero"),
        ("9223372036854775807 + 1 == 0", "`add` overflows"),
        ("-9223372036854775808 - 1 == 0", "`sub` overflows"),
        ("9223372036854775807 * 2 == 0", "`mul` overflows"),
        ("-(-9223372036854775807 - 1) == 0", "`negate` overflows"),
        ("(-9223372036854775807 - 1) / -1 == 0", "`div` overflows"),
        ("spec.env[99] == 1", "index out of bounds"),
        ("spec.env[-1] == 1", "index out of bounds"),
        ("spec.model.id + 1 == ''", "`add` does not work on string and int"),
        ("spec < 1", "`<` does not work on map and int"),
        ("spec.model.id.all(c, true)", "a string cannot be looped over"),
        (
            "spec.resources.gpu.count.matches('1')",
            "matches() needs a string to search",
        ),
        ("{'a': 1, 'a': 2} == {}", "a map literal repeats a key"),
    ] {
        let error = evaluate(rule, &spec()).unwrap_err();
        assert_eq!(error.to_string(), reason, "{rule}");
    }
    for rule in [
        "int('9999999999999999999') == 1",
        "int(1e300) == 1",
        "uint(-1) == 1u",
        "double('x') == 1.0",
        "0.0 / 0.0 < 1",
    ] {
        assert!(evaluate(rule, &spec()).is_err(), "{rule}");
    }
}

// ---- What is refused when a rule is compiled

#[test]
fn names_and_functions_that_do_not_exist_are_refused() {
    for name in [
        "spce.engine.type == 'a'",
        "engine.type == 'a'",
        ".spec == 1",
        "has(spce.engine)",
        "true || int == 1",
        "spec.env.all(e, f.name == '')",
        "e.name == 'a' || spec.env.all(e, true)",
    ] {
        assert!(
            matches!(Rule::compile(name), Err(RuleError::UnknownName { .. })),
            "{name}"
        );
    }
    for call in [
        "spec.model.id.lowerAscii() == 'a'",
        "timestamp('2026-01-01T00:00:00Z') > timestamp('2025-01-01T00:00:00Z')",
        "duration('1h') == duration('60m')",
        "now() == 1",
        "getenv('HOME') == ''",
        "optional.of(1).hasValue()",
        "type(spec) == map",
        "size() == 1",
        "contains('a', 'a')",
        "spec.model.id.startsWith()",
        "spec.env.map(e, e, e, e) == []",
        "_foo(1)",
        ".size(spec) == 1",
    ] {
        assert!(
            matches!(Rule::compile(call), Err(RuleError::UnknownFunction { .. })),
            "{call}: {:?}",
            Rule::compile(call)
        );
    }
    assert!(refused("spce.a == 1").starts_with("unknown name `spce`; a rule can read `spec` and `metadata`"));
    assert!(refused("spec.a.lower() == ''").starts_with("no function `x.lower()`; there are has(a.b), size(x)"));
    assert_eq!(refused("Spec{a: 1} == 1"), "a message literal cannot be used in a rule");
}

#[test]
fn a_rule_that_is_not_cel_is_refused_with_its_place() {
    for (rule, message) in [
        ("", "line 1, column 1: the rule is empty"),
        ("// nothing", "line 1, column "),
        (
            "true &&\n  (1 + ",
            "line 2, column 3: this bracket is not closed, `)` is missing",
        ),
        ("[1)", "line 1, column 3: `)` closes a bracket that is not open"),
        ("true)", "line 1, column 5: `)` closes a bracket that is not open"),
        ("spec.a == 'b", "line 1, column 11: this string is not closed"),
        ("'''a''", "line 1, column 1: this string is not closed"),
        ("r'a\\'b'", "line 1, column 7: this string is not closed"),
        ("spec.a @ 1", "line 1, column 8: unexpected character `@`"),
        ("spec.ä", "line 1, column 6: unexpected character `\\u{e4}`"),
        ("spec.`a`", "line 1, column 6: unexpected character ``"),
        ("a = 1", "line 1, column 3: unexpected character `=`"),
        ("1 +", "line 1, column "),
        ("spec.?a == 1", "line 1, column "),
        ("[?1] == [1]", "line 1, column "),
        ("spec.env.all(1, true)", "line 1, column "),
        ("'\\q' == ''", "line 1, column "),
        ("99999999999999999999 == 1", "line 1, column "),
    ] {
        let found = refused(rule);
        assert!(found.starts_with(message), "{rule}: {found}");
        assert!(!found.contains('\n') && found.len() < 600, "{rule}: {found}");
    }
}

#[test]
fn length_is_limited() {
    let rule = |length: usize| format!("true{}", " ".repeat(length - 4));
    assert!(Rule::compile(&rule(MAX_LENGTH)).is_ok());
    assert_eq!(
        Rule::compile(&rule(MAX_LENGTH + 1)),
        Err(RuleError::TooLong { length: MAX_LENGTH + 1 })
    );
    assert_eq!(
        Rule::compile(&rule(1 << 20)),
        Err(RuleError::TooLong { length: 1 << 20 })
    );
}

/// A rule with this number of levels.
type Nesting = fn(usize) -> String;

/// Ways to nest.
fn nestings() -> Vec<(&'static str, Nesting)> {
    fn wrap(open: &str, inner: &str, close: &str, n: usize) -> String {
        format!("{}{inner}{}", open.repeat(n), close.repeat(n))
    }
    vec![
        ("parentheses", |n| wrap("(", "true", ")", n)),
        ("lists", |n| wrap("[", "1", "]", n)),
        ("maps", |n| wrap("{1:", "1", "}", n)),
        ("calls", |n| wrap("size(", "'a'", ")", n)),
        ("indices", |n| wrap("[0][", "0", "]", n)),
        ("right operands", |n| wrap("1+(", "1", ")", n)),
        ("ternaries in parentheses", |n| wrap("(true?", "1", ":1)", n)),
        ("ternaries", |n| wrap("", &format!("{}1", "true?1:".repeat(n)), "", n)),
        ("ternary conditions", |n| wrap("(", "true", "?true:false)", n)),
        ("sums", |n| format!("1{}", "+1".repeat(n))),
        ("products", |n| format!("1{}", "*1".repeat(n))),
        ("comparisons", |n| format!("1{}", "==1".repeat(n))),
        ("in", |n| format!("1{}", " in [1]".repeat(n))),
        ("selections", |n| format!("spec{}", ".a".repeat(n))),
        ("indexing", |n| format!("spec{}", "['a']".repeat(n))),
        ("methods", |n| format!("''{}", ".size()".repeat(n))),
        ("negations", |n| format!("{}true", "!".repeat(n))),
        ("spaced negations", |n| format!("{}true", "! ".repeat(n))),
        ("minus signs", |n| format!("{}1", "-".repeat(n))),
        ("spaced minus signs", |n| format!("{}1", "- ".repeat(n))),
        ("loops in a row", |n| format!("[1]{}", ".map(x,x)".repeat(n))),
        ("loops in ranges", |n| {
            wrap("", &format!("[1]{}", ".filter(x,x==1)".repeat(n)), "", n)
        }),
        ("mixed", |n| wrap("[{1:(1+", "1", ")}]", n)),
        ("loops at the bottom", |n| {
            wrap("(", "[1].all(x,[1].exists(y,x==y))", ")", n)
        }),
        ("and in parentheses", |n| wrap("(true&&", "true", ")", n)),
        ("or of terms", |n| format!("false{}", "||(1+1)*2==3".repeat(n))),
    ]
}

#[test]
fn the_deepest_accepted_rules_run_on_a_small_stack_and_one_more_level_is_refused() {
    let inputs = largest_inputs();
    on_small_stack(|| {
        for (name, nesting) in nestings() {
            let deepest = (1..200)
                .take_while(|n| Rule::compile(&nesting(*n)).is_ok())
                .last()
                .unwrap();
            check_any(&nesting(deepest), &inputs);
            if name != "or of terms" {
                let next = Rule::compile(&nesting(deepest + 1)).unwrap_err();
                let too_deep = matches!(next, RuleError::TooDeep { .. } | RuleError::TooExpensive { .. });
                assert!(too_deep && deepest < MAX_DEPTH as usize, "{name}: {deepest}, {next:?}");
            }
        }
    });
}

#[test]
fn depth_is_limited_from_both_sides() {
    let sum = |terms: usize| format!("1{} == {terms}", "+1".repeat(terms - 1));
    // One level for the comparison, one for the innermost term.
    assert_eq!(evaluate(&sum(MAX_DEPTH as usize - 1), &spec()), Ok(true));
    let error = Rule::compile(&sum(MAX_DEPTH as usize)).unwrap_err();
    assert_eq!(error, RuleError::TooDeep { depth: MAX_DEPTH + 1 });
}

#[test]
fn rules_that_crash_or_hang_the_evaluator_are_refused() {
    on_small_stack(|| {
        for (_, nesting) in nestings() {
            for n in [60, 200, 1000, 30_000] {
                // A chain of `||` does not nest, so that only its length and cost count.
                let _ = Rule::compile(&nesting(n));
            }
        }
        let parentheses = "(".repeat(200) + "1" + &")".repeat(200);
        assert!(matches!(Rule::compile(&parentheses), Err(RuleError::TooDeep { .. })));
        let brackets = "[".repeat(60) + "1" + &"]".repeat(60);
        assert!(matches!(Rule::compile(&brackets), Err(RuleError::TooDeep { .. })));
        let sum = "1+".repeat(30_000) + "1";
        assert!(matches!(Rule::compile(&sum), Err(RuleError::TooLong { .. })));
        let list = "[1,2,3,4,5,6,7,8,9,10]";
        let loops = (0..6).fold("true".to_owned(), |body, i| format!("{list}.all(v{i}, {body})"));
        assert_eq!(Rule::compile(&loops), Err(RuleError::TooManyLoops { depth: 3 }));
    });
}

#[test]
fn loops_nest_two_deep() {
    assert_eq!(evaluate("[1].all(a, [2].all(b, a < b))", &spec()), Ok(true));
    for three in [
        "[1].all(a, [2].all(b, [3].all(c, true)))",
        "[1].map(a, [2].filter (b, [3].exists_one/* no */(c, true)))",
        "[1].all(a, [2].all // \n(b, [3].existsOne\n(c, true)))",
    ] {
        let error = Rule::compile(three).unwrap_err();
        assert!(
            matches!(error, RuleError::TooManyLoops { depth: 3 } | RuleError::Syntax { .. }),
            "{three}: {error}"
        );
    }
}

#[test]
fn cost_is_limited_from_both_sides() {
    let sum = |terms: usize| vec!["spec.a + spec.b == 1"; terms].join(" || ");
    let most = (1..100).take_while(|n| Rule::compile(&sum(*n)).is_ok()).last().unwrap();
    let next = Rule::compile(&sum(most + 1)).unwrap_err();
    assert!(
        matches!(next, RuleError::TooExpensive { estimated } if estimated > MAX_COST),
        "{next}"
    );
    assert!(
        next.to_string().contains("25000 are allowed; loop over shorter lists"),
        "{next}"
    );
    // Upper bound of the cost of one term: the limit is not missed by more.
    let one = Rule::compile(&sum(1)).unwrap().cost();
    assert!(Rule::compile(&sum(most)).unwrap().cost() + one + 2 > MAX_COST);
}

#[test]
fn rules_that_multiply_sizes_are_refused_by_cost() {
    for bomb in [
        "['aaaaaaaaaaaaaaaa'].map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x) == []",
        "[[1,2,3,4,5,6,7,8]].map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).map(x, x+x+x+x+x+x+x+x).all(x, x.all(y, true))",
        "[1,2,3,4,5,6,7,8].map(x, [x,x,x,x,x,x]).map(x, [x,x,x,x,x,x]).map(x, [x,x,x,x,x,x]).map(x, [x,x,x,x,x,x]) == []",
        "spec.l.map(x, spec) == []",
        "spec.l.map(x, [spec, x]) == []",
        "spec.l.exists(x, spec.l.exists(y, x == y))",
        "spec.l.exists(x, x in spec.l)",
        "spec.l.exists(x, spec + x == x)",
        "spec.l.exists(x, spec.s.contains(x))  && spec.l.exists(x, spec.s.matches('a.*b')) ",
    ] {
        assert!(
            matches!(Rule::compile(bomb), Err(RuleError::TooExpensive { .. })),
            "{bomb}: {:?}",
            Rule::compile(bomb).map(|r| r.cost())
        );
    }
}

#[test]
fn a_pattern_is_priced_by_what_searching_with_it_takes() {
    // Eighteen of these took 87 ms for one rule in a release build.
    let slow = ["spec.s.matches(r'(?s).*a.{200}c')"; 18].join("||");
    let text = refused(&slow);
    for named in ["`(?s).*a.{200}c`", "more than 16384 steps", "may cost 25000 steps"] {
        assert!(text.contains(named), "{text}");
    }
    for pattern in ["(a|b)*a(a|b){20}c", "(?i)a.{30}b", "(x.{9}){9}y"] {
        let rule = format!("spec.s.matches(r'{pattern}')");
        assert!(
            matches!(Rule::compile(&rule), Err(RuleError::Pattern { .. })),
            "{pattern}"
        );
    }
    for pattern in [
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        r"^(meta-llama|mistralai|Qwen|google|microsoft|deepseek-ai)/[\w.-]+$",
        "(?i)(8b|70b|405b)(-instruct)?$",
        "^.{1,63}$",
        r"v[0-9]+\.[0-9]+",
        "(llama-3-70b|mixtral-8x22b|qwen2-72b|gemma-2-27b)",
    ] {
        let rule = format!("spec.env.exists(e, e.value.matches(r'{pattern}'))");
        assert!(Rule::compile(&rule).is_ok(), "{pattern}: {:?}", Rule::compile(&rule));
    }
}

#[test]
fn the_rules_of_a_provider_share_a_budget() {
    let source = ["spec.a + spec.b == 1"; 3].join(" || ");
    let cost = Rule::compile(&source).unwrap().cost() + source.len() as u64;
    let mut budget = Budget::default();
    for _ in 0..MAX_COST_OF_ALL / cost {
        budget.compile(&source).unwrap();
    }
    let error = budget.compile(&source).unwrap_err();
    assert!(
        matches!(error, RuleError::NothingLeft { left, .. } if left < cost),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("of the 250000 that all rules of a provider may cost"),
        "{error}"
    );
    // Cheap rules still pass, and rejected ones cost something.
    assert!(budget.compile("spec.engine.type == 'vllm'").is_ok());
    let mut budget = Budget::default();
    let refusals = (0..64).map(|_| budget.compile("spec.s.matches('a.{200}c')").unwrap_err());
    let ends = refusals
        .filter(|error| matches!(error, RuleError::NothingLeft { .. }))
        .count();
    assert_eq!(ends, 54);
}

#[test]
fn patterns_are_compiled_once_and_bounded() {
    let matches = |pattern: &str| format!("spec.model.id.matches(r'{pattern}')");
    let plain = |length: usize| matches(&"a".repeat(length));
    assert!(Rule::compile(&plain(MAX_PATTERN_BYTES)).is_ok());
    for refused in [
        plain(MAX_PATTERN_BYTES + 1),
        vec![plain(MAX_PATTERN_BYTES / 2 + 1); 2].join(" || "),
        matches("((a{10}){10}){10}"),
        matches("(?:(?:(?:(?:x{9}){9}){9}){9}){9}"),
        matches("("),
        matches("*"),
        matches("(?u)\\w"),
        matches(&("(".repeat(100) + &")".repeat(100))),
        "spec.model.id.matches(spec.model.id)".to_owned(),
        "spec.model.id.matches('a' + 'b')".to_owned(),
        "spec.model.id.matches(1)".to_owned(),
    ] {
        let error = Rule::compile(&refused).unwrap_err();
        assert!(matches!(error, RuleError::Pattern { .. }), "{refused}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    assert_eq!(
        evaluate(
            "matches('abc', 'b') && matches('abc', '^a') && !'abc'.matches('d')",
            &spec()
        ),
        Ok(true)
    );
}

// ---- What is refused when a rule is evaluated

#[test]
fn inputs_larger_than_the_estimates_assume_are_refused_and_named() {
    let list = |n: usize| json!({"env": vec![1; n]});
    let text = |n: usize| json!({"model": {"id": "a".repeat(n)}});
    let object =
        |n: usize| json!({"args": (0..n).map(|i| (i.to_string(), json!(i))).collect::<serde_json::Map<_, _>>()});
    let nested = |n: usize| json!({"a": (0..n).fold(json!(1), |inner, _| json!([inner]))});
    let many = |n: usize| json!({"a": vec![vec![1; 80]; n]});
    for (fits, too_large, path) in [
        (list(100), list(101), "spec.env"),
        (text(4096), text(4097), "spec.model.id"),
        (object(100), object(101), "spec.args"),
        (nested(15), nested(17), "spec.a.0.0.0"),
        (many(24), many(26), "spec"),
    ] {
        assert_eq!(evaluate("true", &fits), Ok(true), "{path}");
        let Err(EvalError::Input(error)) = evaluate("true", &too_large) else {
            panic!("{path}")
        };
        assert!(error.path.starts_with(path), "{error}");
    }
    let labels = Input::new(&spec(), &json!({"labels": vec![1; 101]}));
    assert!(Rule::compile("true").unwrap().evaluate(&labels).is_err());
}

#[test]
fn an_input_nested_a_hundred_thousand_deep_does_not_overflow() {
    on_small_stack(|| {
        // Built and leaked in one piece, since dropping it would recurse.
        let mut deep = json!(1);
        for _ in 0..100_000 {
            deep = Json::Array(vec![deep]);
        }
        let input = Input::new(&deep, &json!({}));
        assert!(Rule::compile("true").unwrap().evaluate(&input).is_err());
        std::mem::forget(deep);
    });
}

// ---- Determinism and isolation

#[test]
fn maps_are_looped_over_in_the_order_of_their_keys() {
    let labels: Json = Json::Object((0..50).map(|i| (format!("k{i:02}"), json!(i))).collect());
    let sorted: Vec<String> = (0..50).map(|i| format!("'k{i:02}'")).collect();
    let rule = format!("spec.labels.map(k, k) == [{}]", sorted.join(","));
    for _ in 0..20 {
        assert_eq!(evaluate(&rule, &json!({"labels": labels})), Ok(true));
        assert_eq!(
            evaluate("{'b': 1, 'a': 2, 'c': 3}.map(k, k)[0] == 'a'", &spec()),
            Ok(true)
        );
        // The failing element is the same each time.
        let error = evaluate(
            "spec.labels.all(k, spec.labels[k].size() > 0)",
            &json!({"labels": {"a": 1, "b": 1.5, "c": true}}),
        );
        assert_eq!(error.unwrap_err().to_string(), "`size` does not work on bool");
    }
}

#[test]
fn a_refused_rule_does_not_affect_others() {
    let good = Rule::compile("spec.engine.type == 'vllm'").unwrap();
    let data = input(&spec());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (_, nesting) in nestings() {
                    let _ = Rule::compile(&nesting(500));
                    assert_eq!(good.clone().evaluate(&data), Ok(true));
                }
            });
        }
    });
}

#[test]
fn rules_are_shared_between_threads_and_cheap_to_clone() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<Rule>();
    assert_eq!(size_of::<Rule>(), size_of::<usize>());
    let rule = Rule::compile(" true ").unwrap();
    assert_eq!(rule.source(), " true ");
    assert_eq!(format!("{rule:?}"), "Rule(\" true \")");
}

// ---- Hostile rules

/// Parts of hostile rules.
#[rustfmt::skip]
const PIECES: &[&str] = &[
    "(", "[", "{", ")", "]", "}", "((", "[{(", "()", "[]", "{}", "a(", "a[", "a{", "a.b(", "f(a,",
    "[a,", "{a:", "(a)", "((a)", "((a)+", "!", "-", "--", "! ", "- ", "?", ":", "?:", "a?",
    "a?b:", ",", "a,", ".", ".a", "a.", "..", "a ", "in ", "a in ", "&", "&&", "|", "||", "a&&",
    "a||", "a&&b||", "=", "==", "a==", "<", "<=", "a<", "+", "a+", "*", "a*", "/", "//", "/ /",
    "%", "@", "#", "$", "\\", "`", "`a`", "'", "\"", "'''", "\"\"\"", "r'", "b'", "br'", "'\\",
    "'\\'", "'a'+", "\n", "\r\n", "\t", "\0", "\u{feff}", "ä", "💥", "\u{202e}", "'💥'+", "0x",
    "1e", "1.", ".1", "1..", "1u", "9", "9.9", "0xfffffffff", "-9", "1e9+", "\\u", "\\x", "'\\u",
    "'\\U0010ffff'+", "has(", "has(a.b)&&", "[1].all(x,", "[1].map(x,", "[1].map(x,x)",
    ".map(x,x)", "spec.l.exists(x,x==1)||", "spec.l.map(x,x)+", "spec==spec||",
    "spec in [spec]||", "[spec]==[]||", "spec.s.matches('(a+)+b')||",
    "spec.s.matches('a{9}{9}{9}')||", "'a'.matches('", "size(", "string(1.0)+", "int('",
    "{1:1}||", "{1:{1:", "[[1]]+", "1 in [1]||", "null==null&&", "true?1:", "_[_](", "a{b:", "x{",
    "timestamp(", "optional.of(",
];

/// Hostile texts of about `bytes` bytes.
fn hostile(bytes: usize) -> Vec<String> {
    let fill = |piece: &str| piece.repeat(bytes / piece.len());
    let mut texts: Vec<String> = nestings()
        .into_iter()
        .map(|(_, nesting)| {
            let unit = nesting(2).len() - nesting(1).len();
            nesting(bytes / unit.max(1))
        })
        .collect();
    for piece in PIECES {
        texts.push(fill(piece));
        texts.push(format!("true || {}", fill(piece)));
        texts.push(format!("({} true)", fill(piece)));
    }
    texts.push(format!("'{}'", "a".repeat(bytes)));
    texts.push(format!("[{}1]", "1,".repeat(bytes / 2)));
    texts.push(format!("{{{}1:1}}", "1:1,".repeat(bytes / 4)));
    texts.push(format!("size({}1)", "1,".repeat(bytes / 2)));
    texts.push(format!(
        "{}[{}1]{}",
        "size(".repeat(14),
        "1,".repeat((bytes / 2).saturating_sub(60)),
        ")".repeat(14)
    ));
    texts.push(format!(
        "{}[{}1]{}",
        "[1].all(x, ".repeat(2),
        "1,".repeat((bytes / 2).saturating_sub(60)),
        ")".repeat(2)
    ));
    texts.push(format!("{}true", "((true)&&".repeat(bytes / 9)));
    texts
}

#[test]
fn hostile_rules_neither_panic_nor_exceed_limits() {
    let inputs = largest_inputs();
    on_small_stack(|| {
        for bytes in [64, 600, 4000, 16 << 10, 64 << 10] {
            for text in hostile(bytes) {
                check_any(&text, &inputs);
            }
        }
        // Within the length limit: longer ones fail the first check.
        for text in hostile(MAX_LENGTH * 2) {
            for length in [100, 1000, MAX_LENGTH] {
                let end = (0..=length.min(text.len()))
                    .rev()
                    .find(|end| text.is_char_boundary(*end))
                    .unwrap();
                check_any(&text[..end], &inputs);
            }
        }
    });
}

/// Rules that use the whole cost limit, in each way that costs.
fn most_expensive() -> Vec<Rule> {
    let terms = [
        "[spec] == []",
        "spec - 1 == 2",
        "1 > spec",
        "spec.l[0.5] == 1",
        "spec.l + spec.l == []",
        "spec.s + spec.s == ''",
        "spec.l.exists(x, 1 > x)",
        "spec.l.exists(x, x == 'q')",
        "spec.l.exists(x, x.key1 == 'q')",
        "spec.l.exists(x, x + 1 == 2)",
        "spec.l.exists(x, {x: 1} == {})",
        "spec.l.map(x, x) == []",
        "spec.l.map(x, [x, x]) == []",
        "spec.l.filter(x, x == 1) == [1]",
        "['a', 'b'].exists(x, spec.l.exists(y, y == x))",
        "spec.l.exists(x, x.contains('aaaaab'))",
        "spec.l.exists(x, x.matches('(a|b)*a(a|b){20}c'))",
        "spec.s.matches('(a?){9}a{9}c')",
        "spec.s.matches('[a-z]{2,40}q')",
        "spec.s.matches('a.{7}q')",
        "spec.s.matches('q')",
        "spec.l.exists(x, x.matches('(a|b){20}c'))",
        "spec == spec.l",
        "[spec.l] == [spec.l, 1]",
        "size(spec.s) == 1",
        "int(spec.s) == 1",
        "1 == 2",
        "spec.zzz == 1",
        "[1,2,3,4,5,6,7,8,9].exists(x, [1,2,3,4,5,6,7,8,9].exists(y, x.a.b == y.c))",
        "'a' in spec.l",
        "spec in spec.l",
    ];
    terms
        .into_iter()
        .filter_map(|term| {
            (1..400)
                .map_while(|n| Rule::compile(&vec![term; n].join("||")).ok())
                .last()
        })
        .collect()
}

#[test]
fn the_most_expensive_accepted_rules_stay_within_their_units() {
    let rules = most_expensive();
    assert!(rules.len() > 20);
    for rule in &rules {
        assert!(rule.cost() <= MAX_COST, "{rule:?}");
    }
    let accepted = dearest_configuration(&rules);
    let total: u64 = accepted
        .iter()
        .map(|rule| rule.cost() + rule.source().len() as u64)
        .sum();
    assert!(
        (MAX_COST_OF_ALL - MAX_COST..=MAX_COST_OF_ALL).contains(&total),
        "{total}"
    );
}

/// As many of the most expensive rules as one provider may have.
fn dearest_configuration(rules: &[Rule]) -> Vec<Rule> {
    let mut budget = Budget::default();
    let accepted = rules.iter().cycle().take(64);
    accepted.filter_map(|rule| budget.compile(rule.source()).ok()).collect()
}

/// The fastest of many runs, so that other load does not count.
fn fastest(mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..20).map(time).min().unwrap()
}

#[test]
#[ignore = "measures time: cargo test --release -p runway-core rules -- --ignored"]
fn the_most_expensive_accepted_rules_take_less_than_they_may() {
    let inputs = largest_inputs();
    let rules = most_expensive();
    let run = |rule: &Rule, input: &Input| {
        let _ = Rule::compile(rule.source()).map(|rule| rule.evaluate(input));
    };
    for (rule, input) in rules
        .iter()
        .flat_map(|rule| inputs.iter().map(move |input| (rule, input)))
    {
        let took = fastest(|| run(rule, input));
        let source = &rule.source()[..60.min(rule.source().len())];
        assert!(
            took < Duration::from_millis(5),
            "{took:?} for {source} ({} steps)",
            rule.cost()
        );
    }
    let configuration = dearest_configuration(&rules);
    for input in &inputs {
        let took = fastest(|| configuration.iter().for_each(|rule| run(rule, input)));
        assert!(
            took < Duration::from_millis(50),
            "{took:?} for {} rules",
            configuration.len()
        );
    }
    let refused = "spec.s.matches('(?s).*a.{200}c')";
    let took = fastest(|| {
        let mut budget = Budget::default();
        (0..64).for_each(|_| drop(budget.compile(refused)));
    });
    assert!(
        took < Duration::from_millis(50),
        "{took:?} for 64 rules that are refused"
    );
}

// ---- Properties

fn depth(expression: &Expression) -> u32 {
    let deepest = |expressions: &mut dyn Iterator<Item = &Expression>| expressions.map(depth).max().unwrap_or(0);
    1 + match &expression.expr {
        Expr::Call(call) => deepest(&mut call.target.as_deref().into_iter().chain(&call.args)),
        Expr::Select(select) => depth(&select.operand),
        Expr::List(list) => deepest(&mut list.elements.iter()),
        Expr::Map(map) => deepest(&mut map.entries.iter().flat_map(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
            EntryExpr::StructField(field) => vec![&field.value],
        })),
        Expr::Struct(message) => deepest(&mut message.entries.iter().map(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => &entry.value,
            EntryExpr::StructField(field) => &field.value,
        })),
        Expr::Comprehension(c) => {
            deepest(&mut [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result].into_iter())
        }
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 0,
    }
}

/// Levels that the macros may add below those of the scan, for each nested loop.
const LEVELS_OF_A_LOOP: u32 = 4;

#[test]
fn the_scan_bounds_the_depth_of_the_parsed_rule() {
    for text in [100, 1000, MAX_LENGTH]
        .into_iter()
        .flat_map(hostile)
        .chain(nestings().into_iter().flat_map(|(_, nesting)| (1..32).map(nesting)))
    {
        check_depth(&text);
    }
}

fn check_depth(text: &str) {
    if let (Ok(bound), Ok(program)) = (scan::scan(text), parse(text)) {
        let found = depth(&program);
        assert!(
            found <= bound + LEVELS_OF_A_LOOP * MAX_COMPREHENSIONS,
            "{found} > {bound}: {text}"
        );
    }
}

/// Tokens that parse now and then.
fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "spec",
        "metadata",
        "x",
        "y",
        "spec.l",
        "spec.s",
        "spec.n",
        "1",
        "2u",
        "1.5",
        "'a'",
        "\"b\"",
        "r'\\d'",
        "b'c'",
        "true",
        "false",
        "null",
        "[1, 2]",
        "{'a': 1}",
        "{1: 'a'}",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ".",
        ",",
        ":",
        "?",
        "!",
        "-",
        "+",
        "*",
        "/",
        "%",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "&&",
        "||",
        " in ",
        " ",
        ".a",
        ".key1",
        "[0]",
        "['a']",
        "has(spec.a)",
        "size(",
        ".size()",
        ".startsWith('a')",
        ".contains(",
        ".matches('a.b')",
        "int(",
        "string(",
        "double(",
        ".all(x, ",
        ".exists(x, ",
        ".exists_one(y, ",
        ".map(x, ",
        ".filter(y, ",
        "[1].map(x, x)",
        "'",
        "\"",
        "'''",
        "\\",
        "//",
        "\n",
        "ä",
        "0x1",
        "1e3",
        "`",
        "@",
    ])
}

/// Rules that parse: every kind of expression over the inputs.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "spec",
        "metadata.name",
        "x",
        "y",
        "spec.l",
        "spec.s",
        "spec.n",
        "spec.l[0]",
        "1",
        "0",
        "-1",
        "1.5",
        "3u",
        "'a'",
        "''",
        "true",
        "false",
        "null",
        "9223372036854775807",
        "[]",
        "{}",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(5, 40, 3, |inner| {
        let operator = prop::sample::select(vec![
            "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in",
        ]);
        let macro_name = prop::sample::select(vec!["all", "exists", "exists_one", "map", "filter"]);
        let function = prop::sample::select(vec!["size", "int", "uint", "double", "string"]);
        let method = prop::sample::select(vec!["startsWith", "endsWith", "contains"]);
        let variable = prop::sample::select(vec!["x", "y"]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            (inner.clone(), macro_name, variable, inner.clone())
                .prop_map(|(a, name, v, b)| format!("{a}.{name}({v}, {b})")),
            (function, inner.clone()).prop_map(|(f, a)| format!("{f}({a})")),
            (inner.clone(), method, inner.clone()).prop_map(|(a, m, b)| format!("{a}.{m}({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}[{b}]")),
            inner.clone().prop_map(|a| format!("{a}.key1")),
            inner.clone().prop_map(|a| format!("has({a}.key1)")),
            inner.clone().prop_map(|a| format!("{a}.matches('^(a|b)+$')")),
            inner.prop_map(|a| format!("!{a}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_tokens_neither_panic_nor_exceed_limits(tokens in prop::collection::vec(token(), 0..40)) {
        let text = tokens.concat();
        check_depth(&text);
        check_any(&text, &[input(&spec())]);
    }

    #[test]
    fn random_text_neither_panics_nor_exceeds_limits(text in "\\PC{0,200}") {
        check_depth(&text);
        check_any(&text, &[input(&spec())]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_expressions_neither_panic_nor_exceed_limits(
        body in expression(),
        wrapper in prop::sample::select(vec!["", "spec.l.exists(x, [1, 'a'].all(y, ", "spec.l.map(x, ", "[spec, 1].all(x, "]),
    ) {
        let text = format!("{wrapper}{body}{}", ")".repeat(wrapper.matches('(').count()));
        check_depth(&text);
        let inputs = largest_inputs();
        on_small_stack(|| check_any(&text, &inputs));
    }
}
