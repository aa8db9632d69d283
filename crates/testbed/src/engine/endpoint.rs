//! Requests to an engine, wherever it runs.

use anyhow::{Context, Result, ensure};
use axum::http::{Request, Response, StatusCode, header};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::SENTENCE;

/// Path of chat completions in OpenAI's API.
pub const CHAT: &str = "/v1/chat/completions";
/// Path of the list of models in OpenAI's API.
pub const MODELS: &str = "/v1/models";
/// Attempts of a stream.
const STREAMS: u32 = 4;

/// Address of an engine. Paths are the engine's own.
pub struct Endpoint {
    client: Client,
    prefix: String,
}

impl Endpoint {
    /// An engine that `client` reaches itself.
    pub fn machine(client: Client) -> Self {
        let prefix = String::new();
        Self { client, prefix }
    }

    /// An engine behind a Service of namespace `default`, through the API server's proxy.
    pub fn service(client: Client, service: &str, port: u16) -> Self {
        let prefix = format!("/api/v1/namespaces/default/services/{service}:{port}/proxy");
        Self { client, prefix }
    }

    /// The client, for requests of other kinds.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Response to a GET.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        text(self.send(path, None).await?).await
    }

    /// Response to a POST.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(StatusCode, String)> {
        text(self.send(path, Some(body)).await?).await
    }

    /// The JSON that it answers with 200.
    pub async fn answer(&self, path: &str, request: &Value) -> Result<Value> {
        let (status, text) = self.post(path, request).await?;
        ensure!(status == StatusCode::OK, "{path}: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// Checks that the engine is healthy and lists this model and no other. Returns the model's entry.
    pub async fn lists_only(&self, model: &str) -> Result<Value> {
        let (status, health) = self.get("/health").await?;
        ensure!(status == StatusCode::OK, "/health: {status} {health}");
        let (_, models) = self.get(MODELS).await?;
        let models: Value = serde_json::from_str(&models)?;
        ensure!(
            models["data"].as_array().is_some_and(|list| list.len() == 1),
            "{models}"
        );
        ensure!(models["data"][0]["id"] == model, "{models}");
        Ok(models["data"][0].clone())
    }

    /// Checks that each prompt is answered with the whole of [`SENTENCE`], which then stops.
    pub async fn says_the_sentence(&self, model: &str, prompts: &[&str]) -> Result<()> {
        for prompt in prompts {
            let answer = self.answer(CHAT, &chat_request(model, prompt)).await?;
            let choice = &answer["choices"][0];
            ensure!(choice["message"]["content"] == SENTENCE, "{prompt}: {answer}");
            ensure!(choice["finish_reason"] == "stop", "{prompt}: {answer}");
        }
        Ok(())
    }

    /// The engine's metrics.
    pub async fn metrics(&self) -> Result<String> {
        let (status, metrics) = self.get("/metrics").await?;
        ensure!(status == StatusCode::OK, "/metrics: {status} {metrics}");
        Ok(metrics)
    }

    /// The parts of a streamed chat completion that have content, in their order. The stream must end in order.
    pub async fn streamed(&self, request: &Value) -> Result<Vec<String>> {
        let mut request = request.clone();
        request["stream"] = true.into();
        let (status, text) = self.post_stream(&request).await?;
        ensure!(status == StatusCode::OK, "{status} {text}");
        let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (end, chunks) = events.split_last().context("no events")?;
        ensure!(*end == "[DONE]", "{text}");
        let mut contents = Vec::new();
        for chunk in chunks {
            let chunk: Value = serde_json::from_str(chunk)?;
            let content = chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
            contents.push(content.to_owned());
        }
        contents.retain(|content| !content.is_empty());
        Ok(contents)
    }

    /// Response to a streamed request. Through the API server, one stream of llama-server in a hundred ends early: the engine
    /// closes each connection after a stream, and the proxy of kube-apiserver 1.36 then may close it before it has read everything
    /// ("ReverseProxy read error during body copy: use of closed network connection"). Such a request is repeated.
    async fn post_stream(&self, request: &Value) -> Result<(StatusCode, String)> {
        for _ in 1..STREAMS {
            match self.post(CHAT, request).await {
                Err(error) if format!("{error:#}").contains("unexpected EOF") => {
                    crate::say(&format!(
                        "a stream through the API server ended early, once more: {error:#}"
                    ));
                }
                response => return response,
            }
        }
        self.post(CHAT, request).await
    }

    /// The response to a GET, or to a POST if there is a body.
    pub async fn send(&self, path: &str, body: Option<&Value>) -> Result<Response<Body>> {
        let request = self.request(path, body)?.map(Body::from);
        Ok(self.client.send(request).await?)
    }

    /// The request that [`Endpoint::send`] sends.
    pub fn request(&self, path: &str, body: Option<&Value>) -> Result<Request<Vec<u8>>> {
        let method = if body.is_some() { "POST" } else { "GET" };
        Ok(Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())?)
    }
}

/// The body of a chat completion with one message.
pub fn chat_request(model: &str, prompt: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": prompt}]})
}

async fn text(response: Response<Body>) -> Result<(StatusCode, String)> {
    let status = response.status();
    let body = response.into_body().collect_bytes().await?;
    Ok((status, String::from_utf8(body.into())?))
}
