//! The APIs of the router with a real API server: every path, forms, streams, tokens and limits.

mod support;

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use axum::Router as Routes;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use parking_lot::Mutex;
use runway_http::Limits;
use runway_router::paths::{Content, ENDPOINTS, Endpoint};
use runway_testbed::traffic::client::{Answer, Begun, request};
use runway_testbed::{PATIENCE, eventually};
use serde_json::json;
use support::{CHAT, KEY, World};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Name of the model at the engine.
const OWN_NAME: &str = "its-own-name";
/// Tokens that the engine reports for each request.
const USAGE: &str = r#"{"prompt_tokens":7,"completion_tokens":2}"#;
const BOUNDARY: &str = "boundary";

/// An engine that has every path, and keeps what it receives.
struct Engine {
    port: u16,
    received: Arc<Mutex<Vec<Received>>>,
    _end: DropGuard,
}

#[derive(Debug)]
struct Received {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Engine {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let received = Arc::default();
        let routes = Routes::new()
            .route(
                "/v1/models",
                get(|| async { format!(r#"{{"data":[{{"id":"{OWN_NAME}"}}]}}"#) }),
            )
            .fallback(respond)
            .with_state(Arc::clone(&received));
        let end = CancellationToken::new();
        tokio::spawn(runway_http::serve(listener, None, routes, Limits::ADMIN, end.clone()));
        Ok(Self {
            port,
            received,
            _end: end.drop_guard(),
        })
    }

    fn last(&self) -> Result<Received> {
        self.received.lock().pop().context("the engine has received nothing")
    }
}

async fn respond(
    State(received): State<Arc<Mutex<Vec<Received>>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let wants = |field: &str| body.windows(field.len()).any(|part| part == field.as_bytes());
    let events = wants(r#""stream":true"#).then(|| {
        let usage = if wants(r#""include_usage":true"#) {
            format!("data: {{\"choices\":[],\"usage\":{USAGE}}}\n\n")
        } else {
            String::new()
        };
        let part = r#"data: {"choices":[{"delta":{"content":"a"}}]}"#;
        format!("{part}\n\n{part}\n\n{usage}data: [DONE]\n\n")
    });
    let path = uri.path().to_owned();
    received.lock().push(Received { path, headers, body });
    match events {
        Some(events) => ([(header::CONTENT_TYPE, "text/event-stream")], Body::from(events)).into_response(),
        None => (
            [(header::CONTENT_TYPE, "application/json")],
            format!(r#"{{"usage":{USAGE}}}"#),
        )
            .into_response(),
    }
}

/// A body for an endpoint that names this model.
fn body_of(endpoint: Endpoint, model: &str) -> (String, String) {
    match endpoint.content {
        Content::Json => (
            "application/json".to_owned(),
            json!({ "model": model, "input": "Hello" }).to_string(),
        ),
        Content::Form => {
            let field = "Content-Disposition: form-data; name=";
            let file = format!("--{BOUNDARY}\r\n{field}\"file\"; filename=\"a.wav\"\r\n\r\n\0\u{1}model\r\n");
            let form = format!("{file}--{BOUNDARY}\r\n{field}\"model\"\r\n\r\n{model}\r\n--{BOUNDARY}--\r\n");
            (format!("multipart/form-data; boundary={BOUNDARY}"), form)
        }
    }
}

#[allow(clippy::too_many_lines, reason = "one life, in order")]
#[tokio::test(flavor = "multi_thread")]
async fn every_path_reaches_its_engine_and_its_tokens_are_counted() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start().await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let limits = tempfile::tempdir()?;
    let limits = limits.path().join("limits.yaml");
    let router = world
        .router(&[&format!("--limits={}", limits.display())])
        .await?
        .ready()
        .await?;
    let send = async |path: &str, headers: &[(&'static str, &str)], body: String| -> Result<Answer> {
        let mut request = request(Method::POST, path, "", body)?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse()?);
        }
        Begun::send(router.address, request).await?.whole().await
    };
    let bearer = format!("Bearer {KEY}");
    let tokens = |direction: &str, source: &str| -> u64 {
        let series = format!(
            r#"kubeairunway_gateway_tokens_total{{namespace="a",name="one",caller="key",direction="{direction}",source="{source}"}} "#
        );
        let text = router.metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.and_then(|number| number.parse().ok()).unwrap_or_default()
    };

