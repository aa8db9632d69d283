//! The pod around the two containers: what it demands of them. Pure.

use serde_json::{Value, json};

use crate::request::{RUNTIME, SIDECAR};

/// User of the sidecar's image, by number.
const SIDECAR_USER: i64 = 65532;

/// Demands of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Surroundings {
    /// The other containers must not run as root, so a namespace may refuse those that can.
    non_root: bool,
    /// The pod runs as root, which the image of the sidecar need not.
    root: bool,
    /// The other containers have limits equal to their requests: the pod has the QoS class Guaranteed.
    guaranteed: bool,
}

impl Surroundings {
    /// A pod of the operator's own.
    pub(super) const OWN: Self = Self {
        non_root: true,
        root: false,
        guaranteed: false,
    };

    /// A pod with other containers, which decide.
    pub(super) fn of(pod: &Value) -> Self {
        let list = |name: &str| pod[name].as_array().into_iter().flatten();
        let is_other = |container: &&Value| container["name"] != SIDECAR && container["name"] != RUNTIME;
        let others: Vec<&Value> = list("containers").filter(is_other).collect();
        let identity = &pod["securityContext"];
        let non_root = |container: &&Value| {
            let own = &container["securityContext"]["runAsNonRoot"];
            own == true || own.is_null() && identity["runAsNonRoot"] == true
        };
        let mut all = others.iter().copied().chain(list("initContainers"));
        Self {
            non_root: !others.is_empty() && others.iter().all(non_root),
            root: identity["runAsUser"] == 0,
            guaranteed: !others.is_empty() && all.all(is_guaranteed),
        }
    }

    /// `securityContext` of the sidecar.
    pub(super) fn of_sidecar(self) -> Value {
        let mut context = restricted();
        context["readOnlyRootFilesystem"] = json!(true);
        context["runAsNonRoot"] = json!(true);
        if self.root {
            context["runAsUser"] = json!(SIDECAR_USER);
        }
        context
    }

    /// `securityContext` of the runtime, whose image can need root.
    pub(super) fn of_runtime(self) -> Value {
        let mut context = restricted();
        if self.non_root {
            context["runAsNonRoot"] = json!(true);
        }
        context
    }

    /// Default resources of the sidecar.
    pub(super) fn resources_of_sidecar(self) -> Value {
        if self.guaranteed {
            return equal("100m", "256Mi");
        }
        json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}})
    }

    /// Default resources of the runtime. An autoscaler by CPU needs the request of each container.
    pub(super) fn resources_of_runtime(self) -> Value {
        if self.guaranteed {
            return equal("500m", "512Mi");
        }
        json!({"requests": {"cpu": "10m", "memory": "64Mi"}})
    }

    /// Whether these containers take the QoS class Guaranteed from the pod.
    pub(super) fn loses_guarantee(self, added: &[Value]) -> bool {
        self.guaranteed && !added.iter().all(is_guaranteed)
    }
}

/// Settings that Pod Security `restricted` requires and every image accepts.
fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

fn equal(cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({"requests": amounts, "limits": amounts})
}

/// Whether limits are set, and requests are absent or the same.
fn is_guaranteed(container: &Value) -> bool {
    let amounts = &container["resources"];
    ["cpu", "memory"].iter().all(|name| {
        let (limit, request) = (&amounts["limits"][name], &amounts["requests"][name]);
        !limit.is_null() && (request.is_null() || request == limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_the_pod_decide() {
        let plain = json!({"containers": [{"name": "model"}]});
        let of = Surroundings::of(&plain);
        assert_eq!((of.non_root, of.root, of.guaranteed), (false, false, false));

        let compliant = json!({"containers": [
            {"name": "model", "securityContext": {"runAsNonRoot": true}},
            {"name": RUNTIME},
        ]});
        assert!(Surroundings::of(&compliant).non_root);
        let by_pod =
            json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 1000}, "containers": [{"name": "model"}]});
        assert!(Surroundings::of(&by_pod).non_root);
        let root = json!({"securityContext": {"runAsUser": 0}, "containers": [{"name": "model"}]});
        assert_eq!(Surroundings::of(&root).of_sidecar()["runAsUser"], SIDECAR_USER);
        assert!(Surroundings::of(&plain).of_sidecar()["runAsUser"].is_null());
    }

    #[test]
    fn guaranteed_pods_stay_guaranteed() {
        let equal = json!({"limits": {"cpu": "4", "memory": "16Gi"}, "requests": {"cpu": "4", "memory": "16Gi"}});
        let limits_only = json!({"limits": {"cpu": "4", "memory": "16Gi"}});
        for resources in [equal, limits_only] {
            let pod = json!({"containers": [{"name": "model", "resources": resources}]});
            let surroundings = Surroundings::of(&pod);
            let of = |resources: Value| json!({"resources": resources});
            let ours = [
                of(surroundings.resources_of_sidecar()),
                of(surroundings.resources_of_runtime()),
            ];
            assert!(!surroundings.loses_guarantee(&ours));
            assert!(surroundings.loses_guarantee(&[json!({"resources": {"requests": {"cpu": "1"}}})]));
        }
        let burstable = json!({"containers": [{"name": "model", "resources": {"limits": {"memory": "16Gi"}}}]});
        assert!(!Surroundings::of(&burstable).guaranteed);
    }
}
