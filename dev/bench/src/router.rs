//! `bench router`: the model router. An engine is asked directly and through the router, in turn and in the same run: the router
//! adds time to a request and to a part of a stream, and takes some of the engine's rate. Also a cold request, and the router at
//! rest and with many held requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use kube::CustomResourceExt as _;
use runway_api::ModelDeployment;
use runway_dev_cluster as cluster;
use runway_dev_support::{record, step};
use runway_operator::services::ServicePort;
use runway_router::balance::{Balancer, Replica, Replicas};
use runway_router::prompt::Prompt;
use runway_testbed::engine::LlamaServer;
use runway_testbed::traffic::client::{Answer, Connection, chat};
use runway_testbed::traffic::held::Held;
use runway_testbed::traffic::{Bed, KEY, Model, NAMESPACE, Programs, ROUTER, Router};
use serde_json::{Value, json};

use super::goals::{Limit, Row};
use super::measure::{RequestCounts, as_number, mebibytes, quantile, seconds};

/// Amount of work.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Warm requests, as many to the engine as through the router; rounded up to hundreds.
    #[arg(long, default_value_t = 5000)]
    requests: usize,
    /// Streams of 200 parts, as many from the engine as through the router.
    #[arg(long, default_value_t = 50)]
    streams: usize,
    /// Seconds of each of the four runs that measure the rate of an engine.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Requests to a model with zero replicas, one after the other.
    #[arg(long, default_value_t = 200)]
    cold: usize,
    /// Requests that the router holds at once, at most 10000.
    #[arg(long, default_value_t = 10_000)]
    held: usize,
    /// Seconds without requests.
    #[arg(long, default_value_t = 30)]
    quiet: u64,
    /// Measure `gateway-on-loopback` and `gateway-test-engine` of this folder, without a build.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    #[command(flatten)]
    pub(super) record: record::Options,
}

/// Warm requests to the engine until it is the router's turn, and the reverse.
const BLOCK: usize = 100;
/// Parts of a stream, and the time between two of them: 100 tokens a second.
const STREAM: [&str; 2] = ["--parts=200", "--pause=10ms"];
/// Clients that measure the rate of the test engine, and of llama-server, which has a thread for each; each with one request at a
/// time.
const CLIENTS: [usize; 2] = [32, 8];
/// Replicas and bytes of a prompt, where the choice of a replica is measured, and choices.
const REPLICAS: u8 = 16;
const PROMPT: usize = 4096;
const CHOICES: usize = 20_000;
/// Requests in flight meanwhile.
const IN_FLIGHT: usize = 64;
/// The router holds no more, unless an argument raises it.
const LARGEST_HELD: usize = 10_000;
/// Models of the test engine, of llama-server, and of no engine.
const TEST: &str = "test";
const LLAMA: &str = "llama";
const ASLEEP: &str = "asleep";

pub(super) async fn run(args: &Args) -> Result<()> {
    ensure!(
        args.requests > 0 && args.streams > 0 && args.seconds > 0 && args.cold > 0,
        "--requests, --streams, --seconds and --cold must be at least 1"
    );
    ensure!(
        (1..=LARGEST_HELD).contains(&args.held),
        "--held must be between 1 and {LARGEST_HELD}"
    );
    let (bed, programs) = start(args.programs.as_deref(), args.record.is_release()).await?;
    let outcome = measure(&bed, &programs, args).await;
    bed.cluster.stop().await?;
    let text = Row::table("model router", &outcome?);
    println!("{text}");
    args.record
        .write_down(record::PERFORMANCE, "bench router --docs", &text)?;
    Ok(())
}

/// The programs of a folder, which are built if none is given, and a control plane for them.
pub(super) async fn start(folder: Option<&Path>, optimized: bool) -> Result<(Bed, Programs)> {
    let folder = programs(folder, optimized).await?;
    let programs = Programs::in_folder(|name| folder.join(name));
    step("starting etcd, kube-apiserver and kube-controller-manager");
    let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
    Ok((bed, programs))
}

