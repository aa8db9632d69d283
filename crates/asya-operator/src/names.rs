//! Names of the objects and queues of an actor. Pure.

use runway_operator::json;

use crate::transports::{RabbitMq, SecretKey};

/// Actor at which successful routes end (`docs/reference/asya-protocol.md` section 4).
pub const HAPPY_END: &str = "happy-end";
/// Actor at which failed routes end.
pub const ERROR_END: &str = "error-end";
/// ConfigMap with the runtime for standalone actors, one per namespace.
pub const RUNTIME_CONFIG_MAP: &str = "asya-runtime";
/// Key of the runtime in the ConfigMap.
pub const RUNTIME_SCRIPT: &str = "asya_runtime.py";

/// Secret with the user of a namespace at the broker, one per namespace.
pub const BROKER_SECRET: &str = "asya-broker";
/// Pod that is only sent as a dry run.
pub const TRIAL_POD: &str = "asya-admission-check";
/// Volume with the credentials of the sidecar.
pub const CREDENTIALS: &str = "asya-credentials";
/// Folder in which the sidecar finds them.
pub const CREDENTIALS_DIR: &str = "/var/run/secrets/asya";
/// Key of the name of the user.
pub const BROKER_USERNAME: &str = "username";
/// Key of its password.
pub const BROKER_PASSWORD: &str = "password";

/// Secret and key with the password of the sidecars of a namespace, if they have one.
pub fn password(rabbit: &RabbitMq) -> Option<SecretKey> {
    let own = rabbit.tenants.as_ref().map(|_| SecretKey {
        name: BROKER_SECRET.to_owned(),
        key: BROKER_PASSWORD.to_owned(),
    });
    own.or_else(|| rabbit.password_secret_ref.clone())
}

/// KEDA names its HPA `keda-hpa-NAME`, which must fit into 63 characters.
const SCALER_MAX: usize = 54;
/// Names of Deployments become label values.
const NAME_MAX: usize = 63;

/// Name of an actor's queue (`docs/reference/asya-protocol.md` section 1).
pub fn queue(namespace: &str, actor: &str) -> String {
    format!("asya-{namespace}_{actor}")
}

/// Name of an actor's queue in the public Asya v0.1.
pub fn alias(actor: &str) -> String {
    runway_asya_transport::queues::public(actor)
}

/// Name of the dead-letter queue of a queue.
pub fn dead_letters(queue: &str) -> String {
    format!("{queue}_dlq")
}

/// Name of a proxy's Deployment, which differs from every possible name of the target.
pub fn proxy(actor: &str) -> String {
    shortened(format!("{actor}-asya"), NAME_MAX)
}

/// Name of the ScaledObject, which differs from that of the target: some controllers, such as Seldon's, delete ScaledObjects with
/// the name of their own object.
pub fn scaler(actor: &str) -> String {
    shortened(format!("asya-{actor}"), SCALER_MAX)
}

/// Name of the ScaledObject for the target of a proxy.
pub fn target_scaler(actor: &str) -> String {
    shortened(format!("asya-{actor}-target"), SCALER_MAX)
}

/// Name of the TriggerAuthentication and its ConfigMap.
pub fn authentication(actor: &str) -> String {
    shortened(format!("{actor}-trigger-auth"), NAME_MAX)
}

/// Abstract socket between the two containers. Pods with host networking share one namespace of sockets, so the name is unique in
/// the cluster.
pub fn socket(namespace: &str, actor: &str) -> String {
    // Limit of the Linux kernel.
    shortened(format!("@asya-runtime-{namespace}-{actor}"), 107)
}

/// Shortens a name that is too long, and appends a hash of the whole.
fn shortened(name: String, max: usize) -> String {
    if name.len() <= max {
        return name;
    }
    let hash = json::hash(&name);
    let kept = name.floor_char_boundary(max - hash.len() - 1);
    format!("{}-{hash}", name[..kept].trim_end_matches(['-', '_']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened_and_stay_unique() {
        let long = "a".repeat(62);
        let (b, c) = (format!("{long}b"), format!("{long}c"));
        assert!(scaler(&b).len() <= 54 && scaler(&b) != scaler(&c), "{}", scaler(&b));
        assert!(proxy(&b).len() <= 63);
        assert_eq!(queue("team", "step"), "asya-team_step");
        assert_eq!(scaler("step"), "asya-step");
    }
}
