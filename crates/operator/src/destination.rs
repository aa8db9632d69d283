//! Addresses of Services that a program may connect to for a user: those of pods of the Service's namespace. Pure.
//!
//! A user who may change a Service decides where its name leads: `spec.type: ExternalName` and endpoints without pods lead to
//! any address that the program can reach, and the user cannot. So programs do not resolve names of Services.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::ResourceExt as _;

use crate::address::check_resolved;

/// Label of an EndpointSlice with the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of the EndpointSlices of headless Services.
/// Source: `IsHeadlessService` in k8s.io/api `core/v1/annotation_key_constants.go`.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of an EndpointSlice with its writer, and the controller that lists the pods of a selector.
/// Source: <https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#management>.
const MANAGED_BY: (&str, &str) = (
    "endpointslice.kubernetes.io/managed-by",
    "endpointslice-controller.k8s.io",
);

/// Destination of requests to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The ClusterIP of a Service that selects pods.
    ClusterIp(IpAddr),
    /// The Service is headless: the pods of its EndpointSlices, see [`Slice`].
    Pods,
}

/// Reason why no request is sent to a Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPods {
    /// The Service is another name for a host.
    #[error("spec.type is ExternalName, which leads out of the namespace: requests go to pods only; use ClusterIP")]
    ExternalName,
    /// The endpoints of the Service are made by hand.
    #[error("spec.selector is empty, so its endpoints may be any address: requests go to pods only; set spec.selector")]
    NoSelector,
    /// There is no address, or one that is not a ClusterIP.
    #[error("spec.clusterIP '{0}' is not an address for requests; remove it, and the cluster assigns one")]
    Address(String),
    /// An endpoint is not a pod of the namespace of its Service.
    #[error(
        "EndpointSlice '{slice}' contains '{address}', which is not a pod of the namespace: requests go to pods only; delete it"
    )]
    Foreign {
        /// Name of the EndpointSlice.
        slice: String,
        /// The address.
        address: String,
    },
}

impl Destination {
    /// Destination of requests to a Service.
    ///
    /// # Errors
    /// The Service does not select pods.
    pub fn of(service: &Service) -> Result<Self, NotPods> {
        let spec = service.spec.as_ref();
        let type_ = spec.and_then(|spec| spec.type_.as_deref());
        if type_ == Some("ExternalName") {
            return Err(NotPods::ExternalName);
        }
        let selector = spec.and_then(|spec| spec.selector.as_ref());
        if selector.is_none_or(BTreeMap::is_empty) {
            return Err(NotPods::NoSelector);
        }
        let address = spec.and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default();
        if address == "None" {
            return Ok(Self::Pods);
        }
        allowed(address)
            .map(Self::ClusterIp)
            .ok_or_else(|| NotPods::Address(address.to_owned()))
    }
}

/// The ready pods of an EndpointSlice, and their ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Pods that are ready.
    pub pods: Vec<Pod>,
    /// Ports by the name of the Service's port.
    ports: Vec<(Box<str>, u16)>,
}

/// A pod behind a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Name of the pod.
    pub name: Arc<str>,
    /// Address of the pod.
    pub address: IpAddr,
}

impl Slice {
    /// The kept form of an EndpointSlice.
    ///
    /// # Errors
    /// An endpoint is not a pod of the namespace, or the list was not made from the selector.
    pub fn of(slice: &EndpointSlice) -> Result<Self, NotPods> {
        let is_of_selector = slice.labels().get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1);
        let namespace = slice.namespace();
        let mut pods = Vec::new();
        for endpoint in &slice.endpoints {
            let target = endpoint.target_ref.as_ref().filter(|target| {
                is_of_selector && target.kind.as_deref() == Some("Pod") && target.namespace == namespace
            });
            let name: Option<Arc<str>> = target.and_then(|target| Some(target.name.as_deref()?.into()));
            for address in &endpoint.addresses {
                let pod = name.clone().zip(allowed(address));
                let (name, address) = pod.ok_or_else(|| NotPods::Foreign {
                    slice: slice.name_any(),
                    address: address.clone(),
                })?;
                pods.extend(is_ready(endpoint).then_some(Pod { name, address }));
            }
        }
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            let number = u16::try_from(port.port?).ok()?;
            Some((port.name.as_deref().unwrap_or_default().into(), number))
        });
        Ok(Self {
            pods,
            ports: ports.collect(),
        })
    }

    /// The port of the pods that belongs to a port of the Service, by its name.
    pub fn port(&self, name: &str) -> Option<u16> {
        let found = self.ports.iter().find(|(of_service, _)| **of_service == *name);
        found.map(|(_, number)| *number)
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.is_none_or(|found| found.ready != Some(false))
}

