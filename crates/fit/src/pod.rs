//! A pod's requirements of its node: requests, selectors, tolerations, host ports, and settings that are not modelled.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, NodeSelector, Pod, PodSpec, Toleration, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use runway_operator::quantity::nanos;

use super::amount::{self, Amounts, Nanos};

/// Scheduler of pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A port of the node that a pod needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostPort {
    ip: String,
    protocol: String,
    port: i32,
}

impl HostPort {
    /// Whether two pods with these ports cannot share a node.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let is_any = |ip: &str| ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || is_any(&self.ip) || is_any(&other.ip))
    }
}

/// Requirements of one pod.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Requests, as the scheduler counts them.
    pub requests: Amounts,
    pub(super) selector: BTreeMap<String, String>,
    pub(super) affinity: Option<NodeSelector>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) ports: Vec<HostPort>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) namespace: String,
    pub(super) priority: i32,
    /// The pod may evict pods below this priority.
    pub(super) evicts_below: Option<i32>,
    /// Whether the API server has completed the pod: defaults, LimitRanges, webhooks.
    pub(super) is_complete: bool,
    /// Whether the pod keeps others away, by required anti-affinity.
    pub(super) repels: bool,
    /// Whether an upstream operator may add tolerations.
    pub(super) may_tolerate: bool,
    /// Requirements that are not modelled. They can only exclude further nodes.
    pub limits: Vec<String>,
    /// Settings that make any prediction impossible.
    pub opaque: Vec<String>,
}

impl Ask {
    /// Reads the requirements of a pod. `is_complete`: the API server has completed it.
    pub fn new(pod: &Pod, is_complete: bool) -> Self {
        let metadata = &pod.metadata;
        let spec = pod.spec.clone().unwrap_or_default();
        let affinity = spec.affinity.clone().unwrap_or_default();
        let anti = affinity.pod_anti_affinity.unwrap_or_default();
        let affinity = affinity.node_affinity;
        let class = spec.priority_class_name.as_deref().unwrap_or_default();
        // Without the API server's answer the value of a class is unknown: it may be above all others.
        let priority = spec.priority.unwrap_or(if class.is_empty() { 0 } else { i32::MAX });
        Self {
            requests: requests(&spec),
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution),
            tolerations: tolerations(&spec),
            ports: ports(&spec),
            labels: metadata.labels.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            priority,
            evicts_below: (spec.preemption_policy.as_deref() != Some("Never")).then_some(priority),
            is_complete,
            repels: anti
                .required_during_scheduling_ignored_during_execution
                .is_some_and(|terms| !terms.is_empty()),
            may_tolerate: false,
            limits: limits(&spec, is_complete),
            opaque: opaque(&spec),
        }
    }
}

/// Requests of a pod: `PodRequests` of k8s.io/component-helpers 0.36 (resource/helpers.go).
pub(super) fn requests(spec: &PodSpec) -> Amounts {
    let mut sum = Nanos::new();
    for container in &spec.containers {
        add(&mut sum, &of_container(container));
    }
    let (mut sidecars, mut highest) = (Nanos::new(), Nanos::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container);
        let during = if is_sidecar(container) {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            sidecars.clone()
        } else {
            let mut during = sidecars.clone();
            add(&mut during, &own);
            during
        };
        raise(&mut highest, during);
    }
    raise(&mut sum, highest);
    let whole = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    for (name, quantity) in whole.into_iter().flatten() {
        let is_supported = name == amount::CPU || name == "memory" || name.starts_with("hugepages-");
        if let Some(value) = nanos(&quantity.0).filter(|_| is_supported) {
            sum.insert(name, value);
        }
    }
    for (name, quantity) in spec.overhead.iter().flatten() {
        if let Some(value) = nanos(&quantity.0) {
            *sum.entry(name).or_default() += value;
        }
    }
    amount::counted(&sum)
}

