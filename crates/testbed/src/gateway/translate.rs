//! Translation of a Gateway, its HTTPRoutes, their backends and the pods into a data path. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::core::{DynamicObject, Expression, Selector, SelectorExt as _};
use serde_json::{Value, json};

use super::status::{Status, Verdict, answer, condition};

/// Label of an EndpointSlice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Objects of a cluster.
pub(super) struct Seen {
    pub(super) gateway: DynamicObject,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) routes: Vec<DynamicObject>,
    pub(super) pools: Vec<DynamicObject>,
    pub(super) services: Vec<Service>,
    pub(super) slices: Vec<EndpointSlice>,
    pub(super) pods: Vec<Pod>,
}

/// Desired data path, and the judgment on each object.
pub(super) struct Wanted {
    /// Port of the listener.
    pub(super) port: u16,
    /// Routes in the order in which they are tried.
    pub(super) routes: Vec<Route>,
    /// By name.
    pub(super) clusters: BTreeMap<String, Cluster>,
    gateway: DynamicObject,
    judged: Vec<Judged>,
}

/// One match of a rule.
pub(super) struct Route {
    pub(super) prefix: String,
    /// Names and exact values.
    pub(super) headers: Vec<(String, String)>,
    /// Names of clusters, with their weights. None of them: the backends do not exist.
    pub(super) backends: Vec<(String, u64)>,
    /// Longest time for a request, in Envoy's form.
    pub(super) timeout: Option<String>,
    pub(super) picker: Option<Picker>,
}

/// Endpoint picker of a route's pool.
#[derive(Clone)]
pub(super) struct Picker {
    /// Name of its cluster.
    pub(super) cluster: String,
    /// Whether Envoy chooses a pod if the picker does not answer.
    pub(super) fails_open: bool,
}

/// Addresses that requests are sent to.
pub(super) enum Cluster {
    /// Ready pods. Those of a pool are chosen by a picker.
    Pods {
        addresses: BTreeSet<SocketAddr>,
        is_pool: bool,
    },
    /// An endpoint picker, by its name in the DNS of the cluster.
    Picker { name: String, port: u16 },
}

/// An object with the Gateway as its parent.
struct Judged {
    object: DynamicObject,
    parent: Value,
    accepted: Verdict,
    resolved: Verdict,
}

impl Wanted {
    /// Statuses of the Gateway at this address, and of what belongs to it.
    pub(super) fn statuses(&self, address: Ipv4Addr) -> Vec<Status> {
        let of_judged = self.judged.iter().map(|judged| Status {
            wanted: answer(&judged.object, &judged.parent, &judged.accepted, &judged.resolved),
            object: judged.object.clone(),
        });
        let is_attached = |judged: &&Judged| judged.accepted.is_ok() && is_kind(&judged.object, "HTTPRoute");
        let attached = self.judged.iter().filter(is_attached).count();
        let gateway = &self.gateway;
        let hold = |types: &[&str]| {
            types
                .iter()
                .map(|type_| condition(gateway, type_, &Ok(())))
                .collect::<Vec<_>>()
        };
        let wanted = json!({
            "addresses": [{ "type": "IPAddress", "value": address }],
            "conditions": hold(&["Accepted", "Programmed"]),
            "listeners": [{
                "name": gateway.data["spec"]["listeners"][0]["name"], "attachedRoutes": attached,
                "supportedKinds": [{ "group": super::GATEWAY_API, "kind": "HTTPRoute" }],
                "conditions": hold(&["Accepted", "Programmed", "ResolvedRefs"]),
            }],
        });
        let of_gateway = Status {
            object: gateway.clone(),
            wanted,
        };
        of_judged.chain([of_gateway]).collect()
    }
}

