//! Requests to engines.
//!
//! Each request has a connection of its own: kube-proxy spreads connections, so new replicas get their share at once, and no
//! request meets a connection that its engine is about to close (llama-server closes each after a stream, although it announces
//! keep-alive). A request whose connection fails has not been sent, so another connection may be tried; once the header is sent,
//! it is not repeated.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode, Uri};
use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use runway_http::body::Holding;
use runway_operator::destination::NotPods;
use runway_operator::services::ServicePort;
use runway_operator::telemetry::chain;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// Longest wait for a connection.
const CONNECTED_WITHIN: Duration = Duration::from_secs(3);
/// Largest header of a response, and largest part of a body that waits in memory.
const BUFFER: usize = 16 * 1024;
/// Largest list of models of an engine.
const LARGEST_LIST: usize = 64 * 1024;
/// Longest wait for the list of models of an engine.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

/// Headers of a request that an engine gets. Never those with credentials: they are for the router.
const FORWARDED: [HeaderName; 6] = [
    header::ACCEPT,
    header::CONTENT_TYPE,
    header::USER_AGENT,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-request-id"),
];
/// Headers of a response that a client gets. All models share the address of the router, so an engine sets nothing that concerns
/// others, such as cookies, and nothing about its connection.
const RETURNED: [HeaderName; 9] = [
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::DATE,
    header::RETRY_AFTER,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-request-id"),
];
/// Prefixes of more such headers, which clients of OpenAI read.
const RETURNED_PREFIXES: [&str; 2] = ["openai-", "x-ratelimit-"];

/// Finds the addresses of a Service.
pub type Lookup = Arc<dyn Fn(&ServicePort) -> Result<Vec<SocketAddr>, Unreachable> + Send + Sync>;

/// Reason why a Service has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// No such Service.
    #[error("the Service does not exist")]
    Unknown,
    /// It does not lead to pods of its namespace.
    #[error(transparent)]
    NotPods(#[from] NotPods),
}

/// Connects to engines. Cheap to clone.
#[derive(Clone)]
pub struct Engines {
    lookup: Lookup,
    /// Connections so far, to spread them over several addresses.
    connections: Arc<AtomicUsize>,
}

/// A request to an engine failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed: nothing has been sent.
    #[error("cannot connect to {0}: {1}")]
    NotConnected(ServicePort, String),
    /// The Service does not lead to pods of its namespace: nothing is sent.
    #[error("no request is sent to {0}: {1}")]
    NotPods(ServicePort, NotPods),
    /// The connection ended before the response.
    #[error("{0} closed the connection before its response: {1}")]
    Broken(ServicePort, String),
    /// The status is not that of a response, such as a change of the protocol.
    #[error("unexpected response from {0}: status {1}")]
    Status(ServicePort, StatusCode),
    /// The list of models is not one.
    #[error("{0} does not list its models at /v1/models: {1}")]
    NoList(ServicePort, String),
}

/// On this machine, each Service at its port: for engines of tests.
pub fn loopback() -> Lookup {
    Arc::new(|at| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, at.port));
        Ok(vec![address])
    })
}

/// The headers of a client that an engine gets. Copies, because those of a request share the memory of its connection, which is
/// free while the request is held.
pub fn forwarded(of_client: &HeaderMap) -> HeaderMap {
    let copies = FORWARDED.into_iter().filter_map(|name| {
        let value = of_client.get(&name)?;
        Some((name, HeaderValue::from_bytes(value.as_bytes()).ok()?))
    });
    copies.collect()
}

