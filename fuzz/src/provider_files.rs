//! Any text as `lls-provider-spec.yaml` and `crd-config.yaml` of an external provider, whose image is not ours: reading ends without
//! a panic, gives the same twice, and what comes of it is a configuration that can be merged again.

use runway_llama_stack_operator::merge::merge;

use crate::merge::{file, provider};

const BASE: &str =
    "version: 2\napis: [inference]\nproviders:\n  inference:\n  - provider_id: here\n    provider_type: remote::vllm\n";

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let (spec, crd_config) = text.split_once('\0').unwrap_or((text, ""));
    let providers = [provider("a", spec, crd_config)];
    let merged = merge(&file(BASE), &providers, &|path| path.len() % 2 == 0);
    assert_eq!(
        format!("{merged:?}"),
        format!("{:?}", merge(&file(BASE), &providers, &|path| path.len() % 2 == 0))
    );
    if let Ok(merged) = merged {
        let again = merge(&file(&merged.run_yaml), &providers, &|path| path.len() % 2 == 0);
        assert!(again.is_ok(), "{}", merged.run_yaml);
        let is_overridden = merged
            .warnings
            .iter()
            .any(|warning| warning.contains("overrides base provider"));
        assert!(
            is_overridden || merged.run_yaml.contains("remote::vllm"),
            "the base is lost: {}",
            merged.run_yaml
        );
    }
}
