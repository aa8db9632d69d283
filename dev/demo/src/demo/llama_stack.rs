//! The example providers as images, distributions that name them, and chat completions: from the provider itself, and from a
//! model that runs beside it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use runway_api::LlamaStackDistribution;
use runway_api::labels::llama_stack as labels;
use runway_dev_cluster::{self as cluster, Programs, answer, kubectl};
use runway_dev_support::{shell, step};
use runway_llama_stack_kit as provider_kit;
use runway_manifests::{self as manifests, Release};
use runway_testbed::engine::LlamaServer;
use runway_testbed::{Node, llama_stack};
use serde_json::{Value, json};

/// Prompt.
const QUESTION: &str = "Are you there?";
/// Sources of a provider, and the resource that names its image.
struct Example {
    sources: &'static str,
    resource: &'static str,
}
/// A provider that answers by itself.
const ECHO: Example = Example {
    sources: "deploy/examples/llama-stack-provider",
    resource: "deploy/examples/llama-stack/external-provider.yaml",
};
/// A provider that asks a ModelDeployment.
const MODEL: Example = Example {
    sources: "deploy/examples/llama-stack-openai-compatible",
    resource: "deploy/examples/llama-stack/model-deployment.yaml",
};
/// The ModelDeployment.
const HELLO: &str = "deploy/examples/test-bed/hello.yaml";

pub(super) async fn show(node: &mut Node, programs: &Programs) -> Result<()> {
    let client = node.admin_client().await?;
    // First, since it binds the roles of all components to users: the operator's manifests bind its own to its ServiceAccount.
    answer::install(node, programs, &client).await?;
    step("installing the Llama Stack operator, from an image of its own");
    let component = manifests::llama_stack();
    let release = Release::default();
    let image = format!("{}/{}:{}", release.registry, labels::MANAGER, release.tag);
    node.import_program(&image, &programs.path(labels::MANAGER), &["/manager"])
        .await?;
    for object in component.objects(&release) {
        cluster::apply(&client, &object).await?;
    }

    step("making the image of a distribution with llama-stack from PyPI (once for this machine: about 3 minutes)");
    let distribution = tokio::task::spawn_blocking(|| llama_stack::distribution(llama_stack::NEWEST)).await??;
    node.import_image(&distribution.archive).await?;
    serve(node, &client, &ECHO, &distribution.name, None).await?;

    let Some(engine) = tokio::task::spawn_blocking(|| LlamaServer::prepare("a model behind the server")).await?? else {
        return Ok(());
    };
    step("a model of the provider direct, a real llama-server, is to answer through a second server");
    node.import_image(&engine.image.archive).await?;
    let model = read(HELLO)?;
    let name = text(&model["metadata"]["name"]).to_owned();
    cluster::apply(&client, &serde_json::from_value(model)?).await?;
    kubectl(
        node,
        &[
            "wait",
            "--for=condition=Ready",
            &format!("modeldeployment/{name}"),
            "--timeout=5m",
        ],
    )
    .await?;
    serve(node, &client, &MODEL, &distribution.name, Some(&name)).await
}

