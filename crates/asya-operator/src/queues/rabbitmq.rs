//! RabbitMQ: durable quorum queues, each with a limit of deliveries and a dead-letter queue, bound to the exchange by its own name
//! (`docs/reference/asya-protocol.md` section 1). An existing queue is not changed, and one that holds messages or is in use is not deleted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use parking_lot::Mutex;
use runway_asya_transport::management::Management;
use runway_asya_transport::queues as names;
use runway_asya_transport::tenants::Permissions;
use tokio::sync;

use super::{Broker, Error, PATIENCE, Removal};
use crate::queue::{Alias, Queues};
use crate::transports::{QueueType, RabbitMq};

/// AMQP reply code for a queue that does not exist.
const NOT_FOUND: u16 = 404;
/// AMQP reply code for a queue that is in use or not empty.
const PRECONDITION_FAILED: u16 = 406;
/// AMQP reply code for a deletion with conditions that the type of the queue does not support (rabbit_quorum_queue.erl).
const NOT_IMPLEMENTED: u16 = 540;
/// Largest number of messages that arrive between the last look at a quorum queue and its deletion.
const TAKEN: u16 = 10_000;
/// A day in milliseconds.
const DAY: i64 = 24 * 60 * 60 * 1000;
/// Longest retention of dead letters, in days.
const LONGEST_RETENTION: u32 = 3650;
/// Timeout for the end of a consumer whose queue was deleted.
const LAST_DELIVERY: Duration = Duration::from_secs(2);

/// Broker with one connection, opened on first use.
pub(super) struct Rabbit {
    config: RabbitMq,
    secrets: PathBuf,
    connection: sync::Mutex<Option<Connection>>,
    /// Queues that were compared with their arguments, and how they differ.
    compared: Mutex<BTreeMap<String, (FieldTable, Option<String>)>>,
}

