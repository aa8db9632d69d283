//! `kubeairunway migrate` on a real API server: what it shows, what it refuses, and that the model serves on the other side.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use anyhow::{Result, ensure};
use clap::Parser;
use kube::ResourceExt;
use runway_cli::answer::{self, Answer};
use runway_cli::args::CommandLine;
use runway_cli::commands;
use runway_client::diagnostic::Diagnostic;
use runway_client::text::Look;
use runway_product_testbed::{Bed, Running, Upstream, gemma, vllm};
use runway_upstream_simulator::Simulator;

/// The core, the providers KAITO and Dynamo, and the simulator of their operators.
async fn two_providers() -> Result<(Bed, [Running; 3], Simulator)> {
    let bed = Bed::start_with(Upstream::All, true).await?;
    let running = [
        bed.core().await?,
        bed.kaito().await?,
        bed.provider(runway_provider_dynamo::Dynamo::default()).await?,
    ];
    let simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    Ok((bed, running, simulator))
}

#[tokio::test]
async fn shows_asks_and_moves() -> Result<()> {
    let (bed, _running, _simulator) = two_providers().await?;
    bed.create(vllm("moving", "kaito")).await?;
    bed.create(gemma("staying")).await?;
    bed.running("moving").await?;
    bed.running("staying").await?;

    // What cannot be is said before anything is lost.
    let error = refused(&bed, &["moving", "--to", "missing", "--yes"]).await?;
    ensure!(
        error.contains("provider 'missing' is not registered (registered: dynamo, kaito)"),
        "{error}"
    );
    let error = refused(&bed, &["staying", "--to", "dynamo", "--yes"]).await?;
    ensure!(
        error.contains("provider dynamo would reject the ModelDeployment: Dynamo does not support llamacpp engine"),
        "{error}"
    );
    ensure!(bed.deployments().get("staying").await?.metadata.generation == Some(1));

    // The question is not confirmed.
    let error = refused(&bed, &["moving", "--to", "dynamo"]).await?;
    ensure!(error.contains("not confirmed"), "{error}");
    let shown = migrate(&bed, &["moving", "--to", "dynamo", "--dry-run"]).await??;
    ensure!(shown.data.contains("kind: DynamoGraphDeployment"), "{}", shown.data);
    ensure!(bed.deployments().get("moving").await?.metadata.generation == Some(1));

    migrate(&bed, &["moving", "--to", "dynamo", "--yes"]).await??;
    let md = bed.running("moving").await?;
    ensure!(md.selected_provider() == Some("dynamo"));
    ensure!(
        bed.inference_sets().get_opt("moving").await?.is_none(),
        "nothing is orphaned"
    );
    let dynamo = bed
        .upstream(runway_provider_dynamo::DYNAMO_GRAPH_DEPLOYMENT, "v1beta1")
        .get("moving")
        .await?;
    ensure!(dynamo.owner_references().len() == 1);

    // Once more changes nothing.
    let version = bed.deployments().get("moving").await?.resource_version();
    migrate(&bed, &["moving", "--to", "dynamo", "--yes"]).await??;
    ensure!(bed.deployments().get("moving").await?.resource_version() == version);
    Ok(())
}

/// A stand-in serves before the model is changed, and is deleted after it serves again; one that does not serve changes nothing.
#[tokio::test]
async fn stand_in_serves_while_the_model_moves() -> Result<()> {
    let (bed, _running, _simulator) = two_providers().await?;
    bed.create(vllm("moving", "kaito")).await?;
    bed.running("moving").await?;
    let surge = ["moving", "--to", "dynamo", "--yes", "--surge", "--drain", "100ms"];

    let error = refused(&bed, &[&surge[..], &["--timeout", "1ms"]].concat()).await?;
    ensure!(
        error.contains("the stand-in 'moving-surge' does not serve on dynamo")
            && error.contains("'moving' was not changed"),
        "{error}"
    );
    bed.gone("moving-surge").await?;
    ensure!(bed.deployments().get("moving").await?.metadata.generation == Some(1));
    bed.create(gemma("moving-surge")).await?;
    let error = refused(&bed, &surge).await?;
    ensure!(
        error.contains("exists and does not stand in for 'moving' on dynamo"),
        "{error}"
    );
    bed.delete("moving-surge").await?;
    bed.gone("moving-surge").await?;

    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    migrate(&bed, &surge).await??;
    let md = bed.running("moving").await?;
    ensure!(md.selected_provider() == Some("dynamo"));
    bed.gone("moving-surge").await?;
    let requests = log.since(mark).await?;
    let writes: Vec<_> = requests
        .iter()
        .filter(|r| r.user == "admin" && r.resource == "modeldeployments")
        .map(|r| (r.verb.as_str(), r.name.as_str()))
        .filter(|(verb, _)| ["create", "patch", "delete"].contains(verb))
        .collect();
    let expected = [
        ("create", "moving-surge"),
        ("patch", "moving"),
        ("patch", "moving"),
        ("patch", "moving"),
        ("delete", "moving-surge"),
    ];
    ensure!(writes == expected, "{writes:?}");

    // Once more: there is nothing left to do.
    migrate(&bed, &surge).await??;
    ensure!(bed.deployments().get_opt("moving-surge").await?.is_none());
    Ok(())
}

async fn migrate(bed: &Bed, args: &[&str]) -> Result<Result<Answer, answer::Error>> {
    let kubeconfig = bed.cluster.admin()?.display().to_string();
    let line = [
        "kubeairunway",
        "--kubeconfig",
        &kubeconfig,
        "migrate",
        "-n",
        runway_product_testbed::NAMESPACE,
    ];
    let line = CommandLine::try_parse_from(line.iter().chain(args))?;
    Ok(commands::run(&line, &mut std::io::empty(), Look::default()).await)
}

/// Reason why it was not done.
async fn refused(bed: &Bed, args: &[&str]) -> Result<String> {
    match migrate(bed, args).await? {
        Ok(answer) => anyhow::bail!("it was done: {answer:?}"),
        Err(error) => Ok(Diagnostic::error(&error).to_string()),
    }
}
