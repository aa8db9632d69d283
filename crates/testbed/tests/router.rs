//! The model router before a real engine on a real node: a model is asked through it, changes while requests are in flight, sleeps,
//! and is woken by a request. A real KEDA scales it to zero by the router's metric.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Result, ensure};
use clap::Parser;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, Config};
use runway_api::condition::{AUTOSCALER_READY, Conditions, DRY_RUN, STALLED};
use runway_api::labels;
use runway_manifests::router;
use runway_operator::admin::{self, AdminArgs};
use runway_operator::process::Process;
use runway_operator::scope::Namespaces;
use runway_product_testbed::{Bed, NAMESPACE, Upstream};
use runway_provider_direct::Direct;
use runway_router::addresses::Addresses;
use runway_router::{AUDIENCE, Args, run_on};
use runway_testbed::engine::{CHAT, Endpoint, LlamaServer, MODEL, MODELS, SENTENCE, chat_request, pieces};
use runway_testbed::traffic::{Load, load};
use runway_testbed::{Node, PATIENCE, audit, eventually, keda, tokens};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Name of the model in requests: the image decides that of the engine, so it is that of the ModelDeployment.
const NAME: &str = "hello";
/// Name of the model at the engine.
const ALIAS: &str = "name-of-the-engine";
/// Requests to the sleeping model.
const WAKING: usize = 20;
/// Times that KEDA scales the model to zero.
const CYCLES: usize = 3;
/// Service of the router's metrics.
const METRICS: &str = "router-metrics";

#[tokio::test(flavor = "multi_thread")]
async fn model_answers_through_the_router_while_it_changes_and_from_zero() -> Result<()> {
    const WHAT: &str = "the model router on a real node";
    let Some(engine) = LlamaServer::for_node(WHAT).await? else {
        return Ok(());
    };
    let bed = Bed::start_with_node(Upstream::None).await?;
    bed.cluster.import_image(&engine.image.archive).await?;
    let _core = bed.core().await?;
    let _direct = bed.asking_provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    keda::install(&bed.cluster).await?;
    let (router, way, admin, _served) = serve(&bed).await?;

    bed.create(json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": NAME },
        "spec": {
            "provider": { "name": "direct" },
            "model": { "source": "custom" },
            "engine": { "type": "llamacpp", "args": { "model": MODEL, "alias": ALIAS, "threads": "1" } },
            "image": engine.image.name,
            "resources": { "memory": "256Mi", "cpu": "10m" },
        },
    }))
    .await?;
    // The first request is there before the model.
    eventually(PATIENCE, async || {
        let (status, models) = router.get(MODELS).await?;
        ensure!(
            status.is_success() && models.contains(r#""id":"hello""#),
            "{status} {models}"
        );
        Ok(())
    })
    .await?;
    router.says_the_sentence(NAME, &["Are you there?"]).await?;
    streams_each_piece_once(&router).await?;
    bed.running(NAME).await?;

    let load = Load::begin(&[way]);
    bed.patch(NAME, json!({ "spec": { "image": engine.next.name } }))
        .await?;
    eventually(PATIENCE, async || {
        only_pods_with(&bed.admin, &engine.next.name, 1).await
    })
    .await?;
    bed.patch(NAME, json!({ "spec": { "scaling": { "replicas": 2 } } }))
        .await?;
    eventually(PATIENCE, async || {
        only_pods_with(&bed.admin, &engine.next.name, 2).await
    })
    .await?;
    bed.patch(NAME, json!({ "spec": { "scaling": { "replicas": 1 } } }))
        .await?;
    eventually(PATIENCE, async || {
        only_pods_with(&bed.admin, &engine.next.name, 1).await
    })
    .await?;
    changes_that_are_not_applied(&bed, &load).await?;
    // Those at pods that terminated too: their engines drain first.
    for (way, seen) in load.end().await? {
        ensure!(seen.failed.is_empty() && seen.answered > 0, "{way}: {seen:#?}");
        println!("{way}: {} requests were answered, none failed", seen.answered);
    }

    sleeps_and_wakes(&bed, &router).await?;
    keda_lets_it_sleep(&bed, &router, admin).await?;
    bed.cluster.stop().await
}