impl Rabbit {
    pub(super) fn new(config: RabbitMq, secrets: PathBuf) -> Self {
        Self {
            config,
            secrets,
            connection: sync::Mutex::new(None),
            compared: Mutex::default(),
        }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.config.host, self.config.port())
    }

    async fn channel(&self) -> Result<Channel, Error> {
        let mut connection = self.connection.lock().await;
        if connection.as_ref().is_none_or(|c| !c.status().connected()) {
            *connection = Some(self.connect().await?);
        }
        match connection.as_ref() {
            Some(connection) => connection
                .create_channel()
                .await
                .map_err(|source| self.unreachable(source)),
            None => Err(Error::Silent { place: self.place() }),
        }
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let properties = ConnectionProperties::default().with_connection_name("asya-operator".into());
        let tls = OwnedTLSConfig {
            cert_chain: self.config.authority(&self.secrets)?,
            ..OwnedTLSConfig::default()
        };
        let runtime = lapin::runtime::default_runtime().map_err(|source| self.unreachable(source))?;
        let connecting = Connection::connect_uri_with_config(self.config.uri(&self.secrets)?, properties, tls, runtime);
        connecting.await.map_err(|source| self.unreachable(source))
    }

    fn unreachable(&self, source: lapin::Error) -> Error {
        Error::Unreachable {
            place: self.place(),
            source,
        }
    }

    /// Creates a queue, unless it exists, and binds it to the exchange by its own name. Returns how an existing one differs.
    async fn make(&self, queue: &str, arguments: &FieldTable) -> Result<Option<String>, Error> {
        let known = self.compared.lock().get(queue).cloned();
        let drift = match known.filter(|(with, _)| with == arguments) {
            // The broker logs an error for each declaration with other arguments.
            Some((_, drift)) if self.look(queue).await?.is_some() => drift,
            _ => self.declare(queue, arguments).await?,
        };
        self.compared
            .lock()
            .insert(queue.to_owned(), (arguments.clone(), drift.clone()));
        self.bind(queue, &self.config.exchange, &[queue]).await?;
        Ok(drift)
    }

    /// Creates the user of a namespace, and the exchanges through which it publishes.
    async fn admit(&self, namespace: &str) -> Result<(), Error> {
        let Some(tenants) = &self.config.tenants else {
            return Ok(());
        };
        for exchange in [&*names::exchange(namespace), names::REPLIES] {
            self.exchange(exchange, ExchangeKind::Direct).await?;
        }
        let credentials = tenants.credentials(&self.config, namespace, &self.secrets)?;
        let permissions = Permissions::of(namespace);
        if let Some(management) = Management::of_tenants(&self.config, tenants, &self.secrets)? {
            let vhost = &self.config.vhost;
            management.ensure_user(vhost, &credentials, &permissions).await?;
        }
        Ok(())
    }

    /// Deletes the user of a namespace, and the exchange through which it published.
    async fn dismiss(&self, namespace: &str) -> Result<(), Error> {
        let Some(tenants) = &self.config.tenants else {
            return Ok(());
        };
        if let Some(management) = Management::of_tenants(&self.config, tenants, &self.secrets)? {
            management.remove_user(&tenants.user(namespace)).await?;
        }
        let exchange = names::exchange(namespace);
        let channel = self.channel().await?;
        let deleted = channel.exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default());
        if let Err(error) = deleted.await {
            tracing::warn!(%error, exchange, "cannot delete the exchange of a namespace");
            return Ok(());
        }
        close(&channel).await;
        Ok(())
    }

    /// Creates the queue of an alias as the public Asya v0.1 does, unless it exists, and binds it by the keys with which v0.1 publishes.
    async fn make_alias(&self, alias: &Alias) -> Result<(), Error> {
        if self.look(&alias.queue).await?.is_none() {
            self.declare(&alias.queue, &FieldTable::default()).await?;
        }
        self.bind(&alias.queue, &self.config.exchange, &[&alias.queue, &alias.key])
            .await
    }

    /// Binds a queue to an exchange, if there is one.
    async fn bind(&self, queue: &str, exchange: &str, keys: &[&str]) -> Result<(), Error> {
        if exchange.is_empty() {
            return Ok(());
        }
        let channel = self.channel().await?;
        for key in keys {
            let bound = bind(&channel, queue, exchange, key).await;
            bound.map_err(|source| Error::Refused {
                queue: queue.to_owned(),
                source,
            })?;
        }
        close(&channel).await;
        Ok(())
    }

    /// Declares a queue, and returns how an existing one differs.
    async fn declare(&self, queue: &str, arguments: &FieldTable) -> Result<Option<String>, Error> {
        let refused = |source| Error::Refused {
            queue: queue.to_owned(),
            source,
        };
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        // A rejected declaration closes its channel.
        let declared = async |arguments: FieldTable| {
            let channel = self.channel().await?;
            match channel.queue_declare(queue.into(), durable, arguments).await {
                Ok(_) => {
                    close(&channel).await;
                    Ok(Ok(()))
                }
                Err(error) if is(&error, PRECONDITION_FAILED) => Ok(Err(error)),
                Err(source) => Err(refused(source)),
            }
        };
        let Err(difference) = declared(arguments.clone()).await? else {
            return Ok(None);
        };
        let classic = FieldTable::from(BTreeMap::from([text("x-queue-type", "classic")]));
        if self.config.queue_type == QueueType::Quorum && declared(classic).await?.is_ok() {
            return Ok(Some(format!(
                "'{queue}' is a classic queue, so the broker neither counts nor limits deliveries; to replace it, delete it when it is empty"
            )));
        }
        let said = match difference.kind() {
            lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
            _ => difference.to_string(),
        };
        Ok(Some(format!(
            "{}; to replace it, delete it when it is empty",
            said.trim_start_matches("PRECONDITION_FAILED - ")
        )))
    }

    /// Looks at a queue, if it exists.
    async fn look(&self, queue: &str) -> Result<Option<Sight>, Error> {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let channel = self.channel().await?;
        match channel
            .queue_declare(queue.into(), passive, FieldTable::default())
            .await
        {
            Ok(found) => {
                close(&channel).await;
                Ok(Some(Sight {
                    ready: found.message_count().into(),
                    consumers: found.consumer_count(),
                }))
            }
            Err(error) if is(&error, NOT_FOUND) => Ok(None),
            Err(source) => Err(Error::Refused {
                queue: queue.to_owned(),
                source,
            }),
        }
    }

    async fn exchange(&self, exchange: &str, kind: ExchangeKind) -> Result<(), Error> {
        if exchange.is_empty() {
            return Ok(());
        }
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let channel = self.channel().await?;
        let declared = channel.exchange_declare(exchange.into(), kind.clone(), durable, FieldTable::default());
        if let Err(error) = declared.await {
            tracing::warn!(%error, exchange, ?kind, "cannot declare the exchange as a durable exchange of this type; the existing exchange is used");
            return Ok(());
        }
        close(&channel).await;
        Ok(())
    }

    async fn make_all(&self, queues: &Queues) -> Result<Option<String>, Error> {
        self.exchange(&self.config.exchange, ExchangeKind::Topic).await?;
        if let Some(namespace) = &queues.tenant {
            self.admit(namespace).await?;
        }
        let mut drifts = Vec::new();
        for (queue, dead_letters) in queues.with_dead_letters() {
            let own = *queue == queues.name;
            let timeout = queues.consumer_timeout.filter(|_| own);
            let mut found = Vec::new();
            if let Some(dead_letters) = &dead_letters {
                found.push(self.make(dead_letters, &self.of_dead_letters()).await?);
            }
            found.push(
                self.make(queue, &self.of_queue(dead_letters.as_deref(), timeout))
                    .await?,
            );
            if let Some(namespace) = &queues.tenant {
                let exchange = names::exchange(namespace);
                for queue in [Some(queue), dead_letters.as_ref()].into_iter().flatten() {
                    self.bind(queue, &exchange, &[queue]).await?;
                }
            }
            if own {
                drifts = found.into_iter().flatten().collect();
            }
        }
        if let Some(alias) = &queues.alias {
            self.make_alias(alias).await?;
        }
        if let Some(timeout) = queues.consumer_timeout {
            drifts.extend(self.too_old(timeout).await?);
        }
        Ok((!drifts.is_empty()).then(|| drifts.join("; ")))
    }

    /// Arguments of a queue. `timeout` is the time in seconds for which a consumer can have a message.
    fn of_queue(&self, dead_letters: Option<&str>, timeout: Option<u32>) -> FieldTable {
        let kind = self.config.queue_type;
        let mut arguments = BTreeMap::from([text("x-queue-type", kind.as_str())]);
        if let Some(dead_letters) = dead_letters {
            arguments.extend([
                text("x-dead-letter-exchange", ""),
                text("x-dead-letter-routing-key", dead_letters),
            ]);
        }
        if dead_letters.is_some() && kind == QueueType::Quorum {
            let limit = i64::from(self.config.queues.dlq.max_retry_count.max(names::FEWEST_RETURNS));
            arguments.extend([
                number("x-delivery-limit", limit),
                // A dead letter stays in the queue until its new queue has confirmed it.
                text("x-dead-letter-strategy", "at-least-once"),
                text("x-overflow", "reject-publish"),
            ]);
        }
        // Brokers before 3.12 ignore it.
        arguments.extend(timeout.map(|seconds| number("x-consumer-timeout", i64::from(seconds) * 1000)));
        arguments.into()
    }

    fn of_dead_letters(&self) -> FieldTable {
        let mut arguments = BTreeMap::from([text("x-queue-type", self.config.queue_type.as_str())]);
        let days = self.config.queues.dlq.retention_days;
        arguments.extend(days.map(|days| number("x-message-ttl", i64::from(days.clamp(1, LONGEST_RETENTION)) * DAY)));
        arguments.into()
    }

    /// Difference from the configuration that a broker without consumer timeouts per queue cannot avoid.
    async fn too_old(&self, timeout: u32) -> Result<Option<String>, Error> {
        let version = match self.management()? {
            Some(management) => management.version().await,
            None => None,
        };
        let old = version.filter(|version| !has_consumer_timeouts(version));
        Ok(old.map(|version| {
            format!(
                "RabbitMQ {version} has no x-consumer-timeout: messages that take longer than its consumer_timeout (30 minutes by default) are delivered again; set it to at least {timeout}000 in rabbitmq.conf"
            )
        }))
    }

    /// Deletes the actor's queue, and then the one for its dead letters, which it needs as long as it exists.
    async fn remove_all(&self, queues: &Queues, is_last: bool) -> Result<Removal, Error> {
        let mut removal = Removal::Gone;
        let dead_letters = queues.dead_letters.as_deref();
        let own = (
            queues.name.as_str(),
            self.of_queue(dead_letters, queues.consumer_timeout),
        );
        let theirs = dead_letters.map(|queue| (queue, self.of_dead_letters()));
        for (queue, arguments) in [own].into_iter().chain(theirs) {
            removal = removal.and(self.remove_one(queue, arguments).await?);
            if let Removal::InUse(_) = removal {
                return Ok(removal);
            }
        }
        if let Some(namespace) = queues.tenant.as_ref().filter(|_| is_last) {
            self.dismiss(namespace).await?;
        }
        Ok(removal)
    }

    /// Deletes a queue without consumers and messages. A message that a consumer has is not counted as waiting; it is again when the
    /// consumer's connection ends.
    async fn remove_one(&self, queue: &str, arguments: FieldTable) -> Result<Removal, Error> {
        let Some(seen) = self.look(queue).await? else {
            return Ok(Removal::Gone);
        };
        if seen.consumers > 0 {
            return Ok(Removal::InUse(format!(
                "it has {}",
                counted(seen.consumers.into(), "consumer")
            )));
        }
        // A consumer that was cancelled can still have messages. A quorum queue counts it as long as it has.
        let unacknowledged = match self.management()? {
            Some(management) => management.unacknowledged(&self.config.vhost, queue).await,
            None => None,
        };
        if let Some(count) = unacknowledged.filter(|count| *count > 0) {
            return Ok(Removal::InUse(format!(
                "it has {}",
                counted(count, "unacknowledged message")
            )));
        }
        if seen.ready > 0 {
            return Ok(Removal::Holds(seen.ready));
        }
        let refused = |source| Error::Refused {
            queue: queue.to_owned(),
            source,
        };
        // A connection of its own, because a quorum queue does not support these conditions and the broker then closes the connection.
        let connection = self.connect().await?;
        let channel = connection.create_channel().await.map_err(refused)?;
        let only_unused = QueueDeleteOptions {
            if_unused: true,
            if_empty: true,
            ..QueueDeleteOptions::default()
        };
        match channel.queue_delete(queue.into(), only_unused).await {
            Ok(_) => {
                let _ = connection.close(200, "done".into()).await;
                Ok(Removal::Gone)
            }
            Err(error) if is(&error, NOT_FOUND) => Ok(Removal::Gone),
            Err(error) if is(&error, PRECONDITION_FAILED) => {
                Ok(Removal::InUse("a message or a consumer has just arrived".to_owned()))
            }
            Err(error) if is(&error, NOT_IMPLEMENTED) => self.remove_quorum(queue, arguments).await,
            Err(source) => Err(refused(source)),
        }
    }

    /// Deletes an empty quorum queue, which the broker deletes with what it holds. A consumer takes every message that arrives before
    /// the deletion; these are published again, to a new queue.
    async fn remove_quorum(&self, queue: &str, arguments: FieldTable) -> Result<Removal, Error> {
        let refused = |source| Error::Refused {
            queue: queue.to_owned(),
            source,
        };
        let channel = self.channel().await?;
        let options = BasicConsumeOptions::default();
        channel
            .basic_qos(TAKEN, BasicQosOptions::default())
            .await
            .map_err(refused)?;
        let consumer = channel
            .basic_consume(queue.into(), "asya-operator".into(), options, FieldTable::default())
            .await
            .map_err(refused)?;
        let renewal = Renewal {
            channel,
            queue: queue.to_owned(),
            arguments,
            exchange: self.config.exchange.clone(),
        };
        // Not cancelled with this call: it may hold messages.
        let deleted = tokio::spawn(renewal.delete(consumer)).await;
        match deleted {
            Ok(Ok(0)) => Ok(Removal::Gone),
            Ok(Ok(count)) => Ok(Removal::Holds(count)),
            Ok(Err(source)) => Err(refused(source)),
            Err(_) => Err(Error::Silent { place: self.place() }),
        }
    }

    /// Client of the management API, unless the transport has none.
    fn management(&self) -> Result<Option<Management>, Error> {
        Ok(Management::of(&self.config, &self.secrets)?)
    }

    /// Drops the connection if the broker does not answer, so that the next call opens a new one.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if let Ok(done) = tokio::time::timeout(PATIENCE, work).await {
            return done;
        }
        if let Ok(mut connection) = self.connection.try_lock() {
            *connection = None;
        }
        Err(Error::Silent { place: self.place() })
    }
}

