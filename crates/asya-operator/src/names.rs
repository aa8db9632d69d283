//! Names of what is made for an actor. Pure.

use runway_operator::json;

/// Ends of a route (wire protocol, section 4).
pub const HAPPY_END: &str = "happy-end";
/// Where errors go.
pub const ERROR_END: &str = "error-end";
/// The ConfigMap with the runtime for standalone actors, one a namespace.
pub const RUNTIME_CONFIG_MAP: &str = "asya-runtime";
/// Its key.
pub const RUNTIME_SCRIPT: &str = "asya_runtime.py";

/// KEDA names its HPA `keda-hpa-NAME`, which must fit into 63 characters.
const SCALER_MAX: usize = 54;
/// Deployments become label values.
const NAME_MAX: usize = 63;

/// The queue of an actor (wire protocol, section 1).
pub fn queue(namespace: &str, actor: &str) -> String {
    format!("asya-{namespace}_{actor}")
}

/// Its dead-letter queue.
pub fn dead_letters(queue: &str) -> String {
    format!("{queue}_dlq")
}

/// The Deployment of a proxy: never the target's name, whatever it is.
pub fn proxy(actor: &str) -> String {
    shortened(format!("{actor}-asya"), NAME_MAX)
}

/// The ScaledObject: never the name of a target, whose controller may delete what is called so (Seldon does).
pub fn scaler(actor: &str) -> String {
    shortened(format!("asya-{actor}"), SCALER_MAX)
}

/// The ScaledObject of a proxy's target.
pub fn target_scaler(actor: &str) -> String {
    shortened(format!("asya-{actor}-target"), SCALER_MAX)
}

/// The TriggerAuthentication.
pub fn authentication(actor: &str) -> String {
    shortened(format!("{actor}-trigger-auth"), NAME_MAX)
}

/// The abstract socket between the two containers: pods share one name space, hosts with host networking too.
pub fn socket(namespace: &str, actor: &str) -> String {
    // The kernel takes 107 bytes.
    shortened(format!("@asya-runtime-{namespace}-{actor}"), 107)
}

/// Cut, with a hash of the whole, where it is too long.
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
    fn long_names_stay_within_bounds_and_apart() {
        let long = "a".repeat(62);
        let (b, c) = (format!("{long}b"), format!("{long}c"));
        assert!(scaler(&b).len() <= 54 && scaler(&b) != scaler(&c), "{}", scaler(&b));
        assert!(proxy(&b).len() <= 63);
        assert_eq!(queue("team", "step"), "asya-team_step");
        assert_eq!(scaler("step"), "asya-step");
    }
}
