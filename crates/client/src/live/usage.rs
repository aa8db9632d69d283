//! Use of models: the metrics of their engines, read twice through the API server's proxy, as the user, who needs the right to
//! get `pods/proxy`.

use std::time::{Duration, Instant};

use futures::AsyncReadExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{GetParams, Request};
use runway_api::condition::shorten;
use runway_api::{ModelDeployment, Name, Namespace};
use runway_engines::{self as engines, Reading, Usage};
use runway_operator::telemetry::chain;
use runway_provider::engine::METRICS_PATH;
use tokio::sync::Semaphore;

use crate::live::cluster::{Cluster, place};
use crate::text;
use crate::view::pods::pod_selectors;
use crate::view::top::{PodUsage, Top};

/// Default time between the two readings.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// Longest time for one reading of a pod.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest text that is read, in bytes. A node of Ray exports a few MiB.
const MAX_TEXT: u64 = 16 << 20;
/// Longest reason, in bytes. Responses of engines may be whole pages.
const MAX_REASON: usize = 300;
/// Requests at a time. All pods are read at the same time, so that many models take no longer than one.
const AT_A_TIME: usize = 16;

/// Use of these ModelDeployments, in their order. Lookups that fail are listed in the result.
pub async fn of(cluster: &Cluster, deployments: &[ModelDeployment], interval: Duration) -> Vec<Top> {
    let reader = Reader {
        cluster,
        interval,
        places: Semaphore::new(AT_A_TIME),
    };
    join_all(deployments.iter().map(|md| reader.deployment(md))).await
}

/// Reason why a pod was not read, and whether it may have no engine.
struct Unread {
    reason: String,
    is_optional: bool,
}

impl Unread {
    fn failed(reason: String) -> Self {
        Self {
            reason,
            is_optional: false,
        }
    }

    fn absent(reason: String) -> Self {
        Self {
            reason,
            is_optional: true,
        }
    }
}

struct Reader<'a> {
    cluster: &'a Cluster,
    interval: Duration,
    places: Semaphore,
}

impl Reader<'_> {
    async fn deployment(&self, md: &ModelDeployment) -> Top {
        let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
        match self.pods(md).await {
            Ok(pods) => Top::new(namespace, name, pods),
            Err(reason) => Top::unknown(namespace, name, reason),
        }
    }

    async fn pods(&self, md: &ModelDeployment) -> Result<Vec<PodUsage>, String> {
        let (namespace, _) = place(md).map_err(|e| chain(&e))?;
        let listed = {
            let _place = self.places.acquire().await;
            self.cluster.pods_with(&namespace, pod_selectors(md)).await
        };
        let pods = listed.map_err(|e| chain(&e))?;
        Ok(join_all(pods.iter().map(|pod| self.pod(&namespace, pod))).await)
    }

    async fn pod(&self, namespace: &Namespace, pod: &Pod) -> PodUsage {
        let found = self.usage(namespace, pod).await;
        let unread = found.as_ref().err();
        PodUsage {
            pod: pod.name_any(),
            reason: unread.map(|unread| shorten(text::cell(&unread.reason), MAX_REASON)),
            is_optional: unread.is_some_and(|unread| unread.is_optional),
            usage: found.ok(),
        }
    }

    async fn usage(&self, namespace: &Namespace, pod: &Pod) -> Result<Usage, Unread> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Running") {
            return Err(Unread::absent(format!("it is {}", phase.unwrap_or("Pending"))));
        }
        let port = engines::port(pod);
        let port = port.ok_or_else(|| Unread::absent("it has no port of an engine's metrics".to_owned()))?;
        let name = pod.name_any().parse::<Name>().map_err(|e| Unread::failed(chain(&e)))?;
        let first = self.reading(namespace, &name, port).await?;
        tokio::time::sleep(self.interval).await;
        let last = self.reading(namespace, &name, port).await?;
        let elapsed = last.1.saturating_duration_since(first.1);
        Ok(Usage::between(Some(&first.0), &last.0, elapsed))
    }

    /// A reading, and when the request was sent.
    async fn reading(&self, namespace: &Namespace, pod: &Name, port: i32) -> Result<(Reading, Instant), Unread> {
        let _place = self.places.acquire().await;
        let at = Instant::now();
        let late = |_| Err(format!("no answer within {} s", TIMEOUT.as_secs()));
        let text = tokio::time::timeout(TIMEOUT, self.text(namespace, pod, port)).await;
        let text = text.unwrap_or_else(late).map_err(Unread::failed)?;
        let reading = Reading::of(&text);
        let none = || Unread::absent(format!("it serves no metrics of a known engine on port {port}"));
        Ok((reading.ok_or_else(none)?, at))
    }

    /// Text of the metrics of a pod, or the reason why there is none.
    async fn text(&self, namespace: &Namespace, pod: &Name, port: i32) -> Result<String, String> {
        let proxy = format!("/api/v1/namespaces/{namespace}/pods/http:{pod}:{port}/proxy");
        let path = METRICS_PATH.trim_start_matches('/');
        let request = Request::new(proxy).get(path, &GetParams::default());
        let request = request.map_err(|e| chain(&e))?;
        let body = self.cluster.client().request_stream(request).await;
        let body = body.map_err(|error| explain(self.cluster, namespace, error))?;
        let mut text = String::new();
        let read = Box::pin(body.take(MAX_TEXT)).read_to_string(&mut text).await;
        match read {
            Err(error) => Err(format!("the metrics cannot be read: {error}")),
            Ok(size) if size as u64 == MAX_TEXT => Err(format!("its metrics are larger than {} MiB", MAX_TEXT >> 20)),
            Ok(_) => Ok(text),
        }
    }
}

/// Both the API server and the engine may refuse.
fn explain(cluster: &Cluster, namespace: &Namespace, error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) if [404, 501].contains(&status.code) => format!(
            "the engine serves no metrics (HTTP {}): enable them, such as with metrics or enable-metrics in engine.args",
            status.code
        ),
        kube::Error::Api(status) if ![401, 403].contains(&status.code) => {
            format!("HTTP {}: {}", status.code, status.message)
        }
        error => {
            let doing = format!("read the metrics (requires permission to get pods/proxy in namespace '{namespace}')");
            chain(&cluster.explain(error, doing, "Pod"))
        }
    }
}