/// Folder with the programs: this one, or that of a build.
pub(super) async fn programs(folder: Option<&Path>, optimized: bool) -> Result<PathBuf> {
    if let Some(folder) = folder {
        return Ok(folder.to_owned());
    }
    step("building the programs");
    Ok(cluster::Programs::build(optimized).await?.path(""))
}

async fn measure(bed: &Bed, programs: &Programs, args: &Args) -> Result<Vec<Row>> {
    let mut rows = idle_and_held(bed, programs, args).await?;

    // Another process: the memory of the held requests is gone.
    let router = Router::start(bed, &programs.router, &[]).await?;
    let model = Model::create(bed, &programs.engine, TEST, 1, &STREAM).await?;
    model.awake().await?;
    let ways = ways(TEST, model.engine(), &router);
    step(&format!("{} warm requests", args.requests));
    rows.extend(warm(ways, args.requests.div_ceil(BLOCK)).await?);
    step(&format!("{} streams", args.streams));
    rows.extend(streams(ways, args.streams).await?);
    step("rate of llama-server");
    rows.extend(rate_of_llama_server(bed, &router, args.seconds).await?);
    step("rate of the test engine");
    let rate = rate(ways, CLIENTS[0], args.seconds).await?;
    let row = Row::new("rate with a one-token answer, % of the test engine's own", rate, 0);
    rows.push(row.goal(Limit::AtLeast(60.0)));
    step(&format!("{CHOICES} choices of a replica"));
    rows.push(choices()?);
    step(&format!("{} cold requests", args.cold));
    rows.extend(cold(&model, ways[1], args.cold).await?);
    Ok(rows)
}

/// The router with one model and no requests, and then with held requests.
async fn idle_and_held(bed: &Bed, programs: &Programs, args: &Args) -> Result<Vec<Row>> {
    bed.model(NAMESPACE, ASLEEP, ASLEEP, 0).await?;
    let most = ["caller", "model"].map(|of| format!("--largest-requests-of-{of}={LARGEST_HELD}"));
    let audit = bed.cluster.audit().await?;
    let begun = audit.mark().await?;
    let router = Router::start(bed, &programs.router, &most.each_ref().map(String::as_str)).await?;
    let at_start = RequestCounts::by(&[ROUTER], &audit.since(begun).await?);

    step(&format!("{} seconds without requests", args.quiet));
    let begun = audit.mark().await?;
    tokio::time::sleep(Duration::from_secs(args.quiet)).await;
    let at_rest = RequestCounts::by(&[ROUTER], &audit.since(begun).await?);
    let idle = router.memory()?;

    step(&format!("{} held requests", args.held));
    let _held = Held::begin(&router, ASLEEP, args.held).await?;
    let held = router.memory()?;

    let all = |asked: &RequestCounts| as_number(asked.besides_watches() + asked.watches);
    Ok(vec![
        Row::new("requests to the API server at the start", all(&at_start), 0),
        Row::new(
            format!("requests to the API server in {} seconds at rest", args.quiet),
            all(&at_rest),
            0,
        )
        .goal(Limit::AtMost(0.0)),
        Row::new("memory at rest, MiB", mebibytes(idle.now), 1).goal(Limit::AtMost(15.0)),
        Row::new(
            format!("peak memory with {} held requests, MiB", args.held),
            mebibytes(held.peak),
            1,
        )
        .goal(Limit::AtMost(160.0)),
    ])
}

/// A way to an engine.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    address: SocketAddr,
    /// Bearer key; none if empty.
    key: &'static str,
    model: &'static str,
}

/// Directly, and through the router.
fn ways(model: &'static str, engine: SocketAddr, router: &Router) -> [Way; 2] {
    let way = |name, address, key| Way {
        name,
        address,
        key,
        model,
    };
    [
        way("directly", engine, ""),
        way("through the router", router.address, KEY),
    ]
}

impl Way {
    /// Sends a request for one token, and receives the whole answer.
    async fn ask(&self, connection: &mut Connection) -> Result<Answer> {
        let messages = json!([{ "role": "user", "content": "Hello" }]);
        let body = json!({ "model": self.model, "messages": messages, "max_tokens": 1 });
        let answer = Answer::of(connection.send(chat(self.key, &body)?).await?).await?;
        ensure!(answer.status.is_success(), "{}: {answer:?}", self.name);
        Ok(answer)
    }
}

