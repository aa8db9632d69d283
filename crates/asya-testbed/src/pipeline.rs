//! Asya actors as processes: a sidecar and a runtime each, between a real broker's queues. They can be killed at any time.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tempfile::TempDir;

use runway_testbed::process::{self, Component, Process};

const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// The programs of an actor.
#[derive(Clone, Debug)]
pub struct ActorPrograms {
    /// `asya-sidecar`.
    pub sidecar: PathBuf,
    /// Anything that serves the socket named by `ASYA_SOCKET_DIR` or `ASYA_SOCKET`.
    pub runtime: Vec<String>,
}

/// One actor: its sidecar and its runtime. Dropping it kills both.
pub struct Actor {
    sidecar: Option<Process>,
    runtime: Option<Process>,
    sidecar_component: Component,
    runtime_component: Component,
    _folder: TempDir,
}

impl Actor {
    /// Starts both. `environment` is the sidecar's; the socket's folder is set here for both, before it.
    pub fn start(programs: &ActorPrograms, name: &str, environment: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("testbed-actor-").tempdir()?;
        let socket_folder = folder.path().to_string_lossy().into_owned();
        let common = [
            ("ASYA_SOCKET_DIR", &*socket_folder),
            ("ASYA_ACTOR_NAME", name),
            ("ASYA_METRICS_ENABLED", "false"),
        ];
        let component = |kind: &str, command: &[String]| {
            let variables = common.iter().chain(environment).copied();
            process::with_environment(kind, folder.path(), variables, command)
        };
        let sidecar_component = component("sidecar", &[programs.sidecar.to_string_lossy().into_owned()]);
        let runtime_component = component("runtime", &programs.runtime);
        Ok(Self {
            runtime: Some(runtime_component.spawn()?),
            sidecar: Some(sidecar_component.spawn()?),
            sidecar_component,
            runtime_component,
            _folder: folder,
        })
    }

    /// kill -9, and a new one.
    pub fn kill_sidecar(&mut self) -> Result<()> {
        self.crash_sidecar();
        self.start_sidecar()
    }

    /// kill -9, and no new one.
    pub fn crash_sidecar(&mut self) {
        self.sidecar = None;
    }

    /// kill -9, and a new one. What it left in the folder is still there.
    pub fn kill_runtime(&mut self) -> Result<()> {
        self.runtime = None;
        self.runtime = Some(self.runtime_component.spawn()?);
        Ok(())
    }

    /// kill -9, and no new one.
    pub fn stop_runtime(&mut self) {
        self.runtime = None;
    }

    /// A new runtime, if the last has ended by itself.
    pub fn revive_runtime(&mut self) -> Result<()> {
        let ended = self.runtime.as_mut().is_none_or(|runtime| runtime.ended().is_some());
        if ended { self.kill_runtime() } else { Ok(()) }
    }

    /// SIGTERM to the sidecar, and waits for its end.
    pub async fn stop_sidecar(&mut self) {
        if let Some(sidecar) = self.sidecar.take() {
            sidecar.stop(STOP_PATIENCE).await;
        }
    }

    /// Starts a sidecar again after [`Actor::stop_sidecar`] or [`Actor::crash_sidecar`].
    pub fn start_sidecar(&mut self) -> Result<()> {
        self.sidecar = Some(self.sidecar_component.spawn()?);
        Ok(())
    }

    /// Stops the runtime without ending it, as a handler that hangs, and lets it continue after this time.
    pub async fn hang_runtime(&self, time: Duration) -> Result<()> {
        self.pause_runtime()?;
        tokio::time::sleep(time).await;
        self.resume_runtime()
    }

    /// Stops the runtime without ending it.
    pub fn pause_runtime(&self) -> Result<()> {
        self.signal_runtime("-STOP")
    }

    /// Lets the runtime continue after [`Actor::pause_runtime`].
    pub fn resume_runtime(&self) -> Result<()> {
        self.signal_runtime("-CONT")
    }

    fn signal_runtime(&self, signal: &str) -> Result<()> {
        let pid = process::recorded_pid(self.folder(), "runtime").context("the runtime does not run")?;
        process::signal(signal, &[pid])
    }

    /// The sidecar's exit code, when it has ended by itself.
    pub fn sidecar_ended(&mut self) -> Option<Option<i32>> {
        Some(self.sidecar.as_mut()?.ended()?.code())
    }

    /// Log of the sidecar so far.
    pub fn sidecar_log(&self) -> String {
        fs::read_to_string(self.sidecar_component.log()).unwrap_or_default()
    }

    /// Log of the runtime so far.
    pub fn runtime_log(&self) -> String {
        fs::read_to_string(self.runtime_component.log()).unwrap_or_default()
    }

