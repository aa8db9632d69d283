//! Sends one request to each endpoint, in the background: at most once for each probe, and none in steady state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use runway_operator::clock;
use runway_operator::services::Services;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::probe::{Probe, ProbeDecision};
use crate::probe_request::{self, Error};

/// Time in which failures may pass: a new Service takes a moment to be routed, and an engine may still load.
const MAY_PASS: Duration = Duration::from_secs(8);
/// Delay before the second attempt; doubles with each attempt.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Endpoints asked concurrently. A request to one that hangs times out.
const AT_ONCE: usize = 512;
/// Longest delay between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Namespace and name of a ModelDeployment.
type Key = (String, String);

/// Callback with namespace and name of a ModelDeployment.
type OnAnswer = dyn Fn(&str, &str) + Send + Sync;

/// Knowledge about the endpoint of a ModelDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Endpoints are not asked: `--verify-endpoints=false`.
    Off,
    /// No request is possible, such as in a preview: the endpoint is assumed to answer.
    Assumed,
    /// Endpoints are asked; the latest answer, if there is one.
    On(Option<Answer>),
}

/// The answer of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The rollout that was asked: see [`Probe::about`].
    pub about: String,
    /// Success, or the request and its response as a message.
    pub outcome: Result<(), String>,
    /// When the answer came.
    pub at: Timestamp,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// Responses of endpoints, by ModelDeployment.
pub(crate) struct Answers {
    /// `None` if endpoints are not asked.
    services: Option<Services>,
    entries: Mutex<HashMap<Key, Entry>>,
    answered: Box<OnAnswer>,
    turns: Semaphore,
}

/// The latest probe about a ModelDeployment, and the latest response.
struct Entry {
    asked: String,
    answer: Option<Answer>,
}

impl Answers {
    /// Sends requests through `services`, and calls `answered` with namespace and name after each response.
    pub(crate) fn new(services: Option<Services>, answered: impl Fn(&str, &str) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            services,
            entries: Mutex::default(),
            answered: Box::new(answered),
            turns: Semaphore::new(AT_ONCE),
        })
    }

    /// The latest answer of the endpoint of a ModelDeployment.
    pub(crate) fn of(&self, namespace: &str, name: &str) -> Verification {
        if self.services.is_none() {
            return Verification::Off;
        }
        let key = (namespace.to_owned(), name.to_owned());
        Verification::On(self.entries.lock().get(&key).and_then(|entry| entry.answer.clone()))
    }

    /// Sends, keeps or drops a request.
    pub(crate) fn carry_out(self: &Arc<Self>, namespace: &str, name: &str, probe: ProbeDecision) {
        let key = (namespace.to_owned(), name.to_owned());
        match probe {
            ProbeDecision::Send(probe) => self.ask(key, probe),
            ProbeDecision::Keep => {}
            ProbeDecision::Forget => {
                self.entries.lock().remove(&key);
            }
        }
    }

    fn ask(self: &Arc<Self>, key: Key, probe: Probe) {
        let mut entries = self.entries.lock();
        let before = entries.get(&key);
        if before.is_some_and(|entry| entry.asked == probe.id) {
            return;
        }
        let answer = before.and_then(|entry| entry.answer.clone());
        let asked = probe.id.clone();
        entries.insert(key.clone(), Entry { asked, answer });
        let answers = self.clone();
        tokio::spawn(async move { answers.find_out(key, probe).await });
    }

    async fn find_out(self: Arc<Self>, key: Key, probe: Probe) {
        let Some(services) = &self.services else { return };
        // The semaphore is never closed.
        let Ok(_turn) = self.turns.acquire().await else { return };
        let outcome = insist(services, &probe).await;
        let answer = Answer {
            about: probe.about.clone(),
            outcome,
            at: clock::now(),
            attempt: probe.attempt,
        };
        match self
            .entries
            .lock()
            .get_mut(&key)
            .filter(|entry| entry.asked == probe.id)
        {
            Some(entry) => entry.answer = Some(answer),
            // A newer probe was sent meanwhile, or the response is no longer needed.
            None => return,
        }
        (self.answered)(&key.0, &key.1);
    }
}

/// Asks again as long as the failure may pass.
async fn insist(services: &Services, probe: &Probe) -> Result<(), String> {
    let start = Instant::now();
    let mut wait = FIRST_WAIT;
    loop {
        match probe_request::ask(services, probe).await {
            Ok(()) => return Ok(()),
            Err(Error { may_pass, message }) if !may_pass || start.elapsed() + wait > MAY_PASS => {
                return Err(message);
            }
            Err(_) => tokio::time::sleep(wait).await,
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
