//! Any text as the base configuration, and as a provider's files: merging ends, does not panic, and what it writes can be
//! merged again.

use runway_llama_stack_operator::merge::{File, ProviderFiles, merge};

const SPEC: &str = "apiVersion: llamastack.io/v1alpha1\nkind: ProviderPackage\nmetadata: {name: a, version: 1, vendor: \
                    b}\nspec: {packageName: a.provider, providerType: 'inline::ours', api: inference, wheelPath: a}\n";
const CRD: &str = r#"{"providerId": "a", "api": "inference", "order": 0, "config": {"a": "${env.X:=y}"}}"#;

pub(crate) fn file(text: &str) -> File {
    File {
        path: "file".to_owned(),
        text: Ok(text.to_owned()),
    }
}

pub(crate) fn provider(directory: &str, spec: &str, crd_config: &str) -> ProviderFiles {
    ProviderFiles {
        directory: directory.to_owned(),
        spec: file(spec),
        crd_config: file(crd_config),
    }
}

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let ours = [provider("a", SPEC, CRD)];
    if let Ok(merged) = merge(&file(text), &ours, &|_| true) {
        assert!(
            merge(&file(&merged.run_yaml), &ours, &|_| true).is_ok(),
            "{}",
            merged.run_yaml
        );
    }
    if let Ok(merged) = merge(&file(""), &[provider("a", SPEC, text)], &|_| false) {
        assert!(
            merge(&file(&merged.run_yaml), &ours, &|_| false).is_ok(),
            "{}",
            merged.run_yaml
        );
    }
}