/// The pods serve on while the provider refuses a change, and in a dry run: requests are answered and not held.
async fn changes_that_are_not_applied(bed: &Bed<Node>, load: &Load) -> Result<()> {
    let port = |port: Value| json!({ "spec": { "engine": { "args": { "port": port } } } });
    let dry_run = |value: Value| json!({ "metadata": { "annotations": { labels::DRY_RUN: value } } });
    for (change, condition, back) in [
        (port("http".into()), STALLED, port(Value::Null)),
        (dry_run("true".into()), DRY_RUN, dry_run(Value::Null)),
    ] {
        let generation = bed.patch(NAME, change).await?.metadata.generation;
        bed.status(NAME, condition, |status| {
            status.conditions.is_true(condition) && status.observed_generation == generation
        })
        .await?;
        load.is_answered().await?;
        bed.patch(NAME, back).await?;
        bed.running(NAME).await?;
    }
    Ok(())
}

/// Scales to zero, and checks that the requests at once cause one write.
async fn sleeps_and_wakes(bed: &Bed<Node>, router: &Endpoint) -> Result<()> {
    bed.patch(NAME, json!({ "spec": { "scaling": { "replicas": 0 } } }))
        .await?;
    asleep(bed).await?;
    let mark = bed.cluster.audit().await?.mark().await?;
    all_are_answered(router).await?;
    let requests = bed.cluster.audit().await?.since(mark).await?;
    let writes = audit::of_user(&requests, router::NAME);
    let writes: Vec<_> = writes.iter().filter(|request| request.verb == "update").collect();
    ensure!(writes.len() == 1 && writes[0].subresource == "scale", "{writes:?}");
    Ok(())
}

/// Lets KEDA scale by the router's metric: to zero without requests, and not while there are some. Nothing else scales to zero.
async fn keda_lets_it_sleep(bed: &Bed<Node>, router: &Endpoint, admin: SocketAddr) -> Result<()> {
    let metric = format!("kubeairunway_gateway_model_requests{{namespace={NAMESPACE:?}, name={NAME:?}}}");
    let trigger = json!({
        "type": "metrics-api", "pollingInterval": 1, "cooldownPeriod": 5,
        "metadata": {
            "url": format!("http://{METRICS}.{NAMESPACE}.svc:{}/metrics", admin.port()), "format": "prometheus",
            "valueLocation": metric, "aggregateFromKubeServiceEndpoints": "true", "aggregationType": "sum", "targetValue": "100",
        },
    });
    for object in [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": METRICS, "namespace": NAMESPACE },
            "spec": { "ports": [{ "name": "admin", "port": admin.port() }] },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": METRICS, "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": METRICS } },
            "addressType": "IPv4", "endpoints": [{ "addresses": [admin.ip().to_string()] }],
            "ports": [{ "name": "admin", "port": admin.port() }],
        }),
    ] {
        bed.apply(&object).await?;
    }
    let autoscaling = json!({ "minReplicas": 0, "maxReplicas": 2, "trigger": trigger });
    bed.patch(NAME, json!({ "spec": { "scaling": { "autoscaling": autoscaling } } }))
        .await?;
    bed.status(NAME, "scaled by KEDA", |status| {
        status.conditions.is_true(AUTOSCALER_READY)
    })
    .await?;
    for _ in 0..CYCLES {
        asleep(bed).await?;
        all_are_answered(router).await?;
    }
    Ok(())
}

/// Waits until the model has no pod.
async fn asleep(bed: &Bed<Node>) -> Result<()> {
    eventually(PATIENCE, async || {
        let pods = pods(&bed.admin).await?;
        ensure!(pods.is_empty(), "{pods:?}");
        Ok(())
    })
    .await
}

