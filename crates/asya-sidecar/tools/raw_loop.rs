//! Baseline of the benchmark (`cargo xtask bench asya`): moves messages from one queue to another on the sidecar's own sessions.
//! Consume, publish, confirm, acknowledge; nothing else. Not shipped.

use std::sync::Arc;

use amq_protocol::uri::AMQPUri;
use clap::Parser;
use runway_asya_sidecar::transport::rabbitmq::{Config, ExchangeKind, RabbitMq};
use runway_asya_sidecar::transport::{Delivery, Message, Transport as _};

#[derive(Parser)]
struct Args {
    /// In the environment, because the arguments of a process are no secret.
    #[arg(long, env = "ASYA_RABBITMQ_URL", hide_env_values = true)]
    url: AMQPUri,
    #[arg(long)]
    from: String,
    #[arg(long)]
    to: Arc<str>,
    #[arg(long)]
    prefetch: u16,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Args {
        url,
        from,
        to,
        prefetch,
    } = Args::parse();
    let broker = Arc::new(RabbitMq::start(Config {
        uri: url,
        password_file: None,
        authorities: String::new(),
        exchange: String::new(),
        exchange_kind: ExchangeKind::Topic,
        publish_exchange: None,
        tap_exchange: String::new(),
        queue: from,
        dead_letter: String::new(),
        extra_keys: Vec::new(),
        program: "asya-raw-loop",
        prefetch,
        at_once: prefetch,
        create_queues: false,
        ends: Vec::new(),
        quorum: false,
        largest: None,
    }));
    while let Some(delivery) = broker.receive().await {
        let (broker, to) = (Arc::clone(&broker), Arc::clone(&to));
        tokio::spawn(async move {
            let Delivery {
                body, headers, receipt, ..
            } = delivery;
            let message = Message {
                queue: &to,
                body,
                headers: &headers,
                index: 0,
            };
            if broker.publish(Some(&receipt), &message).await.is_ok() {
                broker.acknowledge(receipt).await;
            }
        });
    }
}