/// Values of both ways, which are measured in turn, each as often first as the other.
async fn in_turn(
    ways: [Way; 2],
    count: usize,
    measured: impl AsyncFn(Way) -> Result<Vec<f64>>,
) -> Result<[Vec<f64>; 2]> {
    let mut all = [Vec::new(), Vec::new()];
    for number in 0..count {
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for way in order {
            all[way].extend(measured(ways[way]).await?);
        }
    }
    Ok(all)
}

/// Rows for the median and for the 99th percentile, which has a goal, in milliseconds.
fn quantiles(what: &str, at: impl Fn(f64) -> Option<f64>, most: f64) -> Result<[Row; 2]> {
    let row = |name: &str, part| {
        let measured = at(part).context("nothing was measured")?;
        anyhow::Ok(Row::new(format!("{what}, {name}, ms"), measured, 2))
    };
    Ok([row("p50", 0.5)?, row("p99", 0.99)?.goal(Limit::AtMost(most))])
}

/// Rows for what the router adds: the difference of the quantiles.
fn added(what: &str, [direct, routed]: &[Vec<f64>; 2], most: f64) -> Result<[Row; 2]> {
    for (way, times) in [("directly", direct), ("through the router", routed)] {
        let (p50, p99) = quantile(times, 0.5).zip(quantile(times, 0.99)).unwrap_or_default();
        step(&format!("{way}: p50 {p50:.2} ms, p99 {p99:.2} ms"));
    }
    quantiles(
        what,
        |part| Some(quantile(routed, part)? - quantile(direct, part)?),
        most,
    )
}

/// Time of a request on a connection that stays open.
async fn warm(ways: [Way; 2], blocks: usize) -> Result<[Row; 2]> {
    let timed = async |way: Way| {
        let mut connection = Connection::open(way.address).await?;
        way.ask(&mut connection).await?;
        let mut times = Vec::with_capacity(BLOCK);
        for _ in 0..BLOCK {
            let begun = Instant::now();
            way.ask(&mut connection).await?;
            times.push(milliseconds(begun.elapsed()));
        }
        Ok(times)
    };
    added("added to a warm request", &in_turn(ways, blocks, timed).await?, 0.4)
}

/// Time of each part of a stream from the engine to the client, by the clock of the machine.
async fn streams(ways: [Way; 2], count: usize) -> Result<[Row; 2]> {
    let timed = async |way: Way| {
        let mut connection = Connection::open(way.address).await?;
        let body = json!({ "model": way.model, "messages": [], "stream": true });
        let mut stream = Stream::default();
        let event = |event: &str| stream.take(event);
        connection.events(chat(way.key, &body)?, event).await?;
        let Stream { delays, ended } = stream;
        ensure!(ended && !delays.is_empty(), "the stream {} broke off", way.name);
        Ok(delays)
    };
    added("added to a part of a stream", &in_turn(ways, count, timed).await?, 0.2)
}

/// A stream of the test engine.
#[derive(Default)]
pub(super) struct Stream {
    /// Time of each part from the engine to the client, by the clock of the machine, in milliseconds.
    pub(super) delays: Vec<f64>,
    /// The last event has arrived.
    pub(super) ended: bool,
}

impl Stream {
    /// Takes in an event that arrives now.
    pub(super) fn take(&mut self, event: &str) {
        let arrived = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.ended |= event == "[DONE]";
        let delay = sent(event).map(|sent| milliseconds(arrived.saturating_sub(sent)));
        self.delays.extend(delay);
    }
}

/// The time at which the test engine sent an event of a stream, since 1970. `None` for events without content, such as the last.
fn sent(event: &str) -> Option<Duration> {
    let part: Value = serde_json::from_str(event).ok()?;
    let content = part["choices"][0]["delta"]["content"].as_str()?;
    Some(Duration::from_nanos(content.parse().ok()?))
}

