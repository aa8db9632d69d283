//! The sidecar with a real RabbitMQ and a real runtime process. The broker is started once for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use runway_asya_sidecar::transport::management::Management;
use runway_asya_sidecar::transport::settings;
use runway_asya_sidecar::transport::tenants::{Credentials, Permissions};
use runway_asya_testbed::pipeline::{Actor, Broker, Incoming, Kind};
use runway_testbed::{Proxy, RabbitMq, RabbitMqOptions, eventually, free_port};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

mod support;
use support::PATIENCE;

/// One namespace of a broker, with its end queues.
struct World<'a> {
    rabbit: &'a RabbitMq,
    broker: Broker,
    namespace: &'a str,
}

impl<'a> World<'a> {
    async fn new(rabbit: &'a RabbitMq, namespace: &'a str) -> Result<Self> {
        let broker = Broker::connect(&rabbit.url()).await?;
        let world = Self {
            rabbit,
            broker,
            namespace,
        };
        for actor in ["happy-end", "error-end"] {
            world.broker.declare(&world.queue(actor)).await?;
        }
        Ok(world)
    }

    fn queue(&self, actor: &str) -> String {
        format!("asya-{}_{actor}", self.namespace)
    }

    /// Starts an actor and waits until it consumes.
    async fn actor(&self, name: &str, runtime: &[&str], environment: &[(&str, &str)]) -> Result<Actor> {
        self.actor_with(name, support::runtime(runtime), environment).await
    }

    async fn actor_with(&self, name: &str, runtime: Vec<String>, environment: &[(&str, &str)]) -> Result<Actor> {
        let url = self.rabbit.url();
        let mut variables = vec![("ASYA_NAMESPACE", self.namespace), ("ASYA_RABBITMQ_URL", &*url)];
        variables.extend_from_slice(environment);
        support::consuming(name, runtime, &variables).await
    }

    async fn send(&self, actor: &str, message: &Value) -> Result<()> {
        self.broker
            .publish(&self.queue(actor), message.to_string().as_bytes())
            .await
    }

    async fn out(&self, actor: &str) -> Result<Incoming> {
        self.broker.consume(&self.queue(actor)).await
    }

    /// Waits until an actor's queue has this number of messages.
    async fn wait_for(&self, actor: &str, count: u32) -> Result<()> {
        let queue = self.queue(actor);
        eventually(PATIENCE, async || {
            let ready = self.broker.ready(&queue).await?;
            ensure!(ready == count, "{queue} has {ready} messages");
            Ok(())
        })
        .await
    }
}

async fn next(incoming: &mut Incoming) -> Result<Value> {
    let (body, _) = incoming.next(PATIENCE).await?;
    serde_json::from_slice(&body).context("no JSON")
}

/// Waits for the next message, while repeating an action.
async fn eventually_next(incoming: &mut Incoming, mut meanwhile: impl FnMut() -> Result<()>) -> Result<Value> {
    for _ in 0..900 {
        meanwhile()?;
        if let Ok((body, _)) = incoming.next(Duration::from_millis(200)).await {
            return serde_json::from_slice(&body).context("no JSON");
        }
    }
    anyhow::bail!("no message in time")
}

#[allow(clippy::needless_pass_by_value, reason = "json!(…) at every call")]
fn message(id: &str, actors: &[&str], payload: Value) -> Value {
    json!({"id": id, "route": {"actors": actors, "current": 0}, "headers": {"traceparent": "00-1-2-01"}, "payload": payload})
}

/// Runs each test concurrently in a namespace of its own on one broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_pass_through_a_real_rabbitmq() -> Result<()> {
    let options = RabbitMqOptions {
        tls: true,
        // The default of RabbitMQ 3.10; that of RabbitMQ 4 is 16 MiB.
        max_message_size: Some(128 * 1024 * 1024),
        ..RabbitMqOptions::default()
    };
    let rabbit = RabbitMq::start(options).await?;
    tokio::try_join!(
        two_hops(&rabbit),
        the_public_protocol(&rabbit),
        the_python_runtime(&rabbit),
        bad_messages(&rabbit),
        answers_of_every_kind(&rabbit),
        missing_queues(&rabbit),
        created_queues(&rabbit),
        a_drain(&rabbit),
        an_end_actor(&rabbit),
        to_both_ends(&rabbit),
        a_queue_that_appears_later(&rabbit),
        over_tls(&rabbit),
        a_wrong_password(&rabbit),
        headers_of_every_kind(&rabbit),
        headers_that_cannot_be_read(&rabbit),
        headers_that_fill_a_frame(&rabbit),
        taps(&rabbit),
        a_dead_runtime(&rabbit),
        a_taken_port(&rabbit),
        a_hung_runtime(&rabbit),
        calls_at_once(&rabbit),
        a_target_that_is_down(&rabbit),
        an_alias(&rabbit),
    )?;
    rabbit.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_attempts_that_began_are_counted_and_no_work_is_thrown_away() -> Result<()> {
    let rabbit = RabbitMq::start(RabbitMqOptions::default()).await?;
    tokio::try_join!(
        lost_connections(&rabbit),
        a_deadly_message(&rabbit),
        a_message_that_ends_its_pod(&rabbit),
        a_deleted_queue(&rabbit),
        a_retry_of_a_lost_delivery(&rabbit),
        a_result_of_a_lost_delivery(&rabbit),
    )?;
    rabbit.stop().await;
    Ok(())
}

/// Same behavior as with the default limit of RabbitMQ 4, 16 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_response_for_the_broker_goes_to_error_end_once() -> Result<()> {
    let options = RabbitMqOptions {
        max_message_size: Some(100_000),
        ..RabbitMqOptions::default()
    };
    let rabbit = RabbitMq::start(options).await?;
    let world = World::new(&rabbit, "large").await?;
    let actor = world.actor("a", &[], &[]).await?;
    let (mut errors, mut out) = (world.out("error-end").await?, world.out("happy-end").await?);
    for _ in 0..2 {
        let payload = json!({"do": "grow", "bytes": 200_000});
        world.send("a", &message("m", &["a"], payload.clone())).await?;
        let error = next(&mut errors).await?;
        assert_eq!(error["payload"]["error"], "routing_error");
        assert_eq!(
            error["payload"]["original_payload"], payload,
            "what the answer was made of"
        );
        let text = error["payload"]["details"]["message"].to_string();
        assert!(
            text.contains("RabbitMQ accepts at most 100000 (max_message_size)"),
            "{text}"
        );
    }
    world.send("a", &message("m", &["a"], json!("the next one"))).await?;
    assert_eq!(next(&mut out).await?["payload"], "the next one");
    world.wait_for("a", 0).await?;
    let log = actor.sidecar_log();
    assert!(!log.contains("lost the connection to RabbitMQ"), "{log}");
    let refused = log.matches("larger than configured max size").count();
    assert_eq!(refused, 1, "the broker says it once, and it is remembered: {log}");
    rabbit.stop().await;
    Ok(())
}

