//! RabbitMQ under faults: quorum queues as the operator creates them, a proxy for each sidecar, kills of the broker or of a node of
//! a cluster, taps.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Result, bail};
use lapin::{BasicProperties, types::AMQPValue};
use runway_testbed::{Proxy, RabbitMq, RabbitMqCluster};
use serde_json::Value;
use tokio::sync::{Mutex, RwLock};

use super::{ACTORS, ChaosOptions, Fault, OUTAGE, RESTART, RETURNS, dead_letters, queue};
use crate::pipeline::{Broker, Incoming, Kind};

/// Exchange that gets copies of all messages.
const COPIES: &str = "asya-copies";
/// Exchange of the sidecars' queues: their default.
const EXCHANGE: &str = "asya";
/// Longest wait for a further failed message.
const FURTHER: Duration = Duration::from_millis(200);

/// Client beside the sidecars, which sends and collects.
const COLLECTOR: usize = ACTORS.len();

/// A broker or a cluster of them, with faults of its own.
pub(super) trait Server {
    /// Faults, repeated through a run.
    const MIX: &'static [Fault];

    /// URL for the connections of a client, to a node that runs.
    fn url(&self, client: usize) -> String;
    /// Address of that node.
    fn address(&self, client: usize) -> SocketAddr;
    /// Injects a fault, which lasts until [`Server::recover`].
    async fn fail(&mut self, fault: Fault) -> Result<()>;
    /// Ends it, when it has lasted for its time.
    async fn recover(&mut self, fault: Fault) -> Result<()>;
}

impl Server for &mut RabbitMq {
    const MIX: &'static [Fault] = {
        use Fault::{Broker, Connection, Hang, Limit, Outage, Runtime, Sidecar, Tap, Target};
        &[
            Sidecar, Runtime, Connection, Tap, Sidecar, Hang, Connection, Runtime, Target, Broker, Sidecar, Runtime,
            Connection, Limit, Sidecar, Hang, Tap, Runtime, Target, Outage,
        ]
    };

    fn url(&self, _client: usize) -> String {
        RabbitMq::url(self)
    }

    fn address(&self, _client: usize) -> SocketAddr {
        RabbitMq::address(self).into()
    }

    async fn fail(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Broker => self.crash().await,
            other => bail!("{other:?} is not a fault of one broker"),
        }
    }

    async fn recover(&mut self, _fault: Fault) -> Result<()> {
        Ok(())
    }
}

/// A cluster whose nodes fail in turn. Clients of a killed node get another, as behind a load balancer.
pub(super) struct Cluster<'a> {
    nodes: &'a mut RabbitMqCluster,
    /// Node of the next fault.
    victim: usize,
    killed: Option<usize>,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(nodes: &'a mut RabbitMqCluster) -> Self {
        Self {
            nodes,
            victim: 0,
            killed: None,
        }
    }

    fn node_of(&self, client: usize) -> usize {
        let node = client % RabbitMqCluster::NODES;
        if self.killed == Some(node) {
            return (node + 1) % RabbitMqCluster::NODES;
        }
        node
    }
}

impl Server for Cluster<'_> {
    const MIX: &'static [Fault] = {
        use Fault::{Alarm, Broker, Connection, Limit, Partition, Runtime, Sidecar};
        &[
            Broker, Sidecar, Partition, Connection, Alarm, Broker, Partition, Runtime, Broker, Partition, Limit,
        ]
    };

    fn url(&self, client: usize) -> String {
        self.nodes.node(self.node_of(client)).url()
    }

    fn address(&self, client: usize) -> SocketAddr {
        self.nodes.node(self.node_of(client)).address().into()
    }

    async fn fail(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Broker => {
                self.nodes.node_mut(self.victim).kill();
                self.killed = Some(self.victim);
            }
            Fault::Partition => self.nodes.separate(self.victim).await?,
            Fault::Alarm => self.nodes.raise_memory_alarm(self.victim).await?,
            other => bail!("{other:?} is not a fault of a cluster"),
        }
        Ok(())
    }

    async fn recover(&mut self, fault: Fault) -> Result<()> {
        tokio::time::sleep(OUTAGE).await;
        match fault {
            Fault::Partition => self.nodes.rejoin(self.victim).await?,
            Fault::Alarm => self.nodes.end_memory_alarm(self.victim).await?,
            _ => self.nodes.node_mut(self.victim).revive().await?,
        }
        self.nodes.wait_until_whole().await?;
        self.killed = None;
        self.victim = (self.victim + 1) % RabbitMqCluster::NODES;
        Ok(())
    }
}

pub(super) struct Queues<S> {
    server: Mutex<S>,
    prefetch: usize,
    /// Nothing is sent while the broker is replaced.
    client: RwLock<Broker>,
    out: Mutex<Incoming>,
    proxies: [Proxy; 2],
    taps: AtomicUsize,
}

impl<S: Server> Queues<S> {
    pub(super) async fn create(server: S, options: ChaosOptions) -> Result<Self> {
        let client = Broker::connect(&server.url(COLLECTOR)).await?;
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
            Proxy::start(server.address(0)).await?,
            Proxy::start(server.address(1)).await?,
        ];
        Ok(Self {
            out: Mutex::new(client.consume(&queue("happy-end")).await?),
            server: Mutex::new(server),
            prefetch: options.prefetch,
            client: RwLock::new(client),
            proxies,
            taps: AtomicUsize::new(0),
        })
    }

    /// Injects a fault of the server for its time. Clients of a server that is killed get another one at once.
    async fn fail_server(&self, fault: Fault) -> Result<()> {
        let mut server = self.server.lock().await;
        if fault == Fault::Broker {
            let mut client = self.client.write().await;
            server.fail(fault).await?;
            self.redirect(&server);
            *client = self.connect(&server).await?;
            drop(client);
            server.recover(fault).await?;
            self.redirect(&server);
        } else {
            server.fail(fault).await?;
            server.recover(fault).await?;
            let mut client = self.client.write().await;
            *client = self.connect(&server).await?;
        }
        Ok(())
    }

    /// Sends new connections of sidecars to nodes that run.
    fn redirect(&self, server: &S) {
        for (actor, proxy) in self.proxies.iter().enumerate() {
            proxy.redirect(server.address(actor));
        }
    }

    /// Connects and collects from there.
    async fn connect(&self, server: &S) -> Result<Broker> {
        let client = Broker::connect(&server.url(COLLECTOR)).await?;
        *self.out.lock().await = client.consume(&queue("happy-end")).await?;
        Ok(client)
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

impl<S: Server> super::Queues for Queues<S> {
    const MIX: &'static [Fault] = S::MIX;
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
            Fault::Broker | Fault::Partition | Fault::Alarm => {
                self.fail_server(fault).await?;
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
