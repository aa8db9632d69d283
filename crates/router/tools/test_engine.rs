//! `gateway-test-engine`: an engine without a model. It answers chat completions with one token, or with a stream of parts, each of
//! which contains the time at which it was sent. It records the value of `x-request-id` before it answers. A stream reports two
//! tokens a part, as with speculative decoding, if the request wants a report.
//!
//! Answers have the fields that routers and clients of OpenAI's API expect. The content of a part is its time, because routers that
//! parse answers drop fields that they do not know.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use futures::StreamExt as _;
use parking_lot::Mutex;
use runway_http::Limits;
use runway_operator::process::time;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Debug, Parser)]
struct Args {
    /// Address of the API.
    #[arg(long)]
    address: SocketAddr,
    /// File with the ids of the received requests, one a line.
    #[arg(long)]
    received: PathBuf,
    /// Time until an answer begins.
    #[arg(long, value_parser = time)]
    think: Option<Duration>,
    /// Parts of a stream whose request has no `max_tokens`.
    #[arg(long, default_value_t = 4)]
    parts: u32,
    /// Time between two parts.
    #[arg(long, value_parser = time)]
    pause: Option<Duration>,
}

/// Name of the model.
const MODEL: &str = "test";

struct Engine {
    args: Args,
    received: Mutex<File>,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let received = File::options().create(true).append(true).open(&args.received)?;
    let mut ended = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(args.address).await?;
    let engine = Engine {
        args,
        received: Mutex::new(received),
    };
    let routes = Router::new()
        .route("/health", get(StatusCode::OK))
        .route(
            "/v1/models",
            get(|| async { Json(json!({ "object": "list", "data": [{ "id": MODEL, "object": "model" }] })) }),
        )
        .route("/v1/chat/completions", post(chat))
        .with_state(Arc::new(engine));
    let limits = Limits {
        connections: 1024,
        request: None,
        whole_responses: true,
        drain: Duration::from_secs(10),
        ..Limits::ADMIN
    };
    let shutdown = CancellationToken::new();
    let served = runway_http::serve(listener, None, routes, limits, shutdown.clone());
    let ending = async {
        ended.recv().await;
        shutdown.cancel();
    };
    tokio::join!(served, ending);
    Ok(())
}

async fn chat(State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes) -> Response {
    #[derive(Deserialize)]
    struct Request {
        #[serde(default)]
        stream: bool,
        max_tokens: Option<u32>,
        /// The newer name, which some routers send on.
        max_completion_tokens: Option<u32>,
        #[serde(default)]
        stream_options: Options,
    }
    #[derive(Default, Deserialize)]
    struct Options {
        #[serde(default)]
        include_usage: bool,
    }
    let Ok(request) = serde_json::from_slice::<Request>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if let Some(id) = headers.get("x-request-id") {
        let line = [id.as_bytes(), b"\n"].concat();
        if engine.received.lock().write_all(&line).is_err() {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    }
    if let Some(think) = engine.args.think {
        sleep(think).await;
    }
    if !request.stream {
        let message = json!({ "role": "assistant", "content": "one" });
        return Json(json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL,
            "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
        }))
        .into_response();
    }
    let begun = Instant::now();
    let Args { parts, pause, .. } = engine.args;
    let parts = request.max_completion_tokens.or(request.max_tokens).unwrap_or(parts);
    let reports = request.stream_options.include_usage;
    let events = futures::stream::iter(0..=parts).then(move |number| async move {
        // By the clock: a late part does not delay the next one.
        if let Some(pause) = pause {
            sleep_until(begun + pause * number).await;
        }
        let event = if number < parts {
            format!("data: {}\n\n", part(nanoseconds()))
        } else if reports {
            format!("data: {}\n\ndata: [DONE]\n\n", report(parts))
        } else {
            "data: [DONE]\n\n".to_owned()
        };
        Ok::<_, std::io::Error>(event)
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

/// A part that is sent at this time.
fn part(sent: u128) -> String {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
        "choices": [{ "index": 0, "delta": { "content": sent.to_string() } }],
    })
    .to_string()
}

/// The tokens of a stream with so many parts.
fn report(parts: u32) -> String {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [],
        "usage": { "prompt_tokens": 1, "completion_tokens": 2 * parts, "total_tokens": 1 + 2 * parts },
    })
    .to_string()
}

/// Since 1970. Another process on this machine compares it with its own.
fn nanoseconds() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos())
}
