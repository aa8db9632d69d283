//! Actions of requests, for the audit log.

use axum::http::Method;
use runway_operator::audit::{Operation, bounded};

use crate::oidc::CALLBACK;
use crate::pages::actions::PARTS;

/// Action and object of a request. `None` if it only reads.
pub fn describe(method: &Method, path: &str) -> Option<Operation> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (action, [part, namespace, name]) = match (method.as_str(), parts.as_slice()) {
        ("POST", ["login"]) => ("sign-in", [""; 3]),
        ("GET", _) if path == CALLBACK => ("sign-in", [""; 3]),
        ("POST", ["logout"]) => ("sign-out", [""; 3]),
        ("POST", ["new"]) => ("create", ["deployments", "", ""]),
        ("POST", &["new", part]) => ("create", [part, "", ""]),
        ("POST", &[part, namespace, name, verb]) => (form(verb), [part, namespace, name]),
        ("GET", &[part @ "actors", namespace, name, "dead-letters", "show"]) => {
            ("read-dead-letters", [part, namespace, name])
        }
        ("POST", &[part, namespace, name, "dead-letters", "redrive"]) => {
            ("redrive-dead-letters", [part, namespace, name])
        }
        ("POST", &[part, namespace, name, "dead-letters", "delete"]) => {
            ("delete-dead-letters", [part, namespace, name])
        }
        ("GET" | "HEAD", _) => return None,
        _ => ("other", [""; 3]),
    };
    let kind = PARTS.into_iter().find(|(known, ..)| *known == part);
    Some(Operation {
        action,
        kind: kind.map_or("", |(_, _, kind)| kind.as_str()),
        namespace: bounded(namespace),
        name: bounded(name),
    })
}

/// Action of a form on the page of an object.
fn form(verb: &str) -> &'static str {
    match verb {
        "pause" => "pause",
        "resume" => "resume",
        "delete" => "delete",
        "edit" => "update",
        "chat" => "infer",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_and_payloads_are_in_the_audit_log() {
        let of = |method: Method, path: &str| {
            describe(&method, path).map(|operation| {
                format!(
                    "{} {} {}/{}",
                    operation.action, operation.kind, operation.namespace, operation.name
                )
            })
        };
        for (path, operation) in [
            ("/login", "sign-in  /"),
            ("/logout", "sign-out  /"),
            ("/new", "create ModelDeployment /"),
            ("/new/actors", "create AsyncActor /"),
            ("/stacks/a/b/edit", "update LlamaStackDistribution a/b"),
            ("/deployments/a/b/edit", "update ModelDeployment a/b"),
            ("/deployments/a/b/chat", "infer ModelDeployment a/b"),
            ("/stacks/a/b/delete", "delete LlamaStackDistribution a/b"),
            ("/actors/a/b/pause", "pause AsyncActor a/b"),
            (
                "/actors/a/b/dead-letters/redrive",
                "redrive-dead-letters AsyncActor a/b",
            ),
            ("/actors/a/b/dead-letters/delete", "delete-dead-letters AsyncActor a/b"),
            ("/anything", "other  /"),
        ] {
            assert_eq!(of(Method::POST, path).as_deref(), Some(operation), "{path}");
        }
        let read = of(Method::GET, "/actors/a/b/dead-letters/show");
        assert_eq!(read.as_deref(), Some("read-dead-letters AsyncActor a/b"));
        assert_eq!(of(Method::GET, CALLBACK).as_deref(), Some("sign-in  /"));
        for path in ["/", "/login", "/deployments", "/deployments/a/b/delete"] {
            assert_eq!(of(Method::GET, path), None, "{path}");
        }
    }
}