/// Builds the image of a provider, applies the resource that names it, and asks the server.
async fn serve(node: &Node, client: &Client, example: &Example, distribution: &str, model: Option<&str>) -> Result<()> {
    let mut resource = read(example.resource)?;
    let provider = &mut resource["spec"]["server"]["externalProviders"]["inference"][0];
    let image = text(&provider["image"]).to_owned();
    if let Some(model) = model {
        provider["config"]["modelDeploymentRef"]["name"] = model.into();
    }
    resource["spec"]["server"]["distribution"] = json!({ "image": distribution });
    // Two servers and a model fit on a node with two CPUs; the default request is one CPU for each server.
    resource["spec"]["server"]["containerSpec"] = json!({ "resources": { "requests": { "cpu": "250m" } } });
    step(&format!("making the provider's image from {}", example.sources));
    let archive = node.dir.join("provider.tar");
    provider_image(example.sources, &image, &archive)?;
    node.import_image(&archive).await?;

    println!(
        "\nThis is applied:\n\n{}",
        serde_saphyr::to_string(&resource)?.trim_end()
    );
    cluster::apply(client, &serde_json::from_value(resource.clone())?).await?;
    let name = resource["metadata"]["name"]
        .as_str()
        .context("the example has no name")?;
    kubectl(
        node,
        &["wait", "--for=condition=Ready", &format!("llsd/{name}"), "--timeout=5m"],
    )
    .await?;
    // The operator asks the server for its version as soon as it is ready.
    let llsds: Api<LlamaStackDistribution> = Api::default_namespaced(client.clone());
    runway_testbed::eventually(runway_testbed::PATIENCE, async || {
        let status = llsds.get(name).await?.status.unwrap_or_default();
        let version = status.version.and_then(|version| version.llama_stack_server_version);
        version.context("the server's version is not known")
    })
    .await?;
    kubectl(node, &["get", "llsd", name]).await?;
    kubectl(
        node,
        &[
            "get",
            "llsd",
            name,
            "-o",
            r#"jsonpath={range .status.externalProviders[*]}{.providerId}{"\t"}{.phase}{"\t"}{.image}{"\n"}{end}"#,
        ],
    )
    .await?;
    ask(client, name).await
}

/// Builds the image of a provider as `kubeairunway llama-stack provider build` does.
fn provider_image(sources: &str, image: &str, archive: &Path) -> Result<()> {
    let folder = archive.with_extension("files");
    std::fs::create_dir_all(&folder)?;
    let base = folder.join("base.tar");
    llama_stack::provider_config().write("testbed.local/provider-base:1", &llama_stack::provider_base()?, &base)?;
    provider_kit::build(&provider_kit::Build {
        sources: shell::root().join(sources),
        python: llama_stack::environment(llama_stack::NEWEST)?,
        base,
        image: image.to_owned(),
        archive: archive.to_owned(),
        work: folder.join("work"),
    })?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn read(path: &str) -> Result<Value> {
    let text = std::fs::read_to_string(shell::root().join(path)).with_context(|| format!("cannot read {path}"))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{path} is not a Kubernetes object"))
}

/// The question goes to the Service, as any client's would.
async fn ask(client: &Client, name: &str) -> Result<()> {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let service = services.get(&format!("{name}-service")).await?.spec.unwrap_or_default();
    let (Some(ip), Some(port)) = (service.cluster_ip, service.ports.iter().flatten().next()) else {
        bail!("the server has no Service");
    };
    let address = format!("{ip}:{}", port.port);
    let (providers, model, question, answer) = tokio::task::spawn_blocking({
        let address = address.clone();
        move || conversation(&address)
    })
    .await??;
    println!("\nThe server lists these providers:");
    for provider in providers["data"].as_array().into_iter().flatten() {
        let [id, api, kind] = ["provider_id", "api", "provider_type"].map(|key| text(&provider[key]));
        println!("  {id} ({api}, {kind})");
    }
    println!("\n$ curl http://{address}/v1/chat/completions -H 'content-type: application/json' -d '{question}'");
    println!("\n  the question to {model}:  {QUESTION}");
    println!("  the provider's answer:  {answer}");
    Ok(())
}

/// Providers that the server lists, a model, the prompt and the answer.
fn conversation(address: &str) -> Result<(Value, String, Value, String)> {
    let get = |path| llama_stack::request(address, "GET", path, None);
    let (_, providers) = get("/v1/providers")?;
    let (_, models) = get("/v1/models")?;
    let model = text(&models["data"][0]["id"]).to_owned();
    let question = json!({ "model": model, "messages": [{ "role": "user", "content": QUESTION }] });
    let (status, answer) = llama_stack::request(address, "POST", "/v1/chat/completions", Some(&question))?;
    match answer["choices"][0]["message"]["content"].as_str() {
        Some(said) => Ok((providers, model, question, said.to_owned())),
        None => bail!("the server answered {status}: {answer}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
