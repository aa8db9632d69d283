//! The kinds that the console watches.

use std::fmt::Debug;

use kube::{Api, Client, Resource};
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, Phase, Tone, labels};
use runway_operator::watch::Guarded;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::history::Replicas;

/// Annotations that lists show.
const SHOWN: [&str; 3] = [labels::PAUSED, labels::ASYA_PAUSED, labels::llama_stack::PAUSED];

/// A kind that is watched.
pub trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// API for its objects in a namespace; `None` if it is cluster-scoped.
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>>;

    /// Replicas, if it has any.
    fn replicas(&self) -> Option<Replicas> {
        None
    }

    /// Whether it has failed.
    fn has_failed(&self) -> bool {
        false
    }

    /// Leaves out what may be long and no list shows.
    fn shorten(&mut self) {
        if let Some(annotations) = &mut self.meta_mut().annotations {
            annotations.retain(|name, _| SHOWN.contains(&name.as_str()));
        }
        self.meta_mut().managed_fields = None;
        self.shorten_spec();
    }

    /// Removes long fields of the spec that no list shows.
    fn shorten_spec(&mut self) {}
}

impl Kind for ModelDeployment {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn replicas(&self) -> Option<Replicas> {
        let replicas = self.status.as_ref()?.replicas.as_ref()?;
        Some(Replicas {
            ready: replicas.ready.unwrap_or_default(),
            desired: replicas.desired?,
        })
    }

    fn has_failed(&self) -> bool {
        self.status.as_ref().and_then(|status| status.phase) == Some(Phase::Failed)
    }

    fn shorten_spec(&mut self) {
        self.spec.env = Vec::new();
        self.spec.pod_template = None;
        self.spec.tolerations = Vec::new();
        self.spec.image_pull_secrets = Vec::new();
        self.spec.model.storage = None;
        if let Some(provider) = &mut self.spec.provider {
            provider.overrides = None;
        }
        if let Some(engine) = &mut self.spec.engine {
            engine.args.clear();
        }
        if let Some(status) = &mut self.status {
            status.plan = None;
        }
    }
}

impl Kind for AsyncActor {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn replicas(&self) -> Option<Replicas> {
        let status = self.status.as_ref()?;
        Some(Replicas {
            ready: status.ready_replicas.unwrap_or_default(),
            desired: status.desired_replicas?,
        })
    }

    fn has_failed(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.tone() == Tone::Failed)
    }

    fn shorten_spec(&mut self) {
        self.spec.workload = None;
        self.spec.runtime = None;
        self.spec.sidecar = None;
    }
}

impl Kind for LlamaStackDistribution {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn shorten_spec(&mut self) {
        let server = &mut self.spec.server;
        server.container_spec = None;
        server.pod_overrides = None;
        server.external_providers = None;
    }
}

impl Kind for InferenceProviderConfig {
    fn within(_: Client, _: &str) -> Option<Api<Guarded<Self>>> {
        None
    }
}
