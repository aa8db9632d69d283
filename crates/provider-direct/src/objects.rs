//! Deployment and Service.

use std::collections::BTreeMap;

use runway_api::labels::{DEPLOYMENT as NAME_LABEL, PROVIDER};
use runway_api::model_deployment::Endpoint;
use runway_provider::engine::Flags;
use runway_provider::fields::fields;
use runway_provider::{Component, Kind, Object, Request, Translation, pods};
use serde_json::{Value, json};

use crate::NAME;
use crate::compatible::Accepted;
use crate::flags;
use crate::overrides::{self, Rollout};
use crate::pod::{self, PORT_NAME};
use crate::schema::{DEPLOYMENT, SERVICE};
use crate::settings::DirectSettings;

/// Port of the Service, independent of the engine's.
const SERVICE_PORT: i32 = 80;

/// Seconds without progress after which a rollout counts as stuck: the start-up time of a pod, and the same again for the image.
const PROGRESS_DEADLINE: i32 = 2 * pod::START_UP_BUDGET;

pub(crate) fn translation(
    request: &Request,
    accepted: &Accepted,
    settings: &DirectSettings,
    flags: Flags,
) -> Translation {
    let (labels, overruled) = pod_labels(request);
    let pod = pod::pod(request, accepted, settings, &flags);
    let model_name = flags::model_name(accepted, &flags);
    let mut ignored = flags.ignored;
    ignored.extend(overruled);
    ignored.extend(pod.ignored);
    ignored.extend(overrides::overruled_rollout(request));
    Translation {
        objects: vec![
            service(request, accepted),
            deployment(request, accepted, &labels, pod.spec),
        ],
        ignored,
        scaling_limit: None,
        endpoint: Some(Endpoint {
            service: Some(request.name.clone()),
            port: Some(SERVICE_PORT),
        }),
        model_name,
        // The Deployment's controller replaces pods that run anything else.
        components: vec![Component {
            labels: vec![(PROVIDER, NAME.to_owned())],
            pods: accepted.worker.replicas,
            replicas: accepted.worker.replicas,
            serves: true,
            ready_when_loaded: true,
            ..Component::default()
        }],
        replicas: accepted.worker.replicas,
        pod_label: Some(NAME_LABEL),
    }
}

fn service(request: &Request, accepted: &Accepted) -> Object {
    let body = json!({"spec": {
        "type": accepted.service_type,
        "selector": selector(&request.name),
        "ports": [{"name": PORT_NAME, "protocol": "TCP", "port": SERVICE_PORT, "targetPort": PORT_NAME}],
    }});
    object(request, SERVICE, body)
}

fn deployment(request: &Request, accepted: &Accepted, labels: &BTreeMap<String, String>, pod: Value) -> Object {
    let metadata = fields()
        .with("labels", json!(labels))
        .with("annotations", json!(request.pod_annotations));
    let template = fields().with("metadata", metadata).with("spec", pod);
    let spec = fields()
        .with("replicas", accepted.worker.replicas)
        .with("selector", json!({"matchLabels": selector(&request.name)}))
        .with("strategy", strategy(accepted.rollout))
        .with("progressDeadlineSeconds", PROGRESS_DEADLINE)
        .with("template", template);
    let body = fields().with("spec", spec).into();
    object(request, DEPLOYMENT, body)
}

fn strategy(rollout: Rollout) -> Value {
    let (surge, unavailable) = match rollout {
        Rollout::Surge => (1, 0),
        Rollout::InPlace => (0, 1),
    };
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

/// Labels that select the pods. They never change, since the selector of a Deployment is immutable. The provider is one of them
/// because terminating pods of an earlier provider may have the name as well.
fn selector(name: &str) -> BTreeMap<&'static str, &str> {
    BTreeMap::from([(NAME_LABEL, name), (PROVIDER, NAME)])
}

/// The user's labels overridden by ours, and a message about each overridden label.
fn pod_labels(request: &Request) -> (BTreeMap<String, String>, Option<String>) {
    let ours = selector(&request.name);
    let (mut labels, ignored) = pods::labels(request, |key| ours.contains_key(key), "the provider sets");
    labels.extend(ours.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    (labels, ignored)
}

fn object(request: &Request, kind: Kind, body: Value) -> Object {
    Object {
        kind,
        version: "v1".to_owned(),
        name: request.name.clone(),
        annotations: BTreeMap::new(),
        body,
        immutable: BTreeMap::new(),
        not_rolled_out: BTreeMap::new(),
        reset: BTreeMap::new(),
    }
}