/// Translates everything that belongs to the Gateway.
///
/// # Errors
/// The Gateway does not have one listener for HTTP.
pub(super) fn translate(seen: &Seen) -> Result<Wanted> {
    let listeners = seen.gateway.data["spec"]["listeners"].as_array();
    let Some([listener]) = listeners.map(Vec::as_slice) else {
        bail!("the Gateway does not have one listener: {listeners:?}");
    };
    ensure!(
        listener["protocol"] == "HTTP",
        "the listener is not for HTTP: {listener}"
    );
    let mut wanted = Wanted {
        port: port(&listener["port"])?,
        routes: Vec::new(),
        clusters: BTreeMap::new(),
        gateway: seen.gateway.clone(),
        judged: Vec::new(),
    };
    let mut routes: Vec<&DynamicObject> = seen.routes.iter().collect();
    // The oldest route wins, then the first by name.
    routes.sort_by_key(|route| (route.creation_timestamp(), route.namespace(), route.name_any()));
    for route in routes {
        for parent in list(&route.data["spec"]["parentRefs"]) {
            if is_parent(&seen.gateway, route, parent) {
                wanted.attach(seen, route, parent, listener);
            }
        }
    }
    // A longer path wins, then more headers.
    wanted
        .routes
        .sort_by_key(|route| Reverse((route.prefix.len(), route.headers.len())));
    Ok(wanted)
}

impl Wanted {
    fn attach(&mut self, seen: &Seen, route: &DynamicObject, parent: &Value, listener: &Value) {
        let accepted = allowed(seen, route, listener).and_then(|()| supported(route));
        let mut resolved = Ok(());
        if accepted.is_ok() {
            for rule in list(&route.data["spec"]["rules"]) {
                let of_rule = self.add_rule(seen, route, rule);
                resolved = resolved.and(of_rule);
            }
        }
        self.judge(route, parent.clone(), accepted, resolved);
    }

    /// Adds the routes of a rule, and the clusters of its backends.
    fn add_rule(&mut self, seen: &Seen, route: &DynamicObject, rule: &Value) -> Verdict {
        let (mut backends, mut picker, mut resolved) = (Vec::new(), None, Ok(()));
        for backend in list(&rule["backendRefs"]) {
            let weight = backend["weight"].as_u64().unwrap_or(1);
            match self.add_backend(seen, route, backend) {
                Ok((cluster, of_pool)) => {
                    backends.push((cluster, weight));
                    picker = picker.or(of_pool);
                }
                Err(missing) => resolved = Err(("BackendNotFound", missing)),
            }
        }
        for found in list(&rule["matches"]) {
            let headers = list(&found["headers"]);
            self.routes.push(Route {
                prefix: text(&found["path"]["value"]),
                headers: headers.map(|h| (text(&h["name"]), text(&h["value"]))).collect(),
                backends: backends.clone(),
                timeout: rule["timeouts"]["request"].as_str().and_then(seconds),
                picker: picker.clone(),
            });
        }
        resolved
    }

    /// The cluster of a backend, and the picker of its pool. An error if it does not exist.
    fn add_backend(
        &mut self,
        seen: &Seen,
        route: &DynamicObject,
        backend: &Value,
    ) -> Result<(String, Option<Picker>), String> {
        let namespace = route.namespace().unwrap_or_default();
        let (kind, name) = (backend["kind"].as_str().unwrap_or("Service"), text(&backend["name"]));
        let missing = || format!("{kind} '{name}' does not exist");
        let is_it = |object_namespace: Option<String>, object_name: String| {
            object_namespace.as_ref() == Some(&namespace) && object_name == name
        };
        if kind == "InferencePool" {
            let pool = seen.pools.iter().find(|pool| is_it(pool.namespace(), pool.name_any()));
            return self
                .add_pool(seen, pool.ok_or_else(missing)?)
                .map_err(|error| format!("{error:#}"));
        }
        let service = seen.services.iter().find(|s| is_it(s.namespace(), s.name_any()));
        let number = backend["port"].as_i64().unwrap_or_default();
        let addresses = behind(seen, service.ok_or_else(missing)?, number)
            .with_context(|| format!("Service '{name}' has no port {number}"))
            .map_err(|error| error.to_string())?;
        let cluster = format!("service.{namespace}.{name}.{number}");
        let pods = Cluster::Pods {
            addresses,
            is_pool: false,
        };
        self.clusters.insert(cluster.clone(), pods);
        Ok((cluster, None))
    }

