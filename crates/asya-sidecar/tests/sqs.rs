//! The sidecar with a server that implements the SQS protocol, and a real runtime process. All tests share the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runway_asya_testbed::pipeline::Actor;
use runway_sqs::{Client, Message};
use runway_testbed::sqs::{Answers, KEY, KEY_ID, Refusal, SqsProxy};
use runway_testbed::{Sqs, eventually, sqs};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

mod support;
use support::PATIENCE;

/// One namespace of queues.
struct World {
    endpoint: String,
    client: Client,
    namespace: &'static str,
}

impl World {
    async fn new(server: &Sqs, namespace: &'static str) -> Result<Self> {
        let world = Self {
            endpoint: server.endpoint(),
            client: server.client()?,
            namespace,
        };
        for end in ["happy-end", "error-end"] {
            let attributes = BTreeMap::from([("VisibilityTimeout", "60".to_owned())]);
            world
                .client
                .create_queue(&world.queue(end), &attributes, &BTreeMap::new())
                .await?;
        }
        Ok(world)
    }

    fn queue(&self, actor: &str) -> String {
        format!("asya-{}_{actor}", self.namespace)
    }

    async fn url(&self, actor: &str) -> Result<String> {
        let queue = self.queue(actor);
        let url = self.client.queue_url(&queue).await?;
        url.with_context(|| format!("queue {queue} does not exist"))
    }

    /// Starts an actor and waits until it consumes.
    async fn actor(&self, name: &str, environment: &[(&str, &str)]) -> Result<Actor> {
        let keys = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", KEY)];
        self.actor_with(name, &[&keys, environment].concat()).await
    }

    /// The same without credentials of its own.
    async fn actor_with(&self, name: &str, environment: &[(&str, &str)]) -> Result<Actor> {
        let mut variables = vec![
            ("ASYA_TRANSPORT", "sqs"),
            ("ASYA_SQS_ENDPOINT", &*self.endpoint),
            ("ASYA_SQS_WAIT_TIME_SECONDS", "1"),
            ("ASYA_NAMESPACE", self.namespace),
        ];
        variables.extend_from_slice(environment);
        support::consuming(name, support::runtime(&[]), &variables).await
    }

    async fn send(&self, actor: &str, message: &Value, headers: &[(String, String)]) -> Result<()> {
        let url = self.url(actor).await?;
        Ok(self.client.send(&url, &message.to_string(), headers).await?)
    }

    /// The next message in the queue of an actor without a sidecar.
    async fn next(&self, actor: &str, patience: Duration) -> Result<(Value, Message)> {
        self.next_of(&self.url(actor).await?, patience).await
    }

