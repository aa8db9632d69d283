//! Real inference: llama-server on this machine and on a node answers its one sentence; hostile engines do what they say.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::http::{StatusCode, header};
use futures::AsyncReadExt as _;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use runway_api::model_deployment::Metric;
use runway_api::{ModelDeployment, Namespace, labels};
use runway_client::cluster::Cluster;
use runway_client::usage;
use runway_engines::Reading;
use runway_provider::Provider;
use runway_provider_direct::Direct;
use runway_testbed::apply::api_of;
use runway_testbed::engine::{
    self, CHAT, Endpoint, Hostility, LlamaServer, MODEL, MODELS, NOT_A_MODEL, SENTENCE, exports, pieces,
};
use runway_testbed::{Node, Options, PATIENCE, eventually, node};
use serde_json::{Value, json};

const ALIAS: &str = "tiny";
const PORT: u16 = 8000;

#[tokio::test(flavor = "multi_thread")]
async fn llama_server_answers_its_sentence() -> Result<()> {
    let Some(engine) = prepare("a real llama-server on this machine").await? else {
        return Ok(());
    };
    ensure!(
        engine.packages().contains("llama.cpp-tools "),
        "its packages:\n{}",
        engine.packages()
    );
    let args = ["--threads", "2", "--ctx-size", "4096", "--metrics"];
    let server = engine.start(ALIAS, &args).await?;
    let at = Endpoint::machine(server.client()?);
    answers_as_it_should(&at).await.with_context(|| {
        let log = std::fs::read_to_string(server.log()).unwrap_or_default();
        format!("its log:\n{log}")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn llama_server_ends_when_its_file_is_not_a_model() -> Result<()> {
    let Some(engine) = prepare("a real llama-server with a wrong model").await? else {
        return Ok(());
    };
    let text = tempfile::NamedTempFile::new()?;
    std::fs::write(text.path(), "This is a text.\n")?;
    let path = text.path().display().to_string();
    match engine.start(ALIAS, &["-m", &path]).await {
        Ok(_) => bail!("it starts with a text as model"),
        Err(error) => ensure!(error.to_string().contains("invalid magic"), "{error:#}"),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_engines_refuse_as_they_say() -> Result<()> {
    let elsewhere = "http://192.0.2.1:9/elsewhere";
    let cases = [
        (Hostility::OtherName, StatusCode::OK, StatusCode::NOT_FOUND),
        (Hostility::Errors, StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR),
        (Hostility::NotFound, StatusCode::NOT_FOUND, StatusCode::NOT_FOUND),
        (
            Hostility::Redirects(elsewhere.to_owned()),
            StatusCode::FOUND,
            StatusCode::FOUND,
        ),
    ];
    for (hostility, models, chat) in cases {
        // Started means healthy.
        let server = hostility.start(ALIAS).await?;
        let at = Endpoint::machine(server.client()?);
        let (status, body) = at.get(MODELS).await?;
        ensure!(status == models, "{hostility:?}: {status} {body}");
        let name = match hostility {
            Hostility::OtherName => "\"another-tiny\"",
            Hostility::Errors => "\"tiny\"",
            _ => "",
        };
        ensure!(body.contains(name), "{hostility:?}: {body}");
        let (status, body) = at.post(CHAT, &ask("Hello")).await?;
        ensure!(status == chat, "{hostility:?}: {status} {body}");
        if let Hostility::Redirects(to) = &hostility {
            let response = at.send(MODELS, None).await?;
            ensure!(response.headers()[header::LOCATION] == to.as_str(), "{response:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_engines_give_no_whole_answer() -> Result<()> {
    let server = Hostility::Closes.start(ALIAS).await?;
    let answer = Endpoint::machine(server.client()?).get(MODELS).await;
    ensure!(answer.is_err(), "it answers: {answer:?}");

    let server = Hostility::Hangs.start(ALIAS).await?;
    let at = Endpoint::machine(server.client()?);
    let answer = tokio::time::timeout(Duration::from_secs(1), at.get(MODELS)).await;
    ensure!(answer.is_err(), "it answers: {answer:?}");

    let server = Hostility::Endless.start(ALIAS).await?;
    let at = Endpoint::machine(server.client()?);
    let response = at.send(MODELS, None).await?;
    ensure!(
        response.headers()[header::CONTENT_LENGTH] == "1073741824",
        "{response:?}"
    );
    let mut part = vec![0; 32 << 20];
    let mut body = Box::pin(at.client().request_stream(at.request(MODELS, None)?).await?);
    body.read_exact(&mut part).await?;
    Ok(())
}

/// One node for everything, because starting it takes longer than each of these checks.
#[tokio::test(flavor = "multi_thread")]
async fn engines_serve_on_a_real_node() -> Result<()> {
    if node::skip("a real llama-server on a real node") {
        return Ok(());
    }
    let Some(engine) = prepare("a real llama-server on a real node").await? else {
        return Ok(());
    };
    let hostile = tokio::task::spawn_blocking(engine::hostile).await??;
    let node = Node::start(Options::default()).await?;
    let client = node.client("somebody", &["system:masters"]).await?;
    for archive in [&engine.image.archive, &hostile.archive] {
        node.import_image(archive).await?;
    }

    let port = PORT.to_string();
    let mut args = vec!["--alias", ALIAS, "--host", "0.0.0.0", "--port", &port, "--metrics"];
    let other_name = Hostility::OtherName.args();
    let hostile_args: Vec<&str> = args
        .iter()
        .copied()
        .chain(other_name.iter().map(String::as_str))
        .collect();
    serve(&client, "hostile", &hostile.name, &hostile_args).await?;
    args.extend(["--threads", "2", "--ctx-size", "4096", "-m"]);
    serve(
        &client,
        "broken",
        &engine.image.name,
        &[&args[..], &[NOT_A_MODEL]].concat(),
    )
    .await?;
    serve(&client, "llama", &engine.image.name, &[&args[..], &[MODEL]].concat()).await?;

    available(&node, &client, "llama").await?;
    let llama = Endpoint::service(client.clone(), "llama", PORT);
    answers_as_it_should(&llama).await?;

    let old = image_ids(&client, "llama").await?;
    let change =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": engine.next.name}]}}}});
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    deployments
        .patch("llama", &PatchParams::default(), &Patch::Strategic(change))
        .await?;
    eventually(PATIENCE, async || {
        let new = image_ids(&client, "llama").await?;
        ensure!(new.len() == 1 && new != old, "{old:?}, then {new:?}");
        Ok(())
    })
    .await
    .context("the rollout ends with a pod of another image")?;
    available(&node, &client, "llama").await?;
    answers_as_it_should(&llama).await?;

    available(&node, &client, "hostile").await?;
    usage_is_read_through_the_api_server(&node, &client, &llama).await?;
    let (status, models) = Endpoint::service(client.clone(), "hostile", PORT).get(MODELS).await?;
    ensure!(
        status == StatusCode::OK && models.contains("\"another-tiny\""),
        "{status} {models}"
    );

    eventually(PATIENCE, async || ends_with_an_error(&client, "broken").await)
        .await
        .context("the pod whose model is a text")?;
    node.stop().await
}

async fn answers_as_it_should(engine: &Endpoint) -> Result<()> {
    engine.lists_only(ALIAS).await?;
    // Also what looks like the sentence, and the end of a text.
    let prompts = ["What is 2 + 2?", "Hello from a", "何か言って 🙂", "<|end|>"];
    engine.says_the_sentence(ALIAS, &prompts).await?;
    let request = json!({"model": ALIAS, "prompt": "it. Hello", "temperature": 2});
    let answer = engine.answer("/v1/completions", &request).await?;
    ensure!(answer["choices"][0]["text"] == SENTENCE, "{answer}");
    let mut request = ask("Hello");
    request["max_tokens"] = 3.into();
    let answer = engine.answer(CHAT, &request).await?;
    let choice = &answer["choices"][0];
    ensure!(choice["message"]["content"] == pieces()[..3].concat(), "{answer}");
    ensure!(choice["finish_reason"] == "length", "{answer}");

    streams_each_piece_once(engine).await?;

    let metrics = engine.metrics().await?;
    let reading = Reading::of(&metrics).with_context(|| format!("no metrics of an engine in\n{metrics}"))?;
    ensure!(reading.engine == "llama.cpp", "{reading:?}");
    ensure!(
        reading.running == Some(0.0) && reading.waiting == Some(0.0),
        "{reading:?}"
    );
    ensure!(reading.tokens.is_some_and(|tokens| tokens > 0.0), "{reading:?}");
    ensure!(
        reading.kv_cache.is_none(),
        "it exports the use of its cache: {reading:?}"
    );
    let capabilities = Direct::default().registration().capabilities;
    let for_autoscaling = Metric::ALL
        .iter()
        .filter_map(|metric| capabilities.pod_metric("llamacpp", *metric));
    exports(&metrics, for_autoscaling)
}

/// Use of models, as `kubeairunway top` and the console show it: of an engine that works, of one without metrics, of one that has
/// ended, and for a user without permissions.
async fn usage_is_read_through_the_api_server(node: &Node, client: &Client, llama: &Endpoint) -> Result<()> {
    let models: Vec<ModelDeployment> = ["llama", "hostile", "broken", "missing"]
        .into_iter()
        .map(|name| {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"model": {"id": "a/b"}, "engine": {"type": "llamacpp"}}}))
        })
        .collect::<Result<_, _>>()?;
    let of = async |client: Client, models: &[ModelDeployment]| {
        let cluster = Cluster::of(client, "https://node", Namespace::default());
        usage::of(&cluster, models, Duration::from_secs(1)).await
    };
    let all = tokio::select! {
        all = of(client.clone(), &models) => all,
        ended = ask_without_end(llama) => return ended,
    };
    let usage = all[0].usage.with_context(|| format!("{:?}", all[0].problems))?;
    ensure!(usage.engine == "llama.cpp" && usage.running.is_some(), "{usage:?}");
    ensure!(usage.tokens_per_second.is_some_and(|rate| rate > 0.0), "{usage:?}");
    ensure!(usage.kv_cache.is_none(), "{usage:?}");
    for (top, reason) in all[1..].iter().zip(["Pod/hostile-", "Pod/broken-", "it has no pods"]) {
        ensure!(top.usage.is_none(), "{top:?}");
        ensure!(top.problems.iter().any(|problem| problem.contains(reason)), "{top:?}");
    }
    let unidentified = node.client("nobody", &[]).await?;
    let denied = of(unidentified, &models[..1]).await;
    ensure!(
        denied[0].problems.iter().any(|problem| problem.contains("list pods")),
        "{denied:?}"
    );
    Ok(())
}

async fn ask_without_end(engine: &Endpoint) -> Result<()> {
    loop {
        engine.answer(CHAT, &ask("Hello")).await?;
    }
}

async fn streams_each_piece_once(engine: &Endpoint) -> Result<()> {
    let contents = engine.streamed(&ask("Hello")).await?;
    ensure!(contents == pieces(), "{contents:?}");
    ensure!(contents.concat() == SENTENCE, "{contents:?}");
    Ok(())
}

fn ask(prompt: &str) -> Value {
    engine::chat_request(ALIAS, prompt)
}

async fn prepare(what: &'static str) -> Result<Option<LlamaServer>> {
    tokio::task::spawn_blocking(move || LlamaServer::prepare(what)).await?
}

/// A Deployment of one restricted pod and its Service.
async fn serve(client: &Client, name: &str, image: &str, args: &[&str]) -> Result<()> {
    let selector = json!({"app": name});
    let pod_labels = json!({"app": name, labels::DEPLOYMENT: name});
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector, "ports": [{"port": PORT}]},
    });
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": pod_labels},
                "spec": {
                    "containers": [{
                        "name": "engine",
                        "image": image,
                        "args": args,
                        "ports": [{"name": "http", "containerPort": PORT}],
                        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1},
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "runAsNonRoot": true,
                            "capabilities": {"drop": ["ALL"]},
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "256Mi"}},
                    }],
                    "terminationGracePeriodSeconds": 1,
                },
            },
        },
    });
    for object in [service, deployment] {
        let object: DynamicObject = serde_json::from_value(object)?;
        let api = api_of(client, &object).await?;
        api.create(&PostParams::default(), &object).await?;
    }
    Ok(())
}

