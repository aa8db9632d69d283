//! `bench asya`: the sidecar beside a raw loop on the same sessions (consume, publish, confirm, acknowledge) in the same run
//! on the same broker, in the order A B C C B A: C is a sidecar with several calls at a time. With `--chaos`: the promise that
//! nothing is lost, at full size.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runway_asya_testbed::chaos::{self, ChaosOptions, ChaosReport};
use runway_asya_testbed::pipeline::{Actor, ActorPrograms, Broker};
use runway_testbed::{RabbitMq, RabbitMqCluster, RabbitMqOptions, Sqs, memory, programs};
use serde_json::Value;
use tokio::process::{Child, Command};

/// Amount of work.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Messages a second while latency is measured.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Messages in each latency run.
    #[arg(long, default_value_t = 10_000)]
    messages: usize,
    /// Messages in each throughput run.
    #[arg(long, default_value_t = 20_000)]
    backlog: usize,
    /// Messages taken ahead, by both.
    #[arg(long, default_value_t = 100)]
    prefetch: u16,
    /// Kill and stop sidecars, runtimes, connections and the broker instead, and count what is lost.
    #[arg(long)]
    chaos: bool,
    /// With --chaos: message broker.
    #[arg(long, value_enum, default_value = "rabbitmq", requires = "chaos")]
    transport: Transport,
    /// With --chaos: envelopes.
    #[arg(long, default_value_t = 100_000)]
    envelopes: usize,
    /// With --chaos: faults.
    #[arg(long, default_value_t = 200)]
    faults: usize,
    /// With --chaos: decides which actor a fault concerns.
    #[arg(long, default_value_t = 0x5eed)]
    seed: u64,
    /// Bind this many actors instead, and count the requests of the operator.
    #[arg(long, value_name = "N", conflicts_with = "chaos")]
    actors: Option<usize>,
    /// Build without optimization, to try the benchmark itself. The figures are not meaningful.
    #[arg(long)]
    unoptimised: bool,
}

/// Message broker of the chaos run.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Transport {
    /// A real RabbitMQ.
    #[value(name = "rabbitmq")]
    RabbitMq,
    /// A cluster of three nodes of RabbitMQ 4.
    #[value(name = "rabbitmq-cluster")]
    RabbitMqCluster,
    /// moto's server, which implements the protocol of SQS.
    Sqs,
}

/// Target values, relative to the raw loop or absolute; of rates, for one call at a time and for several.
mod goals {
    pub(super) const ADDED_P50: &str = "+150 at most";
    pub(super) const ADDED_P99: &str = "+500 at most";
    pub(super) const CPU_STEADY: &str = "100 at most";
    pub(super) const CPU_BACKLOG: &str = "60 at most";
    pub(super) const RATE: &str = "65 %, 80 % at least";
    pub(super) const MEMORY: &str = "12288 at most";
}

/// Calls of the runtime at a time, in the last column.
const CALLS: u16 = 8;
/// A message that is not through after this long, and a slow machine's time for each, means that something stands still.
const PATIENCE: Duration = Duration::from_mins(2);
const PATIENCE_PER_MESSAGE: Duration = Duration::from_millis(20);

pub(crate) async fn run(args: &Args) -> Result<()> {
    if let Some(count) = args.actors {
        return super::actors::run(count, args.unoptimised).await;
    }
    let programs = Programs::build(args.unoptimised).await?;
    match args.transport {
        Transport::Sqs => {
            super::step("starting moto's server");
            return on_sqs(&Sqs::start().await?, &programs, args).await;
        }
        Transport::RabbitMqCluster => {
            super::step("starting a cluster of RabbitMQ 4");
            let cluster = RabbitMqCluster::start("the cluster of RabbitMQ 4").await?;
            return on_cluster(
                &mut cluster.context("the cluster is missing: see above")?,
                &programs,
                args,
            )
            .await;
        }
        Transport::RabbitMq => super::step("starting RabbitMQ"),
    }
    let mut rabbit = RabbitMq::start(RabbitMqOptions::default()).await?;
    let outcome = if args.chaos {
        on_rabbitmq(&mut rabbit, &programs, args).await
    } else {
        compare(&rabbit, &programs, args).await
    };
    rabbit.stop().await;
    outcome
}

struct Programs {
    sidecar: PathBuf,
    runtime: PathBuf,
    raw_loop: PathBuf,
    driver: PathBuf,
}

impl Programs {
    async fn build(unoptimised: bool) -> Result<Self> {
        super::step("building the programs");
        let folder = programs::build(!unoptimised).await?;
        Ok(Self {
            sidecar: folder.join("asya-sidecar"),
            runtime: folder.join("asya-echo-runtime"),
            raw_loop: folder.join("asya-raw-loop"),
            driver: folder.join("asya-driver"),
        })
    }

    fn actor(&self) -> ActorPrograms {
        ActorPrograms {
            sidecar: self.sidecar.clone(),
            runtime: vec![self.runtime.to_string_lossy().into_owned()],
        }
    }
}

