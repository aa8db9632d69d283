//! Numbers of messages and dead letters, for operators: a real RabbitMQ, a server with the protocol of SQS, and a real API server.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::StatusCode;
use runway_asya_gateway::AUDIENCE;
use runway_asya_testbed::pipeline::Kind;
use runway_sqs::{Client, Credentials, Settings};
use runway_testbed::{PATIENCE, RabbitMqOptions, Sqs, eventually, sqs};
use serde_json::{Value, json};

mod support;
use support::{Gateway, World, may};

const QUEUE: &str = "asya-team_embed";
const DEAD: &str = "asya-team_embed_dlq";
const PATH: &str = "/queues/team/embed";

fn message(id: &str) -> Vec<u8> {
    let message = json!({"id": id, "route": {"actors": ["embed"], "current": 0}, "payload": {"of": id}});
    message.to_string().into_bytes()
}

/// Ids of dead letters, in order.
fn ids(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().into_iter().flatten();
    items.map(|item| item["id"].as_str().unwrap_or("null")).collect()
}

/// Dead letters, as a user sees them.
struct Dlq<'a> {
    gateway: &'a Gateway,
    token: &'a str,
}

impl Dlq<'_> {
    async fn list(&self, query: &str) -> Result<Value> {
        let (status, body) = self.gateway.get(&format!("{PATH}/dlq{query}"), self.token, &[]).await?;
        ensure!(status == StatusCode::OK, "{status} {body}");
        Ok(body)
    }

    async fn numbers(&self) -> Result<Value> {
        let (status, body) = self.gateway.get(PATH, self.token, &[]).await?;
        ensure!(status == StatusCode::OK, "{status} {body}");
        Ok(body)
    }

    async fn process(&self, verb: &str, chosen: &Value) -> Result<Value> {
        let path = format!("{PATH}/dlq/{verb}");
        let (status, body) = self.gateway.post(&path, self.token, &[], chosen).await?;
        ensure!(status == StatusCode::OK, "{status} {body}");
        Ok(body)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_redrive_and_drop_dead_letters() -> Result<()> {
    let world = World::start_with(RabbitMqOptions {
        management: true,
        ..RabbitMqOptions::default()
    })
    .await?;
    let broker = &world.broker;
    broker.declare_as(DEAD, Kind::Quorum).await?;
    broker.declare_limited(QUEUE, 1, Some(DEAD)).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &["--largest-result=65536"]).await?;
    let rights = vec![may(&["get"], "queue"), may(&["get", "update", "delete"], "dlq")];
    let token = &world.user_with("ops", rights, &[AUDIENCE]).await?;
    let ops = Dlq {
        gateway: &gateway,
        token,
    };

    rights_are_separate(&world, &gateway).await?;

    // The broker's own dead letter: returned twice, where one return is allowed.
    broker
        .publish_named(QUEUE, &message("m0"), "amqp-0", ("tenant", "a"))
        .await?;
    for _ in 0..2 {
        broker.take(QUEUE).await?.end().await?;
    }
    eventually(PATIENCE, async || {
        ensure!(broker.ready(DEAD).await? == 1, "not dead yet");
        Ok(())
    })
    .await?;
    for id in ["m1", "m2", "m3"] {
        broker.publish(DEAD, &message(id)).await?;
    }
    broker.publish(DEAD, b"not json").await?;
    let large = vec![b'x'; 200_000];
    broker.publish(DEAD, &large).await?;
    broker.publish(QUEUE, &message("waits")).await?;
    broker.publish(QUEUE, &message("waits too")).await?;
    let busy = broker.take(QUEUE).await?;

    // The management API reports unacknowledged messages with a delay.
    let counted = eventually(PATIENCE, async || {
        let counted = ops.numbers().await?;
        ensure!(counted["running"] == 1, "{counted}");
        Ok(counted)
    })
    .await?;
    let expected = json!({"namespace": "team", "actor": "embed", "queue": QUEUE, "waiting": 1, "running": 1, "consumers": 1, "dead": 6});
    assert_eq!(counted, expected);
    busy.finish().await?;

    let list = ops.list("").await?;
    assert_eq!(list["count"], 6, "{list:#}");
    let seen = ids(&list);
    assert_eq!(seen[..4], ["m0", "m1", "m2", "m3"], "{list:#}");
    let garbage = seen[4].to_owned();
    ensure!(garbage.starts_with("sha256:") && garbage.len() == 39, "{list:#}");
    assert_eq!(list["items"][5], json!({"id": null, "bytes": 200_000}));
    assert_eq!(list["items"][0]["reason"], "delivery_limit", "{list:#}");
    ensure!(list["items"][0]["since"].is_string(), "{list:#}");
    ensure!(list["items"][1].get("reason").is_none(), "{list:#}");
    assert_eq!(ids(&ops.list("?limit=2").await?), ["m0", "m1"]);

    let whole = ops.list("?id=m0").await?;
    assert_eq!(whole["message"]["payload"], json!({"of": "m0"}), "{whole:#}");
    assert_eq!(whole["headers"], json!({"tenant": "a"}), "{whole:#}");
    let whole = ops.list(&format!("?id={garbage}")).await?;
    assert_eq!(whole["message"], "not json", "{whole:#}");

    broker.purge(QUEUE).await?;
    let done = ops.process("redrive", &json!({"ids": ["m0", "nowhere"]})).await?;
    assert_eq!(done, json!({"count": 6, "processed": 1, "missing": ["nowhere"]}));
    let (body, properties) = broker.consume(QUEUE).await?.next(PATIENCE).await?;
    assert_eq!(body, message("m0"));
    assert_eq!(
        properties.message_id().as_ref().map(ToString::to_string).as_deref(),
        Some("amqp-0")
    );
    let headers = properties.headers().clone().unwrap_or_default();
    let names: Vec<String> = headers.inner().keys().map(ToString::to_string).collect();
    assert_eq!(names, ["tenant"], "the death is forgotten");

    let done = ops.process("drop", &json!({"ids": ["m1", garbage]})).await?;
    assert_eq!(done, json!({"count": 5, "processed": 2}));
    let done = ops.process("redrive", &json!({"all": true})).await?;
    assert_eq!(done, json!({"count": 3, "processed": 2}), "the large one stays");
    eventually(PATIENCE, async || {
        let left = ops.numbers().await?;
        ensure!(left["waiting"] == 2 && left["dead"] == 1, "{left}");
        Ok(())
    })
    .await?;
    let done = ops.process("drop", &json!({"all": true})).await?;
    assert_eq!(done, json!({"count": 1, "processed": 1}));
    assert_eq!(ops.list("").await?, json!({"count": 0, "items": []}));

    refusals(&world, &ops).await?;
    broker.delete(DEAD).await?;
    dead_letters_outlive_many_looks(&world, &ops, &large).await
}

