//! Any text as the base configuration, and as a provider's files: merging ends, does not panic, and what it writes can be
//! merged again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runway_llama_stack_operator::merge::{File, ProviderFiles, merge};

const SPEC: &str = "apiVersion: llamastack.io/v1alpha1\nkind: ProviderPackage\nmetadata: {name: a, version: 1, vendor: \
                    b}\nspec: {packageName: a.provider, providerType: 'inline::ours', api: inference, wheelPath: a}\n";
const CRD: &str = r#"{"providerId": "a", "api": "inference", "order": 0, "config": {"a": "${env.X:=y}"}}"#;

fn file(text: &str) -> File {
    File {
        path: "file".to_owned(),
        text: Ok(text.to_owned()),
    }
}

fn provider(spec: &str, crd_config: &str) -> ProviderFiles {
    ProviderFiles {
        directory: "a".to_owned(),
        spec: file(spec),
        crd_config: file(crd_config),
    }
}

fuzz_target!(|text: &str| {
    let ours = [provider(SPEC, CRD)];
    if let Ok(merged) = merge(&file(text), &ours, &|_| true) {
        assert!(merge(&file(&merged.run_yaml), &ours, &|_| true).is_ok(), "{}", merged.run_yaml);
    }
    let _ = merge(&file(""), &[provider(text, CRD)], &|_| false);
    if let Ok(merged) = merge(&file(""), &[provider(SPEC, text)], &|_| false) {
        assert!(merge(&file(&merged.run_yaml), &ours, &|_| false).is_ok(), "{}", merged.run_yaml);
    }
});
