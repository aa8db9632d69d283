//! The web console in the cluster: `kubeairunway ui --login`, for those who ask for it.
//!
//! It has no permissions and no token: it acts with the credentials of the signed-in user. Only where it is configured to
//! impersonate, it has a token, and with it the one right to do that.

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_operator::access::rule;

use super::component::{Component, Content, Folder, Origin, Port};

/// Name of the component.
pub const NAME: &str = "kubeairunway-console";
/// The program, which is also what users have on their machines.
pub const PROGRAM: &str = "kubeairunway";
/// Default URL, reached through `kubectl port-forward`.
pub const DEFAULT_URL: &str = "http://localhost:8080";
/// The administrator's optional Secrets for it, each with where it is mounted: certificate and key (`tls.crt`, `tls.key`), and
/// what the issuer of OpenID Connect takes (`client-secret`, `ca.crt`).
pub const SECRETS: [(&str, &str, &str); 2] = [
    ("tls", "kubeairunway-console-tls", "/etc/kubeairunway/tls"),
    ("oidc", "kubeairunway-console-oidc", "/etc/kubeairunway/oidc"),
];

/// Label of the namespaces from which it may be reached, such as that of an ingress controller. `kubectl port-forward` needs
/// none: it comes from the node.
pub const CLIENTS_LABEL: &str = "kubeairunway.ai/console-clients";

/// Port in the pod.
const PORT: u16 = 8000;
const IMPERSONATE: &str = "--impersonate";

/// Arguments of every console in a cluster; its settings follow them.
pub fn own_arguments() -> Vec<String> {
    let address = format!("--address=0.0.0.0:{PORT}");
    ["ui", "--login", &address, "--admin-address=0.0.0.0:8080"]
        .map(str::to_owned)
        .into()
}

/// The console, with arguments of `kubeairunway ui --login`.
pub fn console(settings: &[String]) -> Component {
    let mut args = own_arguments();
    args.extend(settings.iter().cloned());
    if !settings.iter().any(|arg| arg.starts_with("--public-url")) {
        args.push(format!("--public-url={DEFAULT_URL}"));
    }
    let impersonates = settings.iter().any(|arg| arg == IMPERSONATE);
    Component {
        program: PROGRAM.to_owned(),
        is_controller: false,
        watches: false,
        has_token: impersonates,
        folders: SECRETS
            .map(|(name, secret, path)| Folder {
                name,
                path: path.to_owned(),
                content: Content::Secret(secret),
            })
            .into(),
        ports: vec![Port {
            name: "console",
            number: PORT,
            service: (NAME.to_owned(), 80),
            https: false,
            from: Origin::Labelled(CLIENTS_LABEL),
        }],
        access: if impersonates {
            impersonation(settings)
        } else {
            Vec::new()
        },
        args,
        ..Component::new(NAME)
    }
}

/// Settings of an installed console, from the arguments of its container.
pub fn settings(args: &[String]) -> Vec<String> {
    let own = own_arguments();
    args.iter().filter(|arg| !own.contains(arg)).cloned().collect()
}

/// Rules for impersonation. Without a list they include all users and groups, also `system:masters`: the program rejects it,
/// but a role cannot.
fn impersonation(settings: &[String]) -> Vec<PolicyRule> {
    [("users", "--impersonate-users="), ("groups", "--impersonate-groups=")]
        .map(|(resource, flag)| {
            let lists = settings.iter().filter_map(|arg| arg.strip_prefix(flag));
            let names: Vec<String> = lists
                .flat_map(|list| list.split(','))
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect();
            PolicyRule {
                resource_names: (!names.is_empty()).then_some(names),
                ..rule("", &[resource], &["impersonate"])
            }
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Release;
    use serde_json::Value;

    fn pod(settings: &[&str]) -> (Value, Vec<String>) {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let objects = console(&settings).objects(&Release::default());
        let kinds = objects
            .iter()
            .map(|o| o.types.clone().unwrap_or_default().kind)
            .collect();
        let deployment = objects
            .iter()
            .find(|o| o.types.as_ref().is_some_and(|t| t.kind == "Deployment"));
        (deployment.unwrap().data["spec"]["template"]["spec"].clone(), kinds)
    }

    #[test]
    fn it_has_no_rights_and_no_token_unless_it_impersonates() {
        let (bare, kinds) = pod(&["--public-url=https://console.example.com"]);
        assert_eq!(bare["automountServiceAccountToken"], false);
        assert!(!bare.to_string().contains("serviceAccountToken\""), "{bare:#}");
        assert!(!kinds.iter().any(|kind| kind.contains("Role")), "{kinds:?}");

        let (pod, kinds) = pod(&["--impersonate", "--impersonate-groups=team-a,team-b"]);
        assert!(pod.to_string().contains("serviceAccountToken\""), "{pod:#}");
        assert!(kinds.iter().any(|kind| kind == "ClusterRoleBinding"), "{kinds:?}");
        let settings = [
            "--impersonate".to_owned(),
            "--impersonate-groups=team-a,team-b".to_owned(),
        ];
        let access = console(&settings).access;
        assert_eq!(access[0].resource_names, None);
        let groups = ["team-a", "team-b"].map(str::to_owned).to_vec();
        assert_eq!(access[1].resource_names, Some(groups));
    }

    #[test]
    fn settings_are_read_from_the_container() {
        let reported = ["--public-url=https://a".to_owned(), "--impersonate".to_owned()];
        assert_eq!(settings(&console(&reported).args), reported);
    }
}
