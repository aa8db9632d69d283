//! The example provider as an image, a distribution that names it, and a chat completion that it answers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use runway_api::LlamaStackDistribution;
use runway_api::labels::llama_stack as labels;
use runway_client::manifests::{self, Release};
use runway_testbed::images::Rootfs;
use runway_testbed::{Node, llama_stack};
use serde_json::{Value, json};

use crate::cluster::{self, Programs};
use crate::shell;
use crate::up::step;

/// The provider's image.
const PROVIDER: &str = "registry.example.com/lls-echo:1.0.0";
/// Sources of the provider.
const SOURCES: &str = "deploy/examples/llama-stack-provider";
/// Prompt.
const QUESTION: &str = "Are you there?";
/// The resource that names it.
const EXAMPLE: &str = "deploy/examples/llama-stack/external-provider.yaml";

pub(super) async fn show(node: &Node, programs: &Programs) -> Result<()> {
    let client = node.admin_client().await?;
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
    step(&format!("making the provider's image from {SOURCES}"));
    let archive = node.dir.join("provider.tar");
    provider_image(&archive)?;
    node.import_image(&archive).await?;

    let mut example = example()?;
    example["spec"]["server"]["distribution"] = json!({ "image": distribution.name });
    println!(
        "\nThis is applied:\n\n{}",
        serde_saphyr::to_string(&example)?.trim_end()
    );
    cluster::apply(&client, &serde_json::from_value(example.clone())?).await?;
    let name = example["metadata"]["name"]
        .as_str()
        .context("the example has no name")?;
    super::kubectl(
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
    super::kubectl(node, &["get", "llsd", name]).await?;
    super::kubectl(
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
    ask(&client, name).await
}

/// As docs/llama-stack-providers.md has it: a wheel of the sources, and the metadata.
fn provider_image(archive: &Path) -> Result<()> {
    let folder = archive.with_extension("files");
    // pip builds in the folder of the sources.
    let (sources, packages) = (folder.join("sources"), folder.join("packages"));
    let environment = llama_stack::environment(llama_stack::NEWEST)?;
    std::fs::create_dir_all(&folder)?;
    run(Command::new("cp")
        .arg("-r")
        .arg(shell::root().join(SOURCES))
        .arg(&sources))?;
    run(Command::new(environment)
        .args(["-m", "pip", "wheel", "--quiet", "--no-cache-dir", "--wheel-dir"])
        .arg(&packages)
        .arg(&sources))?;
    let mut provider = Rootfs::empty();
    provider.tree("/lls-provider/packages", &packages, &|_| false)?.file(
        "/lls-provider/lls-provider-spec.yaml",
        sources.join("lls-provider-spec.yaml"),
        0o644,
    )?;
    llama_stack::provider_image(PROVIDER, &provider, archive)?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn example() -> Result<Value> {
    let text =
        std::fs::read_to_string(shell::root().join(EXAMPLE)).with_context(|| format!("cannot read {EXAMPLE}"))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{EXAMPLE} is not a Kubernetes object"))
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

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
