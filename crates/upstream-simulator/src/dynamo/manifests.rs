//! Objects that Dynamo's operator creates for a graph in a cluster without Grove. Pure.
//!
//! Source: ai-dynamo/dynamo deploy/operator/internal, main of August 2026: `dynamo/graph.go` (`GenerateBasePodSpec`,
//! `GenerateComponentService`), `dynamo/component_{common,frontend,worker}.go`, `discovery/resource.go`, `consts/consts.go`.
//! As there: a component's container is merged into that of its type, variables by name; components find each other by Services with
//! labels for discovery, and by DynamoWorkerMetadata that each pod writes with the graph's ServiceAccount. Simplified: one Deployment for
//! each component, where the operator has one for each hash of the workers; no multinode components; no variables of the graph.

use std::collections::BTreeMap;

use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Map, Value, json};

use super::{
    super::{conversion, engine::hash},
    COMPONENT, GRAPH, resource_name,
};

const DISCOVERY: [(&str, &str); 2] = [
    ("nvidia.com/dynamo-discovery-backend", "kubernetes"),
    ("nvidia.com/dynamo-discovery-enabled", "true"),
];
const MAIN: &str = "main";
/// Size of /dev/shm by default.
const SHARED_MEMORY: &str = "8Gi";

/// A graph with its components in v1beta1.
pub(super) struct Graph {
    name: String,
    namespace: String,
    pub(super) components: Vec<Value>,
    /// Changes with everything about the workers except their number.
    worker_hash: String,
}

impl Graph {
    pub(super) fn of(object: &DynamicObject) -> Self {
        let spec = &object.data["spec"];
        let services = spec["services"].as_object().into_iter().flatten();
        let mut components: Vec<Value> = services
            .map(|(name, service)| conversion::component(name, service.clone()))
            .collect();
        components.extend(spec["components"].as_array().into_iter().flatten().cloned());
        let workers: Vec<Value> = components
            .iter()
            .filter(|component| component["type"] != "frontend")
            .map(|worker| json!([worker["name"], worker["type"], worker["podTemplate"]]))
            .collect();
        Self {
            name: object.name_any(),
            namespace: object.namespace().unwrap_or_default(),
            components,
            worker_hash: hash(&json!(workers).to_string()),
        }
    }

    /// (`ComputeDynamoNamespace`)
    fn dynamo_namespace(&self) -> String {
        format!("{}-{}", self.namespace, self.name.replace('.', "-"))
    }

    /// Name of the objects of a component.
    pub(super) fn resource_name(&self, component: &Value) -> String {
        resource_name(&self.name, component["name"].as_str().unwrap_or_default())
    }

    /// (`GetK8sDiscoveryServiceAccountName`)
    fn account(&self) -> String {
        format!("{}-k8s-service-discovery", self.name)
    }

    pub(super) fn service_account(&self) -> Value {
        json!({"metadata": {"name": self.account()}})
    }

