//! Results of jobs with a user for each namespace, on a real RabbitMQ: only the namespace of a job can answer it.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use lapin::BasicProperties;
use runway_asya_testbed::pipeline::Broker;
use runway_asya_transport::management::Management;
use runway_asya_transport::rabbitmq::RabbitMq as Sidecar;
use runway_asya_transport::settings::{Transport as Configured, Transports};
use runway_asya_transport::tenants::Permissions;
use runway_asya_transport::{Message, Transport as _};
use runway_testbed::{PATIENCE, RabbitMqOptions, eventually};
use serde_json::{Value, json};

mod support;
use support::{Gateway, TEAM, World, is_accepted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_answered_by_their_own_namespace_only() -> Result<()> {
    let options = RabbitMqOptions {
        management: true,
        ..RabbitMqOptions::default()
    };
    let world = World::start_with(options).await?;
    let mut transports = world.transports()?;
    std::fs::write(world.secrets().join("broker/key"), "0123456789abcdef0123456789abcdef")?;
    let config = &mut transports["transports"]["rabbitmq"]["config"];
    config["tenants"] = json!({"username": config["username"], "passwordSecretRef": config["passwordSecretRef"],
        "keySecretRef": {"name": "broker", "key": "key"}});
    let [team, other] = users(&world, &transports).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start_on(&world, &store, &transports, &[]).await?;
    let user = world.user("shop", &["held"]).await?;

    // The operator creates the queue, and its binding for the user of the namespace.
    let queue = format!("asya-{TEAM}_held");
    world.broker.declare(&queue).await?;
    let path = format!("/v1/{TEAM}/held");
    let (status, _, job) = gateway.ask(Method::POST, &path, &user, &[], "{}".to_owned()).await?;
    is_accepted(status, &job)?;
    let id = job["id"].as_str().context("an id")?;

    // The other namespace knows the id, and answers in each way that it has.
    let forged = json!({"id": id, "payload": "forged"}).to_string();
    let reply = ("asya_reply", "asya_reply_gateway");
    let own_name = BasicProperties::default().with_user_id("asya_other".into());
    let attempts = [BasicProperties::default(), own_name];
    for (count, properties) in attempts.into_iter().enumerate() {
        let attacker = Broker::connect(&other).await?;
        attacker.send(reply.0, reply.1, forged.as_bytes(), properties).await?;
        eventually(PATIENCE, async || {
            let set_aside = world.broker.ready("asya_reply_gateway_dlq").await?;
            ensure!(usize::try_from(set_aside)? == count + 1, "{set_aside}");
            Ok(())
        })
        .await?;
    }
    let name_of_team = BasicProperties::default().with_user_id(format!("asya_{TEAM}").into());
    let attacker = Broker::connect(&other).await?;
    let sent = attacker.send(reply.0, reply.1, forged.as_bytes(), name_of_team).await;
    ensure!(sent.is_err(), "the broker accepts the name of another user");
    // The user of all namespaces is none of them.
    world
        .broker
        .send(reply.0, reply.1, forged.as_bytes(), BasicProperties::default())
        .await?;
    eventually(PATIENCE, async || {
        ensure!(world.broker.ready("asya_reply_gateway_dlq").await? == 3);
        Ok(())
    })
    .await?;
    let (_, pending) = gateway.get(&format!("/jobs/{id}"), &user, &[]).await?;
    ensure!(pending["status"] == "pending", "{pending}");

    let config = runway_asya_sidecar::config::Config::read(
        [
            "asya-sidecar",
            "--actor-name=held",
            &format!("--namespace={TEAM}"),
            &format!("--rabbitmq-url={team}"),
            "--rabbitmq-exchange=",
            "--queue-auto-create=false",
            &format!("--rabbitmq-publish-exchange=asya-{TEAM}_actors"),
        ]
        .map(Into::into),
    )?;
    let sidecar = Sidecar::start(config.rabbitmq());
    let delivery = sidecar.receive().await.context("no message")?;
    let envelope: Value = serde_json::from_slice(&delivery.body)?;
    ensure!(envelope["id"] == *id, "{envelope}");
    let message = Message {
        queue: reply.1,
        body: json!({"id": id, "payload": "done"}).to_string().into(),
        headers: &Vec::new(),
        index: 0,
    };
    sidecar.publish(Some(&delivery.receipt), &message).await?;
    sidecar.acknowledge(delivery.receipt).await;
    let ended = gateway.ended(id, &user).await?;
    ensure!(ended["status"] == "succeeded" && ended["result"] == "done", "{ended}");
    Ok(())
}

/// URLs of the broker with the users of both namespaces, which the operator creates in a cluster.
async fn users(world: &World, transports: &Value) -> Result<[String; 2]> {
    let all = Transports::parse(&transports.to_string())?;
    let Configured::RabbitMq(broker) = all.get("rabbitmq")? else {
        anyhow::bail!("not RabbitMQ");
    };
    let tenants = broker.tenants.as_ref().context("no tenants")?;
    let management = Management::of_tenants(broker, tenants, &world.secrets())?.context("no management API")?;
    let (host, port) = world.rabbit.address();
    let mut urls = Vec::new();
    for namespace in [TEAM, "other"] {
        let credentials = tenants.credentials(broker, namespace, &world.secrets())?;
        // Twice: the second time nothing differs.
        for _ in 0..2 {
            management
                .ensure_user(&broker.vhost, &credentials, &Permissions::of(namespace))
                .await?;
        }
        let (user, password) = (credentials.username, credentials.password);
        urls.push(format!("amqp://{user}:{password}@{host}:{port}/%2f"));
    }
    urls.try_into().map_err(|_| anyhow::anyhow!("two namespaces"))
}