    /// The process id of the sidecar.
    pub fn sidecar_pid(&self) -> Result<u32> {
        let file = self.folder().join("sidecar.pid");
        Ok(fs::read_to_string(file)?.trim().parse()?)
    }

    /// Folder of the socket and the logs.
    pub fn folder(&self) -> &Path {
        &self.sidecar_component.dir
    }
}

/// Longest time until a new queue accepts messages.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(30);

/// Type of a queue.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// On one node.
    Classic,
    /// Replicated.
    Quorum,
}

/// A client of the broker, for tests: puts messages in and looks at what comes out.
pub struct Broker {
    connection: Connection,
    channel: Channel,
}

impl Broker {
    /// Connects.
    pub async fn connect(url: &str) -> Result<Self> {
        runway_testbed::install_crypto_provider();
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection, channel })
    }

    /// Makes a durable queue.
    pub async fn declare(&self, queue: &str) -> Result<()> {
        self.declare_with(queue, FieldTable::default()).await
    }

    /// Makes a durable queue with these arguments.
    pub async fn declare_with(&self, queue: &str, arguments: FieldTable) -> Result<()> {
        let options = QueueDeclareOptions::durable();
        self.channel.queue_declare(queue.into(), options, arguments).await?;
        Ok(())
    }

    /// Binds a queue to an exchange.
    pub async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let options = lapin::options::QueueBindOptions::default();
        let arguments = FieldTable::default();
        self.channel
            .queue_bind(queue.into(), exchange.into(), key.into(), options, arguments)
            .await?;
        Ok(())
    }

    /// Deletes an exchange.
    pub async fn delete_exchange(&self, exchange: &str) -> Result<()> {
        let options = lapin::options::ExchangeDeleteOptions::default();
        self.channel.exchange_delete(exchange.into(), options).await?;
        Ok(())
    }

    /// Makes a durable queue of a type.
    pub async fn declare_as(&self, queue: &str, kind: Kind) -> Result<()> {
        let kind = match kind {
            Kind::Classic => "classic",
            Kind::Quorum => "quorum",
        };
        let arguments = BTreeMap::from([("x-queue-type".into(), AMQPValue::LongString(kind.into()))]);
        self.declare_with(queue, arguments.into()).await
    }

    /// Makes a quorum queue that moves a message to a dead-letter queue, as the operator does, or deletes it without one, after this many
    /// returns.
    pub async fn declare_limited(&self, queue: &str, returns: i64, dead_letters: Option<&str>) -> Result<()> {
        let mut arguments = BTreeMap::from([
            ("x-queue-type".into(), AMQPValue::LongString("quorum".into())),
            ("x-delivery-limit".into(), AMQPValue::LongLongInt(returns)),
        ]);
        if let Some(dead_letters) = dead_letters {
            arguments.extend([
                ("x-dead-letter-exchange".into(), AMQPValue::LongString("".into())),
                (
                    "x-dead-letter-routing-key".into(),
                    AMQPValue::LongString(dead_letters.into()),
                ),
                (
                    "x-dead-letter-strategy".into(),
                    AMQPValue::LongString("at-least-once".into()),
                ),
                ("x-overflow".into(), AMQPValue::LongString("reject-publish".into())),
            ]);
        }
        self.declare_with(queue, arguments.into()).await
    }

    /// Puts a message with an id and a text header into a queue.
    pub async fn publish_named(&self, queue: &str, body: &[u8], id: &str, header: (&str, &str)) -> Result<()> {
        let headers = BTreeMap::from([(header.0.into(), AMQPValue::LongString(header.1.into()))]);
        let properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_headers(headers.into());
        self.publish_with(queue, body, properties).await
    }

    /// Declares a quorum queue whose messages expire after so many milliseconds; an existing one must be the same.
    pub async fn declare_with_ttl(&self, queue: &str, milliseconds: i64) -> Result<()> {
        let arguments = BTreeMap::from([
            ("x-queue-type".into(), AMQPValue::LongString("quorum".into())),
            ("x-message-ttl".into(), AMQPValue::LongLongInt(milliseconds)),
        ]);
        let channel = self.connection.create_channel().await?;
        channel
            .queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments.into())
            .await?;
        Ok(channel.close(200, "done".into()).await?)
    }

    /// Number of ready messages in it.
    pub async fn ready(&self, queue: &str) -> Result<u32> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        // A refused passive declaration closes its channel.
        let channel = self.connection.create_channel().await?;
        let declared = channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await?;
        let count = declared.message_count();
        let _ = channel.close(200, "asked".into()).await;
        Ok(count)
    }

    /// Puts a message into a queue; done means confirmed.
    pub async fn publish(&self, queue: &str, body: &[u8]) -> Result<()> {
        self.publish_with(queue, body, BasicProperties::default()).await
    }

    /// The same with properties.
    pub async fn publish_with(&self, queue: &str, body: &[u8], properties: BasicProperties) -> Result<()> {
        self.send("", queue, body, properties).await
    }

    /// Gives a message to an exchange, which must lead it to a queue.
    pub async fn publish_to(&self, exchange: &str, key: &str, body: &[u8]) -> Result<()> {
        self.send(exchange, key, body, BasicProperties::default()).await
    }

    /// The same with properties.
    pub async fn send(&self, exchange: &str, key: &str, body: &[u8], properties: BasicProperties) -> Result<()> {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let properties = properties.with_delivery_mode(2);
        // A quorum queue rejects messages until it has a leader.
        let until = Instant::now() + ACCEPTED_WITHIN;
        let confirm = loop {
            let channel = &self.channel;
            let sent = channel.basic_publish(exchange.into(), key.into(), options, body, properties.clone());
            let confirm = sent.await?.await?;
            if confirm.is_ack() {
                break confirm;
            }
            ensure!(Instant::now() < until, "the broker rejects messages for {key}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        ensure!(confirm.take_message().is_none(), "the broker has no queue for {key}");
        Ok(())
    }

    /// Puts many messages into a queue; done means that all are confirmed.
    pub async fn publish_all(&self, queue: &str, bodies: impl Iterator<Item = Vec<u8>>) -> Result<()> {
        // Not `wait_for_confirms`, which never ends if another task publishes on the channel meanwhile (lapin 4.12,
        // acknowledgement.rs: only the newest confirmation ends the wait).
        let mut confirms = Vec::new();
        for body in bodies {
            let properties = BasicProperties::default().with_delivery_mode(2);
            let options = BasicPublishOptions::default();
            let confirm = self
                .channel
                .basic_publish("".into(), queue.into(), options, &body, properties)
                .await?;
            confirms.push(confirm);
        }
        for confirm in confirms {
            ensure!(confirm.await?.is_ack(), "the broker has refused a message for {queue}");
        }
        Ok(())
    }

    /// Messages of a queue. Each is acknowledged when it is returned.
    pub async fn consume(&self, queue: &str) -> Result<Incoming> {
        let channel = self.connection.create_channel().await?;
        channel.basic_qos(Incoming::AHEAD, BasicQosOptions::default()).await?;
        let consumer = channel
            .basic_consume(
                queue.into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        Ok(Incoming { consumer })
    }

    /// Takes one message of a queue and keeps it, as a consumer that is busy with it.
    pub async fn take(&self, queue: &str) -> Result<Taken> {
        let channel = self.connection.create_channel().await?;
        channel.basic_qos(1, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut consumer = channel
            .basic_consume(queue.into(), "taker".into(), options, FieldTable::default())
            .await?;
        let delivery = consumer.next().await.context("the consumer ended")??;
        Ok(Taken {
            channel,
            delivery,
            _consumer: consumer,
        })
    }

    /// Empties a queue; says how many messages it had.
    pub async fn purge(&self, queue: &str) -> Result<u32> {
        Ok(self
            .channel
            .queue_purge(queue.into(), lapin::options::QueuePurgeOptions::default())
            .await?)
    }

    /// Deletes a queue.
    pub async fn delete(&self, queue: &str) -> Result<()> {
        self.channel
            .queue_delete(queue.into(), lapin::options::QueueDeleteOptions::default())
            .await?;
        Ok(())
    }
}

/// A message that is not acknowledged.
pub struct Taken {
    channel: Channel,
    delivery: Delivery,
    // Dropping it cancels it.
    _consumer: Consumer,
}

impl Taken {
    /// Cancels the consumer and keeps the message, as a sidecar does when it has to end.
    pub async fn take_no_more(&self) -> Result<()> {
        Ok(self
            .channel
            .basic_cancel("taker".into(), lapin::options::BasicCancelOptions::default())
            .await?)
    }

    /// Acknowledges the message.
    pub async fn finish(self) -> Result<()> {
        self.delivery.ack(BasicAckOptions::default()).await?;
        self.end().await
    }

    /// Ends without acknowledgment: the message is in the queue again.
    pub async fn end(self) -> Result<()> {
        Ok(self.channel.close(200, "done".into()).await?)
    }
}

/// Messages of a queue.
pub struct Incoming {
    consumer: Consumer,
}

impl Incoming {
    /// Messages that are taken ahead.
    pub const AHEAD: u16 = 200;

    /// The next message and its AMQP properties; an error after `patience`.
    pub async fn next(&mut self, patience: Duration) -> Result<(Vec<u8>, BasicProperties)> {
        let next = tokio::time::timeout(patience, self.consumer.next()).await;
        let delivery = next.context("no message in time")?.context("the consumer ended")??;
        delivery.ack(BasicAckOptions::default()).await?;
        Ok((delivery.data, delivery.properties))
    }
}