    pub(super) fn role(&self) -> Value {
        let read = ["get", "list", "watch"];
        let write = ["create", "get", "list", "watch", "update", "patch", "delete"];
        json!({
            "metadata": {"name": format!("{}-role", self.account())},
            "rules": [
                {"apiGroups": [""], "resources": ["endpoints", "pods"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
                {"apiGroups": ["nvidia.com"], "resources": ["dynamoworkermetadatas"], "verbs": write},
            ],
        })
    }

    pub(super) fn role_binding(&self) -> Value {
        json!({
            "metadata": {"name": format!("{}-binding", self.account())},
            "subjects": [{"kind": "ServiceAccount", "name": self.account(), "namespace": self.namespace}],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": format!("{}-role", self.account()),
            },
        })
    }

    /// Frontends are reached at port 8000. Services of workers only say which pods are ready.
    pub(super) fn service(&self, component: &Value) -> Value {
        let (port, name) = if is_frontend(component) {
            (8000, "http")
        } else {
            (9090, "system")
        };
        json!({
            "metadata": {"name": self.resource_name(component), "labels": discovery_labels().collect::<Map<_, _>>()},
            "spec": {
                "selector": self.selector(component),
                "ports": [{"name": name, "protocol": "TCP", "port": port, "targetPort": name}],
            },
        })
    }

    pub(super) fn deployment(&self, component: &Value) -> Value {
        let selector = json!({"nvidia.com/selector": self.resource_name(component)});
        json!({
            "metadata": {"name": self.resource_name(component), "labels": self.selector(component)},
            "spec": {
                "replicas": component["replicas"].as_u64().unwrap_or(1),
                "selector": {"matchLabels": selector},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                "template": self.template(component, &selector),
            },
        })
    }

    /// Labels by which a Service selects the pods of a component.
    fn selector(&self, component: &Value) -> Value {
        json!({
            GRAPH: self.name,
            COMPONENT: component["name"],
            "nvidia.com/dynamo-component-type": component["type"],
            "nvidia.com/dynamo-namespace": self.dynamo_namespace(),
        })
    }

    fn template(&self, component: &Value, selector: &Value) -> Value {
        let given = &component["podTemplate"];
        let mut labels = given["metadata"]["labels"].clone();
        merge(&mut labels, &self.selector(component));
        merge(&mut labels, selector);
        merge(&mut labels, &Value::Object(discovery_labels().collect()));
        if !is_frontend(component) {
            labels["nvidia.com/dynamo-worker-hash"] = json!(self.worker_hash);
        }
        json!({
            "metadata": {"labels": labels, "annotations": given["metadata"]["annotations"]},
            "spec": self.pod_spec(component),
        })
    }

    fn pod_spec(&self, component: &Value) -> Value {
        let given = &component["podTemplate"]["spec"];
        let mut spec = json!({
            "terminationGracePeriodSeconds": 60,
            "restartPolicy": "Always",
            "serviceAccountName": self.account(),
        });
        // A security context of the user's own replaces this one.
        if given["securityContext"].is_null() {
            spec["securityContext"] = json!({"fsGroup": 1000});
        }
        merge(&mut spec, given);
        let containers = given["containers"].as_array().cloned().unwrap_or_default();
        let (main, sidecars): (Vec<_>, Vec<_>) = containers.into_iter().partition(|c| c["name"] == MAIN);
        let mut main = self.container(component, main.first().unwrap_or(&Value::Null));
        share_memory(&mut spec, &mut main, component["sharedMemorySize"].as_str());
        spec["containers"] = [vec![main], sidecars].concat().into();
        spec
    }

    /// (`mergeContainerByName`) What the graph sets replaces what the type of the component has: without a command in the graph, that of the
    /// type stays.
    fn container(&self, component: &Value, given: &Value) -> Value {
        let mut container = if is_frontend(component) {
            self.frontend()
        } else {
            self.worker()
        };
        let own = container["env"].take();
        merge(&mut container, given);
        let kind = [variable(
            "DYN_COMPONENT",
            component["type"].as_str().unwrap_or_default(),
        )];
        let lists = [&self.variables()[..], &kind, as_slice(&own), as_slice(&given["env"])];
        container["env"] = by_name(&lists.concat());
        container
    }

    fn variables(&self) -> Vec<Value> {
        let of_pod = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        vec![
            variable("DYN_NAMESPACE", &self.dynamo_namespace()),
            variable("DYN_PARENT_DGD_K8S_NAME", &self.name),
            variable("DYN_PARENT_DGD_K8S_NAMESPACE", &self.namespace),
            variable("DYN_DISCOVERY_BACKEND", "kubernetes"),
            of_pod("POD_NAME", "metadata.name"),
            of_pod("POD_NAMESPACE", "metadata.namespace"),
            of_pod("POD_UID", "metadata.uid"),
        ]
    }

    /// (`FrontendDefaults`)
    fn frontend(&self) -> Value {
        json!({
            "name": MAIN,
            "command": ["python3"],
            "args": ["-m", "dynamo.frontend"],
            "ports": [{"protocol": "TCP", "name": "http", "containerPort": 8000}],
            "livenessProbe": probe("/live", "http", &json!({
                "initialDelaySeconds": 15, "periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3,
            })),
            "readinessProbe": probe("/health", "http", &json!({
                "initialDelaySeconds": 10, "periodSeconds": 10, "timeoutSeconds": 3, "failureThreshold": 3,
            })),
            "env": [
                variable("DYNAMO_PORT", "8000"),
                variable("DYN_HTTP_PORT", "8000"),
                variable("DYN_NAMESPACE_PREFIX", &self.dynamo_namespace()),
            ],
        })
    }

    /// (`WorkerDefaults`)
    fn worker(&self) -> Value {
        json!({
            "name": MAIN,
            "command": ["/bin/sh", "-c"],
            "ports": [
                {"protocol": "TCP", "name": "system", "containerPort": 9090},
                {"protocol": "TCP", "name": "nixl", "containerPort": 19090},
            ],
            "livenessProbe": probe("/live", "system", &json!({
                "periodSeconds": 5, "timeoutSeconds": 4, "failureThreshold": 1,
            })),
            "readinessProbe": probe("/health", "system", &json!({
                "periodSeconds": 10, "timeoutSeconds": 4, "failureThreshold": 3,
            })),
            "startupProbe": probe("/live", "system", &json!({
                "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 720,
            })),
            "env": [
                variable("DYNAMO_PORT", "8000"),
                variable("DYN_SYSTEM_ENABLED", "true"),
                variable("DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS", r#"["generate"]"#),
                variable("DYN_SYSTEM_PORT", "9090"),
                variable("DYN_HEALTH_CHECK_ENABLED", "false"),
                variable("NIXL_TELEMETRY_ENABLE", "n"),
                variable("NIXL_TELEMETRY_EXPORTER", "prometheus"),
                variable("NIXL_TELEMETRY_PROMETHEUS_PORT", "19090"),
                variable("DYN_NAMESPACE_WORKER_SUFFIX", &self.worker_hash),
            ],
        })
    }
}

fn is_frontend(component: &Value) -> bool {
    component["type"] == "frontend"
}

fn discovery_labels() -> impl Iterator<Item = (String, Value)> {
    DISCOVERY
        .map(|(label, value)| (label.to_owned(), json!(value)))
        .into_iter()
}

fn variable(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

fn probe(path: &str, port: &str, times: &Value) -> Value {
    let mut probe = json!({"httpGet": {"path": path, "port": port}});
    merge(&mut probe, times);
    probe
}

/// (`ApplySharedMemoryVolumeAndMount`)
fn share_memory(spec: &mut Value, container: &mut Value, size: Option<&str>) {
    let size = size.unwrap_or(SHARED_MEMORY);
    if size != "0" {
        let volume = json!({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}});
        push(&mut spec["volumes"], volume);
        push(
            &mut container["volumeMounts"],
            json!({"name": "shared-memory", "mountPath": "/dev/shm"}),
        );
    }
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

fn as_slice(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Variables in the order of their names. Of those of one name, the last.
fn by_name(variables: &[Value]) -> Value {
    let named = variables
        .iter()
        .map(|variable| (variable["name"].as_str().unwrap_or_default(), variable));
    named.collect::<BTreeMap<_, _>>().into_values().cloned().collect()
}

/// Objects are merged, everything else is replaced.
fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (_, Value::Null) => {}
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(spec: &Value) -> Graph {
        let object = json!({"metadata": {"name": "g.1", "namespace": "n"}, "spec": spec});
        Graph::of(&serde_json::from_value(object).unwrap())
    }

    fn worker(args: &[&str], replicas: u64) -> Value {
        let main = json!({"name": MAIN, "image": "i", "command": ["python3", "-m", "dynamo.vllm"], "args": args,
            "env": [{"name": "DYN_SYSTEM_PORT", "value": "1"}], "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        json!({"components": [
            {"name": "W", "type": "worker", "replicas": replicas, "podTemplate": {"spec": {"containers": [main]}}},
        ]})
    }

    fn main_container(graph: &Graph) -> Value {
        graph.deployment(&graph.components[0])["spec"]["template"]["spec"]["containers"][0].clone()
    }

    #[test]
    fn container_of_the_graph_takes_precedence_over_defaults_of_its_type() {
        let main = main_container(&graph(&worker(&["--model", "m"], 1)));
        assert_eq!(main["command"], json!(["python3", "-m", "dynamo.vllm"]));
        assert_eq!(main["args"], json!(["--model", "m"]));
        assert_eq!(main["resources"]["limits"]["nvidia.com/gpu"], "1");
        assert_eq!(main["startupProbe"]["failureThreshold"], 720);
        let value = |name: &str| as_slice(&main["env"]).iter().find(|v| v["name"] == name).unwrap()["value"].clone();
        assert_eq!(value("DYN_SYSTEM_PORT"), "1");
        assert_eq!(value("DYN_NAMESPACE"), "n-g-1");
    }

    #[test]
    fn worker_without_a_command_is_started_by_a_shell() {
        let mut spec = worker(&["--flag"], 1);
        spec["components"][0]["podTemplate"]["spec"]["containers"][0]["command"] = Value::Null;
        assert_eq!(main_container(&graph(&spec))["command"], json!(["/bin/sh", "-c"]));
    }

    #[test]
    fn old_and_new_workers_have_namespaces_of_their_own_and_scaling_keeps_them() {
        let [first, scaled, changed] =
            [worker(&["a"], 1), worker(&["a"], 3), worker(&["b"], 1)].map(|spec| graph(&spec).worker_hash);
        assert_eq!(first, scaled);
        assert_ne!(first, changed);
    }

    #[test]
    fn a_v1alpha1_service_has_the_deployment_of_the_same_component() {
        let old = json!({"services": {"W": {
            "componentType": "worker", "replicas": 1, "envs": [{"name": "DYN_SYSTEM_PORT", "value": "1"}],
            "resources": {"limits": {"gpu": "1"}},
            "extraPodSpec": {"mainContainer": {
                "image": "i", "command": ["python3", "-m", "dynamo.vllm"], "args": ["a"],
            }},
        }}});
        let [old, new] = [graph(&old), graph(&worker(&["a"], 1))].map(|graph| main_container(&graph));
        assert_eq!(old, new);
    }
}
