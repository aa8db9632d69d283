//! The router's promise for models that sleep: a client that tries again after an error gets an answer, and nothing is sent to an
//! engine twice.
//!
//! In each cycle, a model is scaled to zero, requests arrive, the router wakes the model, and the requests are answered, half of
//! them as streams. In some cycles the router or the engine is killed meanwhile, and in some the requests arrive while the model
//! is still ending. Each attempt of a request has an id of its own, which the engine records before it answers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use axum::http::{HeaderValue, StatusCode};
use futures::future::{join_all, try_join_all};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{sleep, timeout};

use super::client::{Begun, chat};
use super::model::Interruptions;
use super::{Bed, KEY, Model, Programs, Random, Router};

/// Requests of a cycle, which arrive together.
const REQUESTS: usize = 4;
/// Pause of a client before it tries again.
const PAUSE: Duration = Duration::from_millis(20);
/// A request without an answer after this long is lost: every process is started again within a second.
const PATIENCE: Duration = Duration::from_mins(2);
/// Time of the engine until its answer begins, and between two parts of a stream: long enough to be killed meanwhile.
const ENGINE: [&str; 3] = ["--think=10ms", "--pause=5ms", "--parts=4"];
/// Router kills come within this time after the requests: they meet each step of a wake.
const ROUTER_KILLED_WITHIN: u64 = 120;
/// Engine kills come within this time after its start.
const ENGINE_KILLED_WITHIN: u64 = 40;
/// Longest time until a process that was killed is started again.
const AWAY_AT_MOST: u64 = 50;
/// An engine that is not started after this time was not needed: the one before has answered.
const STARTED_WITHIN: Duration = Duration::from_secs(1);

/// Size of the run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Cycles, of all models together.
    pub cycles: usize,
    /// Models, whose cycles run beside each other.
    pub models: usize,
    /// Decides which faults come when. The same seed chooses the same for each cycle.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cycles: 500,
            models: 4,
            seed: 0x5eed,
        }
    }
}

/// Result of the run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests.
    pub requests: usize,
    /// Starts of a model from zero.
    pub wakes: usize,
    /// kill -9 of the router.
    pub router_kills: usize,
    /// kill -9 of an engine.
    pub engine_kills: usize,
    /// Attempts that failed, by their error. The client tried again.
    pub failed: BTreeMap<String, usize>,
    /// Requests that engines received more than once, because the client tried again after an error.
    pub repeated: usize,
    /// Requests without an answer.
    pub lost: Vec<String>,
    /// Attempts that engines received more than once.
    pub sent_twice: Vec<String>,
    /// Errors without a kill that explains them, and answers that no engine has given.
    pub unexplained: Vec<String>,
    /// Time of all cycles.
    pub took: Duration,
}

impl Report {
    fn failed(&mut self, attempt: &str, failure: Failure, explained: bool) {
        if !explained {
            self.unexplained.push(format!("{attempt}: {}", failure.text));
        }
        *self.failed.entry(failure.kind).or_default() += 1;
    }

    /// Checks that nothing was lost or sent twice, and that kills explain all errors.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.lost.is_empty() && self.sent_twice.is_empty() && self.unexplained.is_empty(),
            "lost: {:#?}, sent twice: {:#?}, unexplained: {:#?}",
            self.lost,
            self.sent_twice,
            self.unexplained
        );
        Ok(())
    }
}

/// Runs it. `tell` is called after each cycle.
pub async fn run(bed: &Bed, programs: &Programs, options: Options, announce: impl Fn()) -> Result<Report> {
    let router = Router::start(bed, &programs.router, &[]).await?;
    let run = Run {
        address: router.address,
        router: AsyncMutex::new(router),
        interruptions: Interruptions::default(),
        report: Mutex::default(),
        answered: Mutex::default(),
    };
    let models = (0..options.models).map(|number| {
        let name = format!("model-{number}");
        async move { Model::create(bed, &programs.engine, &name, 0, &ENGINE).await }
    });
    let models = try_join_all(models).await?;
    let started = Instant::now();
    let lanes = models.iter().enumerate().map(|(lane, model)| {
        let (run, announce) = (&run, &announce);
        async move {
            for number in (lane..options.cycles).step_by(options.models) {
                let cycle = run.cycle(model, number, Random::of(options.seed, number));
                cycle.await.with_context(|| format!("cycle {number}"))?;
                announce();
            }
            anyhow::Ok(())
        }
    });
    try_join_all(lanes).await?;
    let took = started.elapsed();
    Ok(Report {
        took,
        ..run.report(&models)
    })
}

struct Run {
    address: SocketAddr,
    router: AsyncMutex<Router>,
    interruptions: Interruptions,
    report: Mutex<Report>,
    /// Attempts that were answered.
    answered: Mutex<HashSet<String>>,
}

/// Fault of a cycle.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Router,
    Engine,
}

