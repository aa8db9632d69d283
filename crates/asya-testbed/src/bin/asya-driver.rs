//! Driver of the benchmark `cargo xtask bench asya`: feeds the sidecar and the raw loop, and measures them. Not shipped.

use std::time::{Duration, Instant};

use clap::Parser;
use futures::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
enum Command {
    /// Sends envelopes at a steady rate and prints the latencies in microseconds, as JSON.
    Latency {
        #[command(flatten)]
        queues: Queues,
        /// Messages a second.
        #[arg(long)]
        rate: u32,
        #[arg(long)]
        count: usize,
    },
    /// Puts envelopes into the queue, all at once.
    Fill {
        #[command(flatten)]
        queues: Queues,
        #[arg(long)]
        count: usize,
    },
    /// Takes out so many messages and prints the rate between the first and the last, as JSON.
    Empty {
        #[command(flatten)]
        queues: Queues,
        #[arg(long)]
        count: usize,
    },
}

#[derive(clap::Args)]
struct Queues {
    #[arg(long)]
    url: String,
    /// Input queue.
    #[arg(long)]
    from: String,
    /// Output queue.
    #[arg(long)]
    to: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    match Command::parse() {
        Command::Latency { queues, rate, count } => latency(&queues, rate, count).await,
        Command::Fill { queues, count } => fill(&queues, count).await,
        Command::Empty { queues, count } => empty(&queues, count).await,
    }
}

async fn open(url: &str) -> Outcome<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

async fn consume(channel: &Channel, queue: &str, prefetch: u16) -> Outcome<Consumer> {
    let options = QueueDeclareOptions::durable();
    channel
        .queue_declare(queue.into(), options, FieldTable::default())
        .await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    Ok(channel
        .basic_consume(queue.into(), "".into(), options, FieldTable::default())
        .await?)
}

async fn publish(channel: &Channel, queue: &str, body: &[u8]) -> Result<lapin::PublisherConfirm, lapin::Error> {
    let properties = BasicProperties::default().with_delivery_mode(2);
    channel
        .basic_publish(
            "".into(),
            queue.into(),
            BasicPublishOptions::default(),
            body,
            properties,
        )
        .await
}

fn envelope(number: usize) -> Vec<u8> {
    let payload = json!({"number": number, "text": "x".repeat(200)});
    let route = json!({"actors": ["bench"], "current": 0});
    json!({"id": format!("m{number}"), "route": route, "payload": payload})
        .to_string()
        .into_bytes()
}

async fn fill(queues: &Queues, count: usize) -> Outcome<()> {
    let (_connection, channel) = open(&queues.url).await?;
    for queue in [&queues.from, &queues.to] {
        let options = QueueDeclareOptions::durable();
        channel
            .queue_declare(queue.as_str().into(), options, FieldTable::default())
            .await?;
    }
    for number in 0..count {
        // Confirms are waited for together, below.
        drop(publish(&channel, &queues.from, &envelope(number)).await?);
    }
    channel.wait_for_confirms().await?;
    Ok(())
}

async fn empty(queues: &Queues, count: usize) -> Outcome<()> {
    let (_connection, channel) = open(&queues.url).await?;
    let mut consumer = consume(&channel, &queues.to, 500).await?;
    let mut first = None;
    for taken in 1..=count {
        let delivery = consumer.next().await.ok_or("the consumer ended")??;
        first.get_or_insert_with(Instant::now);
        if taken % 100 == 0 || taken == count {
            delivery.ack(BasicAckOptions { multiple: true }).await?;
        }
    }
    let took = first.map_or(Duration::ZERO, |first| first.elapsed());
    let rate = f64::from(u32::try_from(count - 1)?) / took.as_secs_f64();
    print(&json!({"rate": rate}));
    Ok(())
}

async fn latency(queues: &Queues, rate: u32, count: usize) -> Outcome<()> {
    let (connection, publishing) = open(&queues.url).await?;
    let consuming = connection.create_channel().await?;
    let mut consumer = consume(&consuming, &queues.to, 500).await?;
    let interval = Duration::from_secs(1) / rate;
    let mut sent = vec![None; count];
    let mut latencies = Vec::with_capacity(count);
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut next = 0;
    while latencies.len() < count {
        tokio::select! {
            _ = ticks.tick(), if next < count => {
                sent[next] = Some(Instant::now());
                drop(publish(&publishing, &queues.from, &envelope(next)).await?);
                next += 1;
            }
            Some(delivery) = consumer.next() => {
                let delivery = delivery?;
                let arrived = Instant::now();
                let message: Value = serde_json::from_slice(&delivery.data)?;
                let number = usize::try_from(message["payload"]["number"].as_u64().ok_or("no number")?)?;
                latencies.push(arrived - sent[number].ok_or("never sent")?);
                delivery.ack(BasicAckOptions::default()).await?;
            }
        }
    }
    latencies.sort_unstable();
    let at = |percent: usize| latencies[(count - 1) * percent / 100].as_secs_f64() * 1e6;
    print(&json!({"p50": at(50), "p90": at(90), "p99": at(99)}));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print(value: &Value) {
    println!("{value}");
}
