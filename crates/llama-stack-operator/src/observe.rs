//! The input of a plan, read from watch caches. The only wait is for the watch of a ConfigMap that is named for the first
//! time.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::LlamaStackDistribution;
use runway_api::model_deployment::Endpoint;
use runway_operator::apply::Executor;
use runway_operator::destination::Destination;
use runway_operator::{clock, kubelet};

use crate::caches::Caches;
use crate::config_maps::Unknown;
use crate::kinds::{self, Kind};
use crate::merge::Transport;
use crate::references;
pub use crate::servers::{Answer, ServerInfo};
use crate::settings::Settings;

/// Inputs of every reconcile, and the executor of its plan, which remembers the operator's own writes.
pub(crate) struct Context {
    pub(crate) settings: Arc<Settings>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) executor: Executor<LlamaStackDistribution>,
}

/// Everything known about one LlamaStackDistribution at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The LlamaStackDistribution.
    pub llsd: Arc<LlamaStackDistribution>,
    /// Settings of the operator.
    pub settings: Arc<Settings>,
    /// Existing objects with the names of its children, ours or not.
    pub children: Vec<Child>,
    /// Pods of its server.
    pub pods: Vec<Arc<Pod>>,
    /// Existing ConfigMaps that it names, by name.
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    /// Endpoints of the existing ModelDeployments that it names, by name.
    pub model_deployments: BTreeMap<String, Option<Endpoint>>,
    /// Answer of the running server since its pods became ready; `None` before it.
    pub server: Option<Arc<Answer>>,
    /// Current time.
    pub now: Timestamp,
}

/// An object that exists.
#[derive(Clone, Debug)]
pub struct Child {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub object: Arc<DynamicObject>,
}

/// Keys of a ConfigMap with a run.yaml, the preferred one first.
pub(crate) const USER_CONFIG_KEYS: [&str; 2] = ["run.yaml", "config.yaml"];

impl Observed {
    /// Protocol of the server, by the user's configuration; no distribution's own turns TLS on.
    pub(crate) fn transport(&self) -> Transport {
        let name = self
            .llsd
            .spec
            .server
            .user_config
            .as_ref()
            .map(|config| &config.config_map_name);
        let data = name
            .and_then(|name| self.config_maps.get(name))
            .and_then(|map| map.data.as_ref());
        let file = data.and_then(|data| USER_CONFIG_KEYS.into_iter().find_map(|key| data.get(key)));
        file.map(|text| Transport::of(text)).unwrap_or_default()
    }

    /// The child of this kind and name, if it exists.
    pub fn child(&self, kind: Kind, name: &str) -> Option<&DynamicObject> {
        self.children
            .iter()
            .find(|c| c.kind == kind && c.object.metadata.name.as_deref() == Some(name))
            .map(|c| c.object.as_ref())
    }
}

/// Observes a LlamaStackDistribution: the watch caches, and our own writes that they have not seen.
pub(crate) async fn observe(context: &Context, llsd: Arc<LlamaStackDistribution>) -> Result<Observed, Unknown> {
    let (namespace, name) = (llsd.namespace().unwrap_or_default(), llsd.name_any());
    let caches = &context.caches;
    let llsd = context.executor.newest(llsd);
    let children = kinds::children(&name)
        .into_iter()
        .filter_map(|(kind, child)| {
            let object = caches.child(kind, &namespace, &child)?;
            Some(Child { kind, object })
        })
        .collect();
    let mut seen = Observed {
        settings: context.settings.clone(),
        children,
        pods: caches.pods(&namespace, &name),
        config_maps: caches
            .config_maps(&namespace, &name, references::config_maps(&llsd))
            .await?,
        model_deployments: caches.endpoints(&namespace, references::model_deployments(&llsd)),
        server: None,
        now: clock::now(),
        llsd,
    };
    match (readiness(&seen), service_address(&seen)) {
        (Some(readiness), Some(Ok(url))) if !seen.transport().is_tls() => {
            seen.server = caches.answer(&namespace, &name, &readiness, &url);
        }
        (Some(_), Some(Err(refused))) if !seen.transport().is_tls() => {
            caches.forget_answer(&namespace, &name);
            seen.server = Some(Arc::new(Answer::Silent(refused)));
        }
        _ => caches.forget_answer(&namespace, &name),
    }
    Ok(seen)
}

/// Fingerprint of the ready pods, which changes whenever they do; `None` if no pod is ready.
fn readiness(seen: &Observed) -> Option<String> {
    let mut ready: Vec<String> = seen
        .pods
        .iter()
        .filter(|pod| kubelet::is_ready(pod) && pod.metadata.deletion_timestamp.is_none())
        .map(|pod| format!("{}/{}", pod.uid().unwrap_or_default(), kubelet::ready_since(pod)))
        .collect();
    ready.sort();
    (!ready.is_empty()).then(|| ready.join(","))
}

/// URL of the Service by its IP address, so that no DNS server is needed; or the reason why no request is sent to it.
fn service_address(seen: &Observed) -> Option<Result<String, String>> {
    let service = seen.child(kinds::SERVICE, &kinds::service(&seen.llsd.name_any()))?;
    url(service.clone().try_parse().ok()?)
}

fn url(service: Service) -> Option<Result<String, String>> {
    let address = match Destination::of(&service) {
        Ok(Destination::ClusterIp(address)) => address,
        // The operator's own Service is not headless.
        Ok(Destination::Pods) => return None,
        Err(refused) => return Some(Err(format!("Service '{}': {refused}", service.name_any()))),
    };
    let port = service.spec?.ports?.first()?.port.try_into().ok()?;
    Some(Ok(format!("http://{}", std::net::SocketAddr::new(address, port))))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn url_of(mut spec: Value) -> Option<Result<String, String>> {
        spec["ports"] = json!([{ "port": 8321 }]);
        let service = json!({ "metadata": { "name": "stack-service" }, "spec": spec });
        url(serde_json::from_value(service).unwrap())
    }

    #[test]
    fn servers_are_asked_at_the_cluster_ip_of_a_service_that_selects_pods() {
        let selects = json!({ "clusterIP": "10.0.0.7", "selector": { "app": "stack" } });
        assert_eq!(url_of(selects), Some(Ok("http://10.0.0.7:8321".to_owned())));
        let headless = json!({ "clusterIP": "None", "selector": { "app": "stack" } });
        assert_eq!(url_of(headless), None);
    }

    #[test]
    fn no_request_is_sent_to_a_service_whose_endpoints_are_made_by_hand() {
        for spec in [
            json!({ "clusterIP": "10.0.0.7" }),
            json!({ "type": "ExternalName", "clusterIP": "10.0.0.7" }),
        ] {
            let refused = url_of(spec).unwrap().unwrap_err();
            assert!(refused.starts_with("Service 'stack-service': spec."), "{refused}");
        }
    }
}