/// A queue as a passive declaration shows it.
struct Sight {
    /// Messages that wait for a consumer.
    ready: u64,
    consumers: u32,
}

/// The deletion of a quorum queue that must not lose a message.
struct Renewal {
    channel: Channel,
    queue: String,
    arguments: FieldTable,
    exchange: String,
}

impl Renewal {
    /// Deletes the queue. If messages arrived in the meantime, creates it again with them, and returns their number.
    async fn delete(self, mut consumer: Consumer) -> lapin::Result<u64> {
        if let Some(Some(_)) = consumer.next().now_or_never() {
            // It returns to the queue with the end of the channel.
            close(&self.channel).await;
            return Ok(1);
        }
        self.renew(consumer).await
    }

    async fn renew(self, mut consumer: Consumer) -> lapin::Result<u64> {
        self.channel
            .queue_delete(self.queue.as_str().into(), QueueDeleteOptions::default())
            .await?;
        let mut arrived = Vec::new();
        while let Ok(Some(Ok(delivery))) = tokio::time::timeout(LAST_DELIVERY, consumer.next()).await {
            arrived.push(delivery);
        }
        if !arrived.is_empty() {
            self.reverted(&arrived).await?;
        }
        close(&self.channel).await;
        Ok(u64::try_from(arrived.len()).unwrap_or(u64::MAX))
    }

