//! Reports of progress to a gateway (`ASYA_GATEWAY_URL`), for messages that have a reply queue. Reports can be lost: a message never
//! waits for one.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::envelope::Envelope;

/// Most reports that wait. Further ones are dropped.
const WAITING: usize = 256;
/// Timeout of a report.
const PATIENCE: Duration = Duration::from_secs(2);

/// Step of a message at this actor.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The runtime is called.
    Processing,
    /// The results are being sent.
    Completed,
}

/// Body of a report, as the public Asya sends it.
#[derive(Serialize)]
struct Report<'a> {
    actors: &'a [std::borrow::Cow<'a, str>],
    current_actor_idx: u64,
    status: Step,
}

/// Sends reports in the background.
#[derive(Clone, Debug)]
pub struct Reporter(mpsc::Sender<(Uri, Bytes)>, String);

impl Reporter {
    /// Reports to the gateway at this URL. `None` if it is no HTTP URL: messages do not depend on reports.
    pub fn start(url: &str) -> Option<Self> {
        let is_http = url.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("http"));
        if !is_http {
            tracing::warn!("progress is not reported: ASYA_GATEWAY_URL must have the form http://HOST:PORT");
            return None;
        }
        let (reports, waiting) = mpsc::channel(WAITING);
        tokio::spawn(send(waiting));
        Some(Self(reports, url.trim_end_matches('/').to_owned()))
    }

    /// Reports a step of a message. Messages without a reply queue come from no gateway.
    pub fn report(&self, envelope: &Envelope<'_>, status: Step) {
        // Other ids are those of no gateway, and could be another path.
        let is_plain = |id: &str| id.len() <= 128 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if envelope.reply_to.is_none() || !is_plain(&envelope.id) {
            return;
        }
        let report = Report {
            actors: &envelope.route.actors,
            current_actor_idx: envelope.route.current,
            status,
        };
        let url = format!("{}/envelopes/{}/progress", self.1, envelope.id);
        if let (Ok(url), Ok(body)) = (url.parse(), serde_json::to_vec(&report)) {
            let _ = self.0.try_send((url, body.into()));
        }
    }
}

async fn send(mut waiting: mpsc::Receiver<(Uri, Bytes)>) {
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let mut is_failing = false;
    while let Some((url, body)) = waiting.recv().await {
        let request = Request::post(url).header(header::CONTENT_TYPE, "application/json");
        let Ok(request) = request.body(Full::new(body)) else {
            continue;
        };
        // 404 is a job that has ended.
        let failed = match timeout(PATIENCE, client.request(request)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no response within {PATIENCE:?}")),
        };
        if let (Some(why), false) = (&failed, is_failing) {
            tracing::warn!(
                why,
                "cannot report progress to the gateway (ASYA_GATEWAY_URL); messages are processed anyway"
            );
        }
        is_failing = failed.is_some();
    }
}
