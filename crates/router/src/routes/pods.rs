//! The pods behind the Service of a model, for an InferencePool. Pure.
//!
//! Only Services that were created for a ModelDeployment count: the endpoint of some providers is a frontend of their upstream, and
//! its workers do not serve HTTP.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use runway_api::labels;

/// A Service, without what no plan reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// Name of the ModelDeployment.
    pub deployment: String,
    selector: BTreeMap<String, String>,
    ports: Vec<FrontPort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FrontPort {
    name: String,
    port: i32,
    /// Absent if it is the name of a port of the pods.
    target: Option<i32>,
}

impl Front {
    /// The kept form of a Service that was created for a ModelDeployment.
    pub fn of(service: Service) -> Option<Self> {
        let deployment = service.labels().get(labels::DEPLOYMENT)?.clone();
        let spec = service.spec?;
        let ports = spec.ports.into_iter().flatten().map(|port| FrontPort {
            name: port.name.unwrap_or_default(),
            port: port.port,
            target: match port.target_port {
                None => Some(port.port),
                Some(IntOrString::Int(number)) => Some(number),
                Some(IntOrString::String(_)) => None,
            },
        });
        Some(Self {
            deployment,
            selector: spec.selector.unwrap_or_default(),
            ports: ports.collect(),
        })
    }
}

/// Names and numbers of the ports of an EndpointSlice, without its addresses, which change with every pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Name of the ModelDeployment.
    pub deployment: String,
    ports: Vec<(String, i32)>,
}

impl Slice {
    /// The kept form of an EndpointSlice of a Service that was created for a ModelDeployment: it has the labels of the Service.
    pub fn of(slice: EndpointSlice) -> Option<Self> {
        let deployment = slice.labels().get(labels::DEPLOYMENT)?.clone();
        let ports = slice.ports.into_iter().flatten();
        let mut ports: Vec<(String, i32)> = ports
            .filter_map(|port| Some((port.name.unwrap_or_default(), port.port?)))
            .collect();
        ports.sort();
        Some(Self { deployment, ports })
    }
}

/// Pods that serve a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// Their labels, as the Service selects them.
    pub labels: BTreeMap<String, String>,
    /// Port of the pods, if it is known: a port with a name is known while there are pods.
    pub port: Option<i32>,
}

/// The pods behind a port of a Service; `None` if it selects none.
pub fn behind(front: &Front, slices: &[Slice], port: i32) -> Option<Pods> {
    let found = front.ports.iter().find(|p| p.port == port)?;
    let named = || {
        let ports = slices.iter().flat_map(|slice| &slice.ports);
        ports
            .filter(|(name, _)| *name == found.name)
            .map(|(_, port)| *port)
            .min()
    };
    (!front.selector.is_empty()).then(|| Pods {
        labels: front.selector.clone(),
        port: found.target.or_else(named),
    })
}

/// Whether a label selector, as in `status.selector`, has only labels with one value, and all of them are in `labels`.
pub fn is_narrower(labels: &BTreeMap<String, String>, selector: &str) -> bool {
    let mut terms = selector
        .split(',')
        .map(str::trim)
        .filter(|term| !term.is_empty())
        .peekable();
    terms.peek().is_some()
        && terms.all(|term| {
            let (key, value) = term.split_once('=').unwrap_or((term, "\n"));
            labels
                .get(key.trim())
                .is_some_and(|found| found == value.trim_start_matches('=').trim())
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn front(target: &serde_json::Value) -> Front {
        let service = json!({
            "metadata": { "name": "gemma", "labels": { labels::DEPLOYMENT: "gemma" } },
            "spec": { "selector": { "app": "gemma", "by": "direct" }, "ports": [
                { "name": "http", "port": 80, "targetPort": target },
                { "name": "other", "port": 81, "targetPort": 9 },
            ] },
        });
        Front::of(serde_json::from_value(service).unwrap()).unwrap()
    }

    fn slice(ports: &serde_json::Value) -> Slice {
        let slice = json!({
            "metadata": { "name": "gemma-x", "labels": { labels::DEPLOYMENT: "gemma" } },
            "addressType": "IPv4", "endpoints": [], "ports": ports,
        });
        Slice::of(serde_json::from_value(slice).unwrap()).unwrap()
    }

    #[test]
    fn port_of_the_pods_is_the_target_of_the_service() {
        let port = |front: &Front, slices: &[Slice]| behind(front, slices, 80).unwrap().port;
        assert_eq!(port(&front(&json!(5000)), &[]), Some(5000));
        assert_eq!(port(&front(&json!(null)), &[]), Some(80));
        let named = front(&json!("http"));
        assert_eq!(port(&named, &[]), None, "unknown without pods");
        let slices = [
            slice(&json!([])),
            slice(&json!([{ "name": "http", "port": 8000 }, { "name": "x", "port": 1 }])),
        ];
        assert_eq!(port(&named, &slices), Some(8000));
        assert_eq!(behind(&named, &slices, 443), None);
    }

    #[test]
    fn services_of_others_do_not_count() {
        let service = json!({ "metadata": { "name": "gemma" }, "spec": { "selector": { "app": "gemma" } } });
        assert_eq!(Front::of(serde_json::from_value(service).unwrap()), None);
        let without_pods = Front {
            selector: BTreeMap::new(),
            ..front(&json!(1))
        };
        assert_eq!(behind(&without_pods, &[], 80), None);
    }

    #[test]
    fn selector_of_the_status_is_a_part_of_that_of_the_service() {
        let labels = front(&json!(1)).selector;
        for within in ["app=gemma", "app=gemma,by=direct", "app==gemma", " app = gemma "] {
            assert!(is_narrower(&labels, within), "{within}");
        }
        for not in [
            "",
            "app",
            "app=other",
            "app!=gemma",
            "app in (gemma)",
            "role=worker",
            "app=gemma,role=worker",
        ] {
            assert!(!is_narrower(&labels, not), "{not}");
        }
    }
}