/// Sends some requests at once, and checks each answer.
async fn all_are_answered(router: &Endpoint) -> Result<()> {
    let request = chat_request(NAME, "Good morning");
    let answers = (0..WAKING).map(|_| router.answer(CHAT, &request));
    for answer in try_join_all(answers).await? {
        ensure!(answer["choices"][0]["message"]["content"] == SENTENCE, "{answer}");
    }
    Ok(())
}

/// The router with the permissions that it has in a cluster: an endpoint and a way of clients with the token of a caller who may
/// get models, and the address of its metrics for pods.
async fn serve(bed: &Bed<Node>) -> Result<(Endpoint, load::Way, SocketAddr, AbortOnDropHandle<Result<()>>)> {
    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }
    bed.grant(&router::router()).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let mut config = Config::new(format!("http://{}", listener.local_addr()?).parse()?);
    let way = load::Way {
        name: "router",
        to: load::Address::Socket(listener.local_addr()?),
        token: token(bed).await?,
        model: NAME.to_owned(),
        headers: Vec::new(),
    };
    config.auth_info.token = Some(way.token.clone().into());
    // Each failure counts.
    config.default_retry = false;
    let client = bed.cluster.client(router::NAME, &[]).await?;
    let process = Process::alone(client, CancellationToken::new());
    let admin = AdminArgs {
        admin_address: (bed.cluster.network().host(), 0).into(),
    };
    let (health, metrics) = (process.health.clone(), process.metrics.clone());
    let admin = admin::serve(&admin, health, metrics, process.shutdown.clone()).await?;
    let args = Command::try_parse_from(["router"])?.args;
    let addresses = Addresses::default();
    let listed = process.health.waits_for("the Services");
    let following = addresses
        .clone()
        .follow(process.client.clone(), Namespaces::default(), listed);
    process
        .health
        .supervise("the watch of Services", process.shutdown.clone(), following);
    let lookup = addresses.lookup();
    let served = tokio::spawn(async move { Ok(run_on(process, args, listener, lookup).await?) });
    Ok((
        Endpoint::machine(Client::try_from(config)?),
        way,
        admin,
        AbortOnDropHandle::new(served),
    ))
}

async fn token(bed: &Bed<Node>) -> Result<String> {
    let subject = json!({ "kind": "ServiceAccount", "name": "caller", "namespace": NAMESPACE });
    for object in [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "caller", "namespace": NAMESPACE } }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": "caller", "namespace": NAMESPACE },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "caller" },
            "subjects": [subject],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": "caller", "namespace": NAMESPACE },
            "rules": [{
                "apiGroups": ["kubeairunway.ai"], "resources": ["modeldeployments"], "resourceNames": [NAME], "verbs": ["get"],
            }],
        }),
    ] {
        bed.apply(&object).await?;
    }
    tokens::token(&bed.admin, NAMESPACE, "caller", &[AUDIENCE]).await
}

async fn streams_each_piece_once(router: &Endpoint) -> Result<()> {
    let parts = router.streamed(&chat_request(NAME, "Hello")).await?;
    ensure!(parts == pieces(), "{parts:?}");
    Ok(())
}

/// Pods of the model, by name, with their images and whether they are ready.
async fn pods(client: &Client) -> Result<BTreeMap<String, (String, bool)>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let all = pods.list(&ListParams::default()).await?.items;
    let of = |pod: Pod| {
        let image = pod.spec.and_then(|spec| spec.containers.first()?.image.clone());
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        (
            pod.metadata.name.unwrap_or_default(),
            (image.unwrap_or_default(), ready),
        )
    };
    Ok(all.into_iter().map(of).collect())
}

/// Checks that so many pods of this image are ready, and that there are no others.
async fn only_pods_with(client: &Client, image: &str, replicas: usize) -> Result<()> {
    let pods = pods(client).await?;
    let fits = pods.len() == replicas && pods.values().all(|(of_pod, ready)| of_pod == image && *ready);
    ensure!(fits, "{pods:?}");
    Ok(())
}