/// No row if this machine cannot have a llama-server.
async fn rate_of_llama_server(bed: &Bed, router: &Router, seconds: u64) -> Result<Option<Row>> {
    let prepared = tokio::task::spawn_blocking(|| LlamaServer::prepare("the rate of llama-server")).await??;
    let Some(server) = prepared else { return Ok(None) };
    let running = server.start(LLAMA, &["--parallel", "4", "--threads", "1"]).await?;
    bed.model(NAMESPACE, LLAMA, LLAMA, 1).await?;
    bed.serves(NAMESPACE, LLAMA, running.address().port()).await?;
    let rate = rate(ways(LLAMA, running.address(), router), CLIENTS[1], seconds).await?;
    let row = Row::new("rate with a one-token answer, % of llama-server's own", rate, 0);
    Ok(Some(row.goal(Limit::AtLeast(80.0))))
}

/// Rate through the router, in percent of the engine's own.
async fn rate(ways: [Way; 2], clients: usize, seconds: u64) -> Result<f64> {
    let rate = async |way: Way| {
        let until = Instant::now() + Duration::from_secs(seconds);
        let clients = (0..clients).map(async |_| {
            let mut connection = Connection::open(way.address).await?;
            let mut answered = 0_usize;
            while Instant::now() < until {
                let answer = way.ask(&mut connection).await?;
                answered += 1;
                if answer.closes() {
                    connection = Connection::open(way.address).await?;
                }
            }
            anyhow::Ok(answered)
        });
        let answered: usize = try_join_all(clients).await?.into_iter().sum();
        step(&format!("{answered} answers in {seconds} seconds {}", way.name));
        Ok(vec![as_number(answered)])
    };
    let [direct, routed] = in_turn(ways, 2, rate).await?;
    Ok(100.0 * routed.iter().sum::<f64>() / direct.iter().sum::<f64>())
}

/// Time to read the blocks of a prompt and to choose a replica. Every second prompt was seen before.
fn choices() -> Result<Row> {
    let at = ServicePort {
        namespace: NAMESPACE.parse()?,
        service: TEST.parse()?,
        port: 8000,
    };
    let replicas = Replicas {
        all: (0..REPLICAS)
            .map(|number| Replica {
                pod: format!("{TEST}-{number}").into(),
                address: SocketAddr::from(([10, 0, 0, number], 8000)),
            })
            .collect(),
        are_engines: true,
    };
    let balancer = Balancer::default();
    let (mut times, mut in_flight) = (Vec::new(), VecDeque::new());
    for number in 0..CHOICES {
        let text = format!("{} ", number / 2).repeat(PROMPT);
        let replicas = replicas.clone();
        let begun = Instant::now();
        let prompt = Prompt::of(TEST, [&text.as_bytes()[..PROMPT]]);
        let chosen = balancer.choose(&at, replicas, &prompt, &[], begun.into());
        times.push(1000.0 * milliseconds(begun.elapsed()));
        in_flight.push_back(chosen.context("no replica was chosen")?);
        if in_flight.len() > IN_FLIGHT {
            in_flight.pop_front();
        }
    }
    let p95 = quantile(&times, 0.95).context("nothing was measured")?;
    let what = format!(
        "choice of one of {REPLICAS} replicas for a prompt of {} KiB, p95, µs",
        PROMPT / 1024
    );
    Ok(Row::new(what, p95, 0).goal(Limit::AtMost(50.0)))
}

/// Time of a request to a model with zero replicas, without the start of its engine.
async fn cold(model: &Model, router: Way, count: usize) -> Result<[Row; 2]> {
    let started = model.starts();
    let mut times = Vec::new();
    for _ in 0..count {
        model.sleep().await?;
        model.asleep().await?;
        let mut connection = Connection::open(router.address).await?;
        let begun = Instant::now();
        router.ask(&mut connection).await?;
        let taken = begun.elapsed();
        model.awake().await?;
        times.push(milliseconds(taken.saturating_sub(model.started_in())));
    }
    let started = model.starts() - started;
    ensure!(started == count, "{started} of {count} requests were cold");
    let what = "a cold request beyond the start of its engine";
    quantiles(what, |part| quantile(&times, part), 250.0)
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    seconds(time) * 1000.0
}
