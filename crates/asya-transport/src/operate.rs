//! Requests of operators to the broker of a transport: numbers of messages, and visits to dead letters. Each request opens a
//! connection with the current credentials.

use std::path::PathBuf;

use runway_sqs::Client;

use crate::letters::{Error, Numbers, Visit, Visited};
use crate::management::Management;
use crate::settings::{NoSecret, RabbitMq, Sqs, Transport};
use crate::{rabbitmq, sqs};

/// The broker of a transport.
#[derive(Clone, Debug)]
pub struct Broker {
    transport: Transport,
    secrets: PathBuf,
}

impl Broker {
    /// The broker of a transport; `secrets` is the folder with mounted Secrets.
    pub fn new(transport: Transport, secrets: PathBuf) -> Self {
        Self { transport, secrets }
    }

    /// Numbers of messages of a queue and of its dead-letter queue.
    ///
    /// # Errors
    /// The queue does not exist, or the broker cannot be asked.
    pub async fn numbers(&self, queue: &str, dead_letters: &str) -> Result<Numbers, Error> {
        match &self.transport {
            Transport::RabbitMq(broker) => {
                let (uri, authority) = self.place(broker)?;
                let mut numbers = rabbitmq::letters::numbers(&uri, &authority, queue, dead_letters).await?;
                let management = Management::of(broker, &self.secrets).map_err(|error| unreachable(&error))?;
                if let Some(management) = management {
                    numbers.running = management.unacknowledged(&broker.vhost, queue).await;
                }
                Ok(numbers)
            }
            Transport::Sqs(broker) => sqs::letters::numbers(&self.client(broker)?, queue, dead_letters).await,
        }
    }

    /// Visits dead letters.
    ///
    /// # Errors
    /// The queue does not exist, the broker cannot be asked, or the visit ended early.
    pub async fn visit(&self, visit: Visit) -> Result<Visited, Error> {
        match &self.transport {
            Transport::RabbitMq(broker) => {
                let (uri, authority) = self.place(broker)?;
                rabbitmq::letters::visit(&uri, &authority, visit).await
            }
            Transport::Sqs(broker) => sqs::letters::visit(&self.client(broker)?, visit).await,
        }
    }

    fn place(&self, broker: &RabbitMq) -> Result<(amq_protocol::uri::AMQPUri, String), Error> {
        let unreadable = |error: NoSecret| unreachable(&error);
        let uri = broker.uri(&self.secrets).map_err(unreadable)?;
        let authority = broker.authority(&self.secrets).map_err(unreadable)?;
        Ok((uri, authority.unwrap_or_default()))
    }

    fn client(&self, broker: &Sqs) -> Result<Client, Error> {
        let settings = broker.place(&self.secrets).map_err(|error| unreachable(&error))?;
        Client::new(&settings).map_err(|error| unreachable(&error))
    }
}

fn unreachable(error: &dyn std::error::Error) -> Error {
    Error::Unreachable(error.to_string())
}
