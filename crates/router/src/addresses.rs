//! Addresses of engines, from watches of the Services and EndpointSlices of the cluster.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use kube::runtime::watcher;
use runway_operator::access::rule;
use runway_operator::destination::{self, Destination, NotPods};
use runway_operator::health::Pending;
use runway_operator::scope::Namespaces;
use runway_operator::services::ServicePort;
use runway_operator::store::Store;
use runway_operator::watch::watched;

use crate::engine::{Lookup, Unreachable};

/// Addresses that requests to Services may go to. Cheap to clone.
#[derive(Clone)]
pub struct Addresses {
    services: Store<Result<Destination, NotPods>>,
    /// Pods of headless Services, by the name of the Service.
    pods: Store<Result<Vec<IpAddr>, NotPods>>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            services: Store::by_name(),
            pods: Store::by_label(destination::SERVICE_NAME),
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
            .follow(services, |service| Some(Destination::of(&service)), |_| {});
        let headless = watcher::Config::default().labels(destination::HEADLESS);
        let slices = watched::<EndpointSlice>(namespaces.apis(&client), headless);
        let slices = self
            .pods
            .clone()
            .follow(slices, |slice| Some(destination::pods(&slice)), |_| {});
        let ready = async {
            tokio::join!(self.services.listed(), self.pods.listed());
            listed.done();
        };
        tokio::join!(services, slices, ready);
    }

    /// Finds addresses in these watches.
    pub fn lookup(self) -> Lookup {
        Arc::new(move |at| self.of(at).map(|addresses| destination::at_port(addresses, at.port)))
    }

    fn of(&self, at: &ServicePort) -> Result<Vec<IpAddr>, Unreachable> {
        let destination = self.services.read(&at.namespace, &at.service, Clone::clone);
        match destination.ok_or(Unreachable::Unknown)?? {
            Destination::ClusterIp(address) => Ok(vec![address]),
            Destination::Pods => {
                let pods = self.pods.all(&at.namespace, &at.service, Clone::clone);
                Ok(pods.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
            }
        }
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
            service("usual", &json!({ "selector": selector, "clusterIP": "10.0.0.7" })),
            service("headless", &json!({ "selector": selector, "clusterIP": "None" })),
            service(
                "external",
                &json!({ "type": "ExternalName", "externalName": "llama.team-b.svc" })
            ),
            service("by-hand", &json!({ "clusterIP": "10.0.0.8" })),
        ]);
        let labels = json!({
            destination::SERVICE_NAME: "headless",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        });
        let pod = json!({ "kind": "Pod", "namespace": "team-a", "name": "gemma-0" });
        let slices = json!([{
            "metadata": metadata("headless-x", &labels), "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.1.0.1"], "targetRef": pod }],
        }]);
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
        let found = |service| lookup(&at(service)).map(|found| found[0].to_string());
        assert_eq!(found("usual").unwrap(), "10.0.0.7:8000");
        assert_eq!(found("headless").unwrap(), "10.1.0.1:8000");
        assert_eq!(found("none"), Err(Unreachable::Unknown));
        let engines = Engines::new(lookup);
        for (service, field) in [("external", "spec.type"), ("by-hand", "spec.selector")] {
            let Err(error @ Error::NotPods(..)) = engines.connect(&at(service)).await else {
                panic!("{service} is called");
            };
            let start = format!("no request is sent to Service '{service}' port 8000: {field} is ");
            assert!(error.to_string().starts_with(&start), "{error}");
        }
    }
}
