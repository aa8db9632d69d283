//! Counters that all routers share, in Valkey or Redis.
//!
//! One script counts a request in all counters of its rules, or in none. Requests in flight are not shared: a router that is killed
//! would never end its own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, RedisError, Script};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::Key;
use super::counters::{Counter, Now};
use super::rules::Rule;

/// Longest wait for an answer. Then the request is counted in memory.
const WITHIN: Duration = Duration::from_millis(250);
/// Time without requests to a server that has not answered.
const AWAY: Duration = Duration::from_secs(1);
/// Beginning of the keys. Its braces keep all of them on one node of a cluster.
const PREFIX: &str = "{kubeairunway-router}";

/// A connection to the server. Cheap to clone.
#[derive(Clone)]
pub struct Shared {
    connection: ConnectionManager,
    server: Arc<Server>,
}

struct Server {
    admit: Script,
    settle: Script,
    away_until: Mutex<Option<Instant>>,
}

/// The answer for a request.
pub(super) struct Verdict {
    /// A limit that refuses is reached.
    pub(super) is_refused: bool,
    /// Time of the server.
    pub(super) now: Now,
    /// Use before the request, by rule.
    pub(super) counters: Vec<Counter>,
}

/// Reason why a request is counted in memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum Away {
    /// The server has failed a moment ago.
    #[error("it has not answered a moment ago")]
    Lately,
    /// The server fails.
    #[error(transparent)]
    Failed(#[from] RedisError),
    /// It does not answer in time.
    #[error("it does not answer within {} ms", WITHIN.as_millis())]
    Late,
    /// It answers something else.
    #[error("unexpected answer")]
    Unexpected,
}

impl Shared {
    /// Connects when the first request is counted.
    ///
    /// # Errors
    /// The URL is not one of Valkey or Redis.
    pub fn new(url: &str) -> Result<Self, RedisError> {
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_connection_timeout(Some(WITHIN))
            .set_response_timeout(Some(WITHIN));
        Ok(Self {
            connection: ConnectionManager::new_lazy_with_config(Client::open(url)?, config)?,
            server: Arc::new(Server {
                admit: Script::new(include_str!("admit.lua")),
                settle: Script::new(include_str!("settle.lua")),
                away_until: Mutex::default(),
            }),
        })
    }

    /// Counts a request with these tokens in the counters of its rules, unless a limit is reached.
    pub(super) async fn admit(&self, units: &[(Key, &Rule)], tokens: u64) -> Result<Verdict, Away> {
        let is_away = |until: Instant| Instant::now() < until;
        if self.server.away_until.lock().is_some_and(is_away) {
            return Err(Away::Lately);
        }
        let mut script = self.server.admit.prepare_invoke();
        script.arg(tokens);
        for (key, rule) in units {
            script.key(name(key));
            for limit in [rule.requests_per_minute, rule.tokens_per_minute, rule.tokens_per_day] {
                script.arg(limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string()));
            }
            script.arg(u8::from(!rule.dry_run));
        }
        let mut connection = self.connection.clone();
        let answered = timeout(WITHIN, script.invoke_async::<Vec<String>>(&mut connection)).await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.away(error.into())),
            Err(_) => return Err(self.away(Away::Late)),
        };
        verdict(&answer, units.len()).ok_or(Away::Unexpected)
    }

    fn away(&self, away: Away) -> Away {
        *self.server.away_until.lock() = Some(Instant::now() + AWAY);
        away
    }

    /// Corrects the tokens of a request that ends, in the background. A correction that is lost leaves the estimate.
    pub(super) fn settle(&self, keys: &[Key], counted: u64, tokens: u64) {
        let difference = i128::from(tokens) - i128::from(counted);
        let (Ok(runtime), true) = (Handle::try_current(), difference != 0) else {
            return;
        };
        let (shared, keys): (_, Vec<String>) = (self.clone(), keys.iter().map(name).collect());
        runtime.spawn(async move {
            let mut script = shared.server.settle.prepare_invoke();
            script.arg(difference.to_string());
            for key in keys {
                script.key(key);
            }
            let mut connection = shared.connection.clone();
            let _ = timeout(WITHIN, script.invoke_async::<()>(&mut connection)).await;
        });
    }
}

fn name((rule, unit): &Key) -> String {
    format!("{PREFIX}:{rule}:{unit}")
}

/// Reads the answer of the script.
fn verdict(answer: &[String], rules: usize) -> Option<Verdict> {
    let [refused, seconds, used @ ..] = answer else {
        return None;
    };
    let now = Now {
        at: Instant::now(),
        seconds: seconds.parse().ok()?,
    };
    let counters = used.chunks(3).map(|one| {
        let [requests, tokens, today] = one else { return None };
        let today: f64 = today.parse().ok()?;
        Some(Counter::used(requests.parse().ok()?, tokens.parse().ok()?, today, now))
    });
    let counters: Vec<Counter> = counters.collect::<Option<_>>()?;
    (counters.len() == rules).then_some(Verdict {
        is_refused: refused == "1",
        now,
        counters,
    })
}
