//! The operator's queues on a real RabbitMQ and on a server with the SQS protocol, and its configuration as in a pod: files that are created and changed.

mod bed;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use bed::{Bed, NAMESPACE, PATIENCE, arguments, with_management};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use runway_api::async_actor::{BrokerUser, TRANSPORT_READY};
use runway_api::condition::Conditions;
use runway_api::{AsyncActor, AsyncActorStatus};
use runway_asya_testbed::pipeline::{Broker, Kind};
use runway_asya_transport::rabbitmq::RabbitMq as RabbitMqTransport;
use runway_asya_transport::{Message, PublishError, Transport as _};
use runway_testbed::{RabbitMq, RabbitMqOptions, Sqs, eventually, sqs};
use serde_json::{Value, json};

fn standalone(transport: &str) -> Value {
    json!({"transport": transport, "workload": {"template": {"spec": {"containers": [{"name": "asya-runtime", "image": "p:1"}]}}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_queues_are_created_kept_and_deleted() -> Result<()> {
    let (bed, rabbit) = tokio::join!(Bed::start(), RabbitMq::start(RabbitMqOptions::default()));
    let (bed, mut rabbit) = (bed?, rabbit?);
    let folder = tempfile::tempdir()?;
    let (transports, secrets) = (folder.path().join("transports.json"), folder.path().join("secrets"));
    let _operator = bed
        .operator_with(arguments(&transports.to_string_lossy(), secrets.clone()))
        .await?;
    let says = async |actor: &str, what: &str| says(&bed, actor, what).await;
    // Nothing is configured; then a transport whose password is not mounted; then a wrong one; then the right one.
    bed.create("greet", standalone("rabbitmq")).await?;
    says("greet", "create the ConfigMap asya-transports").await?;
    let (host, port) = rabbit.address();
    let config = json!({"transports": {"rabbitmq": {"type": "rabbitmq", "config": {
        "host": host, "port": port, "passwordSecretRef": {"name": "asya-transports", "key": "password"}}}}});
    fs::write(&transports, config.to_string())?;
    says("greet", "mount it there").await?;
    fs::create_dir_all(secrets.join("asya-transports"))?;
    let password = secrets.join("asya-transports/password");
    fs::write(&password, "wrong\n")?;
    let refused = says("greet", "ACCESS_REFUSED").await?;
    ensure!(refused.status.as_deref() == Some("TransportError"), "{refused:?}");
    fs::write(&password, "guest\n")?;
    says("greet", "QueueReady").await?;

    // The queue, its dead letters and the ends of every route are there; the exchange leads to each by its own name.
    let broker = Broker::connect(&rabbit.url()).await?;
    let own = ["asya-default_greet", "asya-default_greet_dlq"];
    for queue in own
        .into_iter()
        .chain(["asya-default_happy-end", "asya-default_error-end"])
    {
        ensure!(broker.ready(queue).await? == 0);
        broker.publish_to("asya", queue, b"{}").await?;
        ensure!(broker.purge(queue).await? == 1, "{queue}");
    }

    // A queue that exists is used as it is, with what it holds.
    broker.declare("asya-default_old").await?;
    broker.publish("asya-default_old", b"{}").await?;
    bed.create("old", standalone("rabbitmq")).await?;
    says("old", "QueueDiffers: Queue 'asya-default_old' exists and is used").await?;
    says("old", "'asya-default_old' is a classic queue").await?;
    ensure!(broker.ready("asya-default_old").await? == 1);

    // The broker of before is gone, and with it the connection.
    rabbit.restart().await?;
    bed.create("late", standalone("rabbitmq")).await?;
    says("late", "QueueReady").await?;
    let broker = Broker::connect(&rabbit.url()).await?;
    ensure!(broker.ready("asya-default_late").await? == 0);

    // An actor that goes takes its queues along, unless they hold messages.
    bed.delete("greet").await?;
    for queue in own {
        ensure!(broker.ready(queue).await.is_err(), "{queue} is still there");
    }
    bed.delete("old").await?;
    ensure!(broker.ready("asya-default_old").await? == 1, "a message was lost");
    left_alone(&bed, "'asya-default_old' holds 1 messages").await
}

/// The queue of the public Asya v0.1 belongs to it: it is created as v0.1 does, used as it is, and never deleted.
#[tokio::test(flavor = "multi_thread")]
async fn alias_on_rabbitmq_is_created_bound_and_kept() -> Result<()> {
    let (bed, rabbit, transports) = with_management(json!({})).await?;
    let _operator = bed.operator_with(arguments(&transports, "/nowhere".into())).await?;
    let broker = Broker::connect(&rabbit.url()).await?;
    broker.declare("asya-old").await?;
    broker.publish("asya-old", b"{}").await?;
    let mut alias = standalone("rabbitmq");
    alias["queueAlias"] = json!("AsyaV01");
    for actor in ["old", "new"] {
        bed.create(actor, alias.clone()).await?;
        let exist = format!("QueueReady: Queue 'asya-default_{actor}' and its alias 'asya-{actor}' exist");
        says(&bed, actor, &exist).await?;
        let queue = &format!("asya-{actor}");
        let before = broker.ready(queue).await?;
        for key in [actor, queue] {
            broker.publish_to("asya", key, b"{}").await?;
        }
        ensure!(broker.ready(queue).await? == before + 2, "{queue}");
    }
    // A declaration with other arguments than those of the queue fails.
    broker.declare("asya-new").await?;

    // An alias can be added later.
    bed.create("later", standalone("rabbitmq")).await?;
    says(&bed, "later", "'asya-default_later' exists").await?;
    let alias = Patch::Merge(json!({"spec": {"queueAlias": "AsyaV01"}}));
    bed.actors().patch("later", &PatchParams::default(), &alias).await?;
    says(&bed, "later", "its alias 'asya-later' exist").await?;

    bed.delete("old").await?;
    ensure!(broker.ready("asya-old").await? == 3);
    ensure!(broker.ready("asya-default_old").await.is_err(), "it was empty");
    Ok(())
}

/// Each namespace has a user, which can use its own queues and no others, until its last actor is gone.
#[allow(clippy::too_many_lines, reason = "one life, in order")]
#[tokio::test(flavor = "multi_thread")]
async fn tenants_of_rabbitmq_are_kept_apart() -> Result<()> {
    let (bed, rabbit, transports) = with_management(json!({})).await?;
    let (host, port) = rabbit.address();
    let secrets = tempfile::tempdir()?;
    fs::create_dir(secrets.path().join("admin"))?;
    fs::write(secrets.path().join("admin/password"), "guest")?;
    fs::write(secrets.path().join("admin/key"), "0123456789abcdef0123456789abcdef")?;
    let mut transports: Value = serde_json::from_str(&transports)?;
    let reference = |key: &str| json!({"name": "admin", "key": key});
    transports["transports"]["rabbitmq"]["namespaces"] = json!(["team-a", "team-b"]);
    transports["transports"]["rabbitmq"]["config"]["tenants"] =
        json!({"username": "guest", "passwordSecretRef": reference("password"), "keySecretRef": reference("key")});
    let args = arguments(&transports.to_string(), secrets.path().to_owned());
    let operator = bed.operator_with(args.clone()).await?;

    bed.create("stranger", standalone("rabbitmq")).await?;
    says(
        &bed,
        "stranger",
        "TransportNotAllowed: spec.transport: 'rabbitmq' is not available to namespace 'default'",
    )
    .await?;
    let guest = Broker::connect(&rabbit.url()).await?;
    ensure!(guest.ready("asya-default_stranger").await.is_err(), "it has a queue");

    let mut users = Vec::new();
    for namespace in ["team-a", "team-b"] {
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::all(bed.admin.clone())
            .create(&PostParams::default(), &object)
            .await?;
        let actors: Api<AsyncActor> = Api::namespaced(bed.admin.clone(), namespace);
        for name in ["first", "second"] {
            let actor = json!({"apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": name},
                "spec": standalone("rabbitmq")});
            actors
                .create(&PostParams::default(), &serde_json::from_value(actor)?)
                .await?;
            eventually(PATIENCE, async || {
                let status = actors.get(name).await?.status.unwrap_or_default();
                let ready = status.conditions.is_true(TRANSPORT_READY);
                ensure!(ready && status.broker_user == Some(BrokerUser::Namespace), "{status:?}");
                Ok(())
            })
            .await?;
        }
        let pods: Api<Deployment> = Api::namespaced(bed.admin.clone(), namespace);
        let text = serde_json::to_string(&pods.get("first").await?.spec)?;
        ensure!(
            text.contains(&format!("asya_{namespace}")) && text.contains("asya-broker"),
            "{text}"
        );
        users.push(sign_in(&bed, namespace, (host.to_string(), port)).await?);
    }
    let [alice, bob] = [&users[0], &users[1]];

    // Each receives its own messages, and sends to its own actors with its verified name.
    let transport = RabbitMqTransport::start(sidecar(bob, "team-b")?);
    guest.publish("asya-team-b_first", b"{}").await?;
    let delivery = transport.receive().await.context("no message")?;
    let none = Vec::new();
    let message = |queue| Message {
        queue,
        body: b"{}"[..].into(),
        headers: &none,
        index: 0,
    };
    transport
        .publish(Some(&delivery.receipt), &message("asya-team-b_second"))
        .await?;
    transport
        .publish(Some(&delivery.receipt), &message("asya-team-b_first_dlq"))
        .await?;
    let foreign = transport
        .publish(Some(&delivery.receipt), &message("asya-team-a_second"))
        .await;
    ensure!(matches!(foreign, Err(PublishError::NoQueue(_))), "{foreign:?}");
    transport.acknowledge(delivery.receipt).await;
    let (_, properties) = guest.consume("asya-team-b_second").await?.next(PATIENCE).await?;
    ensure!(
        properties
            .user_id()
            .as_ref()
            .is_some_and(|user| user.as_str() == "asya_team-b"),
        "{properties:?}"
    );

    // The user of another namespace cannot do any of this.
    guest.publish("asya-team-b_second", b"{}").await?;
    let refused = |what: &str, done: Result<()>| {
        let error = done.err().map_or_else(String::new, |error| format!("{error:#}"));
        ensure!(
            error.contains("ACCESS_REFUSED") || error.contains("ACCESS-REFUSED"),
            "{what}: {error}"
        );
        Ok(())
    };
    let connect = || Broker::connect(alice);
    refused(
        "consume",
        connect().await?.consume("asya-team-b_second").await.map(drop),
    )?;
    refused("purge", connect().await?.purge("asya-team-b_second").await.map(drop))?;
    refused("delete", connect().await?.delete("asya-team-b_second").await)?;
    refused("declare", connect().await?.declare("asya-team-a_mine").await)?;
    refused(
        "bind",
        connect()
            .await?
            .bind("asya-team-b_second", "asya-team-a_actors", "x")
            .await,
    )?;
    for exchange in ["", "asya", "amq.topic", "asya-team-b_actors"] {
        let sent = connect().await?.publish_to(exchange, "asya-team-b_second", b"{}").await;
        refused(exchange, sent)?;
    }
    let own = connect()
        .await?
        .publish_to("asya-team-a_actors", "asya-team-b_second", b"{}")
        .await;
    ensure!(
        own.is_err_and(|error| error.to_string().contains("has no queue")),
        "it was sent"
    );
    let forged = lapin::BasicProperties::default().with_user_id("asya_team-b".into());
    let sent = connect()
        .await?
        .send("asya_reply", "asya_reply_gateway", b"{}", forged)
        .await;
    ensure!(
        sent.is_err_and(|error| format!("{error:#}").contains("user_id")),
        "another name was accepted"
    );
    ensure!(guest.ready("asya-team-b_second").await? == 1, "it was touched");

    // A new key changes the passwords, at the broker and in the Secrets.
    drop(operator);
    fs::write(
        secrets.path().join("admin/key"),
        "another key of at least 32 characters",
    )?;
    let _operator = bed.operator_with(args).await?;
    eventually(PATIENCE, async || {
        let renewed = sign_in(&bed, "team-a", (host.to_string(), port)).await?;
        ensure!(renewed != *alice);
        Broker::connect(&renewed).await?;
        Ok(())
    })
    .await?;
    ensure!(connect().await.is_err(), "the previous password is still accepted");
    // A sidecar signs in with the password that its file has at this time, as the kubelet updates it.
    let file = tempfile::NamedTempFile::new()?;
    let password = |url: &str| url.split([':', '@']).nth(2).map(str::to_owned).context("no password");
    fs::write(file.path(), password(bob)?)?;
    let mut config = sidecar(bob, "team-b")?;
    config.password_file = Some(file.path().to_owned());
    let transport = RabbitMqTransport::start(config);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    ensure!(!transport.is_connected(), "the previous password is accepted");
    eventually(PATIENCE, async || {
        let renewed = sign_in(&bed, "team-b", (host.to_string(), port)).await?;
        fs::write(file.path(), format!("{}\n", password(&renewed)?))?;
        ensure!(transport.is_connected(), "the new password is not used");
        Ok(())
    })
    .await?;

    // With the last actor of the namespace, its user and its Secret go.
    let alice = &sign_in(&bed, "team-a", (host.to_string(), port)).await?;
    let bobs = sign_in(&bed, "team-b", (host.to_string(), port)).await?;
    let actors: Api<AsyncActor> = Api::namespaced(bed.admin.clone(), "team-a");
    let kept: Api<Secret> = Api::namespaced(bed.admin.clone(), "team-a");
    for (name, remains) in [("first", true), ("second", false)] {
        actors.delete(name, &DeleteParams::background()).await?;
        eventually(PATIENCE, async || {
            ensure!(actors.get_opt(name).await?.is_none());
            Ok(())
        })
        .await?;
        ensure!(kept.get_opt("asya-broker").await?.is_some() == remains, "{name}");
    }
    ensure!(Broker::connect(alice).await.is_err(), "the user is still there");
    Broker::connect(&bobs).await?;
    Ok(())
}

/// URL of the broker with the user in the Secret of a namespace.
async fn sign_in(bed: &Bed, namespace: &str, (host, port): (String, u16)) -> Result<String> {
    let secrets: Api<Secret> = Api::namespaced(bed.admin.clone(), namespace);
    let data = secrets.get("asya-broker").await?.data.context("no data")?;
    let text = |key: &str| Ok::<_, anyhow::Error>(String::from_utf8(data.get(key).context("no key")?.0.clone())?);
    Ok(format!(
        "amqp://{}:{}@{host}:{port}/%2f",
        text("username")?,
        text("password")?
    ))
}

/// The sidecar's connection, with the settings that its container has.
fn sidecar(url: &str, namespace: &str) -> Result<runway_asya_transport::rabbitmq::Config> {
    let exchange = format!("--rabbitmq-publish-exchange=asya-{namespace}_actors");
    let (url, namespace) = (format!("--rabbitmq-url={url}"), format!("--namespace={namespace}"));
    let line = [
        "asya-sidecar",
        "--actor-name=first",
        "--rabbitmq-exchange=",
        "--queue-auto-create=false",
    ];
    let line = line.into_iter().chain([&*exchange, &*url, &*namespace]).map(Into::into);
    Ok(runway_asya_sidecar::config::Config::read(line)?.rabbitmq())
}

/// A message that is given back again and again goes to the dead letters, which are kept for a limited time.
#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_queues_limit_deliveries() -> Result<()> {
    let (bed, rabbit, transports) = with_management(json!({"dlq": {"maxRetryCount": 1, "retentionDays": 7}})).await?;
    let _operator = bed.operator_with(arguments(&transports, "/nowhere".into())).await?;
    let broker = Broker::connect(&rabbit.url()).await?;
    bed.create("greet", standalone("rabbitmq")).await?;
    says(&bed, "greet", "QueueReady").await?;
    broker.publish("asya-default_greet", b"{}").await?;
    // The sidecar reports the second attempt. The broker also counts deliveries that are no attempts, so its limit is higher.
    for _ in 0..=20 {
        broker.take("asya-default_greet").await?.end().await?;
    }
    let (_, letter) = broker.consume("asya-default_greet_dlq").await?.next(PATIENCE).await?;
    ensure!(letter.headers().is_some(), "{letter:?}");
    let seven_days = 7 * 24 * 60 * 60 * 1000;
    let found = broker.declare_with_ttl("asya-default_greet_dlq", seven_days).await;
    ensure!(found.is_ok(), "{found:?}");

    warns_of_long_processing(&bed, &rabbit).await
}

/// A broker that allows 30 minutes redelivers what takes longer; RabbitMQ 3.10 has no setting for one queue.
async fn warns_of_long_processing(bed: &Bed, rabbit: &RabbitMq) -> Result<()> {
    let mut long = standalone("rabbitmq");
    long["timeout"] = json!({"processing": 7200});
    bed.create("long", long).await?;
    if rabbit.is_four() {
        let status = says(bed, "long", "QueueReady").await?;
        let conditions = format!("{:?}", status.conditions);
        ensure!(!conditions.contains("x-consumer-timeout"), "{conditions}");
        return Ok(());
    }
    says(bed, "long", "has no x-consumer-timeout").await?;
    says(bed, "long", "at least 7800000 in rabbitmq.conf").await?;
    Ok(())
}

/// Messages that a consumer has are not counted as waiting, and the broker would delete them with their queue.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_actor_loses_no_message_in_progress() -> Result<()> {
    let (bed, rabbit, transports) = with_management(json!({})).await?;
    let _operator = bed.operator_with(arguments(&transports, "/nowhere".into())).await?;
    let broker = Broker::connect(&rabbit.url()).await?;
    for (actor, kind) in [("classic", Kind::Classic), ("quorum", Kind::Quorum)] {
        let queue = &format!("asya-default_{actor}");
        broker.declare_as(queue, kind).await?;
        for is_finished in [false, true] {
            bed.create(actor, standalone("rabbitmq")).await?;
            says(&bed, actor, "exists").await?;
            if broker.ready(queue).await? == 0 {
                broker.publish(queue, b"{}").await?;
            }
            let taken = broker.take(queue).await?;
            let params = DeleteParams::background();
            bed.actors().delete(actor, &params).await?;
            waits(&bed, actor, "it has 1 consumer").await?;
            taken.take_no_more().await?;
            // A quorum queue counts the consumer as long as it has a message.
            if let Kind::Classic = kind {
                waits(&bed, actor, "it has 1 unacknowledged message").await?;
            }
            if is_finished {
                taken.finish().await?;
            } else {
                taken.end().await?;
            }
            bed.gone(actor).await?;
            if is_finished {
                ensure!(broker.ready(queue).await.is_err(), "{queue} is still there");
            } else {
                ensure!(broker.ready(queue).await? == 1, "a message was lost");
                left_alone(&bed, &format!("'{queue}' holds 1 messages")).await?;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_created_over_tls() -> Result<()> {
    let options = RabbitMqOptions {
        management: true,
        tls: true,
        ..RabbitMqOptions::default()
    };
    let (bed, rabbit) = tokio::join!(Bed::start(), RabbitMq::start(options));
    let (bed, rabbit) = (bed?, rabbit?);
    let folder = tempfile::tempdir()?;
    let (transports, secrets) = (folder.path().join("transports.json"), folder.path().join("secrets"));
    let url = rabbit.tls_url().context("no TLS")?;
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next());
    let port: u16 = port.context("no port")?.parse()?;
    let config = json!({"transports": {"rabbitmq": {"type": "rabbitmq", "config": {
        "host": "localhost", "port": port, "managementPort": rabbit.management_port(),
        "tls": {"caConfigMapRef": {"name": "rabbitmq-ca", "key": "ca.crt"}}}}}});
    fs::write(&transports, config.to_string())?;
    let _operator = bed
        .operator_with(arguments(&transports.to_string_lossy(), secrets.clone()))
        .await?;
    // Nothing is mounted; then another authority; then the right one.
    bed.create("greet", standalone("rabbitmq")).await?;
    says(
        &bed,
        "greet",
        "the key 'ca.crt' of Secret or ConfigMap 'rabbitmq-ca': mount it there",
    )
    .await?;
    fs::create_dir_all(secrets.join("rabbitmq-ca"))?;
    let authority = secrets.join("rabbitmq-ca/ca.crt");
    fs::write(&authority, "")?;
    says(&bed, "greet", "UnknownIssuer").await?;
    fs::copy(rabbit.authority(), &authority)?;
    says(&bed, "greet", "QueueReady").await?;
    let broker = Broker::connect(&rabbit.url()).await?;
    ensure!(broker.ready("asya-default_greet").await? == 0);

    // The version of the broker comes from the management API.
    warns_of_long_processing(&bed, &rabbit).await
}

/// Waits until the status of a deleted actor contains a text.
async fn waits(bed: &Bed, actor: &str, what: &str) -> Result<()> {
    let reported = |s: &AsyncActorStatus| {
        s.status.as_deref() == Some("Terminating") && s.message.as_deref().is_some_and(|m| m.contains(what))
    };
    bed.status(actor, what, reported).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn sqs_queues_are_created_kept_and_deleted() -> Result<()> {
    if sqs::skip("the operator's queues on SQS") {
        return Ok(());
    }
    let (bed, server) = tokio::join!(Bed::start(), Sqs::start());
    let (bed, server) = (bed?, server?);
    let secrets = tempfile::tempdir()?;
    let key = |key: &str| json!({"name": "asya-transports", "key": key});
    let config = json!({"transports": {"sqs": {"type": "sqs", "config": {
        "region": "us-east-1", "endpoint": server.endpoint(), "tags": {"team": "a"},
        "credentials": {"accessKeyIdSecretRef": key("id"), "secretAccessKeySecretRef": key("key")}}}}});
    let _operator = bed
        .operator_with(arguments(&config.to_string(), secrets.path().to_owned()))
        .await?;
    bed.create("greet", standalone("sqs")).await?;
    bed.create("busy", standalone("sqs")).await?;
    says(&bed, "greet", "mount it there").await?;
    let mounted = secrets.path().join("asya-transports");
    fs::create_dir_all(&mounted)?;
    fs::write(mounted.join("id"), sqs::KEY_ID)?;
    fs::write(mounted.join("key"), sqs::KEY)?;
    for actor in ["greet", "busy"] {
        says(&bed, actor, "QueueReady").await?;
    }
    let client = server.client()?;
    let own = ["asya-default_greet", "asya-default_greet_dlq"];
    for queue in own
        .into_iter()
        .chain(["asya-default_happy-end", "asya-default_error-end"])
    {
        ensure!(client.queue_url(queue).await?.is_some(), "there is no {queue}");
    }
    let busy = client.queue_url("asya-default_busy").await?.context("a queue")?;
    let redrive = client.attributes(&busy).await?["RedrivePolicy"].clone();
    let redrive: Value = serde_json::from_str(redrive.as_str().context("a redrive policy")?)?;
    ensure!(
        redrive["maxReceiveCount"].to_string().trim_matches('"') == "20",
        "{redrive}"
    );
    ensure!(
        redrive["deadLetterTargetArn"]
            .as_str()
            .is_some_and(|arn| arn.ends_with(":asya-default_busy_dlq")),
        "{redrive}"
    );
    client.send(&busy, "{}", &[]).await?;

    let mut alias = standalone("sqs");
    alias["queueAlias"] = json!("AsyaV01");
    bed.create("moved", alias).await?;
    says(&bed, "moved", "'asya-default_moved' and its alias 'asya-moved' exist").await?;
    bed.delete("moved").await?;
    ensure!(client.queue_url("asya-default_moved").await?.is_none());
    ensure!(
        client.queue_url("asya-moved").await?.is_some(),
        "it belongs to the public Asya"
    );

    bed.delete("greet").await?;
    for queue in own {
        ensure!(client.queue_url(queue).await?.is_none(), "{queue} is still there");
    }
    bed.delete("busy").await?;
    ensure!(client.count(&busy).await? == 1, "a message was lost");
    left_alone(&bed, "'asya-default_busy' holds 1 messages").await
}

/// Waits until the message of `TransportReady` contains a text.
async fn says(bed: &Bed, actor: &str, what: &str) -> Result<AsyncActorStatus> {
    let reported = |s: &AsyncActorStatus| {
        let condition = s.conditions.get_condition(TRANSPORT_READY);
        condition.is_some_and(|c| format!("{}: {}", c.reason, c.message).contains(what))
    };
    bed.status(actor, what, reported).await
}

/// Waits for the Event that explains why a queue was kept.
async fn left_alone(bed: &Bed, why: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    eventually(PATIENCE, async || {
        let all = events.list(&ListParams::default()).await?.items;
        let mut left = all.iter().filter(|e| e.reason.as_deref() == Some("QueueLeft"));
        left.find(|e| e.note.as_deref().is_some_and(|note| note.contains(why)))
            .with_context(|| format!("no Event QueueLeft: {why}"))?;
        Ok(())
    })
    .await
}