    fn add_pool(&mut self, seen: &Seen, pool: &DynamicObject) -> Result<(String, Option<Picker>)> {
        let (namespace, name) = (pool.namespace().unwrap_or_default(), pool.name_any());
        let spec = &pool.data["spec"];
        let target = port(&spec["targetPorts"][0]["number"])?;
        let labels: BTreeMap<String, String> = serde_json::from_value(spec["selector"]["matchLabels"].clone())?;
        let selector: Selector = labels.into_iter().collect();
        let pods = seen.pods.iter().filter(|pod| {
            pod.namespace().as_ref() == Some(&namespace) && selector.matches(pod.labels()) && is_ready(pod)
        });
        let addresses = pods.filter_map(|pod| pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok());
        let cluster = format!("pool.{namespace}.{name}");
        let pods = Cluster::Pods {
            addresses: addresses.map(|ip| SocketAddr::new(ip, target)).collect(),
            is_pool: true,
        };
        self.clusters.insert(cluster.clone(), pods);
        let picker = &spec["endpointPickerRef"];
        let service = text(&picker["name"]);
        let exists = seen
            .services
            .iter()
            .any(|s| s.namespace().as_ref() == Some(&namespace) && s.name_any() == service);
        let resolved = if exists || picker.is_null() {
            Ok(())
        } else {
            Err(("InvalidExtensionRef", format!("Service '{service}' does not exist")))
        };
        let gateway = &seen.gateway;
        let parent = json!({
            "group": super::GATEWAY_API, "kind": "Gateway", "namespace": gateway.namespace(), "name": gateway.name_any(),
        });
        self.judge(pool, parent, Ok(()), resolved);
        if picker.is_null() {
            return Ok((cluster, None));
        }
        let of_picker = Cluster::Picker {
            name: format!("{service}.{namespace}.svc.cluster.local."),
            port: port(&picker["port"]["number"])?,
        };
        let by = Picker {
            cluster: format!("picker.{namespace}.{service}"),
            fails_open: picker["failureMode"] == "FailOpen",
        };
        self.clusters.insert(by.cluster.clone(), of_picker);
        Ok((cluster, Some(by)))
    }

    fn judge(&mut self, object: &DynamicObject, parent: Value, accepted: Verdict, resolved: Verdict) {
        self.judged.push(Judged {
            object: object.clone(),
            parent,
            accepted,
            resolved,
        });
    }
}

/// Whether the listener allows routes from the namespace of this one.
fn allowed(seen: &Seen, route: &DynamicObject, listener: &Value) -> Verdict {
    let namespace = route.namespace();
    let from = &listener["allowedRoutes"]["namespaces"];
    let is_allowed = match from["from"].as_str().unwrap_or("Same") {
        "All" => true,
        "Selector" => {
            let labels = seen.namespaces.iter().find(|found| Some(found.name_any()) == namespace);
            let wanted = from["selector"]["matchLabels"].as_object();
            let wanted = wanted.into_iter().flatten();
            let terms = wanted.map(|(key, value)| Expression::Equal(key.clone(), text(value)));
            let selector: Selector = terms.collect();
            labels.is_some_and(|found| selector.matches(found.labels()))
        }
        _ => namespace == seen.gateway.namespace(),
    };
    if is_allowed {
        return Ok(());
    }
    let message = "the listener does not allow routes from this namespace".to_owned();
    Err(("NotAllowedByListeners", message))
}

/// Whether the simulator translates everything that a route contains.
fn supported(route: &DynamicObject) -> Verdict {
    let known = |value: &Value, names: &[&str]| {
        let fields = value.as_object().into_iter().flatten();
        let unknown = fields
            .map(|(name, _)| name)
            .find(|name| !names.contains(&name.as_str()));
        unknown.map_or(Ok(()), |name| Err(name.clone()))
    };
    let check = || {
        let spec = &route.data["spec"];
        known(spec, &["parentRefs", "rules"])?;
        for rule in list(&spec["rules"]) {
            known(rule, &["name", "matches", "backendRefs", "timeouts"])?;
            known(&rule["timeouts"], &["request"])?;
            for found in list(&rule["matches"]) {
                known(found, &["path", "headers"])?;
                let headers = list(&found["headers"]).map(|header| (&header["type"], "Exact"));
                for (type_, expected) in headers.chain([(&found["path"]["type"], "PathPrefix")]) {
                    if type_ != expected {
                        return Err(text(type_));
                    }
                }
            }
        }
        Ok(())
    };
    let message = |field| format!("the simulator does not translate {field}");
    check().map_err(|field: String| ("UnsupportedValue", message(field)))
}

fn is_parent(gateway: &DynamicObject, route: &DynamicObject, parent: &Value) -> bool {
    let namespace = parent["namespace"]
        .as_str()
        .map(str::to_owned)
        .or_else(|| route.namespace());
    parent["kind"].as_str().unwrap_or("Gateway") == "Gateway"
        && parent["name"] == gateway.name_any()
        && namespace == gateway.namespace()
}

