//! RabbitMQ under faults: quorum queues as the operator creates them, a proxy for each sidecar, kills of the broker,
//! taps.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Result, bail};
use lapin::{BasicProperties, types::AMQPValue};
use runway_testbed::{Proxy, RabbitMq};
use serde_json::Value;
use tokio::sync::{Mutex, RwLock};

use super::{ACTORS, ChaosOptions, Fault, RESTART, RETURNS, dead_letters, queue};
use crate::pipeline::{Broker, Incoming, Kind};

/// Exchange that gets copies of all messages.
const COPIES: &str = "asya-copies";
/// Exchange of the sidecars' queues: their default.
const EXCHANGE: &str = "asya";
/// Longest wait for a further failed message.
const FURTHER: Duration = Duration::from_millis(200);

pub(super) struct Queues<'a> {
    server: Mutex<&'a mut RabbitMq>,
    url: String,
    prefetch: usize,
    /// Nothing is sent while the broker is replaced.
    client: RwLock<Broker>,
    out: Mutex<Incoming>,
    proxies: [Proxy; 2],
    taps: AtomicUsize,
}

impl<'a> Queues<'a> {
    pub(super) async fn create(rabbit: &'a mut RabbitMq, options: ChaosOptions) -> Result<Self> {
        let url = rabbit.url();
        let client = Broker::connect(&url).await?;
        for actor in ACTORS {
            let dead = queue(&dead_letters(actor));
            client.declare_as(&dead, Kind::Quorum).await?;
            let returns = RETURNS.into();
            client.declare_limited(&queue(actor), returns, Some(&dead)).await?;
        }
        for end in ["happy-end", "error-end"] {
            client.declare_as(&queue(end), Kind::Quorum).await?;
        }
        let proxies = [
            Proxy::start(rabbit.address()).await?,
            Proxy::start(rabbit.address()).await?,
        ];
        Ok(Self {
            out: Mutex::new(client.consume(&queue("happy-end")).await?),
            server: Mutex::new(rabbit),
            url,
            prefetch: options.prefetch,
            client: RwLock::new(client),
            proxies,
            taps: AtomicUsize::new(0),
        })
    }

    async fn kill_broker(&self) -> Result<()> {
        let mut client = self.client.write().await;
        let mut out = self.out.lock().await;
        self.server.lock().await.crash().await?;
        *client = Broker::connect(&self.url).await?;
        *out = client.consume(&queue("happy-end")).await?;
        Ok(())
    }

    /// A queue that is bound to everything and accepts nothing.
    async fn bind_tap(&self) -> Result<()> {
        let client = self.client.read().await;
        let name = format!("tap-{}", self.taps.fetch_add(1, Ordering::Relaxed));
        let arguments = BTreeMap::from([
            ("x-max-length".into(), AMQPValue::LongLongInt(0)),
            ("x-overflow".into(), AMQPValue::LongString("reject-publish".into())),
        ]);
        client.declare_with(&name, arguments.into()).await?;
        for exchange in [EXCHANGE, COPIES] {
            client.bind(&name, exchange, "#").await?;
        }
        Ok(())
    }
}

impl super::Queues for Queues<'_> {
    const MIX: &'static [Fault] = {
        use Fault::{Broker, Connection, Hang, Limit, Outage, Runtime, Sidecar, Tap, Target};
        &[
            Sidecar, Runtime, Connection, Tap, Sidecar, Hang, Connection, Runtime, Target, Broker, Sidecar, Runtime,
            Connection, Limit, Sidecar, Hang, Tap, Runtime, Target, Outage,
        ]
    };
    const REDELIVERY: Duration = Duration::ZERO;
    const UNDER_WAY: u64 = u64::MAX;

    fn environment(&self, actor: usize) -> Vec<(&'static str, String)> {
        let url = format!("amqp://guest:guest@{}/%2f", self.proxies[actor].address());
        vec![
            ("ASYA_RABBITMQ_URL", url),
            ("ASYA_RABBITMQ_PREFETCH", self.prefetch.to_string()),
            ("ASYA_RABBITMQ_EXCHANGE", EXCHANGE.to_owned()),
            ("ASYA_RABBITMQ_TAP_EXCHANGE", COPIES.to_owned()),
        ]
    }

    async fn send(&self, actor: &str, bodies: Vec<String>) -> Result<()> {
        let client = self.client.read().await;
        let bodies = bodies.into_iter().map(String::into_bytes);
        client.publish_all(&queue(actor), bodies).await
    }

    async fn next(&self) -> Result<Option<Value>> {
        let next = self.out.lock().await.next(RESTART).await;
        next.ok()
            .map(|(body, _)| Ok(serde_json::from_slice(&body)?))
            .transpose()
    }

    async fn failed(&self) -> Result<Vec<(Value, String)>> {
        let client = self.client.read().await;
        let mut failed = Vec::new();
        let dead = ACTORS.map(dead_letters);
        for end in ["error-end", &dead[0], &dead[1]] {
            let mut incoming = client.consume(&queue(end)).await?;
            while let Ok((body, properties)) = incoming.next(FURTHER).await {
                let message = serde_json::from_slice(&body)?;
                let reason = reason(&message, &properties);
                failed.push((message, reason));
            }
        }
        Ok(failed)
    }

    async fn inject(&self, fault: Fault, actor: usize) -> Result<usize> {
        match fault {
            Fault::Connection => self.proxies[actor].cut(),
            Fault::Tap => self.bind_tap().await?,
            Fault::Broker => {
                self.kill_broker().await?;
                // Acknowledgements of the other sidecar and of the collector.
                return Ok(self.prefetch + usize::from(Incoming::AHEAD));
            }
            other => bail!("{other:?} is not a fault of RabbitMQ"),
        }
        Ok(0)
    }
}

/// The code of an error envelope, or the broker's reason for a dead letter.
fn reason(message: &Value, properties: &BasicProperties) -> String {
    if let Some(code) = message["payload"]["error"].as_str() {
        return code.to_owned();
    }
    let headers = properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get("x-first-death-reason")) {
        Some(AMQPValue::LongString(reason)) => reason.to_string(),
        _ => "none".to_owned(),
    }
}
