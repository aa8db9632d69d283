//! Requests to a router or to an engine, on connections of one's own.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::engine::CHAT;

/// A request with this bearer token, if it is not empty.
pub fn request(method: Method, path: &str, token: &str, body: impl Into<Bytes>) -> Result<Request<Full<Bytes>>> {
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, "test");
    if !token.is_empty() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    Ok(request.body(Full::new(body.into()))?)
}

/// A chat completion. It has a content type, without which some routers refuse it.
pub fn chat(token: &str, body: &Value) -> Result<Request<Full<Bytes>>> {
    let mut request = request(Method::POST, CHAT, token, body.to_string())?;
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(request)
}

/// A connection. Dropping it closes it.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    _task: AbortOnDropHandle<()>,
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let task = tokio::spawn(async move {
            // The request that is sent gets the error.
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Sends a request after the last one, and waits for the header of its response.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }

    /// Sends a request, and calls `event` with each event of its stream when that arrives. An error if it breaks off.
    pub async fn events(&mut self, request: Request<Full<Bytes>>, mut event: impl FnMut(&str)) -> Result<()> {
        let mut body = self.send(request).await?.into_body();
        let mut line = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            for byte in data {
                if byte != b'\n' {
                    line.push(byte);
                    continue;
                }
                let text = String::from_utf8(std::mem::take(&mut line))?;
                if let Some(data) = text.strip_prefix("data: ") {
                    event(data);
                }
            }
        }
        Ok(())
    }
}

/// A response that has begun. Dropping it is a client that goes away.
pub struct Begun {
    /// The response.
    pub response: Response<Incoming>,
    _connection: Connection,
}

impl Begun {
    /// Sends a request on a connection of its own.
    pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<Self> {
        let mut connection = Connection::open(address).await?;
        Ok(Self {
            response: connection.send(request).await?,
            _connection: connection,
        })
    }

    /// The whole response. An error if it breaks off.
    pub async fn whole(self) -> Result<Answer> {
        Answer::of(self.response).await
    }
}

/// A whole response.
#[derive(Debug)]
pub struct Answer {
    /// Code of the response.
    pub status: StatusCode,
    /// Headers of the response, without trailers.
    pub headers: HeaderMap,
    /// Body as UTF-8.
    pub text: String,
}

impl Answer {
    /// Whether the server closes the connection: llama-server does after 100 requests.
    pub fn closes(&self) -> bool {
        self.headers
            .get(header::CONNECTION)
            .is_some_and(|value| value == "close")
    }

    /// Receives the rest of a response. An error if it breaks off.
    pub async fn of(response: Response<Incoming>) -> Result<Self> {
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
        Ok(Self {
            status: parts.status,
            headers: parts.headers,
            text,
        })
    }

    /// The body as JSON; null if it is something else.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Checks that it is a refusal in OpenAI's form, with this code and these words.
    pub fn refused(&self, status: u16, code: &str, words: &str) -> Result<()> {
        let error = &self.json()["error"];
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(
            self.status == status && error["code"] == code && message.contains(words),
            "not {status} {code} `{words}`: {self:?}"
        );
        Ok(())
    }
}

/// Text of an admin port, such as that of `/metrics`; an error if the status is not a success.
pub async fn get(admin: SocketAddr, path: &str) -> Result<String> {
    succeed(admin, Method::GET, path, "").await
}

/// Text of the response to a POST; an error if the status is not a success.
pub async fn post(address: SocketAddr, path: &str, body: &Value) -> Result<String> {
    succeed(address, Method::POST, path, body.to_string()).await
}

async fn succeed(address: SocketAddr, method: Method, path: &str, body: impl Into<Bytes>) -> Result<String> {
    let begun = Begun::send(address, request(method, path, "", body)?).await?;
    let answer = begun.whole().await?;
    ensure!(answer.status.is_success(), "{path}: {answer:?}");
    Ok(answer.text)
}
