//! `bench`: figures for many ModelDeployments, beside the same writes made by a bare client in the same run.
//!
//! | module | what |
//! |---|---|
//! | [`stage`] | the control plane, the users, and who watches |
//! | [`pilot`] | one ModelDeployment by our controllers: what they write is the script of the bare client |
//! | [`bare`], [`ours`] | the two contenders |
//! | [`measure`] | requests, CPU and memory |
//! | [`report`] | medians, tables, JSON |

mod bare;
mod measure;
mod ours;
mod pilot;
mod report;
mod stage;
mod watching;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::cluster::Programs;
use crate::shell;
use report::{Contender, Results};
use stage::Stage;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many ModelDeployments, for each run.
    #[arg(long, value_delimiter = ',', default_value = "200,1000")]
    objects: Vec<usize>,
    /// How often each is measured; the order of the contenders turns round every time, and medians are printed.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Write all numbers to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    // The bare client is in this program: it is to be as fast as what it stands beside.
    if cfg!(debug_assertions) {
        return again_in_release();
    }
    ensure!(args.rounds > 0, "--rounds must be at least 1");
    ensure!(
        args.objects.iter().all(|n| (1..100_000).contains(n)),
        "--objects must be between 1 and 99999"
    );

    step("building the programs");
    let programs = Programs::build(true)?;
    step("starting etcd, kube-apiserver and kube-controller-manager");
    let mut stage = Stage::set(&programs).await?;
    let outcome = compare(&mut stage, &args).await;
    if outcome.is_err() {
        stage.show_logs();
    }
    stage.clear().await?;

    let results = outcome?;
    let sizes = report::binary_sizes(&programs)?;
    println!("{}", report::text(&results, &sizes));
    if let Some(path) = &args.json {
        std::fs::write(path, report::json(&results, &sizes)?)?;
    }
    Ok(())
}

fn again_in_release() -> Result<()> {
    let own: Vec<String> = std::env::args().skip(1).collect();
    let mut args = vec!["run", "--quiet", "--release", "--package", "xtask", "--"];
    args.extend(own.iter().map(String::as_str));
    shell::run("cargo", &args)
}

/// For each count, every round has each contender once: A B, B A, A B, …
async fn compare(stage: &mut Stage<'_>, args: &Args) -> Result<Vec<Results>> {
    let script = pilot::record(stage).await?;
    let mut all = Vec::new();
    for &count in &args.objects {
        let mut results = Results::new(count);
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
                    Contender::Bare => bare::measure(stage, &script, count).await?,
                    Contender::Ours => ours::measure(stage, count).await?,
                };
                results.add(contender, figures);
                stage.sweep().await?;
            }
        }
        all.push(results);
    }
    Ok(all)
}

fn step(text: &str) {
    eprintln!("▸ {text}");
}