/// Requests of a pod on a node: of its spec, or of its containers' status if a resize has not been completed. The larger one
/// counts, as in `determineEffectiveRequests`.
pub(super) fn requests_in_use(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let statuses = pod.status.as_ref();
    let of = |name: &str| {
        let statuses = statuses?;
        let all = statuses.container_statuses.iter().flatten();
        let mut all = all.chain(statuses.init_container_statuses.iter().flatten());
        all.find(|status| status.name == name)
    };
    let mut changed = None;
    for (index, container) in spec.containers.iter().enumerate() {
        if let Some(larger) = of(&container.name).and_then(|status| resized(container, status)) {
            let copy = changed.get_or_insert_with(|| spec.clone());
            let larger = larger.into_iter();
            let larger = larger.map(|(name, value)| (name.to_owned(), Quantity(format!("{value}n"))));
            if let Some(container) = copy.containers.get_mut(index) {
                container.resources.get_or_insert_default().requests = Some(larger.collect());
            }
        }
    }
    requests(changed.as_ref().unwrap_or(spec))
}

/// The larger requests of a container whose resize has not been completed.
fn resized<'a>(container: &'a Container, status: &'a ContainerStatus) -> Option<Nanos<'a>> {
    let actual = status.resources.as_ref().and_then(|r| r.requests.as_ref());
    if actual.is_none() && status.allocated_resources.is_none() {
        return None;
    }
    let mut larger = of_container(container);
    for quantities in [actual, status.allocated_resources.as_ref()].into_iter().flatten() {
        raise(&mut larger, read(quantities).collect());
    }
    (larger != of_container(container)).then_some(larger)
}

/// Requests of a container; the API server sets a missing request to the limit.
fn of_container(container: &Container) -> Nanos<'_> {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|r| r.limits.as_ref()).into_iter().flatten();
    let requests = resources.and_then(|r| r.requests.as_ref()).into_iter().flatten();
    read(limits.chain(requests)).collect()
}

fn read<'a>(quantities: impl IntoIterator<Item = (&'a String, &'a Quantity)>) -> impl Iterator<Item = (&'a str, i128)> {
    let read = |(name, quantity): (&'a String, &'a Quantity)| Some((name.as_str(), nanos(&quantity.0)?));
    quantities.into_iter().filter_map(read)
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn add<'a>(to: &mut Nanos<'a>, more: &Nanos<'a>) {
    for (name, value) in more {
        *to.entry(name).or_default() += value;
    }
}

fn raise<'a>(to: &mut Nanos<'a>, other: Nanos<'a>) {
    for (name, value) in other {
        let held = to.entry(name).or_insert(value);
        *held = (*held).max(value);
    }
}

/// Tolerations, with those that the API server adds to every pod (admission plugin DefaultTolerationSeconds).
fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let added = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].map(|key| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    });
    spec.tolerations.iter().flatten().cloned().chain(added).collect()
}

/// Ports of the node that a pod needs.
pub(super) fn ports(spec: &PodSpec) -> Vec<HostPort> {
    let on_host = spec.host_network == Some(true);
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let all = spec.containers.iter().chain(sidecars);
    all.flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.or_else(|| on_host.then_some(port.container_port))?;
            let text = |text: Option<&String>, or: &str| match text {
                Some(text) if !text.is_empty() => text.clone(),
                _ => or.to_owned(),
            };
            (number > 0).then(|| HostPort {
                ip: text(port.host_ip.as_ref(), "0.0.0.0"),
                protocol: text(port.protocol.as_ref(), "TCP"),
                port: number,
            })
        })
        .collect()
}

/// Requirements that are not modelled.
fn limits(spec: &PodSpec, is_complete: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |applies: bool, text: &str| {
        if applies {
            found.push(text.to_owned());
        }
    };
    note(
        spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
        "schedulingGates block the pod until another controller removes them",
    );
    note(
        spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()),
        "resourceClaims (DRA) are not evaluated",
    );
    let affinity = spec.affinity.as_ref();
    let pod_affinity = affinity.and_then(|a| a.pod_affinity.as_ref());
    let anti_affinity = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
    let is_required = |terms: Option<&Vec<_>>| terms.is_some_and(|terms: &Vec<_>| !terms.is_empty());
    note(
        is_required(pod_affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
        "required podAffinity is not evaluated",
    );
    note(
        is_required(anti_affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())),
        "required podAntiAffinity is not evaluated",
    );
    let mut spread = spec.topology_spread_constraints.iter().flatten();
    note(
        spread.any(|constraint| constraint.when_unsatisfiable == "DoNotSchedule"),
        "topologySpreadConstraints with DoNotSchedule are not evaluated",
    );
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    note(
        containers.any(|c| c.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty())),
        "restartPolicyRules of containers limit the nodes by their features, which are not evaluated",
    );
    note(
        spec.runtime_class_name.is_some() && !is_complete,
        "the RuntimeClass may add overhead and a node selector",
    );
    let volumes = spec.volumes.iter().flatten().filter(|volume| binds(volume));
    for volume in volumes {
        found.push(format!(
            "volume '{}' may limit the nodes, which is not evaluated",
            volume.name
        ));
    }
    found
}