/// The headers of an engine that a client gets.
fn returned(of_engine: &HeaderMap) -> HeaderMap {
    let is_returned = |name: &HeaderName| {
        RETURNED.contains(name) || RETURNED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
    };
    let returned = of_engine.iter().filter(|(name, _)| is_returned(name));
    returned.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// A connection to an engine for one request.
pub struct Connection {
    at: ServicePort,
    stream: TcpStream,
}

impl Engines {
    /// Finds addresses in this way.
    pub fn new(lookup: Lookup) -> Self {
        Self {
            lookup,
            connections: Arc::default(),
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The Service has no address, or none accepts a connection in time.
    pub async fn connect(&self, at: &ServicePort) -> Result<Connection, Error> {
        let failed = |error: String| Error::NotConnected(at.clone(), error);
        let mut addresses = (self.lookup)(at).map_err(|unreachable| match unreachable {
            Unreachable::NotPods(refused) => Error::NotPods(at.clone(), refused),
            Unreachable::Unknown => failed(Unreachable::Unknown.to_string()),
        })?;
        if addresses.is_empty() {
            return Err(failed("it has no ready pod".to_owned()));
        }
        let first = self.connections.fetch_add(1, Ordering::Relaxed) % addresses.len();
        addresses.rotate_left(first);
        let stream = timeout(CONNECTED_WITHIN, TcpStream::connect(addresses.as_slice()))
            .await
            .map_err(|_| failed(format!("no connection within {} seconds", CONNECTED_WITHIN.as_secs())))?
            .map_err(|error| failed(error.to_string()))?;
        // Only a matter of speed.
        let _ = stream.set_nodelay(true);
        Ok(Connection { at: at.clone(), stream })
    }

    /// Names of the models that an engine serves; `None` if it does not offer the list.
    ///
    /// # Errors
    /// The engine cannot be reached, or its response is not a list.
    pub async fn models(&self, at: &ServicePort) -> Result<Option<Vec<String>>, Error> {
        let no_list = |error: String| Error::NoList(at.clone(), error);
        let listed = async {
            let connection = self.connect(at).await?;
            let request = connection.request(Method::GET, "/v1/models", HeaderMap::new(), Empty::<Bytes>::new());
            let response = connection.send(request).await?;
            if response.status().is_client_error() {
                return Ok(None);
            }
            if !response.status().is_success() {
                return Err(no_list(response.status().to_string()));
            }
            let body = Limited::new(response.into_body(), LARGEST_LIST).collect().await;
            let body = body.map_err(|error| no_list(chain(error.as_ref())))?.to_bytes();
            names(&body).map(Some).map_err(|error| no_list(error.to_string()))
        };
        let late = || no_list(format!("no response within {} seconds", LISTED_WITHIN.as_secs()));
        timeout(LISTED_WITHIN, listed).await.unwrap_or_else(|_| Err(late()))
    }
}

/// Names in a list of models.
///
/// # Errors
/// The text is not such a list.
pub fn names(list: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        id: String,
    }
    let list: List = serde_json::from_slice(list)?;
    Ok(list.data.into_iter().map(|entry| entry.id).collect())
}

impl Connection {
    /// A request with these headers and those of the connection.
    pub fn request<B>(&self, method: Method, path: &'static str, headers: HeaderMap, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_static(path);
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::from_str(&self.at.host()) {
            headers.insert(header::HOST, host);
        }
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        request
    }

    /// Sends a request, and waits for the header of its response. Dropping the future or the response closes the connection, which
    /// ends the work of the engine.
    ///
    /// # Errors
    /// The connection ended before the response.
    pub async fn send<B>(self, request: Request<B>) -> Result<Response<Answer>, Error>
    where
        B: Body + Send + Unpin + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Self { at, stream } = self;
        let broken = |error: hyper::Error| Error::Broken(at.clone(), chain(&error));
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // The task that waits for the response gets the error.
            let _ = connection.await;
        }));
        let mut response = sender.send_request(request).await.map_err(broken)?;
        if response.status().is_informational() {
            return Err(Error::Status(at, response.status()));
        }
        *response.headers_mut() = returned(response.headers());
        Ok(response.map(|incoming| Holding::new(incoming, connection)))
    }
}

/// The body of a response, read from the engine only as fast as it is taken.
pub type Answer = Holding<Incoming, AbortOnDropHandle<()>>;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// The response of an engine that sends this.
    async fn response(sent: &'static str) -> Result<Response<Answer>, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = ServicePort {
            namespace: "team".parse().unwrap(),
            service: "gemma".parse().unwrap(),
            port: listener.local_addr().unwrap().port(),
        };
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            stream.write_all(sent.as_bytes()).await.unwrap();
        });
        let connection = Engines::new(loopback()).connect(&at).await?;
        let request = connection.request(Method::GET, "/v1/models", HeaderMap::new(), Empty::<Bytes>::new());
        connection.send(request).await
    }

    #[tokio::test]
    async fn client_gets_the_headers_of_an_api_and_no_others() {
        let sent = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 2\r\nCache-Control: no-cache\r\n\
            Retry-After: 3\r\nX-Request-Id: 7\r\nOpenAI-Processing-Ms: 5\r\nX-RateLimit-Remaining-Tokens: 9\r\nTraceparent: 00-a\r\n\
            Set-Cookie: a=b; Domain=example.com\r\nClear-Site-Data: *\r\nAccess-Control-Allow-Origin: *\r\n\
            Strict-Transport-Security: max-age=0\r\nLocation: http://elsewhere\r\nAlt-Svc: h2=\":1\"\r\nRefresh: 0\r\n\
            Link: </x>; rel=preload\r\nServer: llama.cpp\r\nUpgrade: h2c\r\nTrailer: x\r\nWWW-Authenticate: Basic\r\n\
            Connection: close\r\n\r\n{}";
        let response = response(sent).await.unwrap();
        let mut names: Vec<&str> = response.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "cache-control",
                "content-length",
                "content-type",
                "openai-processing-ms",
                "retry-after",
                "traceparent",
                "x-ratelimit-remaining-tokens",
                "x-request-id",
            ]
        );
    }

    #[tokio::test]
    async fn change_of_the_protocol_is_not_a_response() {
        let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        let refused = response(switching)
            .await
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            refused.starts_with("unexpected response from Service 'gemma'"),
            "{refused}"
        );
        let early = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(response(early).await.unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn names_are_read_from_a_list() {
        let list = br#"{"object":"list","data":[{"id":"a","extra":1},{"id":"b"}],"models":[]}"#;
        assert_eq!(names(list).unwrap(), ["a", "b"]);
        assert!(names(b"{}").is_err() && names(b"text").is_err());
    }
}
