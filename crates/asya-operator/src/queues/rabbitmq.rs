//! RabbitMQ: durable queues, each bound to the exchange by its own name (wire protocol, section 1). An existing queue is not
//! changed, and one that holds messages is not deleted.

use std::path::PathBuf;

use futures::future::BoxFuture;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::uri::{AMQPAuthority, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::sync::Mutex;

use super::{Broker, Error, PATIENCE, secret};
use crate::plan::Queues;
use crate::transports::RabbitMq;

/// AMQP reply code for a queue that does not exist.
const NOT_FOUND: u16 = 404;

/// Broker with one connection, opened on first use.
pub(super) struct Rabbit {
    config: RabbitMq,
    secrets: PathBuf,
    connection: Mutex<Option<Connection>>,
}

impl Rabbit {
    pub(super) fn new(config: RabbitMq, secrets: PathBuf) -> Self {
        Self {
            config,
            secrets,
            connection: Mutex::new(None),
        }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.config.host, self.config.port)
    }

    async fn channel(&self) -> Result<Channel, Error> {
        let unreachable = |source| Error::Unreachable {
            place: self.place(),
            source,
        };
        let mut connection = self.connection.lock().await;
        if connection.as_ref().is_none_or(|c| !c.status().connected()) {
            let properties = ConnectionProperties::default().with_connection_name("asya-operator".into());
            let connecting = Connection::connect_uri(self.uri()?, properties);
            *connection = Some(connecting.await.map_err(unreachable)?);
        }
        match connection.as_ref() {
            Some(connection) => connection.create_channel().await.map_err(unreachable),
            None => Err(Error::Silent { place: self.place() }),
        }
    }

    fn uri(&self) -> Result<AMQPUri, Error> {
        let password = match &self.config.password_secret_ref {
            None => "guest".to_owned(),
            Some(key) => secret(&self.secrets, key)?,
        };
        Ok(AMQPUri {
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.config.username.clone(),
                    password,
                },
                host: self.config.host.clone(),
                port: self.config.port,
            },
            vhost: self.config.vhost.clone(),
            ..AMQPUri::default()
        })
    }

    async fn make(&self, queue: &str) -> Result<(), Error> {
        let refused = |source| Error::Refused {
            queue: queue.to_owned(),
            source,
        };
        // A rejected passive declaration closes its channel.
        if self.look(queue).await?.is_none() {
            let durable = QueueDeclareOptions {
                durable: true,
                ..QueueDeclareOptions::default()
            };
            let channel = self.channel().await?;
            channel
                .queue_declare(queue.into(), durable, FieldTable::default())
                .await
                .map_err(refused)?;
            close(&channel).await;
        }
        if self.config.exchange.is_empty() {
            return Ok(());
        }
        let channel = self.channel().await?;
        let options = QueueBindOptions::default();
        let exchange = self.config.exchange.as_str();
        channel
            .queue_bind(
                queue.into(),
                exchange.into(),
                queue.into(),
                options,
                FieldTable::default(),
            )
            .await
            .map_err(refused)?;
        close(&channel).await;
        Ok(())
    }

    /// Number of messages in a queue, if it exists.
    async fn look(&self, queue: &str) -> Result<Option<u64>, Error> {
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
                Ok(Some(found.message_count().into()))
            }
            Err(error) if is_not_found(&error) => Ok(None),
            Err(source) => Err(Error::Refused {
                queue: queue.to_owned(),
                source,
            }),
        }
    }

    async fn exchange(&self) -> Result<(), Error> {
        if self.config.exchange.is_empty() {
            return Ok(());
        }
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let channel = self.channel().await?;
        let exchange = self.config.exchange.as_str();
        let declared = channel.exchange_declare(exchange.into(), ExchangeKind::Topic, durable, FieldTable::default());
        if let Err(error) = declared.await {
            tracing::warn!(%error, exchange, "cannot declare the exchange as a durable topic exchange; the existing exchange is used");
            return Ok(());
        }
        close(&channel).await;
        Ok(())
    }

    async fn make_all(&self, queues: &Queues) -> Result<(), Error> {
        self.exchange().await?;
        for queue in queues.dead_letters.iter().chain(&queues.ends).chain([&queues.name]) {
            self.make(queue).await?;
        }
        Ok(())
    }

    async fn remove_all(&self, queues: &Queues) -> Result<Option<u64>, Error> {
        let own: Vec<&String> = queues.dead_letters.iter().chain([&queues.name]).collect();
        let mut left = 0;
        for queue in own {
            let Some(count) = self.look(queue).await? else { continue };
            left += count;
            if count == 0 {
                let options = QueueDeleteOptions {
                    if_empty: true,
                    ..QueueDeleteOptions::default()
                };
                let channel = self.channel().await?;
                let deleted = channel.queue_delete(queue.as_str().into(), options).await;
                deleted.map_err(|source| Error::Refused {
                    queue: queue.clone(),
                    source,
                })?;
                close(&channel).await;
            }
        }
        Ok((left > 0).then_some(left))
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

impl Broker for Rabbit {
    fn ensure<'a>(&'a self, queues: &'a Queues) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.in_time(self.make_all(queues)))
    }

    fn remove<'a>(&'a self, queues: &'a Queues) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        Box::pin(self.in_time(self.remove_all(queues)))
    }
}

async fn close(channel: &Channel) {
    let _ = channel.close(200, "done".into()).await;
}

fn is_not_found(error: &lapin::Error) -> bool {
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(protocol) if protocol.get_id() == NOT_FOUND)
}
