//! The commands that look, against a real API server: what they show, and what they say when they cannot.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, ObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::{InferenceProviderConfig, ModelDeployment};
use runway_cli::documents::Documents;
use runway_cli::render::{Options, Show, render};
use runway_provider::upstream::api_resource;
use runway_testbed::{ControlPlane, crds, eventually};
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn what_a_cluster_holds_is_shown() -> Result<()> {
    let upstream = crds::upstream_crds(&[crds::KAITO_WORKSPACES])?;
    let cluster = ControlPlane::start(runway_testbed::Options {
        crds: upstream,
        ..Default::default()
    })
    .await?;
    let (admin, client) = (cluster.admin()?, cluster.admin_client().await?);

    let missing = run(&admin, &["get"]).await?;
    expect(
        &missing,
        1,
        "does not know ModelDeployment: is the control plane installed in this cluster?",
    )?;
    let missing = run(&admin, &["status", "gemma"]).await?;
    expect(
        &missing,
        1,
        "does not know ModelDeployment: is the control plane installed in this cluster?",
    )?;

    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in runway_cli::manifests::crds() {
        api.create(&PostParams::default(), &crd).await?;
    }
    eventually(SOON, async || {
        let output = run(&admin, &["get"]).await?;
        expect(
            &output,
            0,
            "note: no ModelDeployments in namespace 'default' (see all with -A)",
        )
    })
    .await?;

    let stranger = cluster.kubeconfig("stranger", &[])?;
    expect(
        &run(&stranger, &["get", "-A"]).await?,
        1,
        "error: not allowed to list ModelDeployments in all namespaces",
    )?;
    let unknown = run(&admin, &["status", "nobody", "-n", "team-a"]).await?;
    expect(
        &unknown,
        1,
        "error: ModelDeployment 'nobody' not found in namespace 'team-a': give another namespace with -n",
    )?;

    create_gemma(&client).await?;
    expect(
        &run(&admin, &["get"]).await?,
        0,
        "gemma-cpu  Deploying  kaito     llamacpp  0/1",
    )?;
    let screen = run(&admin, &["status", "gemma-cpu"]).await?;
    expect(&screen, 0, "default/gemma-cpu: Deploying")?;
    expect(&screen, 0, "Upstream   Workspace/gemma-cpu, says Deploying: Deploying")?;
    expect(&screen, 0, "Normal  0s   ProviderSelected  Selected provider 'kaito'")?;
    expect(
        &run(&admin, &["why", "gemma-cpu"]).await?,
        0,
        "default/gemma-cpu: kaito is kept",
    )?;

    // What a cluster gives is what the commands take as a file.
    let saved = cluster.dir.join("saved.yaml");
    std::fs::write(&saved, run(&admin, &["get", "-A", "-o", "json"]).await?.stdout)?;
    let saved = saved.to_string_lossy().into_owned();
    expect(
        &run(&admin, &["get", "-f", &saved]).await?,
        0,
        "default    gemma-cpu  Deploying",
    )?;
    Ok(())
}

/// A ModelDeployment with all that its controllers would have made.
async fn create_gemma(client: &Client) -> Result<()> {
    let mut documents = Documents::default();
    documents.take_in_text(
        "input.yaml",
        &std::fs::read_to_string("tests/render/gemma-cpu/input.yaml")?,
    );
    let options = |show| Options {
        show,
        now: runway_operator::clock::now(),
    };
    let status = render(clone(&documents), &options(Show::Status)).documents.remove(0);
    let workspace = render(documents, &options(Show::Objects)).documents.remove(0);

    let api: Api<ModelDeployment> = Api::namespaced(client.clone(), "default");
    let md: ModelDeployment = serde_json::from_value(json!(status))?;
    let made = api.create(&PostParams::default(), &md).await?;
    let patch = Patch::Merge(json!({ "status": status.data["status"] }));
    api.patch_status("gemma-cpu", &PatchParams::default(), &patch).await?;

    let config = InferenceProviderConfig::new("kaito", provider().registration());
    Api::all(client.clone()).create(&PostParams::default(), &config).await?;

    let main = provider().upstreams().first().context("no upstream")?.clone();
    let resource = api_resource(main.kind, main.schemas.first().context("no schema")?.version);
    let mut workspace: DynamicObject = workspace;
    workspace.owner_references_mut().clear();
    let workspaces: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    workspaces.create(&PostParams::default(), &workspace).await?;

    let about: ObjectReference = made.object_ref(&());
    let event = Event {
        metadata: ObjectMeta {
            name: Some("gemma-cpu.1".to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: about,
        type_: Some("Normal".to_owned()),
        reason: Some("ProviderSelected".to_owned()),
        message: Some("Selected provider 'kaito'".to_owned()),
        ..Event::default()
    };
    Api::<Event>::namespaced(client.clone(), "default")
        .create(&PostParams::default(), &event)
        .await?;
    Ok(())
}

fn provider() -> Box<dyn runway_provider::Provider> {
    runway_cli::manifests::built_in_providers().remove(0)
}

fn clone(documents: &Documents) -> Documents {
    Documents {
        found: documents.found.clone(),
        errors: Vec::new(),
    }
}

async fn run(kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubeairunway"));
    Ok(command.args(args).arg("--kubeconfig").arg(kubeconfig).output().await?)
}

fn expect(output: &Output, code: i32, text: &str) -> Result<()> {
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(
        output.status.code() == Some(code),
        "exit code {:?}, not {code}:\n{said}",
        output.status.code()
    );
    ensure!(said.contains(text), "not said: {text}\n{said}");
    Ok(())
}
