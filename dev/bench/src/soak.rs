//! `bench soak`: controllers under changes and troubles for hours. Memory, descriptors and tasks must not grow.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use runway_dev_cluster::Programs;
use runway_dev_support::step;
use runway_dev_support::{record, shell};
use runway_testbed::traffic::client::get;
use runway_testbed::{ControlPlane, fault};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::flow::RATE;
use super::measure::{as_number, mebibytes, quantile, silent};
use super::mix::{self, PREFIX, deployments};
use super::stage::{Stage, ours};

/// Amount of work.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Length in minutes.
    #[arg(long, default_value_t = 360, value_parser = clap::value_parser!(u64).range(4..))]
    minutes: u64,
    /// Decides what is changed.
    #[arg(long, default_value_t = 0x5eed)]
    seed: u64,
    #[command(flatten)]
    record: record::Options,
}

/// Models that exist at most.
const MODELS: usize = 300;
const MINUTE: Duration = Duration::from_mins(1);
/// Length of an outage, and of a stop of a controller.
const TROUBLE: Duration = Duration::from_secs(10);
/// Longest time of a change.
const LIMIT: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_mins(10);

/// Resources that a process holds.
#[derive(Clone, Copy)]
struct Sample {
    memory: f64,
    descriptors: f64,
    tasks: f64,
}

/// A column of the table: its name, its value, and the growth that counts as none, in part and in units.
type Column = (&'static str, fn(&Sample) -> f64, f64, f64);

const COLUMNS: [Column; 3] = [
    ("memory, MiB", |sample| sample.memory, 0.1, 2.0),
    ("descriptors", |sample| sample.descriptors, 0.0, 8.0),
    ("tasks", |sample| sample.tasks, 0.0, 16.0),
];

pub(super) async fn run(args: &Args) -> Result<()> {
    step("building the programs");
    let programs = Programs::build(args.record.is_release()).await?;
    let mut stage = Stage::set(&programs).await?;
    let outcome = soak(&mut stage, args).await;
    if outcome.is_err() {
        stage.show_logs();
    }
    stage.clear().await?;
    let (text, growing) = outcome?;
    println!("{text}");
    args.record
        .write_down(record::RELIABILITY, "bench soak --docs", &text)?;
    ensure!(growing.is_empty(), "growing: {}", growing.join(", "));
    Ok(())
}

/// Returns the table, and what has grown.
async fn soak(stage: &mut Stage<'_>, args: &Args) -> Result<(String, Vec<String>)> {
    stage.start_ours().await?;
    let (mut samples, mut changes) = (Vec::new(), 0);
    for minute in 0..args.minutes {
        let user = stage.user.clone();
        let ((), made) = tokio::try_join!(trouble(stage, minute), change(&user, args.seed, minute))?;
        changes += made;
        samples.push(try_join_all(ours().iter().map(|name| sample(stage, name))).await?);
        if (minute + 1).is_multiple_of(10) {
            step(&format!("{} minutes, {changes} changes", minute + 1));
        }
    }
    step("deleting all models");
    let all = ListParams::default();
    deployments(&stage.user)
        .delete_collection(&DeleteParams::default(), &all)
        .await?;
    stage.watcher.all_gone().await?;
    silent(&stage.control_plane, &ours(), PATIENCE).await?;
    Ok(table(args.minutes, changes, &samples))
}

/// Makes a minute's changes. Returns how many the API server has accepted.
async fn change(user: &Client, seed: u64, minute: u64) -> Result<usize> {
    let mut pace = interval(Duration::from_secs(1) / RATE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (until, mut accepted, mut number) = (Instant::now() + MINUTE, 0, minute << 32);
    while Instant::now() < until {
        pace.tick().await;
        number += 1;
        let random = fault::number(seed, number);
        // Changes fail in an outage, and so does the creation of a model that is still being deleted.
        accepted += usize::from(
            timeout(LIMIT, one_change(user, random))
                .await
                .is_ok_and(|made| made.is_ok()),
        );
    }
    Ok(accepted)
}

/// Changes, deletes or creates a model. One that does not exist is created, and one that exists is changed.
async fn one_change(user: &Client, random: u64) -> Result<()> {
    let index = usize::try_from(random >> 8)? % MODELS;
    let (api, name) = (deployments(user), format!("{PREFIX}{index:05}"));
    let model = mix::of(index).model(&name)?;
    let create = async || api.create(&PostParams::default(), &model).await.map(drop);
    let patch = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        api.patch(&name, &PatchParams::default(), &patch).await.map(drop)
    };
    let other_value = json!({ "env": [{ "name": "SOAK", "value": random.to_string() }] });
    let changed = match random % 8 {
        0 => api.delete(&name, &DeleteParams::default()).await.map(drop),
        1 | 2 => create().await,
        3 => patch(other_value.clone()).await,
        _ => patch(json!({ "scaling": { "replicas": 1 + random / 8 % 3 } })).await,
    };
    match changed {
        Err(kube::Error::Api(status)) if status.is_not_found() => create().await?,
        Err(kube::Error::Api(status)) if status.is_already_exists() => patch(other_value).await?,
        other => other?,
    }
    Ok(())
}

/// A trouble of each minute that ends no controller: an outage of the API server, or a controller that stands still.
async fn trouble(stage: &mut Stage<'_>, minute: u64) -> Result<()> {
    tokio::time::sleep(MINUTE / 4).await;
    if minute.is_multiple_of(2) {
        stage.control_plane.stop_apiserver().await;
        tokio::time::sleep(TROUBLE).await;
        return stage.control_plane.start_apiserver().await;
    }
    let all = ours();
    let name = all[usize::try_from(minute / 2)? % all.len()];
    let pid = stage
        .pid(name)
        .with_context(|| format!("{name} has ended"))?
        .to_string();
    shell::run("kill", &["-STOP", &pid])?;
    tokio::time::sleep(TROUBLE).await;
    shell::run("kill", &["-CONT", &pid])
}

async fn sample(stage: &Stage<'_>, name: &str) -> Result<Sample> {
    let pid = stage.pid(name).with_context(|| format!("{name} has ended"))?;
    Ok(Sample {
        memory: mebibytes(runway_testbed::memory(pid)?.now),
        descriptors: as_number(fs::read_dir(format!("/proc/{pid}/fd"))?.count()),
        tasks: tasks(&stage.control_plane, name).await?,
    })
}

/// Tasks of a process by its metrics, whose address is in its log.
async fn tasks(control_plane: &ControlPlane, name: &str) -> Result<f64> {
    let log = fs::read_to_string(control_plane.dir.join(format!("{name}.log")))?;
    let port = log
        .split_once("127.0.0.1:")
        .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
    let port: u16 = port.context("the log names no address")?.parse()?;
    let metrics = get((Ipv4Addr::LOCALHOST, port).into(), "/metrics").await?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("kubeairunway_tasks{"));
    let value = line
        .and_then(|line| line.rsplit(' ').next())
        .context("no number of tasks")?;
    Ok(value.parse()?)
}