async fn on_rabbitmq(rabbit: &mut RabbitMq, programs: &Programs, args: &Args) -> Result<()> {
    let report = chaos::on_rabbitmq(rabbit, &programs.actor(), chaos_options(args), progress(args)).await?;
    print_chaos(args, &report)
}

async fn on_cluster(cluster: &mut RabbitMqCluster, programs: &Programs, args: &Args) -> Result<()> {
    let report = chaos::on_rabbitmq_cluster(cluster, &programs.actor(), chaos_options(args), progress(args)).await?;
    print_chaos(args, &report)
}

async fn on_sqs(server: &Sqs, programs: &Programs, args: &Args) -> Result<()> {
    let report = chaos::on_sqs(server, &programs.actor(), chaos_options(args), progress(args)).await?;
    print_chaos(args, &report)
}

fn chaos_options(args: &Args) -> ChaosOptions {
    super::step(&format!(
        "{} envelopes through two actors, {} faults on the way, seed {}",
        args.envelopes, args.faults, args.seed
    ));
    ChaosOptions {
        envelopes: args.envelopes,
        faults: args.faults,
        prefetch: usize::from(args.prefetch),
        seed: args.seed,
    }
}

/// Reports every tenth of the envelopes.
fn progress(args: &Args) -> impl Fn(usize, usize) {
    let tenth = (args.envelopes / 10).max(1);
    let reported = Cell::new(0);
    move |out, faults| {
        // Several come at once: a broker's dead letters.
        if out / tenth > reported.replace(out / tenth) {
            super::step(&format!("{out} are out, {faults} faults so far"));
        }
    }
}

fn print_chaos(args: &Args, report: &ChaosReport) -> Result<()> {
    let column = |cells: Vec<String>| cells.join(" | ");
    let names = column(report.faults.keys().map(|fault| fault.name().to_owned()).collect());
    let counts = column(report.faults.values().map(ToString::to_string).collect());
    let failed = match report.failed.len() {
        0 => "0".to_owned(),
        _ => report
            .failed
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect::<Vec<_>>()
            .join(", "),
    };
    println!("| envelopes | {names} | lost | failed | duplicates | allowed | took |");
    println!("|{}", "---|".repeat(report.faults.len() + 6));
    println!(
        "| {} | {counts} | {} | {} | {} | {} | {:.0} s |",
        args.envelopes,
        report.lost.len(),
        failed,
        report.duplicates,
        report.duplicates_allowed,
        report.took.as_secs_f64(),
    );
    report.check()
}

#[derive(Clone, Copy)]
enum Contender {
    Raw,
    /// With this many calls of the runtime at a time.
    Sidecar(u16),
}

impl Contender {
    const ALL: [Self; 3] = [Self::Raw, Self::Sidecar(1), Self::Sidecar(CALLS)];

    fn name(self) -> String {
        match self {
            Self::Raw => "raw loop".to_owned(),
            Self::Sidecar(1) => "asya-sidecar".to_owned(),
            Self::Sidecar(calls) => format!("asya-sidecar, {calls} calls at a time"),
        }
    }
}

/// Sums of the runs of a contender.
#[derive(Clone, Copy, Default)]
struct Figures {
    runs: f64,
    p50: f64,
    p99: f64,
    /// Microseconds a message, at the steady rate and with a backlog.
    cpu_steady: f64,
    cpu_backlog: f64,
    /// KiB, the most seen.
    memory: f64,
    rate: f64,
}

async fn compare(rabbit: &RabbitMq, programs: &Programs, args: &Args) -> Result<()> {
    let mut figures = [Figures::default(); Contender::ALL.len()];
    let there = 0..Contender::ALL.len();
    for index in there.clone().chain(there.rev()) {
        let contender = Contender::ALL[index];
        super::step(&format!(
            "{}: {} messages at {} a second, then {} at once",
            contender.name(),
            args.messages,
            args.rate,
            args.backlog
        ));
        measure(rabbit, programs, args, contender, &mut figures[index]).await?;
    }
    print(args, &figures);
    Ok(())
}

/// A contender that runs. Dropping it ends it.
enum Running {
    Raw(Child),
    Sidecar(Box<Actor>),
}

impl Running {
    fn pid(&self) -> Result<u32> {
        match self {
            Self::Raw(child) => child.id().context("the raw loop has ended"),
            Self::Sidecar(actor) => actor.sidecar_pid(),
        }
    }
}

const IN: &str = "asya-bench";
const OUT: &str = "asya-happy-end";

