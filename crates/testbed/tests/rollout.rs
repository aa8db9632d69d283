//! `kubeairunway rollout` on a real API server: a canary is created, weighed, stopped, promoted and reverted. The router itself is
//! tested in its own crate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use anyhow::{Result, ensure};
use clap::Parser;
use runway_api::{EventReason, labels};
use runway_cli::answer::{self, Answer};
use runway_cli::args::CommandLine;
use runway_cli::commands;
use runway_client::diagnostic::Diagnostic;
use runway_client::text::Look;
use runway_operator::clock;
use runway_product_testbed::{Bed, NAMESPACE, Running, Upstream, gemma};
use runway_upstream_simulator::Simulator;
use serde_json::{Value, json};

const CANARY: &str = "one-canary";

/// A model that runs.
async fn bed() -> Result<(Bed, [Running; 2], Simulator)> {
    let bed = Bed::start_with(Upstream::Kaito, true).await?;
    let running = [bed.core().await?, bed.kaito().await?];
    let simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("one")).await?;
    bed.running("one").await?;
    Ok((bed, running, simulator))
}

#[tokio::test]
async fn canary_is_promoted_and_the_model_keeps_its_scaling() -> Result<()> {
    let (bed, _running, _simulator) = bed().await?;
    let error = refused(&bed, &["promote", "one"]).await?;
    ensure!(error.contains("'one' has no canary: start one"), "{error}");
    let error = refused(&bed, &["start", "one"]).await?;
    ensure!(error.contains("missing --set"), "{error}");
    let error = refused(&bed, &["start", "one", "--set", "engine.type=gpt", "--yes"]).await?;
    ensure!(error.contains("engine.type"), "{error}");
    let error = refused(&bed, &["start", "one", "--set", "image=runner:2"]).await?;
    ensure!(error.contains("not confirmed"), "{error}");
    ensure!(bed.deployments().get_opt(CANARY).await?.is_none());

    rollout(
        &bed,
        &["start", "one", "--set", "image=runner:2", "--weight", "20", "--yes"],
    )
    .await??;
    bed.running(CANARY).await?;
    let versions = versions(&bed).await?;
    let of = |place: usize, field: &str| versions["items"][place][field].clone();
    ensure!(
        (of(0, "name"), of(0, "weight")) == (json!("one"), json!(80)),
        "{versions}"
    );
    ensure!(
        (of(1, "name"), of(1, "weight")) == (json!(CANARY), json!(20)),
        "{versions}"
    );
    ensure!(of(1, "phase") == "Running", "{versions}");

    let error = refused(&bed, &["start", "one", "--set", "image=runner:3", "--yes"]).await?;
    ensure!(error.contains("canary 'one-canary' exists"), "{error}");
    let error = refused(&bed, &["status", CANARY]).await?;
    ensure!(error.contains("'one-canary' is a canary of 'one'"), "{error}");
    rollout(&bed, &["start", "one", "--weight", "50"]).await??;
    let canary = bed.deployments().get(CANARY).await?;
    ensure!(labels::canary_weight(&canary.metadata) == 50);

    let before = bed.deployments().get("one").await?.spec;
    rollout(&bed, &["promote", "one", "--drain", "100ms", "--yes"]).await??;
    let after = bed.running("one").await?.spec;
    ensure!(after.image.as_deref() == Some("runner:2"), "{after:?}");
    ensure!((after.scaling, after.gateway) == (before.scaling, before.gateway));
    bed.gone(CANARY).await?;
    Ok(())
}

#[tokio::test]
async fn canary_that_the_router_stops_is_given_no_more_weight_and_reverted() -> Result<()> {
    let (bed, _running, _simulator) = bed().await?;
    let steps = ["start", "one", "--weight", "1,2", "--interval", "1s"];
    let started = [&steps[..], &["--set", "image=runner:2", "--yes"]].concat();
    rollout(&bed, &started).await??;
    let weight = async || anyhow::Ok(labels::canary_weight(&bed.deployments().get(CANARY).await?.metadata));
    ensure!(weight().await? == 2, "the last of its weights");

    let stopped = async { rollout(&bed, &["start", "one", "--weight", "30,60", "--interval", "10m"]).await };
    let reported = async {
        while weight().await? != 30 {}
        // The time of a change has full seconds.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        report(&bed).await
    };
    let (stopped, reported) = tokio::join!(stopped, reported);
    reported?;
    let error = Diagnostic::error(&stopped?.unwrap_err()).to_string();
    ensure!(
        error.contains("the router has stopped canary 'one-canary': it fails"),
        "{error}"
    );
    ensure!(weight().await? == 0);
    let shown = rollout(&bed, &["status", "one"]).await??.data;
    ensure!(shown.contains("one-canary") && shown.contains("0 %"), "{shown}");

    rollout(&bed, &["revert", "one", "--drain", "100ms", "--yes"]).await??;
    bed.gone(CANARY).await?;
    ensure!(bed.deployments().get("one").await?.metadata.generation == Some(1));
    Ok(())
}

/// Reports that the router has stopped the canary.
async fn report(bed: &Bed) -> Result<()> {
    let canary = bed.deployments().get(CANARY).await?;
    bed.apply(&json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "stopped", "namespace": NAMESPACE },
        "eventTime": format!("{:.6}", clock::now()), "action": "stop", "type": "Warning", "note": "it fails",
        "reason": EventReason::CanaryStopped.as_str(),
        "reportingController": labels::ROUTER_MANAGER, "reportingInstance": "router",
        "regarding": { "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "name": CANARY,
            "namespace": NAMESPACE, "uid": canary.metadata.uid },
    }))
    .await?;
    Ok(())
}

async fn versions(bed: &Bed) -> Result<Value> {
    let shown = rollout(bed, &["status", "one", "-o", "json"]).await??;
    Ok(serde_json::from_str(&shown.data)?)
}

async fn rollout(bed: &Bed, args: &[&str]) -> Result<Result<Answer, answer::Error>> {
    let kubeconfig = bed.cluster.admin()?.display().to_string();
    let (verb, rest) = args.split_first().unwrap();
    let line = [
        "kubeairunway",
        "--kubeconfig",
        &kubeconfig,
        "rollout",
        verb,
        "-n",
        NAMESPACE,
    ];
    let line = CommandLine::try_parse_from(line.iter().chain(rest))?;
    Ok(Box::pin(commands::run(&line, &mut std::io::empty(), Look::default())).await)
}

/// Reason why it was not done.
async fn refused(bed: &Bed, args: &[&str]) -> Result<String> {
    match rollout(bed, args).await? {
        Ok(answer) => anyhow::bail!("it was done: {answer:?}"),
        Err(error) => Ok(Diagnostic::error(&error).to_string()),
    }
}
