//! Number of messages in the queue of an AsyncActor. KEDA reads it from the broker, and serves it through the API server to
//! users who may read `external.metrics.k8s.io`.

use kube::api::{ListParams, Request};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource};
use runway_api::condition::Conditions as _;
use runway_api::name::{Invalid, Segment};
use runway_api::{AsyncActor, Name, Namespace, async_actor};
use runway_asya_operator::object::SCALED_OBJECT;
use serde_json::Value;

use crate::live::cluster::{self, Cluster};
use crate::quantity;
use crate::view::depth::Depth;

/// Asks KEDA, as the user: what scales the actor, then its metric.
pub async fn depth(cluster: &Cluster, actor: &AsyncActor) -> Depth {
    let made = actor.status.as_ref().and_then(|s| s.scaled_object_ref.as_ref());
    let Some(made) = made else {
        let scaling = actor
            .status
            .as_ref()
            .and_then(|status| status.conditions.when_false(async_actor::SCALING_READY));
        let why = scaling.map_or("scaling is disabled", |scaling| scaling.message.as_str());
        return Depth::Unknown(format!("KEDA reads queues, and nothing of it was created: {why}"));
    };
    let place = || Ok::<(Namespace, Name), Invalid>((cluster::place(actor)?.0, made.name.parse()?));
    match place() {
        Ok((namespace, scaler)) => {
            let read = read(&cluster.client(), &namespace, &scaler).await;
            read.unwrap_or_else(|error| Depth::Unknown(why(&error)))
        }
        Err(invalid) => Depth::Unknown(invalid.to_string()),
    }
}

async fn read(client: &Client, namespace: &Namespace, name: &Name) -> kube::Result<Depth> {
    let resource = SCALED_OBJECT.resource();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match metric(&api.get(name).await?) {
        None => Ok(Depth::Unknown(format!("KEDA does not process ScaledObject/{name} yet"))),
        Some(Err(invalid)) => Ok(Depth::Unknown(invalid.to_string())),
        Some(Ok(metric)) => asked(client, namespace, &metric, name).await,
    }
}

/// Name of the first trigger's metric, as a path segment.
fn metric(scaler: &DynamicObject) -> Option<Result<Segment, Invalid>> {
    Some(scaler.data["status"]["externalMetricNames"].get(0)?.as_str()?.parse())
}

async fn asked(client: &Client, namespace: &Namespace, metric: &Segment, scaler: &Name) -> kube::Result<Depth> {
    let resource = ApiResource {
        group: "external.metrics.k8s.io".to_owned(),
        version: "v1beta1".to_owned(),
        api_version: "external.metrics.k8s.io/v1beta1".to_owned(),
        kind: "ExternalMetricValueList".to_owned(),
        plural: metric.to_string(),
    };
    let path = DynamicObject::url_path(&resource, Some(namespace));
    let params = ListParams::default().labels(&format!("scaledobject.keda.sh/name={scaler}"));
    let request = Request::new(path).list(&params).map_err(kube::Error::BuildRequest)?;
    let answer: Value = client.request(request).await?;
    let value = answer["items"][0]["value"].as_str().and_then(quantity::number);
    Ok(value.map_or_else(
        || Depth::Unknown("the response of KEDA contains no number".to_owned()),
        |messages| Depth::Messages(rounded(messages)),
    ))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count of messages"
)]
fn rounded(messages: f64) -> u64 {
    messages.max(0.0).round() as u64
}

fn why(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.is_forbidden() => {
            format!("not allowed to read it ({})", status.message)
        }
        kube::Error::Api(status) if status.code == 404 => {
            "the cluster does not serve the metrics of KEDA (is keda-metrics-apiserver running?)".to_owned()
        }
        other => runway_operator::telemetry::chain(other),
    }
}
