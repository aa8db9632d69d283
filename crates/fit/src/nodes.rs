//! A snapshot of the nodes: what each has, and what the pods on it use.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Node, Pod, PodAffinityTerm, PodSpec, PodStatus, Taint};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use kube::ResourceExt;

use super::amount::{self, Amounts};
use super::pod::{self, HostPort};

/// Resources used by pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Used {
    pub(super) amounts: Amounts,
    pub(super) pods: i64,
    pub(super) ports: Vec<HostPort>,
}

impl Used {
    fn take(&mut self, other: &Self) {
        amount::add(&mut self.amounts, &other.amounts);
        self.pods += other.pods;
        self.ports.extend(other.ports.iter().cloned());
    }
}

/// A node and the pods on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Taint>,
    pub(super) is_unschedulable: bool,
    pub(super) is_ready: bool,
    pub(super) allocatable: Amounts,
    pub(super) used: Used,
    /// Used amounts by the priority of the pods.
    by_priority: BTreeMap<i32, Used>,
}

impl Place {
    fn new(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_ref());
        Self {
            name: node.name_any(),
            labels: node.labels().clone(),
            taints: spec.and_then(|s| s.taints.clone()).unwrap_or_default(),
            is_unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or_default(),
            is_ready: conditions
                .into_iter()
                .flatten()
                .any(|c| c.type_ == "Ready" && c.status == "True"),
            allocatable: amount::of_quantities(status.and_then(|s| s.allocatable.as_ref())),
            used: Used::default(),
            by_priority: BTreeMap::new(),
        }
    }

    /// The node without pods.
    pub(super) fn emptied(&self) -> Self {
        Self {
            used: Used::default(),
            by_priority: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Resources in use after the eviction of all pods below a priority; `None` if there are none.
    pub(super) fn without_below(&self, priority: i32) -> Option<Used> {
        self.by_priority.range(..priority).next()?;
        let mut used = Used::default();
        for (_, of) in self.by_priority.range(priority..) {
            used.take(of);
        }
        Some(used)
    }

    /// Memory of one GPU in bytes, if a label reports it. `label` is that of [`memory_label`].
    pub(super) fn gpu_memory(&self, label: &str) -> Option<u64> {
        let mebibytes: u64 = self.labels.get(label)?.parse().ok()?;
        mebibytes.checked_mul(1 << 20)
    }
}

/// Label with the memory of one GPU in MiB, set by NVIDIA's GPU feature discovery for GPUs (`nvidia.com/gpu.memory`) and for slices
/// of them (`nvidia.com/mig-1g.10gb.memory`).
pub(super) fn memory_label(resource: &str) -> String {
    format!("{resource}.memory")
}

/// A required anti-affinity term of a pod that is on a node.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    namespaces: Vec<String>,
    /// Whether the labels of the namespace decide, which are not read.
    by_namespace_labels: bool,
    selector: Option<LabelSelector>,
    pub(super) topology_key: String,
    pub(super) topology_value: String,
}

impl Refusal {
    /// Whether the term is about a pod: `None` if the labels of its namespace decide.
    pub(super) fn is_about(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Option<bool> {
        let Some(selector) = &self.selector else {
            return Some(false);
        };
        if !matches(selector, labels) {
            return Some(false);
        }
        if self.namespaces.iter().any(|n| n == namespace || n == "*") {
            return Some(true);
        }
        if self.by_namespace_labels { None } else { Some(false) }
    }
}

/// Whether a label selector matches.
fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    let expression = |expression: &LabelSelectorRequirement| {
        let held = labels.get(&expression.key);
        let values = expression.values.as_deref().unwrap_or_default();
        match expression.operator.as_str() {
            "In" => held.is_some_and(|held| values.contains(held)),
            "NotIn" => held.is_none_or(|held| !values.contains(held)),
            "Exists" => held.is_some(),
            "DoesNotExist" => held.is_none(),
            _ => false,
        }
    };
    selector.match_labels.iter().flatten().all(equal) && selector.match_expressions.iter().flatten().all(expression)
}

/// Devices that drivers offer by dynamic resource allocation (DRA).
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// Extended resources that a DeviceClass maps to devices.
    mapped: BTreeSet<String>,
    /// Whether DeviceClasses could not be read, so that any extended resource may be mapped.
    is_unread: bool,
    /// Number of devices by node and driver. The node is empty for devices that are not of one node.
    offered: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Devices {
    /// Reads ResourceSlices of the newest generation of each pool, and DeviceClasses.
    pub fn new(slices: &[ResourceSlice], classes: &[DeviceClass]) -> Self {
        let pool = |slice: &ResourceSlice| (slice.spec.driver.clone(), slice.spec.pool.name.clone());
        let mut newest = BTreeMap::new();
        for slice in slices {
            let generation = newest.entry(pool(slice)).or_insert(slice.spec.pool.generation);
            *generation = slice.spec.pool.generation.max(*generation);
        }
        let mut offered = BTreeMap::<String, BTreeMap<String, usize>>::new();
        let current = slices
            .iter()
            .filter(|slice| newest.get(&pool(slice)) == Some(&slice.spec.pool.generation));
        for slice in current {
            let node = slice.spec.node_name.clone().unwrap_or_default();
            let devices = slice.spec.devices.as_ref().map_or(0, Vec::len);
            let drivers = offered.entry(node).or_default();
            *drivers.entry(slice.spec.driver.clone()).or_default() += devices;
        }
        let mapped = classes.iter().flat_map(|class| {
            // Every class can be requested by this name, too.
            let implicit = format!("deviceclass.resource.kubernetes.io/{}", class.name_any());
            class.spec.extended_resource_name.clone().into_iter().chain([implicit])
        });
        Self {
            mapped: mapped.collect(),
            is_unread: false,
            offered,
        }
    }

    /// Devices that may not be read.
    pub fn unread() -> Self {
        Self {
            is_unread: true,
            ..Self::default()
        }
    }

    /// Whether requests for an extended resource may be served with devices.
    pub(super) fn serves(&self, resource: &str) -> bool {
        self.mapped.contains(resource) || (self.is_unread && resource.contains('/'))
    }

    /// Devices and nodes that offer them, by driver.
    pub(super) fn drivers(&self) -> BTreeMap<&str, (usize, usize)> {
        let mut found = BTreeMap::<&str, (usize, usize)>::new();
        for drivers in self.offered.values() {
            for (driver, devices) in drivers {
                let (all, nodes) = found.entry(driver).or_default();
                *all += devices;
                *nodes += 1;
            }
        }
        found
    }
}