async fn two_hops(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "hops").await?;
    // An abstract socket requires no volume, as in pods of a binding target.
    let socket = format!("@asya-test-{}", std::process::id());
    let _first = world.actor("first", &[], &[("ASYA_SOCKET", &socket)]).await?;
    let _second = world.actor("second", &[], &[]).await?;

    let mut request = message("1", &["first", "second"], json!("ä"));
    request["deadline"] = json!("2100-01-01T00:00:00Z");
    request["mine"] = json!({"a": 1});
    let mut headers = FieldTable::default();
    headers.insert("tracestate".into(), AMQPValue::LongString("vendor=1".into()));
    headers.insert("x-internal".into(), AMQPValue::LongString("no".into()));
    let properties = BasicProperties::default()
        .with_headers(headers)
        .with_message_id("mine".into())
        .with_correlation_id("job".into());
    world
        .broker
        .publish_with(&world.queue("first"), request.to_string().as_bytes(), properties)
        .await?;

    let (body, properties) = world.out("happy-end").await?.next(PATIENCE).await?;
    let arrived: Value = serde_json::from_slice(&body)?;
    request["route"]["current"] = 2.into();
    assert_eq!(arrived, request, "everything is kept through both hops");
    let headers = properties.headers().clone().unwrap_or_default();
    assert_eq!(
        headers.inner().get("tracestate"),
        Some(&AMQPValue::LongString("vendor=1".into()))
    );
    assert!(!headers.contains_key("x-internal"));
    let ids = [properties.message_id(), properties.correlation_id()];
    let ids = ids.map(|id| id.as_ref().map(ToString::to_string));
    assert_eq!(ids, [Some("mine".to_owned()), Some("job".to_owned())]);
    Ok(())
}

async fn the_public_protocol(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "public").await?;
    let _actor = world.actor("a", &["--protocol", "1"], &[]).await?;
    let mut out = world.out("happy-end").await?;
    for number in 0..20 {
        world.send("a", &message("1", &["a"], json!(number))).await?;
        assert_eq!(next(&mut out).await?["payload"], number);
    }
    Ok(())
}

/// With the real runtime.
async fn the_python_runtime(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "python").await?;
    let folder = tempfile::tempdir()?;
    let handler =
        "def double(payload):\n    return None if payload is None else [payload * 2, payload / (payload - 3)]\n";
    std::fs::write(folder.path().join("doubling.py"), handler)?;
    let runtime = python_runtime(folder.path(), "doubling.double", &[]);
    let _actor = world.actor_with("a", runtime, &[]).await?;

    let mut out = world.out("happy-end").await?;
    world.send("a", &message("m", &["a"], json!(5))).await?;
    let (first, second) = (next(&mut out).await?, next(&mut out).await?);
    assert_eq!(
        (&first["payload"], &first["id"], &first["route"]["current"]),
        (&json!(10), &json!("m"), &json!(1))
    );
    assert_eq!((&second["payload"], &second["parent_id"]), (&json!(2.5), &json!("m")));
    world.send("a", &message("m", &["a"], json!(null))).await?;
    assert_eq!(next(&mut out).await?["route"]["current"], 0);
    world.send("a", &message("m", &["a"], json!(3))).await?;
    let error = next(&mut world.out("error-end").await?).await?;
    assert_eq!(error["payload"]["error"], "processing_error");
    assert_eq!(error["payload"]["details"]["type"], "ZeroDivisionError");
    assert_eq!(error["headers"], json!({"traceparent": "00-1-2-01"}));
    Ok(())
}

async fn bad_messages(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "bad").await?;
    let actor = world.actor("a", &[], &[("ASYA_MAX_FRAME_BYTES", "1000000")]).await?;
    let mut errors = world.out("error-end").await?;
    let queue = world.queue("a");
    for (body, code) in [
        (&b"no json"[..], "msg_parsing_error"),
        (br#"{"route": {"actors": ["a"]}, "payload": 1}"#, "msg_parsing_error"),
        (
            br#"{"id": "1", "route": {"actors": ["a"], "current": 1}, "payload": 1}"#,
            "route_mismatch",
        ),
        (
            br#"{"id": "1", "route": {"actors": ["b"]}, "payload": 1}"#,
            "route_mismatch",
        ),
    ] {
        world.broker.publish(&queue, body).await?;
        assert_eq!(next(&mut errors).await?["payload"]["error"], code);
    }
    world.broker.publish(&queue, &vec![b'x'; 100_000_000]).await?;
    assert_eq!(next(&mut errors).await?["payload"]["error"], "message_too_large");
    world.wait_for("a_dlq", 1).await?;
    let (body, _) = world.out("a_dlq").await?.next(PATIENCE).await?;
    assert_eq!(body.len(), 100_000_000, "it is kept whole");
    // It is processed once, and the actor continues.
    world.wait_for("a", 0).await?;
    world.send("a", &message("1", &["a"], json!(1))).await?;
    next(&mut world.out("happy-end").await?).await?;
    world.wait_for("error-end", 0).await?;
    assert!(!actor.sidecar_log().contains("no json"), "payloads are not logged");
    Ok(())
}

async fn answers_of_every_kind(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "answers").await?;
    let variables = [
        ("ASYA_RETRY_MAX_ATTEMPTS", "2"),
        ("ASYA_RETRY_BACKOFF", "10ms"),
        ("ASYA_RUNTIME_TIMEOUT", "5s"),
        ("ASYA_RABBITMQ_PREFETCH", "10"),
    ];
    let mut actor = world.actor("a", &[], &variables).await?;
    let mut errors = world.out("error-end").await?;
    let mut out = world.out("happy-end").await?;
    let send = async |what: Value| world.send("a", &message("m", &["a"], what)).await;

    send(json!({"do": "nothing"})).await?;
    assert_eq!(next(&mut out).await?["route"]["current"], 0, "as it came");
    send(json!({"do": "fan", "times": 3})).await?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(next(&mut out).await?["id"].clone());
    }
    ids.sort_by_key(ToString::to_string);
    assert_eq!(ids, ["m", "m-1", "m-2"]);

    send(json!({"do": "error"})).await?;
    let error = next(&mut errors).await?;
    assert_eq!(error["payload"]["details"]["attempts"], 2);
    assert_eq!(error["payload"]["original_payload"], json!({"do": "error"}));
    send(json!({"do": "garbage"})).await?;
    assert_eq!(next(&mut errors).await?["payload"]["error"], "processing_error");

    send(json!({"do": "sleep", "ms": 9000})).await?;
    send(json!("after the slow one")).await?;
    assert_eq!(next(&mut errors).await?["payload"]["error"], "timeout_error");
    assert_eq!(next(&mut out).await?["payload"], "after the slow one");

    // A message that kills the runtime: three times, each time a new one, and then no more.
    send(json!({"do": "die"})).await?;
    let error = eventually_next(&mut errors, || actor.revive_runtime()).await?;
    assert_eq!(error["payload"]["error"], "runtime_crashed");
    assert_eq!(error["payload"]["details"]["attempts"], 3);
    // Its socket is closed a moment before the process has ended.
    send(json!("after the deadly one")).await?;
    let answer = eventually_next(&mut out, || actor.revive_runtime()).await?;
    assert_eq!(answer["payload"], "after the deadly one");
    Ok(())
}

