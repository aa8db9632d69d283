//! Required settings of the webhook configurations.

use runway_operator::webhook::Endpoint;
use serde_json::{Value, json};

use crate::admission::manifests::{mutating, validating};

fn both(endpoint: &Endpoint) -> [Value; 2] {
    [
        serde_json::to_value(mutating(endpoint)).unwrap(),
        serde_json::to_value(validating(endpoint)).unwrap(),
    ]
}

#[test]
fn webhooks_fail_open() {
    let endpoint = Endpoint::Service {
        namespace: "system".to_owned(),
        name: "controller".to_owned(),
        port: 443,
    };
    for configuration in both(&endpoint) {
        let webhook = &configuration["webhooks"][0];
        assert_eq!(webhook["failurePolicy"], "Ignore");
        assert_eq!(webhook["timeoutSeconds"], 5);
        assert_eq!(webhook["sideEffects"], "None");
        assert_eq!(webhook["matchPolicy"], "Equivalent");
        let rule = json!({
            "apiGroups": ["kubeairunway.ai"],
            "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["modeldeployments"],
            "scope": "Namespaced",
        });
        assert_eq!(webhook["rules"], json!([rule]));
        assert_eq!(webhook["clientConfig"].get("caBundle"), None);
    }
}

#[test]
fn the_server_is_behind_a_service_or_at_a_url() {
    let service = Endpoint::Service {
        namespace: "system".to_owned(),
        name: "controller".to_owned(),
        port: 8443,
    };
    let [mutating, validating] = both(&service);
    assert_eq!(
        mutating["webhooks"][0]["clientConfig"],
        json!({"service": {"namespace": "system", "name": "controller", "port": 8443, "path": "/mutate"}})
    );
    assert_eq!(
        validating["webhooks"][0]["clientConfig"]["service"]["path"],
        "/validate"
    );

    let [mutating, validating] = both(&Endpoint::Url("https://127.0.0.1:9443/".to_owned()));
    assert_eq!(
        mutating["webhooks"][0]["clientConfig"],
        json!({"url": "https://127.0.0.1:9443/mutate"})
    );
    assert_eq!(
        validating["webhooks"][0]["clientConfig"],
        json!({"url": "https://127.0.0.1:9443/validate"})
    );
}