/// Addresses of the ready pods behind a port of a Service; `None` if it has no such port.
fn behind(seen: &Seen, service: &Service, number: i64) -> Option<BTreeSet<SocketAddr>> {
    let ports = service.spec.as_ref()?.ports.iter().flatten();
    let name = ports
        .filter(|port| i64::from(port.port) == number)
        .map(|port| port.name.clone())
        .next()?;
    let name = name.unwrap_or_default();
    let slices = seen.slices.iter().filter(|slice| {
        slice.namespace() == service.namespace() && slice.labels().get(SERVICE_NAME) == Some(&service.name_any())
    });
    let mut found = BTreeSet::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let target = ports.find(|port| port.name.as_deref().unwrap_or_default() == name);
        let Some(target) = target.and_then(|port| port.port?.try_into().ok()) else {
            continue;
        };
        let ready = slice.endpoints.iter().filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.is_none_or(|conditions| conditions.ready != Some(false))
        });
        let addresses = ready.flat_map(|endpoint| &endpoint.addresses);
        found.extend(addresses.filter_map(|ip| Some(SocketAddr::new(ip.parse().ok()?, target))));
    }
    Some(found)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_kind(object: &DynamicObject, kind: &str) -> bool {
    object.types.as_ref().is_some_and(|types| types.kind == kind)
}

