//! Steady chat completions to a model while something changes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::client::{Answer, Connection, chat};
use crate::engine::{SENTENCE, chat_request, pieces};
use crate::{PATIENCE, eventually};

/// Clients of each way. Every other one streams.
pub const CLIENTS: usize = 4;
/// Longest wait for a connection. The address of a Service that is gone does not answer at all.
const CONNECTED_WITHIN: Duration = Duration::from_secs(3);
/// Pause of a client after an answer. At this pace, a client's port is not used again while the kernel still tracks its last
/// connection to the Service, for two minutes; and what is under test gets its share of a small machine.
const PACE: Duration = Duration::from_millis(20);
/// Pause of a client after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// Route of requests to the model.
#[derive(Clone)]
pub struct Way {
    /// Name for reports.
    pub name: &'static str,
    /// Address that they are sent to.
    pub to: Address,
    /// Bearer token; none if it is empty.
    pub token: String,
    /// Name of the model in requests.
    pub model: String,
    /// Further headers of requests.
    pub headers: Vec<(&'static str, String)>,
}

/// An address that this machine reaches.
#[derive(Clone)]
pub enum Address {
    /// A socket of this machine.
    Socket(SocketAddr),
    /// The cluster IP of a Service, read again after a failure, as a DNS client would.
    Service {
        /// May get Services.
        client: Client,
        /// Namespace of the Service.
        namespace: &'static str,
        /// Name of the Service.
        name: String,
        /// Port of the Service.
        port: u16,
    },
}

impl Address {
    async fn resolve(&self) -> Result<SocketAddr> {
        match self {
            Self::Socket(address) => Ok(*address),
            Self::Service {
                client,
                namespace,
                name,
                port,
            } => service_address(client, namespace, name, *port).await,
        }
    }
}

/// The cluster IP of a Service, with this port. This machine reaches it, and not the DNS of the cluster.
pub async fn service_address(client: &Client, namespace: &str, name: &str, port: u16) -> Result<SocketAddr> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let service = services.get(name).await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip);
    let address = address.with_context(|| format!("Service {name} has no address"))?;
    Ok(SocketAddr::new(address.parse()?, port))
}

/// Answers and failures that the clients of a way saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Requests with the whole right answer.
    pub answered: usize,
    /// The others, each with what happened.
    pub failed: Vec<String>,
    /// Longest time from a request to the end of its answer.
    pub longest: Duration,
}

/// Clients that send one request after the other, each on a connection of its own, until [`Load::end`].
pub struct Load {
    stop: Arc<AtomicBool>,
    ways: Vec<(&'static str, Arc<Mutex<Seen>>)>,
    /// Answers of each client.
    answers: Vec<Arc<AtomicUsize>>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Load {
    /// Starts [`CLIENTS`] for each way.
    pub fn begin(ways: &[Way]) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            ways: Vec::new(),
            answers: Vec::new(),
            tasks: Vec::new(),
        };
        for way in ways {
            let seen = Arc::<Mutex<Seen>>::default();
            load.ways.push((way.name, Arc::clone(&seen)));
            for number in 0..CLIENTS {
                let answers = Arc::<AtomicUsize>::default();
                load.answers.push(Arc::clone(&answers));
                let client = Asker {
                    way: way.clone(),
                    streams: number % 2 == 0,
                    seen: Arc::clone(&seen),
                    answers,
                };
                let stop = Arc::clone(&load.stop);
                load.tasks.push(AbortOnDropHandle::new(tokio::spawn(
                    async move { client.ask(&stop).await },
                )));
            }
        }
        load
    }

    /// Waits until each client has had two more answers: then all requests of before have ended.
    pub async fn is_answered(&self) -> Result<()> {
        let all = || -> Vec<usize> { self.answers.iter().map(|count| count.load(Ordering::Relaxed)).collect() };
        let before = all();
        eventually(PATIENCE, async || {
            let now = all();
            let served = now.iter().zip(&before).all(|(now, before)| now - before >= 2);
            ensure!(
                served,
                "a client is not answered: {before:?}, then {now:?}: {:?}",
                self.failures()
            );
            Ok(())
        })
        .await
    }

    /// Takes what each way has seen since the last call.
    pub fn take(&self) -> Vec<(&'static str, Seen)> {
        let take = |(name, seen): &(&'static str, Arc<Mutex<Seen>>)| (*name, std::mem::take(&mut *seen.lock()));
        self.ways.iter().map(take).collect()
    }

    /// Waits for the requests in flight. Returns what each way has seen since [`Load::take`].
    pub async fn end(mut self) -> Result<Vec<(&'static str, Seen)>> {
        self.stop.store(true, Ordering::Relaxed);
        for ended in join_all(self.tasks.drain(..)).await {
            ended?;
        }
        Ok(self.take())
    }

    fn failures(&self) -> Vec<String> {
        let last =
            |(name, seen): &(&'static str, Arc<Mutex<Seen>>)| Some(format!("{name}: {}", seen.lock().failed.last()?));
        self.ways.iter().filter_map(last).collect()
    }
}

/// A client of a way.
struct Asker {
    way: Way,
    streams: bool,
    seen: Arc<Mutex<Seen>>,
    answers: Arc<AtomicUsize>,
}

impl Asker {
    async fn ask(&self, stop: &AtomicBool) {
        let mut address = None;
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let pause = match self.ask_once(&mut address).await {
                Ok(()) => {
                    let mut seen = self.seen.lock();
                    seen.answered += 1;
                    seen.longest = seen.longest.max(start.elapsed());
                    self.answers.fetch_add(1, Ordering::Relaxed);
                    PACE
                }
                Err(error) => {
                    let kind = if self.streams { "stream" } else { "request" };
                    self.seen.lock().failed.push(format!("{kind}: {error:#}"));
                    address = None;
                    PAUSE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn ask_once(&self, known: &mut Option<SocketAddr>) -> Result<()> {
        let address = match *known {
            Some(address) => address,
            None => *known.insert(self.way.to.resolve().await?),
        };
        let mut request = chat_request(&self.way.model, "Hello");
        if self.streams {
            request["stream"] = json!(true);
        }
        let connected = timeout(CONNECTED_WITHIN, Connection::open(address)).await;
        let mut connection = connected.with_context(|| format!("no connection to {address}"))??;
        let mut chat = chat(&self.way.token, &request)?;
        for (name, value) in &self.way.headers {
            chat.headers_mut().insert(*name, value.parse()?);
        }
        let answer = Answer::of(connection.send(chat).await?).await?;
        let is_whole = if self.streams {
            answer.text.matches("\"content\"").count() >= pieces().len()
                && answer.text.trim_end().ends_with("data: [DONE]")
        } else {
            answer.json()["choices"][0]["message"]["content"] == SENTENCE
        };
        ensure!(
            answer.status.is_success() && is_whole,
            "{} {}",
            answer.status,
            answer.text
        );
        Ok(())
    }
}