/// Medians of a quarter at the begin, after a quarter to warm up, and of the last quarter; and what has grown.
fn table(minutes: u64, changes: usize, samples: &[Vec<Sample>]) -> (String, Vec<String>) {
    let quarter = samples.len() / 4;
    let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
    let mut table = format!("{minutes} minutes, {changes} changes of up to {MODELS} models.\n\n| controller |");
    let mut growing = Vec::new();
    for (column, ..) in COLUMNS {
        let _ = write!(table, " {column} at first | at last |");
    }
    table.push_str("\n|---|--:|--:|--:|--:|--:|--:|\n");
    for (index, name) in ours().into_iter().enumerate() {
        let _ = write!(table, "| {name} |");
        for (column, value, part, units) in COLUMNS {
            let median = |samples: &[Vec<Sample>]| {
                let values: Vec<f64> = samples.iter().map(|all| value(&all[index])).collect();
                quantile(&values, 0.5).unwrap_or_default()
            };
            let (first, last) = (median(early), median(late));
            let _ = write!(table, " {first:.1} | {last:.1} |");
            if last > first * (1.0 + part) + units {
                growing.push(format!("{name}: {column} from {first:.1} to {last:.1}"));
            }
        }
        table.push('\n');
    }
    (table, growing)
}

#[test]
fn growth_is_noticed_and_fluctuation_is_not() {
    let minute = |memory: f64, tasks: f64| {
        let sample = Sample {
            memory,
            descriptors: 20.0,
            tasks,
        };
        vec![sample; ours().len()]
    };
    let steady: Vec<_> = (0..40)
        .map(|n| minute(f64::from(30 + n % 3), f64::from(50 + n % 7)))
        .collect();
    assert_eq!(table(40, 1, &steady).1, Vec::<String>::new());
    let leaking: Vec<_> = (0..40).map(|n| minute(30.0, f64::from(50 + n))).collect();
    let (_, growing) = table(40, 1, &leaking);
    assert_eq!(growing.len(), ours().len());
    assert!(growing[0].contains("tasks from 64.0 to 84.0"), "{growing:?}");
}