    async fn reverted(&self, arrived: &[Delivery]) -> lapin::Result<()> {
        let queue = self.queue.as_str();
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel
            .queue_declare(queue.into(), durable, self.arguments.clone())
            .await?;
        self.channel.confirm_select(ConfirmSelectOptions::default()).await?;
        for delivery in arrived {
            let options = BasicPublishOptions::default();
            let properties = delivery.properties.clone();
            let published = self
                .channel
                .basic_publish("".into(), queue.into(), options, &delivery.data, properties);
            published.await?.await?;
        }
        if !self.exchange.is_empty() {
            bind(&self.channel, queue, &self.exchange, queue).await?;
        }
        Ok(())
    }
}

impl Broker for Rabbit {
    fn ensure<'a>(&'a self, queues: &'a Queues) -> BoxFuture<'a, Result<Option<String>, Error>> {
        Box::pin(self.in_time(self.make_all(queues)))
    }

    fn remove<'a>(&'a self, queues: &'a Queues, is_last: bool) -> BoxFuture<'a, Result<Removal, Error>> {
        Box::pin(self.in_time(self.remove_all(queues, is_last)))
    }
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> lapin::Result<()> {
    let options = QueueBindOptions::default();
    channel
        .queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            options,
            FieldTable::default(),
        )
        .await
}

