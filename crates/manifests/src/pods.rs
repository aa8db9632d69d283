//! Pods of a component, with Services, PodDisruptionBudget and NetworkPolicy.

use kube::core::DynamicObject;
use runway_operator::scope::Namespaces;
use serde_json::{Value, json};

use super::component::{Claim, Component, Content, Folder, Origin, Port, Release};
use super::metadata::{COMPONENT_LABEL, NAMESPACE, meta, object};

/// Metrics and probes.
pub const ADMIN_PORT: u16 = 8080;
/// Label of the namespaces from which metrics may be read.
pub const MONITORING_LABEL: &str = "kubeairunway.ai/monitoring";
/// Namespaces from which metrics may be read without a label: those in which monitoring stacks usually are.
const MONITORING: [&str; 3] = [
    "monitoring",
    "openshift-monitoring",
    "openshift-user-workload-monitoring",
];
/// The volume, and its place in a pod, by which clients find the cluster.
const CLUSTER: &str = "cluster";
const CLUSTER_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The volume of a component with a claim.
const STORE: &str = "store";
/// UID of `nobody`, for images without users.
const USER: u32 = 65532;
/// Longer than the webhook's last answers and the release of the Lease take.
const GRACE_SECONDS: u32 = 30;

/// Resources of a pod. Memory grows by about 2 KiB for each ModelDeployment (docs/project/performance.md); the memory that clients
/// can make a program use beside that is bounded (`runway_http::Limits`): at most 96 MiB in all for the core, and 128 MiB for
/// the console. No limit on CPU, which would only make a busy controller slow.
pub fn resources(component: &Component) -> Value {
    json!({
        "requests": { "cpu": "20m", "memory": "32Mi" },
        "limits": { "memory": component.memory_limit },
    })
}

/// Services, PodDisruptionBudget and NetworkPolicy of a component.
pub(super) fn around(component: &Component) -> Vec<DynamicObject> {
    let name = component.name.as_str();
    let mut all: Vec<DynamicObject> = component
        .ports
        .iter()
        .map(|port| {
            let mut ports = vec![service_port(port.name, port.service.1, port.name)];
            if port.https {
                let mut https = service_port("https", 443, port.name);
                // For proxies in front of it.
                https["appProtocol"] = json!("https");
                ports.insert(0, https);
            }
            service(component, &port.service.0, &ports)
        })
        .collect();
    let admin = service_port("admin", ADMIN_PORT, "admin");
    all.push(service(component, &metrics_service(name), &[admin]));
    if component.replicas > 1 {
        all.push(object(&json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta(name, name, Some(NAMESPACE)),
            "spec": { "maxUnavailable": 1, "selector": selector(name) },
        })));
    }
    all.push(network_policy(component));
    all
}

/// NetworkPolicy with the allowed clients of each port. Probes are always allowed, because they come from the node.
///
/// Only what comes in: the API server's address and port differ from cluster to cluster, and a controller that cannot reach
/// it does nothing at all.
fn network_policy(component: &Component) -> DynamicObject {
    let name = component.name.as_str();
    let own = component.ports.iter().map(|port| match port.from {
        Origin::Anywhere => json!({ "ports": [tcp(port.number)] }),
        Origin::Labelled(label) => json!({ "ports": [tcp(port.number)], "from": [labelled(label)] }),
    });
    let metrics = json!({ "ports": [tcp(ADMIN_PORT)], "from": metrics_from() });
    object(&json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta(name, name, Some(NAMESPACE)),
        "spec": {
            "podSelector": selector(name),
            "policyTypes": ["Ingress"],
            "ingress": own.chain([metrics]).collect::<Vec<_>>(),
        },
    }))
}

/// Allowed clients of metrics, as peers of a NetworkPolicy.
pub fn metrics_from() -> Value {
    let usual = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": MONITORING });
    json!([
        labelled(MONITORING_LABEL),
        { "namespaceSelector": { "matchExpressions": [usual] } },
    ])
}

/// Allowed clients of the gateway, as peers of a NetworkPolicy.
pub fn gateway_from() -> Value {
    json!([labelled(super::gateway::CLIENTS_LABEL)])
}