    // Every path, with the key in the header of either API.
    for endpoint in ENDPOINTS {
        let (content, body) = body_of(endpoint, "llama");
        for key in [("authorization", bearer.as_str()), ("x-api-key", KEY)] {
            let answer = send(endpoint.path, &[("content-type", &content), key], body.clone()).await?;
            ensure!(answer.status == 200, "{}: {answer:?}", endpoint.path);
            let received = engine.last()?;
            let expected = body_of(endpoint, OWN_NAME).1;
            ensure!(
                received.path == endpoint.at_engine && received.body == expected,
                "{received:?}"
            );
            let has = |name| received.headers.contains_key(name);
            ensure!(!has("authorization") && !has("x-api-key") && received.headers["content-type"] == content);
        }
    }
    let requests = 2 * u64::try_from(ENDPOINTS.len())?;
    eventually(PATIENCE, async || {
        let counted = (tokens("input", "engine"), tokens("output", "engine"));
        ensure!(counted == (7 * requests, 2 * requests), "{counted:?}");
        Ok(())
    })
    .await?;

    // The router adds the tokens to a stream, and takes them out again.
    let authorized = [("authorization", bearer.as_str())];
    let stream = json!({ "model": "llama", "stream": true, "messages": [] });
    let answer = send(CHAT, &authorized, stream.to_string()).await?;
    ensure!(
        !answer.text.contains("usage") && answer.text.ends_with("data: [DONE]\n\n"),
        "{answer:?}"
    );
    let mut with_usage = stream.clone();
    with_usage["stream_options"] = json!({ "include_usage": true });
    let answer = send(CHAT, &authorized, with_usage.to_string()).await?;
    ensure!(answer.text.contains(USAGE), "{answer:?}");
    // An image of its own may reject it: its tokens are estimated.
    world
        .models("a")
        .delete("one", &kube::api::DeleteParams::default())
        .await?;
    world
        .apply(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "one", "namespace": "a" },
            "spec": { "model": { "source": "custom" }, "engine": { "type": "llamacpp" }, "image": "own:1" },
        }))
        .await?;
    world.serves("a", "one", engine.port).await?;
    eventually(PATIENCE, async || {
        let mut named = stream.clone();
        named["model"] = json!("one");
        let answer = send(CHAT, &authorized, named.to_string()).await?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(!engine.last()?.body.windows(5).any(|part| part == b"usage"));
        ensure!(tokens("output", "estimate") >= 2);
        Ok(())
    })
    .await?;

    // Refusals have the form of their API.
    let absent = json!({ "model": "absent" }).to_string();
    let error = send("/v1/messages", &[("x-api-key", KEY)], absent.clone()).await?;
    let json = error.json();
    ensure!(
        error.status == 404 && json["type"] == "error" && json["error"]["type"] == "not_found_error",
        "{json}"
    );
    let error = send("/v1/messages", &[("x-api-key", "wrong")], absent.clone())
        .await?
        .json();
    ensure!(error["error"]["type"] == "authentication_error", "{error}");
    let error = send(CHAT, &[("x-api-key", KEY)], absent).await?;
    error.refused(404, "model_not_found", "absent")?;
    let not_passed_on = json!({ "model": "one" }).to_string();
    send("/v1/load_lora_adapter", &authorized, not_passed_on)
        .await?
        .refused(404, "not_found", "/v1/rerank")?;
    limits_are_taken_in(&limits, async || {
        send(CHAT, &authorized, json!({ "model": "one" }).to_string()).await
    })
    .await
}

/// A changed file limits requests, and one without limits does not.
async fn limits_are_taken_in(file: &std::path::Path, send: impl AsyncFn() -> Result<Answer>) -> Result<()> {
    fs::write(
        file,
        "limits: [{name: none, requestsPerMinute: 0, match: {models: [a/one]}}]",
    )?;
    eventually(PATIENCE, async || {
        let refused = send().await?;
        refused.refused(
            429,
            "rate_limit_exceeded",
            "limit 'none' of key:shop is reached, 0 requests a minute",
        )?;
        ensure!(refused.headers["x-ratelimit-limit-requests"] == "0", "{refused:?}");
        Ok(())
    })
    .await?;
    fs::write(file, "limits: [{name: one, tokensPerMinute: 1000000}]")?;
    eventually(PATIENCE, async || {
        let answer = send().await?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(answer.headers["x-ratelimit-limit-tokens"] == "1000000", "{answer:?}");
        Ok(())
    })
    .await
}
