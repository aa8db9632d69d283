//! The certificate authority of a server for callers: the program keeps it, and every user of the cluster may read its certificate.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding, Subject};
use runway_operator::access::{named, rule};
use runway_operator::listen;

use super::component::Component;
use super::metadata::{NAMESPACE, meta, object};
use super::roles::role_ref;

impl Component {
    /// Serves the ports for callers over HTTPS, with a certificate of an authority of its own: `NAME-ca`.
    #[must_use]
    pub(super) fn with_authority(mut self) -> Self {
        let name = format!("{}-ca", self.name);
        let component = self.name.as_str();
        // The program writes the certificate into it.
        let published = ConfigMap {
            metadata: meta(component, &name, Some(NAMESPACE)),
            ..ConfigMap::default()
        };
        let may_read = Role {
            metadata: meta(component, &name, Some(NAMESPACE)),
            rules: Some(vec![named(rule("", &["configmaps"], &["get"]), &[&name])]),
        };
        let everybody = RoleBinding {
            metadata: meta(component, &name, Some(NAMESPACE)),
            role_ref: role_ref("Role", &name),
            subjects: Some(vec![Subject {
                kind: "Group".to_owned(),
                name: "system:authenticated".to_owned(),
                namespace: None,
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
            }]),
        };
        self.extra
            .extend([object(&published), object(&may_read), object(&everybody)]);
        self.access_in_namespace.extend(listen::access_in_namespace(&name));
        self.args.push(format!("--tls-authority={name}"));
        self
    }
}