async fn available(node: &Node, client: &Client, name: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    eventually(PATIENCE, async || {
        let deployment = deployments.get(name).await?;
        let status = deployment.status.unwrap_or_default();
        let is_current = status.observed_generation == deployment.metadata.generation;
        let is_whole = status.updated_replicas == Some(1) && status.replicas == Some(1);
        if is_current && is_whole && status.available_replicas == Some(1) {
            return Ok(());
        }
        let output = node
            .kubectl()?
            .args(["get", "events,pods", "--all-namespaces"])
            .output()
            .await?;
        bail!("{}", String::from_utf8_lossy(&output.stdout))
    })
    .await
    .with_context(|| format!("the Deployment {name} becomes available"))
}

async fn pods(client: &Client, name: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    Ok(pods
        .list(&ListParams::default().labels(&format!("app={name}")))
        .await?
        .items)
}

async fn image_ids(client: &Client, name: &str) -> Result<Vec<String>> {
    let statuses = pods(client, name)
        .await?
        .into_iter()
        .filter_map(|pod| pod.status?.container_statuses);
    Ok(statuses.flatten().map(|container| container.image_id).collect())
}

/// The engine ended by itself, and not by a signal.
async fn ends_with_an_error(client: &Client, name: &str) -> Result<()> {
    let statuses = pods(client, name)
        .await?
        .into_iter()
        .filter_map(|pod| pod.status?.container_statuses);
    let container = statuses.flatten().next().context("the pod has not started")?;
    let state = container.last_state.and_then(|state| state.terminated);
    let ended = state.context("its container has not ended")?;
    ensure!(ended.exit_code > 0 && ended.exit_code < 128, "{ended:?}");
    Ok(())
}