/// Allowed clients of the model router, as peers of a NetworkPolicy.
pub fn models_from() -> Value {
    json!([labelled(super::router::CLIENTS_LABEL)])
}

/// Allowed clients of the console, as peers of a NetworkPolicy.
pub fn console_from() -> Value {
    json!([labelled(super::console::CLIENTS_LABEL)])
}

/// Namespaces with a label, as a peer of a NetworkPolicy.
pub(super) fn labelled(label: &str) -> Value {
    json!({ "namespaceSelector": { "matchLabels": { label: "true" } } })
}

fn tcp(number: u16) -> Value {
    json!({ "port": number, "protocol": "TCP" })
}

/// Port of a Service that leads to a named port of the pods.
fn service_port(name: &str, port: u16, target: &str) -> Value {
    json!({ "name": name, "port": port, "targetPort": target, "protocol": "TCP" })
}

fn service(component: &Component, name: &str, ports: &[Value]) -> DynamicObject {
    object(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(&component.name, name, Some(NAMESPACE)),
        "spec": {
            "selector": { COMPONENT_LABEL: component.name },
            "ports": ports,
        },
    }))
}

/// Name of the Service of a component's metrics.
pub fn metrics_service(component: &str) -> String {
    format!("{component}-metrics")
}

/// ServiceMonitor for a component's metrics, which the Prometheus Operator reads. The label `namespace` of a metric is that of the
/// object that the metric is about; without `honorLabels`, Prometheus would replace it by the namespace of the component.
pub(super) fn service_monitor(component: &Component) -> DynamicObject {
    let name = component.name.as_str();
    object(&json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": meta(name, name, Some(NAMESPACE)),
        "spec": {
            "selector": selector(name),
            "endpoints": [{ "port": "admin", "path": "/metrics", "honorLabels": true }],
        },
    }))
}

pub(super) fn deployment(component: &Component, release: &Release) -> DynamicObject {
    let name = component.name.as_str();
    let mut metadata = meta(name, name, Some(NAMESPACE));
    let version = ("app.kubernetes.io/version".to_owned(), release.tag.clone());
    let mut labels = metadata.labels.take().unwrap_or_default();
    labels.extend([version]);
    metadata.labels = Some(labels.clone());
    object(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": component.replicas,
            "selector": selector(name),
            "strategy": strategy(component),
            "template": {
                "metadata": { "labels": labels },
                "spec": pod(component, release),
            },
        },
    }))
}

/// A volume is with one pod at a time.
fn strategy(component: &Component) -> Value {
    match component.claim {
        Some(_) => json!({ "type": "Recreate" }),
        None => json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } }),
    }
}

/// The claim of a component's volume.
pub(super) fn claim(component: &Component, claim: &Claim) -> DynamicObject {
    let name = component.name.as_str();
    let mut metadata = meta(name, name, Some(NAMESPACE));
    // As with CRDs: what it holds does not go with the chart.
    metadata.annotations = Some([("helm.sh/resource-policy".to_owned(), "keep".to_owned())].into());
    object(&json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": claim.size } },
        },
    }))
}

fn pod(component: &Component, release: &Release) -> Value {
    let name = component.name.as_str();
    let mut pod = json!({
        "serviceAccountName": name,
        "automountServiceAccountToken": component.is_controller,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": component.grace_seconds.unwrap_or(GRACE_SECONDS),
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector(name),
        }],
        "containers": [{
            "name": name,
            "image": release.image(&component.program),
            "imagePullPolicy": "IfNotPresent",
            "args": arguments(component, &release.namespaces),
            "env": environment(component, release),
            "ports": ports(component),
            "startupProbe": probe("/healthz", 1, 30),
            "livenessProbe": probe("/healthz", 10, 3),
            "readinessProbe": probe("/readyz", 5, 2),
            "resources": resources(component),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "runAsNonRoot": true,
                "capabilities": { "drop": ["ALL"] },
            },
            // The last words of a controller that cannot start are in its log.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }],
    });
    let mut volumes: Vec<Value> = component.folders.iter().map(volume).collect();
    let mut mounts: Vec<Value> = component.folders.iter().map(mount).collect();
    if let Some(claim) = component.claim {
        volumes.push(json!({ "name": STORE, "persistentVolumeClaim": { "claimName": name } }));
        mounts.push(json!({ "name": STORE, "mountPath": claim.path }));
        pod["securityContext"]["fsGroup"] = json!(USER);
    }
    if !component.is_controller {
        volumes.push(cluster(component.has_token));
        mounts.push(json!({ "name": CLUSTER, "mountPath": CLUSTER_PATH, "readOnly": true }));
    }
    if !volumes.is_empty() {
        pod["volumes"] = Value::Array(volumes);
        pod["containers"][0]["volumeMounts"] = Value::Array(mounts);
    }
    pod
}

