//! Replicas of engines, from watches of the Services and EndpointSlices of the cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use runway_api::labels;
use runway_operator::access::rule;
use runway_operator::destination::{self, Destination, NotPods, Slice};
use runway_operator::health::Pending;
use runway_operator::scope::Namespaces;
use runway_operator::services::ServicePort;
use runway_operator::store::Store;
use runway_operator::watch::watched;

use crate::balance::{Replica, Replicas};
use crate::engine::{Lookup, Unreachable};

/// Replicas that requests to Services may go to. Cheap to clone.
#[derive(Clone)]
pub struct Addresses {
    services: Store<Result<Front, NotPods>>,
    /// By the name of the Service.
    slices: Store<Result<Slice, NotPods>>,
}

/// A Service, without what no request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Front {
    /// Names of the ports, by number. `None` for a headless Service: requests go to the port of its pods.
    ports: Option<Vec<(u16, Box<str>)>>,
    /// It was created for a ModelDeployment, so that its pods are engines. Others are frontends of an upstream.
    selects_engines: bool,
}

impl Front {
    fn of(service: &Service) -> Result<Self, NotPods> {
        let named = || {
            let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
            let ports = ports.filter_map(|port| {
                let name = port.name.as_deref().unwrap_or_default();
                Some((u16::try_from(port.port).ok()?, name.into()))
            });
            ports.collect()
        };
        let ports = match Destination::of(service)? {
            Destination::ClusterIp(_) => Some(named()),
            Destination::Pods => None,
        };
        Ok(Self {
            ports,
            selects_engines: service.labels().contains_key(labels::DEPLOYMENT),
        })
    }

    /// The port of the pods in a slice that a port of this Service leads to.
    fn target(&self, port: u16, slice: &Slice) -> Option<u16> {
        let Some(ports) = &self.ports else {
            return Some(port);
        };
        let (_, name) = ports.iter().find(|(number, _)| *number == port)?;
        slice.port(name)
    }
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            services: Store::by_name(),
            slices: Store::by_label(destination::SERVICE_NAME),
        }
    }
}

impl Addresses {
    /// Follows the Services of these namespaces, for as long as it is polled.
    pub async fn follow(self, client: Client, namespaces: Namespaces, listed: Pending) {
        let services = watched::<Service>(namespaces.apis(&client), watcher::Config::default());
        let services = self
            .services
            .clone()
            .follow(services, |service| Some(Front::of(&service)), |_| {});
        let slices = watched::<EndpointSlice>(namespaces.apis(&client), watcher::Config::default());
        let slices = self
            .slices
            .clone()
            .follow(slices, |slice| Some(Slice::of(&slice)), |_| {});
        let ready = async {
            tokio::join!(self.services.listed(), self.slices.listed());
            listed.done();
        };
        tokio::join!(services, slices, ready);
    }

    /// Finds replicas in these watches.
    pub fn lookup(self) -> Lookup {
        Arc::new(move |at| self.of(at))
    }

    fn of(&self, at: &ServicePort) -> Result<Replicas, Unreachable> {
        let front = self.services.read(&at.namespace, &at.service, Clone::clone);
        let front = front.ok_or(Unreachable::Unknown)??;
        let mut pods = BTreeMap::new();
        let taken = self.slices.all(&at.namespace, &at.service, |slice| {
            let slice = slice.as_ref().map_err(Clone::clone)?;
            if let Some(port) = front.target(at.port, slice) {
                // A Service of two IP families lists each pod twice.
                for pod in &slice.pods {
                    pods.entry(Arc::clone(&pod.name))
                        .or_insert_with(|| SocketAddr::new(pod.address, port));
                }
            }
            Ok(())
        });
        taken.into_iter().collect::<Result<(), NotPods>>()?;
        let pods = pods.into_iter().map(|(pod, address)| Replica { pod, address });
        Ok(Replicas {
            all: pods.collect(),
            are_engines: front.selects_engines,
        })
    }
}