/// Whether a volume can limit the nodes: every kind that is not known to be available on all of them.
fn binds(volume: &Volume) -> bool {
    let is_free = volume.empty_dir.is_some()
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
        || volume.host_path.is_some()
        || volume.nfs.is_some()
        || volume.image.is_some();
    !is_free
}

fn opaque(spec: &PodSpec) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(node) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        found.push(format!("nodeName '{node}' bypasses the scheduler"));
    }
    let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
    if !scheduler.is_empty() && scheduler != DEFAULT_SCHEDULER {
        found.push(format!("scheduler '{scheduler}' has rules of its own"));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    fn container(cpu: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn init_containers_and_sidecars_count_as_in_the_scheduler() {
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}});
        for (init, expected) in [
            (json!([]), 3000),
            (json!([container("2")]), 3000),
            (json!([container("5")]), 5000),
            (json!([sidecar]), 4000),
            // The sidecar runs beside the init container that follows it.
            (json!([sidecar, container("4")]), 5000),
            (json!([container("4"), sidecar]), 4000),
        ] {
            let spec = spec(json!({"containers": [container("1"), container("2")], "initContainers": init}));
            assert_eq!(requests(&spec)["cpu"], expected, "{init}");
        }
    }

    #[test]
    fn overhead_and_pod_level_resources_count() {
        let spec = spec(json!({
            "containers": [{"name": "c", "resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": "2"}, "requests": {"cpu": "1"}}}],
            "overhead": {"cpu": "100m"},
            "resources": {"requests": {"cpu": "2"}},
        }));
        let expected = [("cpu", 2100), ("memory", 1 << 30), ("nvidia.com/gpu", 2)];
        let expected: Amounts = expected.map(|(name, amount)| (name.to_owned(), amount)).into();
        assert_eq!(requests(&spec), expected);
    }

    #[test]
    fn settings_that_are_not_modelled_are_named() {
        let term = json!([{"topologyKey": "kubernetes.io/hostname"}]);
        let pod = json!({
            "containers": [],
            "schedulerName": "volcano",
            "nodeName": "a",
            "schedulingGates": [{"name": "g"}],
            "resourceClaims": [{"name": "r"}],
            "runtimeClassName": "kata",
            "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term},
            },
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "volumes": [{"name": "free", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "x"}}],
        });
        let ask = Ask::new(
            &Pod {
                spec: Some(spec(pod)),
                ..Pod::default()
            },
            false,
        );
        assert_eq!(ask.limits.len(), 7, "{:?}", ask.limits);
        assert_eq!(ask.opaque.len(), 2, "{:?}", ask.opaque);
        let plain = spec(json!({"containers": [], "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]}));
        assert!(limits(&plain, false).is_empty() && opaque(&plain).is_empty());
    }

    #[test]
    fn host_ports_conflict_by_address_and_protocol() {
        let of = |network: bool, port: serde_json::Value| {
            ports(&spec(
                json!({"hostNetwork": network, "containers": [{"name": "c", "ports": [port]}]}),
            ))
        };
        let any = of(false, json!({"containerPort": 80, "hostPort": 8080}));
        let one = of(
            false,
            json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}),
        );
        let other = of(
            false,
            json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.2"}),
        );
        let udp = of(false, json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}));
        assert!(any[0].conflicts(&one[0]) && !one[0].conflicts(&other[0]) && !any[0].conflicts(&udp[0]));
        assert_eq!(of(true, json!({"containerPort": 8080})), any);
        assert!(of(false, json!({"containerPort": 8080})).is_empty());
    }
}
