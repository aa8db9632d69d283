//! `bench contenders`: the model router beside other routers and beside the engine alone, in one run on one machine. Each runs in
//! turn, in front of the same engines and with the same clients.
//!
//! | module | content |
//! |---|---|
//! | [`running`] | starts a contender |
//! | [`load`] | rate and latency with more and more clients, and streams |
//! | [`trace`] | conversations that repeat their beginning, and the part of it that engines did not read again |
//! | [`table`] | tables |

mod load;
mod running;
mod table;
mod trace;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use runway_dev_support::{record, step};
use runway_testbed::engine::{self, LlamaServer};
use runway_testbed::own_address;
use runway_testbed::peers::To;
use runway_testbed::traffic::Connection;

use load::{Load, Streams};
use running::{Contender, Engine, Place, Target};
use trace::{Played, Trace};

use crate::router;

/// Amount of work.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Seconds of each number of clients, of each contender.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Streams at once through each contender.
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Conversations in each round of the prefix trace.
    #[arg(long, default_value_t = 24)]
    conversations: usize,
    /// Turns of each conversation.
    #[arg(long, default_value_t = 4)]
    turns: usize,
    /// Rounds of the prefix trace, each with other conversations.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Decides the texts and the order of the conversations.
    #[arg(long, default_value_t = 0x5eed)]
    seed: u64,
    /// Measure `kubeairunway-gateway` and `gateway-test-engine` of this folder, without a build.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    #[command(flatten)]
    pub(super) record: record::Options,
}

/// Numbers of clients, each with one request at a time.
const CLIENTS: [usize; 5] = [1, 4, 16, 32, 64];
/// Parts of a stream, which the test engine sends every 10 ms.
const PARTS: usize = 50;
/// Servers of the prefix trace, and clients.
const SERVERS: usize = 4;
const TRACE_CLIENTS: usize = 6;
/// Arguments of the servers. The reference endpoint picker reads their metrics.
const FLAGS: [&str; 7] = ["--host", "0.0.0.0", "--parallel", "2", "--threads", "1", "--metrics"];
/// Most turns of a conversation: the context of the model is 16,384 tokens for each of two slots, and a byte is a token.
const MOST_TURNS: usize = 20;
/// Models of the test engine and of llama-server.
const TEST: &str = "test";
const LLAMA: &str = "llama";

/// A row of a table: a contender, and its figures or the reason why it has none.
struct Row<T> {
    name: String,
    figures: Result<T>,
}

pub(super) async fn run(args: &Args) -> Result<()> {
    ensure!(
        args.seconds > 0 && args.streams > 0 && args.conversations > 0 && args.rounds > 0,
        "--seconds, --streams, --conversations and --rounds must be at least 1"
    );
    ensure!(
        (1..=MOST_TURNS).contains(&args.turns),
        "--turns must be between 1 and {MOST_TURNS}"
    );
    let folder = router::programs(args.programs.as_deref(), args.record.is_release()).await?;
    step("starting etcd, kube-apiserver and kube-controller-manager");
    let place = Place::start(folder).await?;
    let outcome = measure(&place, args).await;
    place.stop().await?;
    let text = outcome?;
    println!("{text}");
    args.record
        .write_down(record::PERFORMANCE, "bench contenders --docs", &text)?;
    Ok(())
}

async fn measure(place: &Place, args: &Args) -> Result<String> {
    let own = own_address()?;
    let loads = loads(place, args, own).await?;
    let trace = match prepared().await? {
        Some(server) => traces(place, args, own, &server).await?,
        None => Vec::new(),
    };
    Ok(table::text(&loads, &trace))
}

/// Rate, latency and streams in front of the test engine.
async fn loads(place: &Place, args: &Args, own: IpAddr) -> Result<Vec<Row<(Load, Streams)>>> {
    let engine = Engine::start(place, own).await?;
    let engines = [engine.address];
    place.serve(TEST, &engines).await?;
    let to = To {
        engines: &engines,
        model: TEST,
    };
    let mut rows = Vec::new();
    for contender in Contender::ALL {
        step(&format!("{contender}: rate and streams"));
        let figures = async {
            let running = contender.start(place, to).await?;
            let load = load::measure(&running, &CLIENTS, args.seconds).await?;
            let streams = load::streams(&running.target, args.streams, PARTS).await;
            anyhow::Ok((load, streams))
        };
        rows.push(row(contender.to_string(), figures.await));
    }
    Ok(rows)
}

/// A way of conversations to the servers.
#[derive(Clone, Copy)]
enum Way {
    /// Conversation by conversation: as if each had a server of its own from its first turn on.
    OneEach,
    /// Request by request.
    InTurn,
    Through(Contender),
}

async fn traces(place: &Place, args: &Args, own: IpAddr, server: &LlamaServer) -> Result<Vec<Row<Played>>> {
    let routers = Contender::ALL
        .into_iter()
        .filter(|contender| *contender != Contender::Engine);
    let ways = [Way::OneEach, Way::InTurn].into_iter().chain(routers.map(Way::Through));
    let mut rows = Vec::new();
    for way in ways {
        let name = match way {
            Way::OneEach => "each conversation to one server".to_owned(),
            Way::InTurn => "each request to the next server".to_owned(),
            Way::Through(contender) => contender.to_string(),
        };
        step(&format!("{name}: conversations"));
        rows.push(row(name, traced(place, args, own, server, way).await));
    }
    Ok(rows)
}

/// Conversations with fresh servers, which none has used before.
async fn traced(place: &Place, args: &Args, own: IpAddr, server: &LlamaServer, way: Way) -> Result<Played> {
    let servers = (0..SERVERS).map(|_| server.start(LLAMA, &FLAGS));
    let servers: Vec<engine::Running> = try_join_all(servers).await?;
    let engines: Vec<_> = servers
        .iter()
        .map(|server| SocketAddr::new(own, server.address().port()))
        .collect();
    let running = match way {
        Way::OneEach | Way::InTurn => None,
        Way::Through(contender) => {
            place.serve(LLAMA, &engines).await?;
            let to = To {
                engines: &engines,
                model: LLAMA,
            };
            Some(contender.start(place, to).await?)
        }
    };
    let target = |conversation: usize, number: usize| {
        let of = match way {
            Way::OneEach => conversation,
            Way::InTurn | Way::Through(_) => number,
        };
        let direct = || Target::new(engines[of % SERVERS], "", LLAMA);
        running.as_ref().map_or_else(direct, |running| running.target.clone())
    };
    // The first request to a server takes longer.
    for engine in &engines {
        let direct = Target::new(*engine, "", LLAMA);
        direct
            .ask(&mut Connection::open(*engine).await?, &direct.short())
            .await?;
    }
    let mut all = Played::default();
    for round in 0..args.rounds {
        let trace = Trace::new(args.seed.wrapping_add(round), args.conversations, args.turns);
        all.add(trace.play(TRACE_CLIENTS, &target).await);
    }
    ensure!(!all.times.is_empty(), "no turn was answered");
    Ok(all)
}

/// `None` if this machine cannot have a llama-server.
async fn prepared() -> Result<Option<LlamaServer>> {
    tokio::task::spawn_blocking(|| LlamaServer::prepare("conversations with llama-server"))
        .await?
        .context("cannot prepare llama-server")
}

fn row<T>(name: String, figures: Result<T>) -> Row<T> {
    if let Err(error) = &figures {
        step(&format!("{name} is skipped: {error:#}"));
    }
    Row { name, figures }
}
