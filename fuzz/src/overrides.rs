//! Any JSON object as `spec.provider.overrides`, for each provider: translation does not panic and is deterministic; undocumented
//! keys change nothing; and no override reaches the name, the namespace or the owner of an object.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use runway_api::ModelDeployment;
use runway_api::overrides::check;
use runway_api::provider_config::OverrideKey;
use runway_manifests::built_in_providers;
use runway_operator::plan::Plan;
use runway_provider::observe::{Observed, Verification};
use runway_provider::{Installed, Provider, plan};
use serde_json::{Map, Value, json};

/// A spec for each way that a provider serves.
static SPECS: LazyLock<[Value; 4]> = LazyLock::new(|| {
    let gpu = json!({"gpu": {"count": 1}});
    let part = json!({"replicas": 1, "gpu": {"count": 1}});
    [
        json!({"model": {"id": "a/b"}, "engine": {"type": "vllm"}, "resources": gpu}),
        json!({"model": {"id": "a/b"}, "engine": {"type": "vllm"}, "resources": gpu, "image": "vllm:1", "scaling": {"replicas": 2}}),
        json!({"model": {"id": "a/b"}, "engine": {"type": "vllm"}, "serving": {"mode": "disaggregated"}, "scaling": {"prefill": part, "decode": part}}),
        json!({"model": {"source": "custom"}, "engine": {"type": "llamacpp"}, "image": "llama:1"}),
    ]
});

/// A provider and what it documents.
type Documented = (Arc<dyn Provider>, Vec<OverrideKey>);

static PROVIDERS: LazyLock<Vec<Documented>> = LazyLock::new(|| {
    let documented = |provider: Arc<dyn Provider>| {
        let keys = provider.registration().overrides.unwrap_or_default();
        (provider, keys)
    };
    built_in_providers().into_iter().map(documented).collect()
});

pub fn run(data: &[u8]) {
    let Ok(overrides) = serde_json::from_slice::<Map<String, Value>>(data) else {
        return;
    };
    for (provider, keys) in PROVIDERS.iter() {
        let known = known("", &overrides, keys);
        let usable = check(&overrides, keys).iter().all(|finding| !finding.is_error());
        for spec in SPECS.iter() {
            let plan = planned(provider.as_ref(), spec, &overrides);
            assert_eq!(reported(&plan), reported(&planned(provider.as_ref(), spec, &overrides)));
            contained(provider.as_ref(), &plan);
            if usable {
                assert_eq!(
                    objects(&plan),
                    objects(&planned(provider.as_ref(), spec, &known)),
                    "{}",
                    provider.name()
                );
            } else {
                assert!(
                    plan.apply.is_empty(),
                    "{}: overrides that cannot be used are used",
                    provider.name()
                );
            }
        }
    }
}

fn planned(provider: &dyn Provider, spec: &Value, overrides: &Map<String, Value>) -> Plan {
    let mut spec = spec.clone();
    spec["provider"] = json!({"name": provider.name(), "overrides": overrides});
    let md = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "spec": spec,
        "metadata": {"name": "md", "namespace": "here", "uid": "uid-of-md", "generation": 1, "finalizers": ["kubeairunway.ai/provider-cleanup"]},
    });
    plan_of(provider, serde_json::from_value(md).unwrap())
}

/// The plan of a provider for a ModelDeployment that the core has validated and given to it.
pub(crate) fn plan_of(provider: &dyn Provider, mut md: ModelDeployment) -> Plan {
    let status = json!({
        "provider": {"name": provider.name()},
        "conditions": [{
            "type": "Validated", "status": "True", "reason": "ValidationPassed", "message": "", "lastTransitionTime": crate::NOW,
            "observedGeneration": md.metadata.generation,
        }],
    });
    md.status = Some(serde_json::from_value(status).unwrap());
    let seen = Observed {
        md: Arc::new(md),
        installed: Installed::newest(&provider.upstreams()),
        invalid_settings: None,
        children: Vec::new(),
        pods: None,
        outage: None,
        verification: Verification::Off,
        answer_timeout: Duration::from_secs(10),
        now: crate::NOW,
    };
    plan::plan(provider, &seen)
}

/// The documented part of the overrides.
fn known(prefix: &str, overrides: &Map<String, Value>, keys: &[OverrideKey]) -> Map<String, Value> {
    let keep = |(key, value): (&String, &Value)| {
        let path = format!("{prefix}{key}");
        if keys.iter().any(|documented| documented.path == path) {
            return Some((key.clone(), value.clone()));
        }
        let below = format!("{path}.");
        let inner = value
            .as_object()
            .filter(|_| keys.iter().any(|documented| documented.path.starts_with(&below)))?;
        Some((key.clone(), self::known(&below, inner, keys).into()))
    };
    overrides.iter().filter_map(keep).collect()
}

/// Every object is a child that the provider names, in the namespace of its ModelDeployment, which owns it.
pub(crate) fn contained(provider: &dyn Provider, plan: &Plan) {
    let children = provider.children("md");
    for apply in &plan.apply {
        let object = serde_json::to_value(&apply.object).unwrap();
        let metadata = &object["metadata"];
        let is_child =
            |child: &runway_provider::ChildRef| object["kind"] == child.kind.kind && metadata["name"] == *child.name;
        assert!(children.iter().any(is_child), "{object}");
        assert_eq!(metadata["namespace"], "here");
        assert_eq!(metadata["ownerReferences"].as_array().map(Vec::len), Some(1));
        assert_eq!(metadata["ownerReferences"][0]["uid"], "uid-of-md");
        assert!(apply.object.data.get("metadata").is_none(), "{object}");
    }
}

fn objects(plan: &Plan) -> Vec<Value> {
    plan.apply.iter().map(|apply| json!(apply.object)).collect()
}

pub(crate) fn reported(plan: &Plan) -> String {
    format!("{plan:?}")
}