async fn missing_queues(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "missing").await?;
    let _actor = world.actor("a", &[], &[("ASYA_RABBITMQ_PREFETCH", "50")]).await?;
    let mut errors = world.out("error-end").await?;
    let mut out = world.out("happy-end").await?;
    // Routable and unroutable messages mixed: each must get its own result, although the broker confirms them in groups.
    for number in 0..200 {
        let then = if number % 3 == 0 { "nowhere" } else { "a" };
        let mut request = message(&number.to_string(), &["a"], json!(number));
        if then == "nowhere" {
            request["route"]["actors"] = json!(["a", "nowhere"]);
        }
        world.send("a", &request).await?;
    }
    let mut seen = Vec::new();
    for _ in 0..67 {
        let error = next(&mut errors).await?;
        assert_eq!(error["payload"]["error"], "routing_error");
        seen.push(error["payload"]["original_payload"].as_u64().context("no number")?);
    }
    for _ in 0..133 {
        seen.push(next(&mut out).await?["payload"].as_u64().context("no number")?);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());

    // No error-end either: the dead-letter queue has it, as it came.
    world.broker.delete(&world.queue("error-end")).await?;
    world.send("a", &message("dead", &["a", "nowhere"], json!(1))).await?;
    world.wait_for("a_dlq", 1).await?;
    assert_eq!(
        next(&mut world.out("a_dlq").await?).await?,
        message("dead", &["a", "nowhere"], json!(1))
    );
    Ok(())
}

/// The message in progress is finished, and all others are back in the queue: none is lost, none is processed twice.
async fn a_drain(rabbit: &RabbitMq) -> Result<()> {
    const MESSAGES: u32 = 20;
    const FINISHED: u32 = 3;
    let world = World::new(rabbit, "drain").await?;
    let mut actor = world.actor("a", &[], &[("ASYA_RABBITMQ_PREFETCH", "5")]).await?;
    let (gate, log) = (actor.folder().join("gate"), actor.folder().join("sidecar.log"));
    for number in 0..MESSAGES {
        let what = if number < FINISHED { "echo" } else { "wait" };
        let payload = json!({"do": what, "file": gate, "n": number});
        world.send("a", &message("m", &["a"], payload)).await?;
    }
    let mut out = world.out("happy-end").await?;
    let mut numbers = Vec::new();
    let mut take = async |count: u32| {
        for _ in 0..count {
            numbers.push(next(&mut out).await?["payload"]["n"].as_u64().context("no number")?);
        }
        anyhow::Ok(())
    };
    take(FINISHED).await?;
    // The handler has the next message. It returns once the sidecar receives no more.
    let release = async {
        eventually(PATIENCE, async || {
            let log = std::fs::read_to_string(&log)?;
            ensure!(log.contains("finishing messages in progress"), "{log}");
            Ok(())
        })
        .await?;
        std::fs::write(&gate, "").context("cannot open the gate")
    };
    let ((), released) = tokio::join!(actor.stop_sidecar(), release);
    released?;
    let log = actor.sidecar_log();
    assert!(log.contains("drained"), "{log}");
    take(1).await?;
    let back = MESSAGES - FINISHED - 1;
    world.wait_for("a", back).await?;

    // The last message shows that no other one was sent twice.
    let last = json!({"n": MESSAGES});
    world.send("a", &message("m", &["a"], last)).await?;
    actor.start_sidecar()?;
    take(back + 1).await?;
    world.wait_for("error-end", 0).await?;
    numbers.sort_unstable();
    assert_eq!(numbers, (0..=u64::from(MESSAGES)).collect::<Vec<_>>());
    Ok(())
}

async fn an_end_actor(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "ends").await?;
    let variables = [("ASYA_IS_END_ACTOR", "true"), ("ASYA_RETRY_BACKOFF", "10ms")];
    let _actor = world.actor("error-end", &[], &variables).await?;
    let queue = world.queue("error-end");
    world
        .broker
        .publish(&queue, br#"{"id": "", "payload": 1, "route": {}}"#)
        .await?;
    world.broker.publish(&queue, b"{}").await?;
    world.broker.publish(&queue, br#"{"payload": {"do": "error"}}"#).await?;
    world.wait_for("error-end_dlq", 1).await?;
    world.wait_for("error-end", 0).await?;
    world.wait_for("happy-end", 0).await
}

/// A route ends at happy-end or error-end, whose handlers get the whole envelope, and which send nothing. Messages on which error-end
/// fails are kept.
async fn to_both_ends(rabbit: &RabbitMq) -> Result<()> {
    const HANDLER: &str = r"
import os

def take(envelope):
    if envelope['payload'] == 'poison':
        raise ValueError('never')
    with open(os.environ['TAKEN'], 'a') as file:
        print(envelope['id'], file=file)
    return {}
";
    let world = World::new(rabbit, "both").await?;
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("ends.py"), HANDLER)?;
    let end = async |name: &str| {
        let taken = format!("TAKEN={}", folder.path().join(name).display());
        let settings = ["ASYA_HANDLER_MODE=envelope", "ASYA_ENABLE_VALIDATION=false", &taken];
        let runtime = python_runtime(folder.path(), "ends.take", &settings);
        let environment = [("ASYA_IS_END_ACTOR", "true"), ("ASYA_RETRY_BACKOFF", "10ms")];
        world.actor_with(name, runtime, &environment).await
    };
    let _ends = [end("happy-end").await?, end("error-end").await?];
    let retry = [("ASYA_RETRY_BACKOFF", "10ms")];
    let _hops = [
        world.actor("a", &[], &retry).await?,
        world.actor("b", &[], &retry).await?,
    ];
    for number in 0..10 {
        world
            .send("a", &message(&format!("good-{number}"), &["a", "b"], json!(number)))
            .await?;
        world
            .send(
                "a",
                &message(&format!("bad-{number}"), &["a", "b"], json!({"do": "error"})),
            )
            .await?;
    }
    world
        .send("error-end", &message("poison", &["a"], json!("poison")))
        .await?;
    world.wait_for("error-end_dlq", 1).await?;
    for (name, what) in [("happy-end", "good"), ("error-end", "bad")] {
        let wanted: Vec<String> = (0..10).map(|number| format!("{what}-{number}")).collect();
        eventually(PATIENCE, async || {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
            let mut taken: Vec<&str> = text.lines().collect();
            taken.sort_unstable();
            ensure!(taken == wanted, "{name} took {taken:?}");
            Ok(())
        })
        .await?;
        world.wait_for(name, 0).await?;
    }
    Ok(())
}

/// A command that runs the real runtime with a handler in `folder`.
fn python_runtime(folder: &Path, handler: &str, settings: &[&str]) -> Vec<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/asya-runtime/src");
    let path = format!("PYTHONPATH={source}:{}", folder.display());
    let handler = format!("ASYA_HANDLER={handler}");
    ["env", &path, &handler]
        .into_iter()
        .chain(settings.iter().copied())
        .chain(["python3", "-m", "asya_runtime"])
        .map(str::to_owned)
        .collect()
}

