//! The model router in the cluster: `kubeairunway-gateway`, for those who ask for it.
//!
//! It may read ModelDeployments and Services, scale ModelDeployments, ask the API server about callers, and keep its certificate and
//! the use by day, and nothing else.

use k8s_openapi::api::core::v1::ConfigMap;
use runway_api::{daily_usage, labels};
use runway_router::routes::settings::OWN_PICKER;

use super::component::{Component, Content, Folder, Origin, Port};
use super::metadata::{NAMESPACE, meta, object};

/// Name of the component, and of its program.
pub const NAME: &str = labels::ROUTER_MANAGER;
/// Label of the namespaces from which it may be reached: those of its callers, and that of an ingress controller.
pub const CLIENTS_LABEL: &str = "kubeairunway.ai/model-clients";
/// The administrator's optional Secret with the keys of callers that have no token of the cluster.
pub const KEYS: &str = "kubeairunway-gateway-keys";
/// The administrator's optional Secret with its certificate.
pub const TLS: &str = "kubeairunway-gateway-tls";
/// The administrator's optional ConfigMap with limits of requests and tokens.
pub const LIMITS: &str = "kubeairunway-router-limits";
/// Key of the ConfigMap with the limits.
pub const LIMITS_FILE: &str = "limits.yaml";
/// Port of the endpoint picker, which the router is with `--endpoint-picker-address`.
const PICKER_PORT: u16 = 9002;
/// Mount path of the keys.
const KEYS_PATH: &str = "/etc/kubeairunway/gateway-keys";
/// Mount path of the limits.
const LIMITS_PATH: &str = "/etc/kubeairunway/router-limits";

/// The router. With two pods, one can stop without an interruption.
pub fn router() -> Component {
    // The routers write the use by day into it.
    let usage = ConfigMap {
        metadata: meta(NAME, daily_usage::CONFIG_MAP, Some(NAMESPACE)),
        ..ConfigMap::default()
    };
    Component {
        is_controller: false,
        replicas: 2,
        // The defaults of --shutdown-delay and --drain, and some time to end.
        grace_seconds: Some(5 + 120 + 5),
        // Bodies have 64 MiB (--memory), and each of 12,000 requests (--largest-requests) at most 64 KiB beside its body: 4 KiB that
        // are always received, and the buffers of two connections.
        memory_limit: "1Gi",
        folders: vec![
            Folder {
                name: "keys",
                path: KEYS_PATH.to_owned(),
                content: Content::Secret(KEYS),
            },
            Folder {
                name: "limits",
                path: LIMITS_PATH.to_owned(),
                content: Content::ConfigMap(LIMITS),
            },
            Folder::tls(TLS),
        ],
        ports: vec![
            Port {
                name: "models",
                number: 8000,
                service: (NAME.to_owned(), 80),
                https: true,
                from: Origin::Labelled(CLIENTS_LABEL),
            },
            Port {
                name: "picker",
                number: PICKER_PORT,
                service: (OWN_PICKER.to_owned(), PICKER_PORT),
                https: false,
                from: Origin::Labelled(CLIENTS_LABEL),
            },
        ],
        access: runway_router::access(),
        access_in_namespace: vec![runway_router::daily::access_in_namespace()],
        extra: vec![object(&usage)],
        ..Component::new(NAME)
    }
    .with_authority()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Release;

    #[test]
    fn it_may_read_and_scale_models_and_ask_about_callers() {
        let rules = router().access;
        let rights: Vec<String> = rules
            .iter()
            .map(|rule| {
                let resources = rule.resources.clone().unwrap_or_default();
                format!("{} {}", resources.join(","), rule.verbs.join(","))
            })
            .collect();
        assert_eq!(
            rights,
            [
                "modeldeployments list,watch",
                "modeldeployments/scale get,update",
                "services list,watch",
                "endpointslices list,watch",
                "tokenreviews create",
                "subjectaccessreviews create",
                "events create,patch",
            ]
        );
    }

    #[test]
    fn endpoint_picker_has_a_service_for_references_from_other_namespaces() {
        let objects = router().objects(&Release::default());
        let service = objects
            .iter()
            .find(|o| o.metadata.name.as_deref() == Some(OWN_PICKER))
            .unwrap();
        let port = json!([{ "name": "picker", "port": 9002, "targetPort": "picker", "protocol": "TCP" }]);
        assert_eq!(service.data["spec"]["ports"], port);
    }

    #[test]
    fn pod_ends_after_the_requests_in_flight() {
        let objects = router().objects(&Release::default());
        let deployment = objects
            .iter()
            .find(|o| o.types.as_ref().is_some_and(|t| t.kind == "Deployment"))
            .unwrap();
        let pod = &deployment.data["spec"]["template"]["spec"];
        assert_eq!(pod["terminationGracePeriodSeconds"], 130);
        for (name, secret) in [("keys", KEYS), ("tls", TLS)] {
            let volume = json!({ "name": name, "secret": { "secretName": secret, "optional": true } });
            assert!(pod["volumes"].as_array().unwrap().contains(&volume), "{pod:#}");
        }
    }
}
