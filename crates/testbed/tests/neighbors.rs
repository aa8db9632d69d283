//! A model of the direct provider answers through a Llama Stack server: a real engine, a real server, and the example provider
//! between them, on a real node.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use runway_api::LlamaStackDistribution;
use runway_api::condition::{self, Conditions};
use runway_api::labels::llama_stack::MANAGER;
use runway_llama_stack_kit as provider_kit;
use runway_product_testbed::{Bed, Upstream};
use runway_provider_direct::Direct;
use runway_testbed::engine::{LlamaServer, SENTENCE};
use runway_testbed::llama_stack::{self, NEWEST};
use runway_testbed::{PATIENCE, eventually, programs, python};
use serde_json::{Value, json};

/// Image of the operator, for `merge-config`.
const OPERATOR: &str = "testbed.local/llama-stack-operator:1";

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_the_direct_provider_answers_through_a_llama_stack_server() -> Result<()> {
    const WHAT: &str = "a model and a Llama Stack server on a real node";
    let Some(engine) = LlamaServer::for_node(WHAT).await? else {
        return Ok(());
    };
    let programs = programs::build(false).await?;
    let bed = Bed::start_with_node(Upstream::None).await?;
    let node = &bed.cluster;
    let folder = node.dir.clone();
    let llsd = example("llama-stack/model-deployment.yaml")?;
    let image = llsd["spec"]["server"]["externalProviders"]["inference"][0]["image"].clone();
    let image = image.as_str().context("the example has no image")?.to_owned();
    let built = tokio::task::spawn_blocking(move || {
        anyhow::Ok((llama_stack::distribution(NEWEST)?, provider_image(&folder, &image)?))
    });
    let (distribution, provider) = built.await??;
    for archive in [&engine.image.archive, &distribution.archive, &provider] {
        node.import_image(archive).await?;
    }
    node.import_program(OPERATOR, &programs.join(MANAGER), &["/manager"])
        .await?;
    let _core = bed.core().await?;
    let _direct = bed.asking_provider(Direct::default()).await?;
    let _operator = bed.llama_stack_of(OPERATOR).await?;

    // The server comes first, and waits for the endpoint of the model.
    let model = example("test-bed/hello.yaml")?;
    let llsd = distribution_of(llsd, &distribution.name, &model);
    let llsds: Api<LlamaStackDistribution> = Api::default_namespaced(bed.admin.clone());
    llsds
        .create(&PostParams::default(), &serde_json::from_value(llsd.clone())?)
        .await?;
    let name = llsd["metadata"]["name"].as_str().context("the example has no name")?;
    let ready = async |reason: Option<&str>| {
        eventually(PATIENCE, async || {
            let status = llsds.get(name).await?.status.unwrap_or_default();
            let ready = status
                .conditions
                .get_condition(condition::READY)
                .context("no condition Ready")?;
            let fits = reason.map_or(ready.status == "True", |reason| ready.reason == reason);
            ensure!(fits, "{ready:?}");
            Ok(())
        })
        .await
    };
    ready(Some("ModelDeploymentNotFound")).await?;
    bed.create(model).await?;
    ready(None).await?;

    let services: Api<Service> = Api::default_namespaced(bed.admin.clone());
    let service = services.get(&format!("{name}-service")).await?.spec.unwrap_or_default();
    let address = format!("{}:8321", service.cluster_ip.context("no ClusterIP")?);
    let (models, answer) = tokio::task::spawn_blocking(move || {
        let (_, models) = llama_stack::request(&address, "GET", "/v1/models", None)?;
        let question = json!({
            "model": models["data"][0]["id"],
            "messages": [{ "role": "user", "content": "Are you there?" }],
        });
        let (_, answer) = llama_stack::request(&address, "POST", "/v1/chat/completions", Some(&question))?;
        anyhow::Ok((models, answer))
    })
    .await??;
    ensure!(models["data"].as_array().is_some_and(|all| all.len() == 1), "{models}");
    let said = answer["choices"][0]["message"]["content"]
        .as_str()
        .with_context(|| answer.to_string())?;
    ensure!(said.trim() == SENTENCE, "{answer}");
    bed.cluster.stop().await
}

fn example(path: &str) -> Result<Value> {
    let path = examples().join(path);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_saphyr::from_str(&text)?)
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples")
}

/// The example with another distribution and model, small enough for the node.
fn distribution_of(mut llsd: Value, image: &str, model: &Value) -> Value {
    let server = &mut llsd["spec"]["server"];
    server["distribution"] = json!({ "image": image });
    server["containerSpec"] = json!({ "resources": { "requests": { "cpu": "50m", "memory": "128Mi" } } });
    server["externalProviders"]["inference"][0]["config"]["modelDeploymentRef"]["name"] =
        model["metadata"]["name"].clone();
    llsd
}

/// The image of the provider, as `kubeairunway llama-stack provider build` builds it.
fn provider_image(folder: &Path, image: &str) -> Result<PathBuf> {
    let (base, archive) = (folder.join("base.tar"), folder.join("provider.tar"));
    llama_stack::provider_config().write("testbed.local/base:1", &llama_stack::provider_base()?, &base)?;
    provider_kit::build(&provider_kit::Build {
        sources: examples().join("llama-stack-openai-compatible"),
        python: python::interpreter()?,
        base,
        image: image.to_owned(),
        archive: archive.clone(),
        work: folder.join("provider"),
    })?;
    Ok(archive)
}
