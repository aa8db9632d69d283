//! Connections to engines that wait for their next request.
//!
//! A connection is used again only if the engine certainly keeps it, because a request that meets the end of its connection is
//! lost. So it waits for a shorter time than any engine does, and some are closed at once:
//!
//! | engine | keeps a connection | source |
//! |---|---|---|
//! | vLLM, SGLang, TensorRT-LLM, Ray Serve (uvicorn) | 5 s or more without a request | `timeout_keep_alive`: vLLM 0.18 `envs.py` (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), SGLang 0.5 `http_server.py`, TensorRT-LLM 1.2 `openai_server.py` |
//! | Dynamo's frontend (hyper) | without a limit | axum has none |
//! | llama-server (cpp-httplib) | 5 s, but it occupies one of few threads meanwhile, and closes after each stream | cpp-httplib `process_server_socket` |

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::body::Body;

/// Longest time for which a connection waits: less than half of the least that engines wait.
const LONGEST_IDLE: Duration = Duration::from_secs(2);
/// Most connections that wait for each replica.
const MOST: usize = 64;
/// Longest wait until a connection whose response is over accepts the next request.
const READY_WITHIN: Duration = Duration::from_millis(100);
/// Engine that has a thread for each connection.
const LLAMA_SERVER: &str = "llama.cpp";

/// An open connection. Dropping it closes it, which ends the work of the engine.
#[derive(Debug)]
pub struct Open {
    /// Sends requests.
    pub sender: SendRequest<Body>,
    /// Runs the connection.
    pub running: AbortOnDropHandle<()>,
}

/// Connections that wait. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    by_address: HashMap<SocketAddr, Vec<(Open, Instant)>>,
    /// A task closes those that have waited too long.
    is_swept: bool,
}

impl Pool {
    /// The connection to this address that has waited for the shortest time.
    pub fn take(&self, address: SocketAddr) -> Option<Open> {
        let mut waiting = self.0.lock();
        let connections = waiting.by_address.get_mut(&address)?;
        let now = Instant::now();
        loop {
            let (open, since) = connections.pop()?;
            if now.duration_since(since) < LONGEST_IDLE && open.sender.is_ready() {
                return Some(open);
            }
        }
    }

    /// Whether a connection to this address waits.
    #[cfg(test)]
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.0
            .lock()
            .by_address
            .get(&address)
            .is_some_and(|connections| !connections.is_empty())
    }

    /// Keeps a connection whose response is over, once it accepts the next request.
    pub async fn keep(self, address: SocketAddr, mut open: Open) {
        let ready = timeout(READY_WITHIN, open.sender.ready()).await;
        if !matches!(ready, Ok(Ok(()))) {
            return;
        }
        let mut waiting = self.0.lock();
        let connections = waiting.by_address.entry(address).or_default();
        if connections.len() < MOST {
            connections.push((open, Instant::now()));
        }
        if !std::mem::replace(&mut waiting.is_swept, true) {
            tokio::spawn(self.clone().sweep());
        }
    }

    /// Closes connections that have waited too long, until none waits.
    async fn sweep(self) {
        loop {
            sleep(LONGEST_IDLE / 2).await;
            let mut waiting = self.0.lock();
            let now = Instant::now();
            waiting.by_address.retain(|_, connections| {
                connections.retain(|(_, since)| now.duration_since(*since) < LONGEST_IDLE);
                !connections.is_empty()
            });
            if waiting.by_address.is_empty() {
                waiting.is_swept = false;
                return;
            }
        }
    }
}

/// Whether an engine keeps the connection after a response with these headers. After a stream it may close without notice.
pub fn is_kept(headers: &HeaderMap) -> bool {
    let is = |name, value: &str| headers.get(name).map(HeaderValue::as_bytes) == Some(value.as_bytes());
    headers.contains_key(header::CONTENT_LENGTH)
        && !is(header::SERVER, LLAMA_SERVER)
        && !is(header::CONNECTION, "close")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_kept_unless_the_engine_may_close_it_or_has_few() {
        let kept = |headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)));
            is_kept(&headers.collect())
        };
        let length = ("content-length", "2");
        assert!(kept(&[length, ("server", "uvicorn")]));
        assert!(!kept(&[("transfer-encoding", "chunked"), ("server", "uvicorn")]));
        assert!(!kept(&[length, ("server", "llama.cpp")]));
        assert!(!kept(&[length, ("connection", "close")]));
    }
}