/// Each right has its own verb, and a caller without one learns nothing.
async fn rights_are_separate(world: &World, gateway: &Gateway) -> Result<()> {
    let sender = world.user("sender", &["embed"]).await?;
    let viewer = world
        .user_with("viewer", vec![may(&["get"], "queue")], &[AUDIENCE])
        .await?;
    let reader = world
        .user_with("reader", vec![may(&["get"], "dlq")], &[AUDIENCE])
        .await?;
    let (redrive, drop) = (format!("{PATH}/dlq/redrive"), format!("{PATH}/dlq/drop"));
    let all = json!({"all": true});
    let forbidden = async |token: &str, path: &str, is_post: bool| {
        let (status, body) = if is_post {
            gateway.post(path, token, &[], &all).await?
        } else {
            gateway.get(path, token, &[]).await?
        };
        ensure!(status == StatusCode::FORBIDDEN, "{path}: {status} {body}");
        anyhow::Ok(body["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    for token in [&sender, &reader] {
        let said = forbidden(token, PATH, false).await?;
        ensure!(
            said.contains("cannot get asyncactors/queue of 'embed' in namespace 'team'"),
            "{said}"
        );
    }
    for token in [&sender, &viewer] {
        forbidden(token, &format!("{PATH}/dlq"), false).await?;
    }
    for token in [&sender, &viewer, &reader] {
        let said = forbidden(token, &redrive, true).await?;
        ensure!(said.contains("update asyncactors/dlq"), "{said}");
        let said = forbidden(token, &drop, true).await?;
        ensure!(said.contains("delete asyncactors/dlq"), "{said}");
    }
    // A namespace of others, and no token at all.
    forbidden(&reader, "/queues/other/embed/dlq", false).await?;
    let (status, _) = gateway.get(PATH, "", &[]).await?;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    Ok(())
}

async fn refusals(world: &World, ops: &Dlq<'_>) -> Result<()> {
    let post = async |path: &str, body: &Value| ops.gateway.post(path, ops.token, &[], body).await;
    let get = async |path: &str| ops.gateway.get(path, ops.token, &[]).await;
    let redrive = format!("{PATH}/dlq/redrive");
    for body in [
        json!({}),
        json!({"ids": []}),
        json!({"all": true, "ids": ["a"]}),
        json!({"id": "a"}),
        json!([]),
    ] {
        let (status, said) = post(&redrive, &body).await?;
        ensure!(status == StatusCode::BAD_REQUEST, "{body}: {status} {said}");
    }
    for query in ["limit=0", "limit=1001", "limit=x", "size=3"] {
        let (status, said) = get(&format!("{PATH}/dlq?{query}")).await?;
        ensure!(status == StatusCode::BAD_REQUEST, "{query}: {status} {said}");
    }
    for (path, text) in [
        (
            format!("{PATH}/dlq?id=nowhere"),
            "dead letter 'nowhere' not found in queue asya-team_embed_dlq",
        ),
        (
            "/queues/team/absent".to_owned(),
            "queue asya-team_absent does not exist",
        ),
        (
            "/queues/team/absent/dlq".to_owned(),
            "queue asya-team_absent_dlq does not exist",
        ),
    ] {
        let (status, said) = get(&path).await?;
        ensure!(
            status == StatusCode::NOT_FOUND && said.to_string().contains(text),
            "{path}: {status} {said}"
        );
    }
    // Without its queue, a dead letter stays.
    world.broker.declare("asya-team_gone_dlq").await?;
    world.broker.publish("asya-team_gone_dlq", &message("m9")).await?;
    let (status, said) = post("/queues/team/gone/dlq/redrive", &json!({"all": true})).await?;
    let text = "queue asya-team_gone does not exist; 0 dead letters were processed";
    ensure!(
        status == StatusCode::SERVICE_UNAVAILABLE && said.to_string().contains(text),
        "{status} {said}"
    );
    eventually(PATIENCE, async || {
        ensure!(world.broker.ready("asya-team_gone_dlq").await? == 1, "it is lost");
        Ok(())
    })
    .await
}

/// A quorum queue deletes a message that is returned too often, and a look is a return.
async fn dead_letters_outlive_many_looks(world: &World, ops: &Dlq<'_>, large: &[u8]) -> Result<()> {
    const RETURNS: i64 = 5;
    world.broker.declare_limited(DEAD, RETURNS, None).await?;
    world
        .broker
        .publish_named(DEAD, &message("m1"), "amqp-1", ("tenant", "b"))
        .await?;
    world.broker.publish(DEAD, large).await?;
    for look in 0..4 * RETURNS {
        eventually(PATIENCE, async || {
            let list = ops.list("").await?;
            let (mut seen, mut sizes) = (ids(&list), Vec::new());
            seen.sort_unstable();
            for item in list["items"].as_array().context("no items")? {
                sizes.push(item["bytes"].as_u64());
            }
            ensure!(
                seen == ["m1", "null"] && sizes.contains(&Some(200_000)),
                "look {look}: {list:#}"
            );
            Ok(())
        })
        .await?;
    }
    let whole = ops.list("?id=m1").await?;
    assert_eq!(whole["headers"], json!({"tenant": "b"}), "{whole:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_the_gateway_lose_no_dead_letter() -> Result<()> {
    const LETTERS: usize = 3000;
    const KILLS: u32 = 6;
    let world = World::start().await?;
    world.broker.declare_as(QUEUE, Kind::Quorum).await?;
    world.broker.declare_as(DEAD, Kind::Quorum).await?;
    world
        .broker
        .publish_all(DEAD, (0..LETTERS).map(|n| message(&format!("m{n}"))))
        .await?;
    let token = &world
        .user_with("ops", vec![may(&["get", "update"], "dlq")], &[AUDIENCE])
        .await?;
    let store = world.folder.path().join("jobs.redb");
    let mut gateway = Gateway::start(&world, &store, &[]).await?;
    for kill in 0..KILLS {
        let ops = Dlq {
            gateway: &gateway,
            token,
        };
        let all = json!({"all": true});
        let redriving = ops.process("redrive", &all);
        let before = world.broker.ready(QUEUE).await?;
        let pid = gateway.pid();
        let killing = async {
            // In the middle: some are redriven, and not all of one request.
            eventually(PATIENCE, async || {
                let more = world.broker.ready(QUEUE).await? - before;
                ensure!(more > 20 * kill, "only {more} are redriven");
                Ok(())
            })
            .await?;
            let killed = std::process::Command::new("kill")
                .args(["-9", &pid.to_string()])
                .status()?;
            ensure!(killed.success(), "kill failed");
            Ok(())
        };
        let (_, killed) = tokio::join!(redriving, killing);
        killed?;
        gateway.kill().await?;
    }
    let ops = Dlq {
        gateway: &gateway,
        token,
    };
    eventually(PATIENCE, async || {
        ops.process("redrive", &json!({"all": true})).await?;
        let left = world.broker.ready(DEAD).await?;
        ensure!(left == 0, "{left} dead letters are left");
        Ok(())
    })
    .await?;
    let count = world.broker.ready(QUEUE).await? as usize;
    let mut incoming = world.broker.consume(QUEUE).await?;
    let mut distinct = BTreeSet::new();
    for _ in 0..count {
        let (body, _) = incoming.next(PATIENCE).await?;
        let body: Value = serde_json::from_slice(&body)?;
        distinct.insert(body["id"].as_str().context("no id")?.to_owned());
    }
    println!(
        "{LETTERS} dead letters, {KILLS} kills, {count} messages, {} distinct",
        distinct.len()
    );
    assert_eq!(distinct.len(), LETTERS);
    ensure!(
        count <= LETTERS + usize::try_from(KILLS)?,
        "{} duplicates by {KILLS} kills",
        count - LETTERS
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_redrive_and_drop_dead_letters_of_sqs() -> Result<()> {
    if sqs::skip("dead letters of SQS") {
        return Ok(());
    }
    let (world, server) = tokio::try_join!(World::start(), Sqs::start())?;
    let keys = world.folder.path().join("secrets/keys");
    std::fs::create_dir_all(&keys)?;
    for name in ["id", "key"] {
        std::fs::write(keys.join(name), "test")?;
    }
    let key = |key: &str| json!({"name": "keys", "key": key});
    let transports = json!({"transports": {"sqs": {"type": "sqs", "config": {"region": "us-east-1", "endpoint": server.endpoint(),
        "waitTimeSeconds": 1, "credentials": {"accessKeyIdSecretRef": key("id"), "secretAccessKeySecretRef": key("key")}}}}});
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start_on(&world, &store, &transports, &[]).await?;
    let rights = vec![may(&["get"], "queue"), may(&["get", "update", "delete"], "dlq")];
    let token = &world.user_with("ops", rights, &[AUDIENCE]).await?;
    let ops = Dlq {
        gateway: &gateway,
        token,
    };

    let client = Client::new(&Settings {
        region: "us-east-1".to_owned(),
        endpoint: Some(server.endpoint()),
        credentials: Credentials::Static {
            id: "test".to_owned(),
            key: "test".to_owned(),
        },
    })?;
    let made = async |name: &str| client.create_queue(name, &[].into(), &[].into()).await;
    let (queue, dead) = (made(QUEUE).await?, made(DEAD).await?);
    let headers = [("tenant".to_owned(), "a".to_owned())];
    for n in 0..25 {
        let body = String::from_utf8(message(&format!("m{n}")))?;
        client.send(&dead, &body, &headers).await?;
    }
    client.send(&queue, "{}", &[]).await?;
    client.send(&queue, "{}", &[]).await?;
    let receive = async || {
        client
            .receive(&queue, 1, Duration::from_secs(1), Duration::from_mins(10))
            .await
    };
    ensure!(receive().await?.len() == 1, "received nothing");
    let counted = ops.numbers().await?;
    let expected = json!({"namespace": "team", "actor": "embed", "queue": QUEUE, "waiting": 1, "running": 1, "consumers": null, "dead": 25});
    assert_eq!(counted, expected);

    for _ in 0..2 {
        let list = ops.list("").await?;
        let seen: BTreeSet<&str> = ids(&list).into_iter().collect();
        assert_eq!((seen.len(), &list["count"]), (25, &json!(25)), "{list:#}");
    }
    assert_eq!(ids(&ops.list("?limit=3").await?).len(), 3);
    let whole = ops.list("?id=m7").await?;
    assert_eq!(whole["message"]["payload"], json!({"of": "m7"}), "{whole:#}");
    assert_eq!(whole["headers"], json!({"tenant": "a"}), "{whole:#}");

    ensure!(receive().await?.len() == 1, "received nothing");
    let done = ops.process("redrive", &json!({"ids": ["m7"]})).await?;
    assert_eq!(done, json!({"count": 25, "processed": 1}));
    let redriven = receive().await?.pop().context("not redriven")?;
    assert_eq!(redriven.body.as_bytes(), message("m7"));
    assert_eq!(redriven.headers(), headers);
    let done = ops.process("drop", &json!({"ids": ["m8", "m9"]})).await?;
    assert_eq!(done, json!({"count": 24, "processed": 2}));
    let done = ops.process("redrive", &json!({"all": true})).await?;
    assert_eq!(done, json!({"count": 22, "processed": 22}));
    let left = ops.numbers().await?;
    assert_eq!((&left["waiting"], &left["dead"]), (&json!(22), &json!(0)), "{left}");
    let (status, said) = gateway.get("/queues/team/absent/dlq", token, &[]).await?;
    ensure!(status == StatusCode::NOT_FOUND, "{status} {said}");
    Ok(())
}

/// The command, with a kubeconfig.
struct Cli {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Cli {
    /// Exit code, standard output and standard error.
    async fn run(&self, words: &str) -> Result<(Option<i32>, String, String)> {
        let mut command = tokio::process::Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.arg("asya").args(words.split(' '));
        command.args(["-n", "team", "--gateway", "asya-system/http:asya-gateway:80"]);
        let output = command.stdin(Stdio::null()).output().await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
    }

    async fn ok(&self, words: &str) -> Result<(String, String)> {
        let (code, data, said) = self.run(words).await?;
        ensure!(code == Some(0), "{words}: {code:?} {data}{said}");
        Ok((data, said))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_works_through_the_proxy_of_the_api_server() -> Result<()> {
    let world = World::start().await?;
    let _actor = world.actor("upper", "upper", &[]).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &[]).await?;
    let rights = vec![
        may(&["create"], "messages"),
        may(&["get"], "queue"),
        may(&["get", "update", "delete"], "dlq"),
    ];
    let ops = world.user_with("ops", rights, &[]).await?;
    world.serve("asya-system", "asya-gateway", gateway.port()).await?;
    let cli = Cli {
        program: runway_testbed::programs::build(false).await?.join("kubeairunway"),
        kubeconfig: world.kubeconfig_with_token("ops", &ops)?,
    };
    let run = async |words: &str| cli.run(words).await;
    let ok = async |words: &str| cli.ok(words).await;

    // The proxy needs a right of its own.
    let (code, _, said) = run("queue upper").await?;
    ensure!(
        code == Some(1) && said.contains("requires permission to create and get services/proxy"),
        "{said}"
    );
    world
        .may_use_proxy("asya-system", "http:asya-gateway:80", "ops")
        .await?;
    eventually(PATIENCE, async || ok("queue upper").await.map(drop)).await?;

    let (data, _) = ok(r#"send upper {"text":"hello"} --wait 30s"#).await?;
    assert_eq!(data, "{\"text\":\"HELLO\"}\n");
    let (id, said) = ok(r#"send upper {"text":"hi"} --timeout 1m"#).await?;
    ensure!(said.contains("kubeairunway asya result"), "{said}");
    let (data, _) = ok(&format!("result {} --wait 30s", id.trim())).await?;
    assert_eq!(data, "{\"text\":\"HI\"}\n");
    let (code, _, said) = run(r#"send upper {"no":1} --wait 30s"#).await?;
    ensure!(
        code == Some(1) && said.contains("has failed: processing_error: 'text'"),
        "{code:?} {said}"
    );
    let (code, _, said) = run("send upper nonsense").await?;
    ensure!(
        code == Some(1) && said.contains("cannot submit a job to actor 'upper': the body is not JSON"),
        "{said}"
    );

    let (data, said) = ok("dlq list upper").await?;
    ensure!(
        data.is_empty() && said.contains("actor 'upper' has no dead letters"),
        "{data}{said}"
    );
    for id in ["m0", "m1", "m2", "odd/id?&"] {
        let letter = json!({"id": id, "route": {"actors": ["upper"]}, "reply_to": "gateway", "payload": {"text": id}});
        world
            .broker
            .publish("asya-team_upper_dlq", letter.to_string().as_bytes())
            .await?;
    }
    let (data, _) = ok("queue upper").await?;
    let lines: Vec<Vec<&str>> = data.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "WAITING", "RUNNING", "DEAD", "CONSUMERS"]);
    assert_eq!(lines[1], ["upper", "0", "-", "4", "1"], "without the management API");
    let (data, said) = ok("dlq list upper --limit 2").await?;
    ensure!(data.starts_with("ID  REASON  AGE  BYTES\nm0  -       -    "), "{data}");
    ensure!(said.contains("2 of 4 dead letters are shown"), "{said}");
    let (data, _) = ok("dlq show upper odd/id?&").await?;
    let shown: Value = serde_json::from_str(&data)?;
    assert_eq!(shown["message"]["payload"], json!({"text": "odd/id?&"}), "{data}");
    let (code, data, said) = run("dlq redrive upper m1 nowhere").await?;
    assert_eq!(
        (code, data.as_str()),
        (Some(1), "1 dead letter of actor 'upper' redriven\n")
    );
    assert_eq!(said, "error: AsyncActor/upper: dead letter 'nowhere' not found\n");
    let (code, _, said) = run("dlq drop upper --all").await?;
    ensure!(code == Some(1) && said.contains("not confirmed"), "{said}");
    assert_eq!(
        ok("dlq drop upper m0 --yes").await?.0,
        "1 dead letter of actor 'upper' deleted\n"
    );
    assert_eq!(
        ok("dlq redrive upper --all").await?.0,
        "2 dead letters of actor 'upper' redriven\n"
    );
    let (data, _) = ok("queue upper -o json").await?;
    let counted: Value = serde_json::from_str(&data)?;
    assert_eq!(counted["dead"], 0, "{data}");

    // A certificate does not pass the proxy.
    let cli = Cli {
        kubeconfig: world.cluster.kubeconfig("someone", &["system:masters"])?,
        ..cli
    };
    let (code, _, said) = cli.run("queue upper").await?;
    ensure!(
        code == Some(1) && said.contains("the user of the kubeconfig has no token"),
        "{said}"
    );
    let (code, data, said) = cli.run(&format!("queue upper --token {ops}")).await?;
    ensure!(code == Some(0), "{code:?} {data}{said}");
    Ok(())
}