async fn a_queue_that_appears_later(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "later").await?;
    let _actor = world.actor("a", &[], &[]).await?;
    for queue in ["error-end", "a_dlq"] {
        world.broker.delete(&world.queue(queue)).await?;
    }
    world.send("a", &message("1", &["a", "nowhere"], json!(1))).await?;
    // No queue accepts it: the sidecar keeps it unacknowledged.
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.wait_for("a", 0).await?;
    world.broker.declare(&world.queue("a_dlq")).await?;
    world.wait_for("a_dlq", 1).await
}

async fn over_tls(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "tls").await?;
    let url = rabbit.tls_url().context("no TLS")?;
    let authority = rabbit.authority().to_string_lossy().into_owned();
    // The later of two variables of a name counts.
    let trusting = [("ASYA_RABBITMQ_URL", &*url), ("SSL_CERT_FILE", &*authority)];
    let _actor = world.actor("a", &[], &trusting).await?;
    let large = "x".repeat(1_000_000);
    world.send("a", &message("1", &["a"], json!(large))).await?;
    assert_eq!(next(&mut world.out("happy-end").await?).await?["payload"], large);

    // The same with an authority of its own, without a URL.
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next());
    let host = [
        ("ASYA_NAMESPACE", "tls"),
        ("ASYA_RABBITMQ_TLS", "true"),
        ("ASYA_RABBITMQ_PORT", port.context("no port")?),
    ];
    let content = std::fs::read_to_string(rabbit.authority())?;
    for (name, given) in [("file", &*authority), ("content", &*content)] {
        let variables = [&host[..], &[("ASYA_RABBITMQ_CA", given)]].concat();
        let _actor = support::consuming(name, support::runtime(&[]), &variables).await?;
        world.send(name, &message("1", &[name], json!(name))).await?;
        assert_eq!(next(&mut world.out("happy-end").await?).await?["payload"], name);
    }

    // An unknown authority: the sidecar sends nothing and reports the reason.
    let programs = support::programs(support::runtime(&[]));
    let variables = [("ASYA_NAMESPACE", "tls"), ("ASYA_RABBITMQ_URL", &*url)];
    let stranger = Actor::start(&programs, "b", &variables)?;
    says(
        &stranger,
        "TLS handshake with localhost failed: invalid peer certificate: UnknownIssuer",
    )
    .await
}

async fn a_wrong_password(rabbit: &RabbitMq) -> Result<()> {
    let programs = support::programs(support::runtime(&[]));
    let wrong = rabbit.url().replace("guest@", "secret@");
    let actor = Actor::start(&programs, "a", &[("ASYA_RABBITMQ_URL", &wrong)])?;
    says(&actor, "RabbitMQ rejects the request: ACCESS_REFUSED").await?;
    assert!(!actor.sidecar_log().contains("secret"), "{}", actor.sidecar_log());
    Ok(())
}