impl Fault {
    fn any(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Router,
            1 | 2 => Self::Engine,
            _ => Self::None,
        }
    }
}

/// A failed attempt.
struct Failure {
    /// Short, for the report.
    kind: String,
    /// Whether an engine that ends explains it.
    is_of_engine: bool,
    text: String,
}

impl Run {
    async fn cycle(&self, model: &Model, number: usize, mut random: Random) -> Result<()> {
        model.sleep().await?;
        // In one of four, the requests arrive while the model ends.
        if random.below(4) > 0 {
            model.asleep().await?;
        }
        let requests = (0..REQUESTS).map(|n| self.ask(model, format!("{number}-{n}"), n % 2 == 1));
        let (_, disturbed) = tokio::join!(join_all(requests), self.disturb(model, random));
        disturbed
    }

    async fn disturb(&self, model: &Model, mut random: Random) -> Result<()> {
        match Fault::any(&mut random) {
            Fault::None => {}
            Fault::Router => {
                sleep(random.milliseconds(ROUTER_KILLED_WITHIN)).await;
                let mut router = self.router.lock().await;
                self.interruptions.turn();
                router.kill();
                sleep(random.milliseconds(AWAY_AT_MOST)).await;
                router.run().await?;
                self.interruptions.turn();
                self.report.lock().router_kills += 1;
            }
            Fault::Engine => {
                if timeout(STARTED_WITHIN, model.awake()).await.is_ok() {
                    sleep(random.milliseconds(ENGINE_KILLED_WITHIN)).await;
                    let killed = model.kill_engine(random.milliseconds(AWAY_AT_MOST)).await?;
                    self.report.lock().engine_kills += usize::from(killed);
                }
            }
        }
        Ok(())
    }

    /// A client that tries again until it has an answer.
    async fn ask(&self, model: &Model, id: String, streams: bool) {
        self.report.lock().requests += 1;
        let answered = timeout(PATIENCE, async {
            for number in 0.. {
                let attempt = format!("{id}-{number}");
                let (router, engine) = (self.interruptions.now(), model.engine_ends().now());
                let Err(failure) = self.attempt(model, &attempt, streams).await else {
                    self.answered.lock().insert(attempt);
                    return;
                };
                let of_engine = failure.is_of_engine && model.engine_ends().since(engine);
                let explained = of_engine || self.interruptions.since(router);
                self.report.lock().failed(&attempt, failure, explained);
                sleep(PAUSE).await;
            }
        });
        if answered.await.is_err() {
            self.report.lock().lost.push(id);
        }
    }

    async fn attempt(&self, model: &Model, id: &str, streams: bool) -> Result<(), Failure> {
        let failed = |kind: &str, is_of_engine, error: &anyhow::Error| Failure {
            kind: kind.to_owned(),
            is_of_engine,
            text: format!("{kind}: {error:#}"),
        };
        let begun = async {
            let mut request = chat(
                KEY,
                &json!({ "model": model.name(), "messages": [], "stream": streams }),
            )?;
            request.headers_mut().insert("x-request-id", HeaderValue::from_str(id)?);
            Begun::send(self.address, request).await
        };
        let begun = begun.await.map_err(|error| {
            // The header is sent with the first part of the body. If the engine ends before that, neither arrives.
            let closed = error.downcast_ref().is_some_and(hyper::Error::is_incomplete_message);
            failed("no response", closed, &error)
        })?;
        let answer = begun.whole().await;
        let answer = answer.map_err(|error| failed("response broke off", true, &error))?;
        if answer.status != StatusCode::OK {
            let code = answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
            return Err(Failure {
                kind: format!("{} {code}", answer.status.as_u16()),
                is_of_engine: code == "model_broke_off",
                text: answer.text,
            });
        }
        let is_whole = !streams || answer.text.trim_end().ends_with("[DONE]");
        let cut_off = || failed("response is not whole", false, &anyhow::Error::msg(answer.text.clone()));
        is_whole.then_some(()).ok_or_else(cut_off)
    }

    /// The report, with what the engines have received.
    fn report(self, models: &[Model]) -> Report {
        let mut report = self.report.into_inner();
        report.wakes = models.iter().map(Model::starts).sum();
        let mut received: HashMap<String, usize> = HashMap::new();
        for id in models.iter().flat_map(Model::received) {
            *received.entry(id).or_default() += 1;
        }
        let mut requests: HashMap<&str, usize> = HashMap::new();
        for (id, count) in &received {
            if *count > 1 {
                report.sent_twice.push(id.clone());
            }
            if let Some((request, _)) = id.rsplit_once('-') {
                *requests.entry(request).or_default() += 1;
            }
        }
        report.repeated = requests.values().filter(|attempts| **attempts > 1).count();
        let answered = self.answered.into_inner().into_iter();
        let without_consumer = answered.filter(|id| !received.contains_key(id));
        report
            .unexplained
            .extend(without_consumer.map(|id| format!("{id}: no engine has received it")));
        report
    }
}