async fn close(channel: &Channel) {
    let _ = channel.close(200, "done".into()).await;
}

/// Whether an error of the broker has this reply code.
fn is(error: &lapin::Error, code: u16) -> bool {
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(protocol) if protocol.get_id() == code)
}

fn text(name: &str, value: &str) -> (ShortString, AMQPValue) {
    (name.into(), AMQPValue::LongString(value.into()))
}

fn number(name: &str, value: i64) -> (ShortString, AMQPValue) {
    (name.into(), AMQPValue::LongLongInt(value))
}

/// Whether a version of RabbitMQ has the argument x-consumer-timeout: since 3.12, and 3.11.15.
fn has_consumer_timeouts(version: &str) -> bool {
    let mut numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next(), next()) >= (3, 11, 15)
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use runway_asya_testbed::pipeline::{Broker, Kind};
    use runway_testbed::RabbitMqOptions;

    #[test]
    fn versions_with_consumer_timeouts_per_queue() {
        for (version, has) in [
            ("3.10.8", false),
            ("3.11.14", false),
            ("3.11.15", true),
            ("3.12.0-rc.1", true),
            ("4.0.5", true),
            ("", false),
        ] {
            assert_eq!(has_consumer_timeouts(version), has, "{version}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn messages_that_arrive_during_the_deletion_of_a_quorum_queue_are_kept() {
        let server = runway_testbed::RabbitMq::start(RabbitMqOptions::default())
            .await
            .unwrap();
        let broker = Broker::connect(&server.url()).await.unwrap();
        broker.declare_as("asya-team_embed", Kind::Quorum).await.unwrap();
        let (host, port) = server.address();
        let config = serde_json::json!({"host": host, "port": port, "exchange": "", "managementPort": 0});
        let rabbit = Rabbit::new(serde_json::from_value(config).unwrap(), PathBuf::new());
        let renewal = Renewal {
            channel: rabbit.channel().await.unwrap(),
            queue: "asya-team_embed".to_owned(),
            arguments: rabbit.of_queue(None, None),
            exchange: String::new(),
        };
        let options = BasicConsumeOptions::default();
        let consumer = renewal
            .channel
            .basic_consume("asya-team_embed".into(), "late".into(), options, FieldTable::default())
            .await
            .unwrap();
        for body in [b"1", b"2", b"3"] {
            broker.publish("asya-team_embed", body).await.unwrap();
        }
        assert_eq!(renewal.renew(consumer).await.unwrap(), 3);
        assert_eq!(broker.ready("asya-team_embed").await.unwrap(), 3);
        let kept = broker.take("asya-team_embed").await.unwrap();
        kept.take_no_more().await.unwrap();
        // Without the management API, too.
        let removal = rabbit
            .remove_one("asya-team_embed", FieldTable::default())
            .await
            .unwrap();
        assert_eq!(removal, Removal::InUse("it has 1 consumer".to_owned()));
        kept.end().await.unwrap();
        runway_testbed::eventually(runway_testbed::PATIENCE, async || {
            anyhow::ensure!(broker.ready("asya-team_embed").await? == 3);
            Ok(())
        })
        .await
        .unwrap();
    }
}