/// A pod reduced to the fields that a [`Snapshot`] reads, for large clusters.
pub fn slim(pod: Pod) -> Pod {
    let status = pod.status.unwrap_or_default();
    let metadata = ObjectMeta {
        name: pod.metadata.name,
        namespace: pod.metadata.namespace,
        labels: pod.metadata.labels,
        ..ObjectMeta::default()
    };
    let containers = |all: Vec<Container>| -> Vec<Container> {
        let slim = |c: Container| Container {
            name: c.name,
            resources: c.resources,
            ports: c.ports,
            restart_policy: c.restart_policy,
            ..Container::default()
        };
        all.into_iter().map(slim).collect()
    };
    let spec = pod.spec.map(|spec| PodSpec {
        node_name: spec.node_name,
        priority: spec.priority,
        host_network: spec.host_network,
        overhead: spec.overhead,
        resources: spec.resources,
        affinity: spec.affinity,
        containers: containers(spec.containers),
        init_containers: spec.init_containers.map(containers),
        ..PodSpec::default()
    });
    let statuses = |all: Option<Vec<ContainerStatus>>| {
        let slim = |c: ContainerStatus| ContainerStatus {
            name: c.name,
            resources: c.resources,
            allocated_resources: c.allocated_resources,
            ..ContainerStatus::default()
        };
        all.map(|all| all.into_iter().map(slim).collect())
    };
    Pod {
        metadata,
        spec,
        status: Some(PodStatus {
            phase: status.phase,
            nominated_node_name: status.nominated_node_name,
            container_statuses: statuses(status.container_statuses),
            init_container_statuses: statuses(status.init_container_statuses),
            ..PodStatus::default()
        }),
    }
}

/// Nodes of a cluster, and the pods on them.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub(super) places: Vec<Place>,
    pub(super) refusals: Vec<Refusal>,
    /// Devices.
    pub(super) devices: Devices,
    /// Pods that wait for a node.
    pub(super) waiting: usize,
}

impl Snapshot {
    /// Reads nodes and pods. Terminated pods use nothing.
    pub fn new<'a>(nodes: &[Node], pods: impl IntoIterator<Item = &'a Pod>, devices: Devices) -> Self {
        let mut places: Vec<Place> = nodes.iter().map(Place::new).collect();
        let index: BTreeMap<String, usize> = places.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        let (mut refusals, mut waiting) = (Vec::new(), 0);
        for pod in pods {
            let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
            let phase = status.and_then(|s| s.phase.as_deref());
            let Some(spec) = spec.filter(|_| !matches!(phase, Some("Succeeded" | "Failed"))) else {
                continue;
            };
            let bound = spec.node_name.as_deref().filter(|name| !name.is_empty());
            waiting += usize::from(bound.is_none());
            // A pod that has evicted others will get their place.
            let node = bound.or_else(|| status?.nominated_node_name.as_deref());
            let Some(place) = node.and_then(|name| index.get(name)).and_then(|i| places.get_mut(*i)) else {
                continue;
            };
            refusals.extend(refused_by(pod, place));
            let used = Used {
                amounts: pod::requests_in_use(pod),
                pods: 1,
                ports: pod::ports(spec),
            };
            place.used.take(&used);
            place
                .by_priority
                .entry(spec.priority.unwrap_or(0))
                .or_default()
                .take(&used);
        }
        Self {
            places,
            refusals,
            devices,
            waiting,
        }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

/// Required anti-affinity of a pod on a node.
fn refused_by(pod: &Pod, place: &Place) -> Vec<Refusal> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let anti = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let terms = anti.and_then(|anti| anti.required_during_scheduling_ignored_during_execution.as_ref());
    let refusal = |term: &PodAffinityTerm| {
        let topology_value = place.labels.get(&term.topology_key)?.clone();
        let selector = term.namespace_selector.as_ref();
        let is_empty = |s: &LabelSelector| {
            s.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
                && s.match_expressions.as_ref().is_none_or(Vec::is_empty)
        };
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        match selector {
            None if namespaces.is_empty() => namespaces.push(pod.namespace().unwrap_or_default()),
            Some(selector) if is_empty(selector) => namespaces.push("*".to_owned()),
            _ => {}
        }
        Some(Refusal {
            namespaces,
            by_namespace_labels: selector.is_some(),
            selector: term.label_selector.clone(),
            topology_key: term.topology_key.clone(),
            topology_value,
        })
    };
    terms.into_iter().flatten().filter_map(refusal).collect()
}