/// Arguments of a component's container. A subcommand comes first.
pub(super) fn arguments(component: &Component, namespaces: &Namespaces) -> Vec<String> {
    let own = component.args.iter().cloned();
    let leader = component.is_controller.then(|| "--leader-elect".to_owned());
    let scope = namespaces.argument().filter(|_| component.watches);
    own.chain(leader).chain(scope).collect()
}

/// Volume with the cluster's CA certificate and, if the component has one, its token.
fn cluster(has_token: bool) -> Value {
    let mut sources = vec![
        json!({ "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } }),
        json!({ "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } }),
    ];
    if has_token {
        sources.push(json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } }));
    }
    json!({ "name": CLUSTER, "projected": { "sources": sources } })
}

fn environment(component: &Component, release: &Release) -> Vec<Value> {
    let plain = |name: &str, value: &str| json!({ "name": name, "value": value });
    let images = component
        .images
        .iter()
        .map(|(name, image)| plain(name, &release.image(image)));
    let fixed = component.variables.iter().map(|(name, value)| plain(name, value));
    [
        from_pod("POD_NAME", "metadata.name"),
        from_pod("POD_NAMESPACE", "metadata.namespace"),
    ]
    .into_iter()
    .chain(images)
    .chain(fixed)
    .collect()
}

/// Optional volume: an unconfigured program starts, and reports what is missing when it needs it.
fn volume(folder: &Folder) -> Value {
    match folder.content {
        Content::ConfigMap(name) => json!({ "name": folder.name, "configMap": { "name": name, "optional": true } }),
        Content::Secret(name) => json!({ "name": folder.name, "secret": { "secretName": name, "optional": true } }),
    }
}

fn mount(folder: &Folder) -> Value {
    json!({ "name": folder.name, "mountPath": folder.path, "readOnly": true })
}

fn ports(component: &Component) -> Vec<Value> {
    let port = |name: &str, number: u16| json!({ "name": name, "containerPort": number, "protocol": "TCP" });
    let own = component
        .ports
        .iter()
        .map(|Port { name, number, .. }| port(name, *number));
    own.chain([port("admin", ADMIN_PORT)]).collect()
}

fn probe(path: &str, period: u32, failures: u32) -> Value {
    json!({
        "httpGet": { "path": path, "port": "admin" },
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 2,
    })
}

fn from_pod(name: &str, field: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": field } } })
}

fn selector(component: &str) -> Value {
    json!({ "matchLabels": { COMPONENT_LABEL: component } })
}

#[cfg(test)]
mod tests {
    use super::super::{console, core};
    use super::*;

    fn ingress(component: &Component) -> Value {
        network_policy(component).data["spec"]["ingress"].clone()
    }

    #[test]
    fn only_the_webhook_may_be_reached_from_anywhere() {
        let metrics = json!({ "ports": [tcp(ADMIN_PORT)], "from": metrics_from() });
        assert_eq!(ingress(&core()), json!([{ "ports": [tcp(9443)] }, metrics]));
        assert_eq!(ingress(&Component::new("any")), json!([metrics]));
        let browsers = json!({ "ports": [tcp(8000)], "from": console_from() });
        assert_eq!(ingress(&console::console(&[])), json!([browsers, metrics]));
    }

    #[test]
    fn every_port_of_a_pod_is_in_its_policy() {
        for component in super::super::all_components() {
            let open: Vec<_> = ingress(&component)
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|rule| rule["ports"][0]["port"].as_u64())
                .collect();
            let listens: Vec<_> = ports(&component)
                .iter()
                .filter_map(|port| port["containerPort"].as_u64())
                .collect();
            assert_eq!(open, listens, "{}", component.name);
        }
    }
}