/// During a migration, senders and a neighbor use the names of the public Asya v0.1. Every message passes through the actor twice, and
/// the sidecar is killed in the meantime.
async fn an_alias(rabbit: &RabbitMq) -> Result<()> {
    const MESSAGES: u64 = 300;
    let world = World::new(rabbit, "alias").await?;
    let broker = &world.broker;
    for actor in ["moved", "stays", "happy-end"] {
        broker.declare(&format!("asya-{actor}")).await?;
    }
    let alias = [("ASYA_QUEUE_ALIAS", "true"), ("ASYA_RABBITMQ_PREFETCH", "10")];
    let mut actor = world.actor("moved", &[], &alias).await?;
    // The alias is consumed before the queue, which may not exist yet.
    world.wait_for("moved", 0).await?;
    let public =
        async |key: &str, message: &Value| broker.publish_to("asya", key, message.to_string().as_bytes()).await;
    let route = ["moved", "stays", "moved"];
    eventually(PATIENCE, async || {
        public("moved", &message("m", &route, json!(0))).await
    })
    .await?;
    for number in 1..MESSAGES {
        let request = message("m", &route, json!(number));
        match number % 3 {
            0 => public("moved", &request).await?,
            1 => broker.publish("asya-moved", request.to_string().as_bytes()).await?,
            _ => world.send("moved", &request).await?,
        }
    }

    // The neighbor publishes to the exchange, with the name of the next actor as key.
    let mut stays = broker.consume("asya-stays").await?;
    let mut out = broker.consume("asya-happy-end").await?;
    let neighbor = async {
        loop {
            let (body, _) = stays.next(PATIENCE * 2).await?;
            let mut passed: Value = serde_json::from_slice(&body)?;
            ensure!(passed["route"]["current"] == 1, "{passed}");
            passed["route"]["current"] = 2.into();
            public("moved", &passed).await?;
        }
    };
    let mut seen = BTreeMap::new();
    let results = async {
        while seen.len() < usize::try_from(MESSAGES)? {
            let number = next(&mut out).await?["payload"].as_u64().context("no number")?;
            *seen.entry(number).or_insert(0) += 1;
            if [50, 150, 250].contains(&seen.len()) && seen[&number] == 1 {
                actor.kill_sidecar()?;
            }
        }
        anyhow::Ok(())
    };
    tokio::select! {
        ended = neighbor => ended?,
        all = results => all?,
    }
    let twice: i32 = seen.values().map(|count| count - 1).sum();
    // Per kill: those in progress, the one that is moved, and those that follow from them.
    ensure!(twice <= 3 * 2 * 11, "{twice} duplicates");

    // What arrives while no sidecar runs is processed later, also at the ends of the namespace.
    actor.stop_sidecar().await;
    broker.delete("asya-happy-end").await?;
    public("moved", &message("m", &["moved"], json!("later"))).await?;
    actor.start_sidecar()?;
    let mut out = world.out("happy-end").await?;
    while next(&mut out).await?["payload"] != "later" {}
    public("moved", &message("m", &["moved", "nowhere"], json!(1))).await?;
    let error = next(&mut world.out("error-end").await?).await?;
    assert_eq!(error["payload"]["error"], "routing_error");
    assert_eq!(
        error["payload"]["details"]["message"],
        "queue asya-alias_nowhere does not exist; queue asya-nowhere does not exist"
    );
    // Headers that cannot be moved do not keep their message back.
    let body = message("m", &["moved"], json!("without headers")).to_string();
    broker
        .publish_with("asya-moved", body.as_bytes(), filling_a_frame())
        .await?;
    while next(&mut out).await?["payload"] != "without headers" {}
    for queue in ["asya-moved", &world.queue("moved")] {
        eventually(PATIENCE, async || {
            let ready = broker.ready(queue).await?;
            ensure!(ready == 0, "{queue} has {ready} messages");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Headers of AMQP types without a JSON counterpart are ignored; text headers are kept.
async fn headers_of_every_kind(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "headers").await?;
    let _actor = world.actor("a", &[], &[]).await?;
    let mut inner = FieldTable::default();
    inner.insert("deep".into(), AMQPValue::Boolean(true));
    let mut headers = FieldTable::default();
    for (name, value) in [
        ("text", AMQPValue::LongString("kept".into())),
        ("no-text", AMQPValue::LongString(vec![0xff, 0xfe].into())),
        ("bytes", AMQPValue::ByteArray(vec![0, 1, 2].into())),
        ("number", AMQPValue::LongLongInt(-1)),
        ("real", AMQPValue::Double(0.5)),
        ("when", AMQPValue::Timestamp(1)),
        ("nothing", AMQPValue::Void),
        ("list", AMQPValue::FieldArray(vec![AMQPValue::ShortInt(1)].into())),
        ("table", AMQPValue::FieldTable(inner)),
    ] {
        headers.insert(name.into(), value);
    }
    let body = message("1", &["a"], json!(1)).to_string();
    let properties = BasicProperties::default().with_headers(headers);
    let queue = world.queue("a");
    world.broker.publish_with(&queue, body.as_bytes(), properties).await?;
    let (_, properties) = world.out("happy-end").await?.next(PATIENCE).await?;
    let headers = properties.headers().clone().unwrap_or_default();
    let names = headers.inner().keys().map(ToString::to_string);
    let names: Vec<String> = names.filter(|name| !name.starts_with("x-")).collect();
    assert_eq!(names, ["text"]);
    Ok(())
}

/// Every publisher can send them. The message is reported, and the actor continues.
async fn headers_that_cannot_be_read(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "nested").await?;
    let _actors = [
        world.actor("a", &[], &[]).await?,
        world.actor("end", &[], &[("ASYA_IS_END_ACTOR", "true")]).await?,
    ];
    let nested = |depth: usize| {
        let value = (0..depth).fold(AMQPValue::Void, |inner, _| AMQPValue::FieldArray(vec![inner].into()));
        let mut headers = FieldTable::default();
        headers.insert("nested".into(), value);
        headers.insert("text".into(), AMQPValue::LongString("kept".into()));
        BasicProperties::default().with_headers(headers)
    };
    let body = message("1", &["a"], json!("mine")).to_string();
    for actor in ["a", "end"] {
        let queue = world.queue(actor);
        world.broker.publish_with(&queue, body.as_bytes(), nested(1000)).await?;
    }
    let error = next(&mut world.out("error-end").await?).await?;
    assert_eq!(error["payload"]["error"], "invalid_headers");
    assert_eq!(error["payload"]["original_payload"], "mine");
    let text = error["payload"]["details"]["message"].to_string();
    assert!(text.contains("nested deeper than 32 levels"), "{text}");
    world.wait_for("end_dlq", 1).await?;

    let queue = world.queue("a");
    world.broker.publish_with(&queue, body.as_bytes(), nested(30)).await?;
    let (_, properties) = world.out("happy-end").await?.next(PATIENCE).await?;
    let headers = properties.headers().clone().unwrap_or_default();
    assert!(headers.contains_key("text"), "{headers:?}");
    world.wait_for("a", 0).await?;
    world.wait_for("end", 0).await
}

/// Properties that fill the header frame of a message.
fn filling_a_frame() -> BasicProperties {
    const FRAME_MAX: usize = 131_072;
    // Frame (8), class, weight, size, flags (14), length of the table (4), name and type (6), length (4), delivery mode (1).
    const AROUND: usize = 37;
    let mut headers = FieldTable::default();
    headers.insert(
        "text".into(),
        AMQPValue::LongString("x".repeat(FRAME_MAX - AROUND).into()),
    );
    BasicProperties::default().with_headers(headers)
}

/// Publishers can fill the header frame of a message, to which the sidecar and the broker add properties.
async fn headers_that_fill_a_frame(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "frame").await?;
    let actors = [
        world.actor("a", &[], &[]).await?,
        world.actor("end", &[], &[("ASYA_IS_END_ACTOR", "true")]).await?,
    ];
    let properties = filling_a_frame();
    let send = async |queue: &str, payload: Value| {
        let body = message("1", &["a"], payload).to_string();
        world
            .broker
            .publish_with(queue, body.as_bytes(), properties.clone())
            .await
    };
    let mut errors = world.out("error-end").await?;
    // The broker adds `x-death` to the headers of an expired message.
    let mut arguments = FieldTable::default();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(0));
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
    let queue = AMQPValue::LongString(world.queue("a").into());
    arguments.insert("x-dead-letter-routing-key".into(), queue);
    world.broker.declare_with("frame-expired", arguments).await?;
    for queue in [&*world.queue("a"), "frame-expired"] {
        send(queue, json!("mine")).await?;
        let error = next(&mut errors).await?;
        assert_eq!(error["payload"]["error"], "routing_error");
        assert_eq!(error["payload"]["original_payload"], "mine");
        let text = error["payload"]["details"]["message"].to_string();
        assert!(text.contains("a frame has at most 131072"), "{text}");
    }
    send(&world.queue("a"), json!({"do": "error"})).await?;
    assert_eq!(next(&mut errors).await?["payload"]["error"], "processing_error");
    send(&world.queue("end"), json!({"do": "error"})).await?;
    world.wait_for("end_dlq", 1).await?;
    for actor in ["a", "end"] {
        world.wait_for(actor, 0).await?;
    }
    for actor in &actors {
        let log = actor.sidecar_log();
        assert!(!log.contains("lost the connection"), "{log}");
    }
    Ok(())
}

/// A queue that gets a copy of every message is not the destination of one.
async fn taps(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "taps").await?;
    let exchanges = [
        ("ASYA_RABBITMQ_EXCHANGE", "asya-taps"),
        ("ASYA_RABBITMQ_TAP_EXCHANGE", "asya-copies"),
    ];
    let actor = world.actor("a", &[], &exchanges).await?;
    for (queue, exchange) in [("taps-old", "asya-taps"), ("taps-copies", "asya-copies")] {
        world.broker.declare(queue).await?;
        world.broker.bind(queue, exchange, "#").await?;
    }
    let (mut out, mut errors) = (world.out("happy-end").await?, world.out("error-end").await?);
    world.send("a", &message("1", &["a", "nowhere"], json!(1))).await?;
    assert_eq!(next(&mut errors).await?["payload"]["error"], "routing_error");
    world.send("a", &message("2", &["a"], json!(2))).await?;
    assert_eq!(next(&mut out).await?["payload"], 2);
    let mut copies = world.broker.consume("taps-copies").await?;
    assert_eq!(next(&mut copies).await?["payload"]["error"], "routing_error");
    assert_eq!(next(&mut copies).await?["payload"], 2);
    assert_eq!(world.broker.ready("taps-old").await?, 0);

    // Other publishers reach the actor through its exchange.
    let body = message("3", &["a"], json!(3)).to_string();
    world
        .broker
        .publish_to("asya-taps", &world.queue("a"), body.as_bytes())
        .await?;
    assert_eq!(next(&mut out).await?["payload"], 3);

    // Copies are optional: messages continue without the exchange.
    world.broker.delete_exchange("asya-copies").await?;
    for number in 4..8 {
        world.send("a", &message("m", &["a"], json!(number))).await?;
        assert_eq!(next(&mut out).await?["payload"], number);
    }
    says(&actor, "cannot publish copies").await?;
    let log = actor.sidecar_log();
    assert!(!log.contains("lost the connection"), "{log}");
    Ok(())
}