    /// The next message in a queue without a sidecar.
    async fn next_of(&self, url: &str, patience: Duration) -> Result<(Value, Message)> {
        let start = Instant::now();
        loop {
            let messages = self.client.receive(url, 1, Duration::from_secs(1), PATIENCE).await?;
            if let Some(message) = messages.into_iter().next() {
                self.client.delete(url, &message.receipt_handle).await?;
                return Ok((serde_json::from_str(&message.body)?, message));
            }
            ensure!(start.elapsed() < patience, "nothing came to {url}");
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "json!(…) at every call")]
fn message(id: &str, actors: &[&str], payload: Value) -> Value {
    json!({"id": id, "route": {"actors": actors, "current": 0}, "payload": payload})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_pass_through_an_sqs_server() -> Result<()> {
    if sqs::skip("the sidecar with SQS") {
        return Ok(());
    }
    let server = Sqs::start().await?;
    tokio::try_join!(
        two_hops(&server),
        a_role_of_the_pod(&server),
        long_work_stays_hidden(&server),
        nowhere_to_go(&server),
        killed_at_work(&server),
        an_alias(&server),
        ended_in_order(&server),
        a_dead_runtime(&server),
        a_queue_without_permission(&server),
        a_message_that_ends_its_pod(&server),
    )?;
    Ok(())
}

async fn two_hops(server: &Sqs) -> Result<()> {
    let world = World::new(server, "hops").await?;
    let _first = world.actor("first", &[]).await?;
    let _second = world.actor("second", &[]).await?;
    let headers = [("tracestate", "vendor=1"), ("x-internal", "no")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let request = message("1", &["first", "second"], json!("ä"));
    world.send("first", &request, &headers).await?;
    let (envelope, message) = world.next("happy-end", PATIENCE).await?;
    ensure!(
        envelope["payload"] == "ä" && envelope["route"]["current"] == 2,
        "{envelope}"
    );
    ensure!(
        message.headers() == [("tracestate".to_owned(), "vendor=1".to_owned())],
        "{message:?}"
    );
    // Done with is deleted.
    for actor in ["first", "second"] {
        eventually(PATIENCE, async || {
            let count = world.client.count(&world.url(actor).await?).await?;
            ensure!(count == 0, "{actor} holds {count} messages");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// A pod with a role has an address and a file with a token instead of keys, which EKS Pod Identity sets.
async fn a_role_of_the_pod(server: &Sqs) -> Result<()> {
    let world = World::new(server, "role").await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/credentials", listener.local_addr()?);
    let identity = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let mut request = [0; 4096];
        let read = stream.read(&mut request).await?;
        let credentials = json!({"AccessKeyId": KEY_ID, "SecretAccessKey": KEY, "Token": "session", "Expiration": "2100-01-01T00:00:00Z"});
        let body = credentials.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await?;
        anyhow::Ok(String::from_utf8_lossy(&request[..read]).to_lowercase())
    });
    let token = tempfile::NamedTempFile::new()?;
    std::fs::write(token.path(), "token-of-the-pod")?;
    let file = token.path().to_string_lossy();
    let role = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*url),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &*file),
    ];
    let _actor = world.actor_with("first", &role).await?;
    world.send("first", &message("1", &["first"], json!("ok")), &[]).await?;
    world.next("happy-end", PATIENCE).await?;
    let asked = identity.await??;
    ensure!(asked.contains("authorization: token-of-the-pod"), "{asked}");
    Ok(())
}

/// A message stays hidden if processing takes longer than the visibility timeout.
async fn long_work_stays_hidden(server: &Sqs) -> Result<()> {
    let world = World::new(server, "long").await?;
    let short = [("ASYA_SQS_VISIBILITY_TIMEOUT", "3")];
    let _one = world.actor("slow", &short).await?;
    let _other = world.actor("slow", &short).await?;
    world
        .send(
            "slow",
            &message("1", &["slow"], json!({"do": "sleep", "ms": 10_000})),
            &[],
        )
        .await?;
    world.next("happy-end", PATIENCE).await?;
    let again = world.next("happy-end", Duration::from_secs(5)).await;
    ensure!(again.is_err(), "it was worked on twice");
    Ok(())
}

async fn nowhere_to_go(server: &Sqs) -> Result<()> {
    let world = World::new(server, "nowhere").await?;
    let _actor = world.actor("first", &[]).await?;
    world
        .send("first", &message("1", &["first", "nobody"], json!(1)), &[])
        .await?;
    let (envelope, _) = world.next("error-end", PATIENCE).await?;
    ensure!(envelope["payload"]["error"] == "routing_error", "{envelope}");
    world.send("first", &json!("no envelope"), &[]).await?;
    let (envelope, _) = world.next("error-end", PATIENCE).await?;
    ensure!(envelope["payload"]["error"] == "msg_parsing_error", "{envelope}");
    Ok(())
}

/// During a migration, senders and other actors use the names of the public Asya v0.1.
async fn an_alias(server: &Sqs) -> Result<()> {
    let world = World::new(server, "alias").await?;
    for actor in ["moved", "stays"] {
        let attributes = BTreeMap::from([("VisibilityTimeout", "60".to_owned())]);
        let queue = format!("asya-{actor}");
        world.client.create_queue(&queue, &attributes, &BTreeMap::new()).await?;
    }
    let public = async |actor: &str| {
        let url = world.client.queue_url(&format!("asya-{actor}")).await?;
        url.context("no queue")
    };
    let mut actor = world.actor("moved", &[("ASYA_QUEUE_ALIAS", "true")]).await?;
    let request = message("1", &["moved", "stays"], json!(1)).to_string();
    let headers = [("traceparent".to_owned(), "00-1-2-01".to_owned())];
    world.client.send(&public("moved").await?, &request, &headers).await?;
    let (envelope, arrived) = world.next_of(&public("stays").await?, PATIENCE).await?;
    ensure!(envelope["route"]["current"] == 1, "{envelope}");
    ensure!(arrived.headers() == headers, "{:?}", arrived.headers());
    // Without a public end, results go to that of the namespace.
    let request = message("2", &["moved"], json!(2)).to_string();
    world.client.send(&public("moved").await?, &request, &[]).await?;
    let (envelope, _) = world.next("happy-end", PATIENCE).await?;
    ensure!(envelope["payload"] == 2, "{envelope}");
    actor.stop_sidecar().await;
    ensure!(actor.sidecar_log().contains("drained"), "{}", actor.sidecar_log());
    ensure!(world.client.count(&public("moved").await?).await? == 0);
    Ok(())
}

/// After SIGKILL the message becomes visible when its visibility timeout ends.
async fn killed_at_work(server: &Sqs) -> Result<()> {
    const MESSAGES: u64 = 60;
    let world = World::new(server, "killed").await?;
    let environment = [("ASYA_SQS_VISIBILITY_TIMEOUT", "3"), ("ASYA_SQS_PREFETCH", "10")];
    let mut actor = world.actor("first", &environment).await?;
    for number in 0..MESSAGES {
        let payload = json!({"do": "sleep", "ms": 20, "number": number});
        world.send("first", &message("m", &["first"], payload), &[]).await?;
    }
    let mut seen = BTreeMap::new();
    while seen.len() < usize::try_from(MESSAGES)? {
        let (envelope, _) = world.next("happy-end", PATIENCE).await?;
        let number = envelope["payload"]["number"].as_u64().context("a number")?;
        *seen.entry(number).or_insert(0) += 1;
        if [10, 25, 40].contains(&seen.len()) && seen[&number] == 1 {
            actor.kill_sidecar()?;
        }
    }
    let duplicates: i32 = seen.values().map(|count| count - 1).sum();
    ensure!(
        duplicates <= 30,
        "{duplicates} duplicates by 3 kills of at most 10 messages"
    );
    Ok(())
}

/// A message that ends the sidecar during the call: these attempts count, and the messages that wait beside it do not.
async fn a_message_that_ends_its_pod(server: &Sqs) -> Result<()> {
    let world = World::new(server, "pod").await?;
    let environment = [
        ("ASYA_SQS_VISIBILITY_TIMEOUT", "3"),
        ("ASYA_SQS_PREFETCH", "8"),
        ("ASYA_MAX_DELIVERIES", "3"),
    ];
    let mut actor = world.actor("first", &environment).await?;
    let payload = json!({"do": "wait", "file": actor.folder().join("never")});
    world
        .send("first", &message("deadly", &["first"], payload), &[])
        .await?;
    for number in 0..7 {
        world
            .send("first", &message("m", &["first"], json!(number)), &[])
            .await?;
    }
    let mut failed = None;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        if let Ok((error, _)) = world.next("error-end", Duration::from_secs(1)).await {
            failed = Some(error);
            break;
        }
        actor.kill_sidecar()?;
    }
    let error = failed.context("the message is delivered for ever")?;
    ensure!(error["payload"]["error"] == "too_many_deliveries", "{error}");
    ensure!(error["id"] == "deadly", "{error}");
    let mut missing: BTreeSet<u64> = (0..7).collect();
    while !missing.is_empty() {
        let (envelope, _) = world.next("happy-end", PATIENCE).await?;
        missing.remove(&envelope["payload"].as_u64().context("no number")?);
    }
    Ok(())
}

/// After SIGTERM messages in progress are finished, and other received messages become visible at once.
async fn ended_in_order(server: &Sqs) -> Result<()> {
    let world = World::new(server, "ended").await?;
    let environment = [("ASYA_SQS_VISIBILITY_TIMEOUT", "600"), ("ASYA_SQS_PREFETCH", "5")];
    let mut actor = world.actor("first", &environment).await?;
    for number in 0..5 {
        let payload = json!({"do": "sleep", "ms": 2000, "number": number});
        world.send("first", &message("m", &["first"], payload), &[]).await?;
    }
    world.next("happy-end", PATIENCE).await?;
    actor.stop_sidecar().await;
    ensure!(actor.sidecar_log().contains("drained"), "{}", actor.sidecar_log());
    let _other = world.actor("first", &environment).await?;
    for _ in 0..4 {
        world.next("happy-end", PATIENCE).await?;
    }
    Ok(())
}

/// Messages that a pod without a runtime received are processed by others.
async fn a_dead_runtime(server: &Sqs) -> Result<()> {
    let world = World::new(server, "dead").await?;
    let environment = [("ASYA_SQS_VISIBILITY_TIMEOUT", "600"), ("ASYA_SQS_PREFETCH", "5")];
    let mut dead = world.actor("first", &environment).await?;
    let gate = dead.folder().join("gate");
    for number in 0..5 {
        let payload = json!({"do": "wait", "file": gate, "number": number});
        world.send("first", &message("m", &["first"], payload), &[]).await?;
    }
    eventually(PATIENCE, async || {
        let messages = world
            .client
            .receive(&world.url("first").await?, 1, Duration::ZERO, Duration::ZERO)
            .await?;
        ensure!(messages.is_empty(), "some are not received yet");
        Ok(())
    })
    .await?;
    dead.stop_runtime();
    std::fs::write(&gate, "")?;
    let _other = world.actor("first", &environment).await?;
    for _ in 0..5 {
        world.next("happy-end", PATIENCE).await?;
    }
    Ok(())
}

/// A message for a queue to which the sidecar may not send is reported, and the next one is processed.
async fn a_queue_without_permission(server: &Sqs) -> Result<()> {
    let mut world = World::new(server, "denied").await?;
    // The server does not implement IAM.
    let proxy = SqsProxy::start(server).await?;
    proxy.set(Answers::Refused(Refusal {
        to: r#""QueueName":"asya-denied_forbidden""#,
        code: "AccessDeniedException",
        message: "Access to the resource is denied.",
    }));
    world.endpoint = proxy.endpoint();
    let _actor = world.actor("first", &[]).await?;
    world
        .send("first", &message("1", &["first", "forbidden"], json!(1)), &[])
        .await?;
    world.send("first", &message("2", &["first"], json!(2)), &[]).await?;
    let (envelope, _) = world.next("error-end", PATIENCE).await?;
    ensure!(envelope["payload"]["error"] == "routing_error", "{envelope}");
    let text = envelope["payload"]["details"]["message"].to_string();
    ensure!(text.contains("AccessDenied"), "{text}");
    let (envelope, _) = world.next("happy-end", PATIENCE).await?;
    ensure!(envelope["payload"] == 2, "{envelope}");
    Ok(())
}
