//! Properties of a merge for every base configuration: only the providers change, and a second merge changes nothing.

use proptest::prelude::*;
use runway_llama_stack_operator::merge::{File, ProviderFiles, merge};

/// Scalars that generations of YAML disagree about, or that look like something else.
const SCALARS: [&str; 16] = [
    "1.10",
    "yes",
    "'no'",
    "012",
    "12:30:45",
    "\"on\"",
    "1_000",
    "${env.X:=y}",
    "\"${env.X:+y}\"",
    "~",
    "2024-01-01",
    "1e3",
    "!!str 12",
    "|\n                two\n                lines",
    ">-\n                folded\n\n                text",
    "{a: [1, 'x'], b: }",
];

fn file(path: &str, text: &str) -> File {
    File {
        path: path.to_owned(),
        text: Ok(text.to_owned()),
    }
}

fn provider(id: &str, api: &str, order: usize) -> ProviderFiles {
    let spec = format!(
        "apiVersion: llamastack.io/v1alpha1\nkind: ProviderPackage\nmetadata: {{name: a, version: 1, vendor: \
         b}}\nspec: {{packageName: a, providerType: 'inline::ours', api: {api}, wheelPath: a}}\n"
    );
    let crd = format!(r#"{{"providerId": "{id}", "api": "{api}", "order": {order}, "config": {{"a": "{{}}"}}}}"#);
    ProviderFiles {
        directory: id.to_owned(),
        spec: file("lls-provider-spec.yaml", &spec),
        crd_config: file("crd-config.yaml", &crd),
    }
}

fn base_item() -> impl Strategy<Value = (usize, &'static str, bool, bool)> {
    (
        0..6_usize,
        prop::sample::select(&SCALARS[..]),
        any::<bool>(),
        any::<bool>(),
    )
}

/// A base in block style: `(id, scalar, comment, blank line)` of each item, for two APIs.
fn base(
    items: &[Vec<(usize, &'static str, bool, bool)>],
    other: &[&str],
    indent: usize,
    apis: bool,
    line_break: &str,
) -> String {
    let mut text = "# the base\nversion: '2'\nimage_name: demo\n".to_owned();
    if apis {
        text.push_str("apis:\n- inference # first\n");
    }
    text.push_str("providers:\n");
    let pad = " ".repeat(indent);
    for (api, items) in ["inference", "safety"].iter().zip(items) {
        text.extend(["  ", api, if items.is_empty() { ": []\n" } else { ":\n" }]);
        for (id, scalar, comment, blank) in items {
            let note = if *comment {
                format!("  {pad}# about p{id}\n")
            } else {
                String::new()
            };
            let item = format!(
                "{note}  {pad}- provider_id: p{id}\n  {pad}  provider_type: remote::theirs\n  {pad}  config:\n  {pad}    \
                 value: {scalar}\n{}",
                if *blank { "\n" } else { "" }
            );
            text.push_str(&item);
        }
    }
    for (number, scalar) in other.iter().enumerate() {
        text.extend(["other", &number.to_string(), ":\n    kept: ", scalar, "\n"]);
    }
    text.replace('\n', line_break)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn only_providers_change(
        items in prop::collection::vec(prop::collection::vec(base_item(), 0..4), 2),
        other in prop::collection::vec(prop::sample::select(&SCALARS[..]), 0..4),
        indent in 0..4_usize,
        apis in any::<bool>(),
        crlf in any::<bool>(),
        ours in prop::collection::btree_map(0..6_usize, prop::sample::select(vec!["inference", "safety", "vector_io"]), 1..5),
    ) {
        let line_break = if crlf { "\r\n" } else { "\n" };
        let text = base(&items, &other, indent, apis, line_break);
        let providers: Vec<ProviderFiles> = ours
            .iter()
            .enumerate()
            .map(|(order, (id, api))| provider(&format!("p{id}"), api, order))
            .collect();
        let merged = merge(&file("run.yaml", &text), &providers, &|_| false).unwrap();

        // Every line that is not of an overridden provider is there, letter by letter, in its order.
        let overridden: usize = ["inference", "safety"]
            .iter()
            .zip(&items)
            .map(|(api, items)| items.iter().filter(|(id, ..)| ours.get(id) == Some(api)).count())
            .sum();
        let overrides = merged.warnings.iter().filter(|warning| warning.contains("overrides")).count();
        prop_assert_eq!(overrides, overridden);
        let mut rest = merged.run_yaml.as_str();
        for line in text.split_inclusive('\n') {
            if line.contains(": []") || (overridden > 0 && (line.starts_with("  ") || line.trim().is_empty())) {
                continue;
            }
            let at = rest.find(line);
            prop_assert!(at.is_some(), "{line:?} is missing in\n{}", merged.run_yaml);
            rest = &rest[at.unwrap() + line.len()..];
        }
        for id in ours.keys() {
            prop_assert_eq!(merged.run_yaml.matches(&format!("provider_id\": \"p{id}\"")).count()
                + merged.run_yaml.matches(&format!("provider_id: \"p{id}\"")).count(), 1);
        }

        // Merging again overrides our own entries with themselves.
        let again = merge(&file("run.yaml", &merged.run_yaml), &providers, &|_| false).unwrap();
        let third = merge(&file("run.yaml", &again.run_yaml), &providers, &|_| false).unwrap();
        prop_assert_eq!(&third.run_yaml, &again.run_yaml);
        prop_assert_eq!(&third.extra_providers, &merged.extra_providers);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]{}:,&*<>|!#\\-?'\"a-c \n\t~%@`\\\\é]{0,60}") {
        let _ = merge(&file("run.yaml", &text), &[provider("a", "inference", 0)], &|_| false);
        let _ = merge(&file("run.yaml", &format!("providers:{text}")), &[provider("a", "inference", 0)], &|_| false);
        let _ = merge(&file("run.yaml", &format!("providers: {{inference: {text}")), &[provider("a", "inference", 0)], &|_| true);
    }
}
