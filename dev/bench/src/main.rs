//! `bench`: figures for many ModelDeployments, beside the same writes made by a bare client in the same run; `bench asya`: the
//! sidecar beside a raw loop; `bench llama-stack`: LlamaStackDistributions, beside a bare client.
//!
//! | module | what |
//! |---|---|
//! | [`stage`] | the control plane, the users, and who watches |
//! | [`mix`] | what a run consists of: a model for each provider in turn |
//! | [`pilot`] | a ModelDeployment for each provider by our controllers: what they write is the script of the bare client |
//! | [`bare`], [`ours`] | the two contenders |
//! | [`changes`] | a steady flow of changes upstream, and how long until the status reports each |
//! | [`flow`] | a steady flow of new models, and how long each answer takes |
//! | [`measure`] | requests, CPU and memory |
//! | [`goals`] | goals, and whether they were reached |
//! | [`results`] | figures by round, and their medians |
//! | [`report`] | tables, JSON |
//! | [`llama_stack`] | distributions by our operator, beside a bare client |
//! | [`asya`] | the sidecar of Asya, and its promise that nothing is lost |
//! | [`answers`] | how long until a real engine answers |
//! | [`actors`] | the operator of actors at rest |
//! | [`router`] | the model router beside requests to the engine itself |
//! | [`contenders`] | the model router beside other routers |
//! | [`traffic`] | what clients see while a model and its control plane change |
//! | [`tokens`] | streams that clients and engines end early, and the tokens that were counted |
//! | [`zero`] | models that scale to zero and are woken by requests, with kills |
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

mod actors;
mod answers;
mod asya;
mod bare;
mod changes;
mod contenders;
mod flow;
mod goals;
mod llama_stack;
mod measure;
mod mix;
mod ours;
mod pilot;
mod report;
mod results;
mod router;
mod soak;
mod stage;
mod tokens;
mod traffic;
mod watching;
mod zero;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use runway_dev_cluster::Programs;
use runway_dev_support::{record, shell, step};

use results::{Contender, Results};
use stage::Stage;

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Measure time, requests, memory and CPU.
    Bench(Args),
}

/// Benchmark and its size.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Numbers of ModelDeployments, one run each.
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000")]
    objects: Vec<usize>,
    /// Number of rounds. The order of the contenders is reversed in every round; medians are printed.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Write all numbers to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "unoptimised")]
    json: Option<PathBuf>,
    /// Measure the programs of this folder, as far as it has them: `target/images/build/dist` are those of images.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    #[command(flatten)]
    record: record::Options,
}

/// Something else than ModelDeployments.
#[derive(clap::Subcommand)]
enum What {
    /// The sidecar beside a raw loop; with --chaos, kills and what they lose.
    Asya(asya::Args),
    /// LlamaStackDistributions, beside the same writes by a bare client.
    LlamaStack(llama_stack::Args),
    /// A real engine on a real node: apply, rollout and scale from zero, each to the first token.
    Answers(answers::Args),
    /// The model router: an engine asked directly and through it, a cold request, memory, requests at rest.
    Router(router::Args),
    /// The model router beside Envoy with the reference endpoint picker, vllm-router, sglang-router and LiteLLM: rate, streams, memory and reuse of prompts.
    Contenders(contenders::Args),
    /// Controllers under changes and troubles for hours: memory, descriptors and tasks must not grow.
    Soak(soak::Args),
    /// Models that scale to zero and are woken by requests, with kills of the router and of engines: lost requests.
    Zero(zero::Args),
    /// Streams that clients leave and that break off at kills of the engine: tokens that are counted twice or not at all.
    Tokens(tokens::Args),
    /// Clients of a real engine, through the router and at its Service, while a model, its provider and the control plane change.
    Traffic(traffic::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    runway_operator::client::install_crypto();
    let Command::Bench(args) = Command::parse();
    runway_dev_support::ended(Box::pin(run(args)).await)
}

async fn run(args: Args) -> Result<()> {
    // The bare client and the clients of the router are part of this program, and must not be slower than what they are compared
    // with. The raw loop of Asya is another program.
    let is_release = match &args.what {
        Some(What::Asya(args)) => return asya::run(args).await,
        Some(What::Answers(args)) => return answers::run(args).await,
        Some(What::Zero(args)) => return zero::run(args).await,
        Some(What::Tokens(args)) => return tokens::run(args).await,
        Some(What::Soak(args)) => return soak::run(args).await,
        Some(What::Traffic(args)) => return traffic::run(args).await,
        Some(What::LlamaStack(args)) => !args.unoptimised,
        Some(What::Router(args)) => args.record.is_release(),
        Some(What::Contenders(args)) => args.record.is_release(),
        None => args.record.is_release(),
    };
    if cfg!(debug_assertions) && is_release {
        return again_in_release().await;
    }
    match &args.what {
        Some(What::LlamaStack(args)) => return llama_stack::run(args).await,
        Some(What::Router(args)) => return router::run(args).await,
        Some(What::Contenders(args)) => return contenders::run(args).await,
        _ => {}
    }
    ensure!(args.rounds > 0, "--rounds must be at least 1");
    ensure!(
        args.objects.iter().all(|n| (1..100_000).contains(n)),
        "--objects must be between 1 and 99999"
    );

    step("building the programs");
    let programs = Programs::build(args.record.is_release()).await?;
    let programs = programs.preferring(args.programs.clone());
    step("starting etcd, kube-apiserver and kube-controller-manager");
    let mut stage = Stage::set(&programs).await?;
    let mut results = Vec::new();
    let outcome = compare(&mut stage, &args, &mut results).await;
    if outcome.is_err() {
        stage.show_logs();
    }

    // What was measured before a failure may have taken an hour.
    let sizes = report::binary_sizes(&programs)?;
    let text = report::text(&results, &sizes);
    println!("{text}");
    if let Some(path) = &args.json {
        std::fs::write(path, report::json(&results, &sizes)?)?;
    }
    stage.clear().await?;
    outcome?;
    args.record.write_down(record::PERFORMANCE, "bench --docs", &text)?;
    Ok(())
}

async fn again_in_release() -> Result<()> {
    step("building the programs in release, which takes minutes the first time");
    let program = Programs::build(true).await?.path("runway-dev-bench");
    let own: Vec<String> = std::env::args().skip(1).collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    shell::run(&program.display().to_string(), &own)
}

/// For each count, every round has each contender once: A B, B A, A B, … Fills `all`.
async fn compare(stage: &mut Stage<'_>, args: &Args, all: &mut Vec<Results>) -> Result<()> {
    let scripts = pilot::record(stage).await?;
    for &count in &args.objects {
        let results = all.push_mut(Results::new(count));
        for round in 0..args.rounds {
            let mut order = [Contender::Bare, Contender::Ours];
            if round % 2 == 1 {
                order.reverse();
            }
            for contender in order {
                step(&format!(
                    "{count} ModelDeployments, round {}: {}",
                    round + 1,
                    contender.name()
                ));
                let figures = match contender {
                    Contender::Bare => bare::measure(stage, &scripts, count).await?,
                    Contender::Ours => ours::measure(stage, count).await?,
                };
                results.add(contender, figures);
                stage.sweep().await?;
            }
        }
    }
    Ok(())
}

#[test]
fn arguments_are_consistent_and_those_in_the_documentation_are_accepted() -> Result<()> {
    runway_dev_support::snippets::check(<Command as clap::CommandFactory>::command())
}