fn start(rabbit: &RabbitMq, programs: &Programs, prefetch: u16, contender: Contender) -> Result<Running> {
    let prefetch = prefetch.to_string();
    let url = rabbit.url();
    match contender {
        Contender::Raw => {
            let args = ["--from", IN, "--to", OUT, "--prefetch", &prefetch];
            let child = Command::new(&programs.raw_loop)
                .args(args)
                .env("ASYA_RABBITMQ_URL", &*url)
                .kill_on_drop(true)
                .spawn()?;
            Ok(Running::Raw(child))
        }
        Contender::Sidecar(calls) => {
            let environment = [
                ("ASYA_RABBITMQ_URL", &*url),
                ("ASYA_RABBITMQ_PREFETCH", &prefetch),
                ("ASYA_RUNTIME_CONCURRENCY", &calls.to_string()),
            ];
            let actor = Actor::start(&programs.actor(), "bench", &environment)?;
            Ok(Running::Sidecar(Box::new(actor)))
        }
    }
}

async fn measure(
    rabbit: &RabbitMq,
    programs: &Programs,
    args: &Args,
    contender: Contender,
    figures: &mut Figures,
) -> Result<()> {
    let broker = Broker::connect(&rabbit.url()).await?;
    for queue in [IN, OUT] {
        broker.declare(queue).await?;
    }
    let most = u32::try_from(args.messages.max(args.backlog))?;
    let patience = PATIENCE + most * PATIENCE_PER_MESSAGE + most * (Duration::from_secs(1) / args.rate);
    let drive = async |what: &str, more: &[&str]| {
        let url = rabbit.url();
        let common = [what, "--url", &url, "--from", IN, "--to", OUT];
        let mut command = Command::new(&programs.driver);
        command
            .args(common)
            .args(more)
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        let output = tokio::time::timeout(patience, command.output())
            .await
            .with_context(|| format!("`asya-driver {what}` is not through after {patience:?}"))??;
        ensure!(output.status.success(), "`asya-driver {what}` failed");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        anyhow::Ok(value)
    };
    let number = |value: &Value, key: &str| value[key].as_f64().with_context(|| format!("no {key}"));
    let messages = args.messages.to_string();
    let backlog = args.backlog.to_string();
    let rate = args.rate.to_string();

    let running = start(rabbit, programs, args.prefetch, contender)?;
    // Connections, caches, the first allocations.
    drive("latency", &["--rate", &rate, "--count", "1000"]).await?;
    let pid = running.pid()?;
    let before = super::measure::cpu_of(pid)?;
    let latency = drive("latency", &["--rate", &rate, "--count", &messages]).await?;
    figures.cpu_steady += (super::measure::cpu_of(pid)? - before) * 1e6 / super::measure::as_number(args.messages);
    figures.p50 += number(&latency, "p50")?;
    figures.p99 += number(&latency, "p99")?;
    drop(running);

    drive("fill", &["--count", &backlog]).await?;
    let running = start(rabbit, programs, args.prefetch, contender)?;
    let throughput = drive("empty", &["--count", &backlog]).await?;
    let pid = running.pid()?;
    figures.rate += number(&throughput, "rate")?;
    figures.cpu_backlog += super::measure::cpu_of(pid)? * 1e6 / super::measure::as_number(args.backlog);
    figures.memory = figures.memory.max(super::measure::as_number(memory(pid)?.peak));
    figures.runs += 1.0;
    drop(running);
    tokio::time::sleep(Duration::from_millis(500)).await;
    for queue in [IN, OUT] {
        broker.purge(queue).await?;
    }
    Ok(())
}

fn print(args: &Args, figures: &[Figures; Contender::ALL.len()]) {
    let row = |cells: &[String]| println!("| {} |", cells.join(" | "));
    let names = Contender::ALL.map(Contender::name);
    let header = [&[String::new()], &names[..], &["aimed at".to_owned()]].concat();
    row(&header);
    println!("|{}", "---|".repeat(header.len()));

    let line = |what: &str, goal: &str, of: fn(&Figures) -> f64, compared: fn(f64, f64) -> String| {
        let [raw, ours @ ..] = figures.map(|figures| of(&figures));
        let ours = ours.map(|value| format!("{value:.0}{}", compared(raw, value)));
        row(&[&[what.to_owned(), format!("{raw:.0}")], &ours[..], &[goal.to_owned()]].concat());
    };
    let added = |raw: f64, value: f64| format!(" (+{:.0})", value - raw);
    let share = |raw: f64, value: f64| format!(" ({:.0} %)", 100.0 * value / raw);
    let alone = |_: f64, _: f64| String::new();
    let at_rate = format!("latency p50 at {} messages a second, µs", args.rate);
    line(&at_rate, goals::ADDED_P50, |f| f.p50 / f.runs, added);
    line("latency p99, µs", goals::ADDED_P99, |f| f.p99 / f.runs, added);
    let cpu = "CPU per message at that rate, µs";
    line(cpu, goals::CPU_STEADY, |f| f.cpu_steady / f.runs, alone);
    let cpu = "CPU per message with a backlog, µs";
    line(cpu, goals::CPU_BACKLOG, |f| f.cpu_backlog / f.runs, alone);
    let backlog = format!("messages a second with a backlog, prefetch {}", args.prefetch);
    line(&backlog, goals::RATE, |f| f.rate / f.runs, share);
    line("peak memory, KiB", goals::MEMORY, |f| f.memory, alone);
}
