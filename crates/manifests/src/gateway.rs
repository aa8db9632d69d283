//! The front door of Asya in the cluster: `asya-gateway`, for those who ask for it.
//!
//! It may ask the API server about callers, and keep its certificate, and nothing else. Its jobs are on a volume of its own, so it
//! has one pod.

use super::component::{Claim, Component, Folder, Origin, Port};
use super::transports;

/// Name of the component, and of its program.
pub const NAME: &str = "asya-gateway";
/// Service to which sidecars report progress.
pub const PROGRESS: &str = "asya-gateway-progress";
/// Label of the namespaces from which it may be reached: those of its callers and of the actors, and that of an ingress controller.
pub const CLIENTS_LABEL: &str = "kubeairunway.ai/asya-clients";

/// The administrator's optional Secret with its certificate.
pub const TLS: &str = "asya-gateway-tls";
/// Folder of its volume.
const STORE: &str = "/var/lib/asya-gateway";

/// The gateway.
pub fn gateway() -> Component {
    let port = |name, number, service: &str| Port {
        name,
        number,
        service: (service.to_owned(), 80),
        https: service == NAME,
        from: Origin::Labelled(CLIENTS_LABEL),
    };
    let (variables, mut folders) = transports();
    folders.push(Folder::tls(TLS));
    Component {
        is_controller: false,
        watches: false,
        variables,
        folders,
        claim: Some(Claim {
            path: STORE,
            size: "4Gi",
        }),
        ports: vec![port("gateway", 8000, NAME), port("progress", 8001, PROGRESS)],
        access: runway_callers::access(),
        ..Component::new(NAME)
    }
    .with_authority()
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::*;
    use crate::Release;

    #[test]
    fn its_jobs_are_on_a_volume_that_one_pod_has() {
        let objects = gateway().objects(&Release::default());
        let find = |kind: &str| {
            objects
                .iter()
                .find(|o| o.types.as_ref().is_some_and(|t| t.kind == kind))
                .unwrap()
        };
        let claim = find("PersistentVolumeClaim");
        assert_eq!(claim.data["spec"]["accessModes"], json!(["ReadWriteOnce"]));
        let deployment = find("Deployment");
        assert_eq!(deployment.data["spec"]["strategy"], json!({"type": "Recreate"}));
        assert_eq!(deployment.data["spec"]["replicas"], 1);
        let pod = &deployment.data["spec"]["template"]["spec"];
        let volume = json!({"name": "store", "persistentVolumeClaim": {"claimName": claim.name_any()}});
        assert!(pod["volumes"].as_array().unwrap().contains(&volume), "{pod:#}");
        let tls = json!({"name": "tls", "secret": {"secretName": TLS, "optional": true}});
        assert!(pod["volumes"].as_array().unwrap().contains(&tls), "{pod:#}");
        assert!(
            pod.to_string().contains("serviceAccountToken\""),
            "it asks about callers"
        );
        assert_eq!(pod["securityContext"]["fsGroup"], 65532);
    }
}