/// The port of each of these addresses.
pub fn at_port(addresses: impl IntoIterator<Item = IpAddr>, port: u16) -> Vec<SocketAddr> {
    let addresses = addresses.into_iter();
    addresses.map(|address| SocketAddr::new(address, port)).collect()
}

fn allowed(address: &str) -> Option<IpAddr> {
    let address = address.parse().ok()?;
    check_resolved(address).ok().map(|()| address)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn destination(spec: &Value) -> Result<Destination, String> {
        let service = serde_json::from_value(json!({ "metadata": { "name": "gemma" }, "spec": spec })).unwrap();
        Destination::of(&service).map_err(|error| error.to_string())
    }

    fn listed(by: &str, endpoint: &Value) -> Result<Vec<String>, String> {
        let slice = json!({
            "metadata": { "name": "gemma-x", "namespace": "team-a", "labels": { MANAGED_BY.0: by } },
            "addressType": "IPv4", "endpoints": [endpoint],
        });
        let found = Slice::of(&serde_json::from_value(slice).unwrap());
        let found = found.map(|found| found.pods.iter().map(|pod| pod.address.to_string()).collect());
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn requests_go_to_services_that_select_pods() {
        let selects = json!({ "selector": { "app": "gemma" }, "clusterIP": "10.0.0.7" });
        assert_eq!(destination(&selects), Ok(Destination::ClusterIp([10, 0, 0, 7].into())));
        let headless = json!({ "selector": { "app": "gemma" }, "clusterIP": "None" });
        assert_eq!(destination(&headless), Ok(Destination::Pods));
        let balanced = json!({ "type": "LoadBalancer", "selector": { "app": "gemma" }, "clusterIP": "fd00::7" });
        assert!(matches!(destination(&balanced), Ok(Destination::ClusterIp(_))));
    }

    #[test]
    fn requests_to_services_that_lead_elsewhere_are_refused_with_the_field() {
        let external = json!({ "type": "ExternalName", "externalName": "llama.team-b.svc" });
        let decorated = json!({
            "type": "ExternalName", "externalName": "localhost", "selector": { "app": "a" }, "clusterIP": "10.0.0.7",
        });
        let select = json!({ "app": "gemma" });
        for (spec, field) in [
            (&external, "spec.type is ExternalName"),
            (&decorated, "spec.type is ExternalName"),
            (&json!({ "clusterIP": "10.0.0.7" }), "spec.selector is empty"),
            (
                &json!({ "clusterIP": "10.0.0.7", "selector": {} }),
                "spec.selector is empty",
            ),
            (&json!({ "clusterIP": "None" }), "spec.selector is empty"),
            (&json!({ "selector": select }), "spec.clusterIP ''"),
            (
                &json!({ "selector": select, "clusterIP": "127.0.0.1" }),
                "spec.clusterIP '127.0.0.1'",
            ),
            (&Value::Null, "spec.selector is empty"),
        ] {
            let refused = destination(spec).unwrap_err();
            assert!(refused.starts_with(field), "{spec}: {refused}");
        }
    }

    #[test]
    fn endpoints_are_ready_pods_of_the_namespace_of_their_service() {
        let pod = |namespace: &str, ready: bool, address: &str| {
            json!({
                "addresses": [address], "conditions": { "ready": ready },
                "targetRef": { "kind": "Pod", "namespace": namespace, "name": "gemma-0" },
            })
        };
        let mine = pod("team-a", true, "10.1.0.1");
        assert_eq!(listed(MANAGED_BY.1, &mine).unwrap(), ["10.1.0.1"]);
        assert_eq!(
            listed(MANAGED_BY.1, &pod("team-a", false, "10.1.0.1")).unwrap(),
            [""; 0]
        );
        let bare = json!({ "addresses": ["10.1.0.1"] });
        for (by, endpoint) in [
            ("me", &mine),
            (MANAGED_BY.1, &bare),
            (MANAGED_BY.1, &pod("team-b", true, "10.1.0.1")),
            (MANAGED_BY.1, &pod("team-a", true, "169.254.169.254")),
            (MANAGED_BY.1, &pod("team-a", true, "llama.team-b.svc")),
        ] {
            let refused = listed(by, endpoint).unwrap_err();
            assert!(refused.starts_with("EndpointSlice 'gemma-x' contains"), "{refused}");
        }
    }
}