/// Permissions to follow Services.
pub fn access() -> Vec<PolicyRule> {
    vec![
        rule("", &["services"], &["list", "watch"]),
        rule("discovery.k8s.io", &["endpointslices"], &["list", "watch"]),
    ]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Request, Response};
    use kube::client::Body;
    use runway_operator::health::Health;
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::{Engines, Error};
    use crate::prompt::Prompt;

    /// A cluster with these Services and EndpointSlices, whose watches say nothing.
    fn cluster(services: Value, slices: Value) -> Client {
        let server = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            let (kind, items) = match request.uri().path() {
                "/api/v1/services" => ("ServiceList", services.clone()),
                _ => ("EndpointSliceList", slices.clone()),
            };
            async move {
                if is_watch {
                    std::future::pending::<()>().await;
                }
                let list = json!({ "kind": kind, "metadata": { "resourceVersion": "1" }, "items": items });
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        Client::new(server, "default")
    }

    fn metadata(name: &str, labels: &Value) -> Value {
        json!({ "name": name, "namespace": "team-a", "resourceVersion": "1", "labels": labels })
    }

    fn service(name: &str, spec: &Value) -> Value {
        json!({ "metadata": metadata(name, &json!({})), "spec": spec })
    }

    #[tokio::test]
    async fn engines_are_found_at_services_that_select_pods_and_nowhere_else() {
        let selector = json!({ "app": "gemma" });
        let services = json!([
            json!({
                "metadata": metadata("usual", &json!({ labels::DEPLOYMENT: "gemma" })),
                "spec": { "selector": selector, "clusterIP": "10.0.0.7", "ports": [{ "name": "http", "port": 8000 }] },
            }),
            service("headless", &json!({ "selector": selector, "clusterIP": "None" })),
            service(
                "external",
                &json!({ "type": "ExternalName", "externalName": "llama.team-b.svc" })
            ),
            service("by-hand", &json!({ "clusterIP": "10.0.0.8" })),
        ]);
        let slice = |service: &str, port: &Value, address: &str| {
            let labels = json!({
                destination::SERVICE_NAME: service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            });
            let pod = json!({ "kind": "Pod", "namespace": "team-a", "name": "gemma-0" });
            json!({
                "metadata": metadata(&format!("{service}-x"), &labels), "addressType": "IPv4", "ports": [port],
                "endpoints": [{ "addresses": [address], "targetRef": pod }],
            })
        };
        let slices = json!([
            slice("headless", &json!({ "port": 8000 }), "10.1.0.1"),
            slice("usual", &json!({ "name": "http", "port": 9000 }), "10.1.0.7"),
        ]);
        let addresses = Addresses::default();
        let health = Health::default();
        let listed = health.waits_for("the Services");
        tokio::spawn(
            addresses
                .clone()
                .follow(cluster(services, slices), Namespaces::default(), listed),
        );
        while !health.missing().is_empty() {
            tokio::task::yield_now().await;
        }
        let lookup = addresses.lookup();
        let at = |service: &str| ServicePort {
            namespace: "team-a".parse().unwrap(),
            service: service.parse().unwrap(),
            port: 8000,
        };
        let found = |service| lookup(&at(service)).map(|found| (found.all[0].address.to_string(), found.are_engines));
        assert_eq!(found("usual"), Ok(("10.1.0.7:9000".to_owned(), true)));
        assert_eq!(found("headless"), Ok(("10.1.0.1:8000".to_owned(), false)));
        assert_eq!(found("none"), Err(Unreachable::Unknown));
        let engines = Engines::new(lookup);
        for (service, field) in [("external", "spec.type"), ("by-hand", "spec.selector")] {
            let Err(error @ Error::NotPods(..)) = engines.connect(&at(service), &Prompt::default()).await else {
                panic!("{service} is called");
            };
            let start = format!("no request is sent to Service '{service}' port 8000: {field} is ");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
    }
}
