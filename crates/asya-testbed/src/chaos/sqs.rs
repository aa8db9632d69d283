//! SQS under faults: standard queues as the operator creates them, and a proxy for each sidecar that loses, delays,
//! repeats and rejects. The server keeps its messages in memory, so it is not killed.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use runway_sqs::Client;
use runway_testbed::{
    Sqs,
    sqs::{Answers, KEY, KEY_ID, Refusal, SqsProxy},
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{ACTORS, ChaosOptions, Fault, OUTAGE, RESTART, RETURNS, dead_letters, queue};

const VISIBILITY: Duration = Duration::from_secs(3);
/// The collector's messages are deleted at once.
const COLLECTED: Duration = Duration::from_mins(10);
/// Most messages that SQS returns at a time.
const AT_ONCE: u8 = 10;
/// Requests of the sender at a time.
const SENDERS: usize = 8;
/// Time in which connections are cut.
const CUT: Duration = Duration::from_millis(100);
/// Delay of responses: less than a request may take, and with it the visibility timeout is renewed in time.
const DELAY: Duration = Duration::from_secs(1);
/// Time of a fault after which SQS works as before.
const SHORT: Duration = Duration::from_secs(1);
/// Response of SQS to too many requests.
const THROTTLED: Refusal = Refusal {
    to: "AmazonSQS.",
    code: "RequestThrottled",
    message: "The request was denied due to request throttling.",
};

pub(super) struct Queues {
    client: Client,
    /// URLs of queues, by name without namespace.
    urls: BTreeMap<String, String>,
    prefetch: usize,
    proxies: [SqsProxy; 2],
    /// Messages that were received and not passed on.
    received: Mutex<VecDeque<Value>>,
}

impl Queues {
    pub(super) async fn create(server: &Sqs, options: ChaosOptions) -> Result<Self> {
        let proxies = [SqsProxy::start(server).await?, SqsProxy::start(server).await?];
        let mut queues = Self {
            client: server.client()?,
            urls: BTreeMap::new(),
            prefetch: options.prefetch,
            proxies,
            received: Mutex::default(),
        };
        for actor in ACTORS {
            let dead = queues.make(&dead_letters(actor), None).await?;
            queues.make(actor, Some(&dead)).await?;
        }
        for end in ["happy-end", "error-end"] {
            queues.make(end, None).await?;
        }
        Ok(queues)
    }

    async fn make(&mut self, name: &str, dead_letters: Option<&str>) -> Result<String> {
        let mut attributes = BTreeMap::from([("VisibilityTimeout", VISIBILITY.as_secs().to_string())]);
        if let Some(url) = dead_letters {
            let arn = self.client.queue_arn(url).await?;
            let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": RETURNS + 1});
            attributes.insert("RedrivePolicy", policy.to_string());
        }
        let url = self
            .client
            .create_queue(&queue(name), &attributes, &BTreeMap::new())
            .await?;
        self.urls.insert(name.to_owned(), url.clone());
        Ok(url)
    }

    fn url(&self, name: &str) -> Result<&str> {
        let url = self.urls.get(name);
        url.map(String::as_str).with_context(|| format!("no queue {name}"))
    }

    /// Takes messages out of a queue.
    async fn take(&self, name: &str, wait: Duration) -> Result<Vec<Value>> {
        let url = self.url(name)?;
        let messages = self.client.receive(url, AT_ONCE, wait, COLLECTED).await?;
        let deletions = messages
            .iter()
            .map(|message| self.client.delete(url, &message.receipt_handle));
        futures::future::try_join_all(deletions).await?;
        let read = messages.iter().map(|message| Ok(serde_json::from_str(&message.body)?));
        read.collect()
    }
}

impl super::Queues for Queues {
    const MIX: &'static [Fault] = {
        use Fault::{Connection, Hang, Late, Limit, Outage, Refused, Runtime, Sidecar, Target, Twice, Unreachable};
        &[
            Sidecar,
            Runtime,
            Connection,
            Twice,
            Hang,
            Late,
            Sidecar,
            Outage,
            Refused,
            Target,
            Unreachable,
            Limit,
        ]
    };
    const REDELIVERY: Duration = VISIBILITY;
    // The server looks at all messages of a queue for each request. With a thousand, visibility timeouts are renewed too late.
    const UNDER_WAY: u64 = 200;

    fn environment(&self, actor: usize) -> Vec<(&'static str, String)> {
        vec![
            ("ASYA_TRANSPORT", "sqs".to_owned()),
            ("ASYA_SQS_ENDPOINT", self.proxies[actor].endpoint()),
            ("ASYA_SQS_WAIT_TIME_SECONDS", "1".to_owned()),
            ("ASYA_SQS_VISIBILITY_TIMEOUT", VISIBILITY.as_secs().to_string()),
            ("ASYA_SQS_PREFETCH", self.prefetch.to_string()),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", KEY.to_owned()),
        ]
    }

    async fn send(&self, actor: &str, bodies: Vec<String>) -> Result<()> {
        let url = self.url(actor)?;
        let sending = bodies.iter().map(|body| self.client.send(url, body, &[]));
        Ok(futures::stream::iter(sending)
            .buffer_unordered(SENDERS)
            .try_collect()
            .await?)
    }

    async fn next(&self) -> Result<Option<Value>> {
        let mut received = self.received.lock().await;
        if received.is_empty() {
            received.extend(self.take("happy-end", RESTART).await?);
        }
        Ok(received.pop_front())
    }

    async fn failed(&self) -> Result<Vec<(Value, String)>> {
        let mut failed = Vec::new();
        let dead = ACTORS.map(dead_letters);
        for end in ["error-end", &dead[0], &dead[1]] {
            loop {
                let messages = self.take(end, Duration::ZERO).await?;
                if messages.is_empty() {
                    break;
                }
                failed.extend(messages.into_iter().map(|message| {
                    let reason = reason(&message);
                    (message, reason)
                }));
            }
        }
        Ok(failed)
    }

    async fn inject(&self, fault: Fault, actor: usize) -> Result<usize> {
        let proxy = &self.proxies[actor];
        let (answers, time) = match fault {
            Fault::Connection => (Answers::None, CUT),
            Fault::Unreachable => (Answers::None, OUTAGE),
            Fault::Late => (Answers::Late(DELAY), OUTAGE),
            Fault::Twice => (Answers::Twice, SHORT),
            Fault::Refused => (Answers::Refused(THROTTLED), SHORT),
            other => bail!("{other:?} is not a fault of SQS"),
        };
        let before = proxy.sent_twice();
        proxy.set(answers);
        tokio::time::sleep(time).await;
        proxy.set(Answers::Pass);
        Ok(proxy.sent_twice() - before)
    }
}

/// The code of an error envelope. The server does not report why it has moved a message to a dead-letter queue; nothing
/// but the limit of its redrive policy does that without an error envelope.
fn reason(message: &Value) -> String {
    message["payload"]["error"]
        .as_str()
        .unwrap_or("max_receives")
        .to_owned()
}