/// A duration of the Gateway API, such as `1m30s`, as seconds in Envoy's form.
fn seconds(duration: &str) -> Option<String> {
    let span: jiff::Span = duration.parse().ok()?;
    let seconds = span.total(jiff::Unit::Second).ok()?;
    Some(format!("{seconds}s"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn port(value: &Value) -> Result<u16> {
    let number = value.as_u64().and_then(|number| number.try_into().ok());
    number.with_context(|| format!("not a port: {value}"))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn object<T: DeserializeOwned>(kind: &str, name: &str, rest: &Value) -> T {
        let version = match kind {
            "Pod" | "Service" => "v1",
            "EndpointSlice" => "discovery.k8s.io/v1",
            _ => "gateway.networking.k8s.io/v1",
        };
        let mut value = json!({
            "apiVersion": version, "kind": kind,
            "metadata": { "name": name, "namespace": "a", "creationTimestamp": "2026-01-01T00:00:00Z" },
        });
        for (field, content) in rest.as_object().unwrap() {
            value[field] = content.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn route(name: &str, path: &str, backend: &Value) -> DynamicObject {
        let found = json!({
            "path": { "type": "PathPrefix", "value": path },
            "headers": [{ "type": "Exact", "name": "X-Model", "value": "m" }],
        });
        let rule = json!({ "matches": [found], "backendRefs": [backend], "timeouts": { "request": "1m30s" } });
        let spec = json!({ "parentRefs": [{ "name": "g" }], "rules": [rule] });
        object("HTTPRoute", name, &json!({ "spec": spec }))
    }

    fn seen(routes: Vec<DynamicObject>) -> Seen {
        let listener = json!({ "name": "http", "protocol": "HTTP", "port": 80 });
        let port = json!({ "name": "http", "port": 80, "targetPort": "http" });
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        let pod = |name: &str, ip: &str, conditions: &Value| {
            let status = json!({ "podIP": ip, "conditions": conditions });
            let mut pod: Pod = object("Pod", name, &json!({ "status": status }));
            pod.metadata.labels = Some([("app".to_owned(), "m".to_owned())].into());
            pod
        };
        let mut slice: EndpointSlice = object(
            "EndpointSlice",
            "m-1",
            &json!({
                "addressType": "IPv4",
                "endpoints": [
                    { "addresses": ["10.0.0.1"], "conditions": { "ready": true } },
                    { "addresses": ["10.0.0.2"], "conditions": { "ready": false } },
                ],
                "ports": [{ "name": "http", "port": 8000 }],
            }),
        );
        slice.metadata.labels = Some([(SERVICE_NAME.to_owned(), "m".to_owned())].into());
        let pool = json!({
            "selector": { "matchLabels": { "app": "m" } }, "targetPorts": [{ "number": 8000 }],
            "endpointPickerRef": { "name": "m-epp", "port": { "number": 9002 }, "failureMode": "FailOpen" },
        });
        Seen {
            gateway: object("Gateway", "g", &json!({ "spec": { "listeners": [listener] } })),
            namespaces: Vec::new(),
            routes,
            pools: vec![object("InferencePool", "m", &json!({ "spec": pool }))],
            services: vec![object("Service", "m", &json!({ "spec": { "ports": [port] } }))],
            slices: vec![slice],
            pods: vec![pod("one", "10.0.0.1", &ready), pod("two", "10.0.0.2", &json!([]))],
        }
    }

    fn addresses(cluster: &Cluster) -> Vec<String> {
        match cluster {
            Cluster::Pods { addresses, .. } => addresses.iter().map(ToString::to_string).collect(),
            Cluster::Picker { .. } => Vec::new(),
        }
    }

    #[test]
    fn route_leads_to_ready_pods_of_its_service() {
        let service = json!({ "kind": "Service", "name": "m", "port": 80 });
        let wanted = translate(&seen(vec![route("r", "/v1", &service)])).unwrap();
        assert_eq!(wanted.routes[0].backends, [("service.a.m.80".to_owned(), 1)]);
        assert_eq!(wanted.routes[0].timeout.as_deref(), Some("90s"));
        assert_eq!(addresses(&wanted.clusters["service.a.m.80"]), ["10.0.0.1:8000"]);
        assert!(wanted.judged[0].accepted.is_ok() && wanted.judged[0].resolved.is_ok());
    }

    #[test]
    fn pool_has_its_ready_pods_and_needs_the_service_of_its_picker() {
        let backend = json!({ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "m" });
        let wanted = translate(&seen(vec![route("r", "/v1", &backend)])).unwrap();
        assert_eq!(addresses(&wanted.clusters["pool.a.m"]), ["10.0.0.1:8000"]);
        assert!(wanted.routes[0].picker.as_ref().is_some_and(|picker| picker.fails_open));
        let [pool, route] = wanted.judged.as_slice() else {
            panic!("{} objects", wanted.judged.len());
        };
        assert_eq!(pool.resolved.as_ref().unwrap_err().0, "InvalidExtensionRef");
        assert!(route.resolved.is_ok());
    }

    #[test]
    fn missing_backend_is_reported_and_has_no_cluster() {
        let absent = json!({ "name": "absent", "port": 80 });
        let wanted = translate(&seen(vec![route("r", "/v1", &absent)])).unwrap();
        assert!(wanted.routes[0].backends.is_empty() && wanted.clusters.is_empty());
        assert_eq!(wanted.judged[0].resolved.as_ref().unwrap_err().0, "BackendNotFound");
    }

    #[test]
    fn longer_path_wins_and_then_the_older_route() {
        let service = json!({ "name": "m", "port": 80 });
        let mut older = route("z", "/v1", &json!({ "name": "absent", "port": 80 }));
        older.metadata.creation_timestamp = serde_json::from_value(json!("2025-01-01T00:00:00Z")).unwrap();
        let routes = vec![route("a", "/v1", &service), older, route("b", "/v1/chat", &service)];
        let wanted = translate(&seen(routes)).unwrap();
        let tried: Vec<(&str, usize)> = wanted
            .routes
            .iter()
            .map(|route| (route.prefix.as_str(), route.backends.len()))
            .collect();
        assert_eq!(tried, [("/v1/chat", 1), ("/v1", 0), ("/v1", 1)]);
    }

    #[test]
    fn fields_that_are_not_translated_are_refused() {
        let mut filtered = route("r", "/v1", &json!({ "name": "m", "port": 80 }));
        filtered.data["spec"]["rules"][0]["filters"] = json!([]);
        let wanted = translate(&seen(vec![filtered])).unwrap();
        assert!(wanted.routes.is_empty());
        assert_eq!(wanted.judged[0].accepted.as_ref().unwrap_err().0, "UnsupportedValue");
    }

    #[test]
    fn listener_allows_routes_of_its_own_namespace_by_default() {
        let mut foreign = route("r", "/v1", &json!({ "name": "m", "port": 80 }));
        foreign.metadata.namespace = Some("b".to_owned());
        foreign.data["spec"]["parentRefs"][0]["namespace"] = "a".into();
        let wanted = translate(&seen(vec![foreign])).unwrap();
        assert_eq!(
            wanted.judged[0].accepted.as_ref().unwrap_err().0,
            "NotAllowedByListeners"
        );
    }
}