/// Messages that a pod without a runtime received are processed by others, and it receives no more until its runtime is ready.
async fn a_dead_runtime(rabbit: &RabbitMq) -> Result<()> {
    const MESSAGES: u64 = 10;
    let world = World::new(rabbit, "dead").await?;
    let prefetch = [("ASYA_RABBITMQ_PREFETCH", "5")];
    let mut dead = world.actor("a", &[], &prefetch).await?;
    let gate = dead.folder().join("gate");
    for number in 0..MESSAGES {
        let payload = json!({"do": "wait", "file": gate, "n": number});
        world.send("a", &message("m", &["a"], payload)).await?;
    }
    world.wait_for("a", u32::try_from(MESSAGES)? - 5).await?;
    dead.stop_runtime();
    std::fs::write(&gate, "")?;
    let other = world.actor("a", &[], &prefetch).await?;
    let mut out = world.out("happy-end").await?;
    let mut numbers = Vec::new();
    for _ in 0..MESSAGES {
        numbers.push(next(&mut out).await?["payload"]["n"].as_u64().context("no number")?);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>());
    says(&dead, "the runtime is not ready; receiving no messages").await?;

    drop(other);
    dead.kill_runtime()?;
    world.send("a", &message("m", &["a"], json!("again"))).await?;
    assert_eq!(next(&mut out).await?["payload"], "again");
    world.wait_for("error-end", 0).await
}

/// In place, another container of the pod can have the port of the metrics.
async fn a_taken_port(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "port").await?;
    let address = free_address()?.to_string();
    let listener = std::net::TcpListener::bind(&address)?;
    let metrics = [("ASYA_METRICS_ENABLED", "true"), ("ASYA_METRICS_ADDR", &*address)];
    let actor = world.actor("a", &[], &metrics).await?;
    world.send("a", &message("1", &["a"], json!(1))).await?;
    assert_eq!(next(&mut world.out("happy-end").await?).await?["payload"], 1);
    says(&actor, "cannot serve metrics and probes (ASYA_METRICS_ADDR)").await?;
    drop(listener);
    eventually(PATIENCE, async || {
        Ok(tokio::net::TcpStream::connect(&address).await.map(drop)?)
    })
    .await
}

/// A handler that does not return ends its runtime, and no message waits for it.
async fn a_hung_runtime(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "hung").await?;
    let folder = tempfile::tempdir()?;
    let handler = "import threading\n\ndef take(payload):\n    if payload == 'hang':\n        threading.Event().wait()\n    return payload\n";
    std::fs::write(folder.path().join("hanging.py"), handler)?;
    let limit = "ASYA_RUNTIME_TIMEOUT=1s";
    let runtime = python_runtime(folder.path(), "hanging.take", &[limit]);
    let address = free_address()?.to_string();
    let variables = [
        ("ASYA_RUNTIME_TIMEOUT", "1s"),
        ("ASYA_METRICS_ENABLED", "true"),
        ("ASYA_METRICS_ADDR", &*address),
    ];
    let mut actor = world.actor_with("a", runtime, &variables).await?;
    let probe = async |status: &str| answers(&address, "/runtimez", status).await;
    probe("200 OK").await?;
    for payload in ["hang", "next"] {
        world.send("a", &message("m", &["a"], json!(payload))).await?;
    }
    let error = next(&mut world.out("error-end").await?).await?;
    assert_eq!(error["payload"]["error"], "timeout_error");
    says(&actor, "the runtime is still busy with a call that timed out").await?;
    // For runtimes that do not end themselves.
    probe("503 Service Unavailable").await?;
    // The message is back in the queue. The kubelet restarts the runtime.
    world.wait_for("a", 1).await?;
    let mut out = world.out("happy-end").await?;
    let answer = eventually_next(&mut out, || actor.revive_runtime()).await?;
    assert_eq!(answer["payload"], "next");
    let log = actor.runtime_log();
    assert!(log.contains("a call does not end"), "{log}");
    probe("200 OK").await
}

/// The handler returns when all calls are in it.
async fn calls_at_once(rabbit: &RabbitMq) -> Result<()> {
    let world = World::new(rabbit, "once").await?;
    let folder = tempfile::tempdir()?;
    let handler = "import threading\n\nhere = threading.Barrier(4)\n\ndef take(payload):\n    return here.wait(300)\n";
    std::fs::write(folder.path().join("meeting.py"), handler)?;
    let concurrency = [("ASYA_RUNTIME_CONCURRENCY", "4")];
    let runtime = python_runtime(folder.path(), "meeting.take", &["ASYA_RUNTIME_CONCURRENCY=4"]);
    let _actor = world.actor_with("a", runtime, &concurrency).await?;
    let mut out = world.out("happy-end").await?;
    for number in 0..4 {
        world.send("a", &message("m", &["a"], json!(number))).await?;
    }
    let mut places = Vec::new();
    for _ in 0..4 {
        places.push(next(&mut out).await?["payload"].clone());
    }
    places.sort_by_key(Value::as_u64);
    assert_eq!(places, [0, 1, 2, 3]);
    Ok(())
}

/// Messages wait while the server that the handler calls is down, up to their own deadline. Those that wait are not returned to the
/// queue, because brokers count that.
async fn a_target_that_is_down(rabbit: &RabbitMq) -> Result<()> {
    const MESSAGES: u64 = 5;
    let world = World::new(rabbit, "down").await?;
    let address = free_address()?;
    let url = format!("ASYA_TARGET_URL=http://{address}/predict");
    let settings = [&*url, "ASYA_TARGET_TIMEOUT=1", "ASYA_TARGET_WAIT=0"];
    let folder = tempfile::tempdir()?;
    let runtime = python_runtime(folder.path(), "asya_runtime.adapters.rest.forward", &settings);
    let actor = world.actor_with("a", runtime, &[]).await?;
    let mut late = message("late", &["a"], json!("late"));
    #[allow(clippy::disallowed_methods, reason = "a test")]
    let deadline = jiff::Timestamp::now() + Duration::from_secs(2);
    late["deadline"] = json!(deadline.to_string());
    world.send("a", &late).await?;
    for number in 0..MESSAGES {
        world.send("a", &message("m", &["a"], json!(number))).await?;
    }
    let error = next(&mut world.out("error-end").await?).await?;
    assert_eq!(
        (&error["id"], &error["payload"]["original_payload"]),
        (&json!("late"), &json!("late"))
    );
    eventually(PATIENCE, async || {
        let log = actor.sidecar_log();
        let attempts = log.matches("holding the message").count();
        ensure!(attempts >= 3, "{attempts} attempts");
        Ok(())
    })
    .await?;

    let server = tokio::spawn(answer_all(address));
    let mut out = world.out("happy-end").await?;
    for _ in 0..MESSAGES {
        assert_eq!(next(&mut out).await?["payload"], json!({"ok": true}));
    }
    world.wait_for("a", 0).await?;
    world.wait_for("error-end", 0).await?;
    let log = actor.sidecar_log();
    assert!(!log.contains("returning"), "{log}");
    server.abort();
    Ok(())
}

/// A namespace with an actor `a` whose queue is one of the operator, and whose handler records each call.
struct Recorded<'a> {
    world: World<'a>,
    folder: tempfile::TempDir,
}

impl<'a> Recorded<'a> {
    const HANDLER: &'static str = r"
import os
import time

def take(payload):
    with open('CALLS', 'a') as file:
        print(payload['n'], file=file)
    if payload.get('die'):
        os._exit(137)
    time.sleep(payload.get('seconds', 0))
    if payload.get('fail'):
        raise ValueError('requested')
    return payload
";

    async fn new(rabbit: &'a RabbitMq, namespace: &'a str) -> Result<Self> {
        let world = World::new(rabbit, namespace).await?;
        let (queue, dead) = (world.queue("a"), world.queue("a_dlq"));
        world.broker.declare_as(&dead, Kind::Quorum).await?;
        world.broker.declare_limited(&queue, 20, Some(&dead)).await?;
        let folder = tempfile::tempdir()?;
        let calls = folder.path().join("calls").display().to_string();
        let handler = Self::HANDLER.replace("CALLS", &calls);
        std::fs::write(folder.path().join("recording.py"), handler)?;
        Ok(Self { world, folder })
    }

    /// Starts the actor with a prefetch count of 8.
    async fn actor(&self, url: &str) -> Result<Actor> {
        self.actor_with(url, &[]).await
    }

    async fn actor_with(&self, url: &str, further: &[(&str, &str)]) -> Result<Actor> {
        let runtime = python_runtime(self.folder.path(), "recording.take", &[]);
        let environment = [
            ("ASYA_RABBITMQ_URL", url),
            ("ASYA_RABBITMQ_PREFETCH", "8"),
            ("ASYA_MAX_DELIVERIES", "3"),
        ];
        let environment = [&environment[..], further].concat();
        self.world.actor_with("a", runtime, &environment).await
    }

    async fn send(&self, payload: Value) -> Result<()> {
        self.world.send("a", &message("m", &["a"], payload)).await
    }

    /// Number of calls with this message.
    fn calls(&self, number: u64) -> usize {
        let text = std::fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        text.lines().filter(|line| **line == number.to_string()).count()
    }

    /// Waits until these messages have arrived at happy-end, which can have some of them twice, and the actor's queues are empty.
    async fn finished(&self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        let mut missing: BTreeSet<u64> = numbers.collect();
        let mut out = self.world.out("happy-end").await?;
        while !missing.is_empty() {
            let answer = next(&mut out).await.with_context(|| format!("missing {missing:?}"))?;
            missing.remove(&answer["payload"]["n"].as_u64().context("no number")?);
        }
        self.world.wait_for("a_dlq", 0).await?;
        self.world.wait_for("a", 0).await
    }
}

/// Results wait while the user of the sidecar may not send them, and no message is processed twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_kept_while_the_user_may_not_send_them() -> Result<()> {
    let options = RabbitMqOptions {
        management: true,
        ..RabbitMqOptions::default()
    };
    let rabbit = RabbitMq::start(options).await?;
    let recorded = Recorded::new(&rabbit, "revoked").await?;
    let secrets = tempfile::tempdir()?;
    let url = permit_writing(&rabbit, secrets.path(), "^$").await?;
    let address = free_address()?.to_string();
    let metrics = [("ASYA_METRICS_ENABLED", "true"), ("ASYA_METRICS_ADDR", &*address)];
    let further = [
        &metrics[..],
        &[("ASYA_QUEUE_AUTO_CREATE", "false"), ("ASYA_RABBITMQ_EXCHANGE", "")],
    ]
    .concat();
    let actor = recorded.actor_with(&url, &further).await?;
    for number in 0..12 {
        recorded.send(json!({"n": number})).await?;
    }
    says(&actor, "receiving no messages until their results can be sent").await?;
    answers(&address, "/readyz", "503 Service Unavailable").await?;
    answers(&address, "/metrics", "sending_blocked ").await?;
    // The result is sent again in vain, and what was not begun is back in the queue.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let ready = recorded.world.broker.ready(&recorded.world.queue("a")).await?;
    ensure!(ready >= 4, "{ready} messages are in the queue");
    permit_writing(&rabbit, secrets.path(), ".*").await?;
    recorded.finished(0..12).await?;
    recorded.world.wait_for("error-end", 0).await?;
    answers(&address, "/readyz", "200 OK").await?;
    let calls: Vec<usize> = (0..12).map(|number| recorded.calls(number)).collect();
    assert_eq!(calls, [1; 12]);
    rabbit.stop().await;
    Ok(())
}

/// Without an operator, a sidecar creates its queues and those of the ends as an operator does.
async fn created_queues(rabbit: &RabbitMq) -> Result<()> {
    let world = World {
        broker: Broker::connect(&rabbit.url()).await?,
        rabbit,
        namespace: "alone",
    };
    let _actor = world.actor("a", &[], &[]).await?;
    for actor in ["a", "happy-end", "error-end"] {
        let dead_letters = world.queue(&format!("{actor}_dlq"));
        // Other arguments than those of the existing queue are refused.
        world.broker.declare_as(&dead_letters, Kind::Quorum).await?;
        world
            .broker
            .declare_limited(&world.queue(actor), 20, Some(&dead_letters))
            .await?;
    }
    let mut done = world.out("happy-end").await?;
    world.send("a", &message("m", &["a"], json!("x"))).await?;
    assert_eq!(next(&mut done).await?["payload"], "x");
    Ok(())
}

/// Gives the user `team` the right to read everything, and to write what this pattern matches. Returns its URL.
async fn permit_writing(rabbit: &RabbitMq, secrets: &Path, write: &str) -> Result<String> {
    let (host, port) = rabbit.address();
    let secret = json!({"name": "guest", "key": "password"});
    std::fs::create_dir_all(secrets.join("guest"))?;
    std::fs::write(secrets.join("guest/password"), "guest")?;
    let broker =
        json!({"host": host, "port": port, "managementPort": rabbit.management_port(), "passwordSecretRef": secret});
    let broker: settings::RabbitMq = serde_json::from_value(broker)?;
    let tenants = json!({"username": "guest", "passwordSecretRef": secret, "keySecretRef": secret});
    let tenants: settings::Tenants = serde_json::from_value(tenants)?;
    let management = Management::of_tenants(&broker, &tenants, secrets)?.context("no API")?;
    let credentials = Credentials {
        username: "team".to_owned(),
        password: "secret".to_owned(),
    };
    let permissions = Permissions {
        configure: "^$".to_owned(),
        write: write.to_owned(),
        read: ".*".to_owned(),
    };
    management.ensure_user("/", &credentials, &permissions).await?;
    Ok(format!("amqp://team:secret@{host}:{port}/%2f"))
}

/// Waits until a server answers a GET with this text.
async fn answers(address: &str, path: &str, text: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.contains(text), "{answer}");
        Ok(())
    })
    .await
}

/// Messages that wait in a sidecar whose connection is lost were not attempted.
async fn lost_connections(rabbit: &RabbitMq) -> Result<()> {
    let recorded = Recorded::new(rabbit, "cut").await?;
    let proxy = Proxy::start(rabbit.address()).await?;
    let url = format!("amqp://guest:guest@{}/%2f", proxy.address());
    let _actor = recorded.actor(&url).await?;
    for number in 0..12 {
        recorded.send(json!({"n": number, "seconds": 1})).await?;
    }
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        proxy.cut();
    }
    recorded.finished(0..12).await?;
    recorded.world.wait_for("error-end", 0).await
}

/// A message that ends its runtime fails alone: those that wait beside it were not attempted.
async fn a_deadly_message(rabbit: &RabbitMq) -> Result<()> {
    let recorded = Recorded::new(rabbit, "deadly").await?;
    let mut actor = recorded.actor(&rabbit.url()).await?;
    recorded.send(json!({"n": 0, "seconds": 1})).await?;
    recorded.send(json!({"n": 1, "die": true})).await?;
    for number in 2..10 {
        recorded.send(json!({"n": number})).await?;
    }
    let mut errors = recorded.world.out("error-end").await?;
    for _ in 0..600 {
        // The kubelet waits before it restarts a container that ended.
        tokio::time::sleep(Duration::from_secs(3)).await;
        actor.revive_runtime()?;
        if recorded.calls(9) > 0 {
            break;
        }
    }
    let error = next(&mut errors).await?;
    assert_eq!(error["payload"]["original_payload"]["n"], 1, "{error}");
    assert_eq!(recorded.calls(1), 3);
    recorded.finished((0..10).filter(|number| *number != 1)).await?;
    recorded.world.wait_for("error-end", 0).await
}

/// The results of messages that a sidecar has are sent, although their queue is deleted in the meantime. The sidecar creates it again.
async fn a_deleted_queue(rabbit: &RabbitMq) -> Result<()> {
    let recorded = Recorded::new(rabbit, "deleted").await?;
    let _actor = recorded.actor(&rabbit.url()).await?;
    let queue = recorded.world.queue("a");
    recorded.send(json!({"n": 0})).await?;
    for number in 1..4 {
        recorded.send(json!({"n": number, "seconds": 2})).await?;
    }
    eventually(PATIENCE, async || {
        ensure!(recorded.calls(1) == 1 && recorded.world.broker.ready(&queue).await? == 0);
        Ok(())
    })
    .await?;
    recorded.world.broker.delete(&queue).await?;
    eventually(PATIENCE, async || recorded.world.broker.ready(&queue).await.map(drop)).await?;
    recorded.send(json!({"n": 4})).await?;
    recorded.finished(0..5).await?;
    let calls: Vec<usize> = (0..5).map(|number| recorded.calls(number)).collect();
    assert_eq!(calls, [1; 5]);
    Ok(())
}

/// The result of a message whose connection is lost during the call is sent with the next delivery, without another call.
async fn a_result_of_a_lost_delivery(rabbit: &RabbitMq) -> Result<()> {
    let recorded = Recorded::new(rabbit, "result").await?;
    let proxy = Proxy::start(rabbit.address()).await?;
    let url = format!("amqp://guest:guest@{}/%2f", proxy.address());
    let _actor = recorded.actor(&url).await?;
    for number in 0..3 {
        recorded.send(json!({"n": number, "seconds": 2})).await?;
    }
    for number in 0..3 {
        eventually(PATIENCE, async || {
            ensure!(recorded.calls(number) == 1);
            Ok(())
        })
        .await?;
        proxy.cut();
    }
    recorded.finished(0..3).await?;
    let calls: Vec<usize> = (0..3).map(|number| recorded.calls(number)).collect();
    assert_eq!(calls, [1; 3]);
    Ok(())
}

/// A message whose connection is lost during the pause before a retry is called again by the next delivery only.
async fn a_retry_of_a_lost_delivery(rabbit: &RabbitMq) -> Result<()> {
    let recorded = Recorded::new(rabbit, "retry").await?;
    let proxy = Proxy::start(rabbit.address()).await?;
    let url = format!("amqp://guest:guest@{}/%2f", proxy.address());
    let retry = [("ASYA_RETRY_MAX_ATTEMPTS", "2"), ("ASYA_RETRY_BACKOFF", "4s")];
    let actor = recorded.actor_with(&url, &retry).await?;
    recorded.send(json!({"n": 0, "fail": true})).await?;
    says(&actor, "retrying").await?;
    proxy.cut();
    let error = next(&mut recorded.world.out("error-end").await?).await?;
    assert_eq!(error["payload"]["details"]["attempts"], 2, "{error}");
    assert_eq!(recorded.calls(0), 3);
    recorded.finished(0..0).await
}

/// A message that ends the sidecar, or its node, during the call: these attempts count, and the messages that wait beside it do not.
async fn a_message_that_ends_its_pod(rabbit: &RabbitMq) -> Result<()> {
    let recorded = Recorded::new(rabbit, "pod").await?;
    let mut actor = recorded.actor(&rabbit.url()).await?;
    recorded.send(json!({"n": 0, "seconds": 1})).await?;
    for number in 1..12 {
        let seconds = if number == 1 { 2 } else { 0 };
        recorded.send(json!({"n": number, "seconds": seconds})).await?;
    }
    for attempt in 1..=3 {
        eventually(PATIENCE, async || {
            ensure!(recorded.calls(1) == attempt);
            Ok(())
        })
        .await?;
        actor.kill_sidecar()?;
    }
    let error = next(&mut recorded.world.out("error-end").await?).await?;
    assert_eq!(error["payload"]["error"], "too_many_deliveries", "{error}");
    assert_eq!(error["payload"]["original_payload"]["n"], 1, "{error}");
    recorded.finished((0..12).filter(|number| *number != 1)).await?;
    assert_eq!(recorded.calls(1), 3);
    recorded.world.wait_for("error-end", 0).await
}

/// An address for a server. Connections from this machine never get its port.
fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

/// A server that answers every request.
async fn answer_all(address: SocketAddr) -> Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    let router = axum::Router::new().fallback(async || axum::Json(json!({"ok": true})));
    runway_http::serve(
        listener,
        None,
        router,
        runway_http::Limits::ADMIN,
        CancellationToken::new(),
    )
    .await;
    Ok(())
}

async fn says(actor: &Actor, text: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        let log = actor.sidecar_log();
        ensure!(log.contains(text), "no {text:?} in {log}");
        Ok(())
    })
    .await
}
