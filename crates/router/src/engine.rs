//! Requests to engines.
//!
//! The [`Balancer`] chooses the replica, and the [`Pool`] has its connection, or a new one is opened. A connection that fails before
//! the first byte of the request is sent is replaced, by one to another replica if need be. Once anything is sent, the request is
//! not repeated: it may have been processed.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode, Uri};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use runway_api::choice::Version;
use runway_operator::destination::NotPods;
use runway_operator::services::ServicePort;
use runway_operator::telemetry::chain;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::balance::{Balancer, Chosen, Decision, Replica, Replicas};
use crate::body::Body;
use crate::pool::{Open, Pool, is_kept};
use crate::prompt::Prompt;

/// Replicas that are tried for a request before its model is looked at again.
const TRIED: usize = 3;
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

/// Finds the replicas behind a Service.
pub type Lookup = Arc<dyn Fn(&ServicePort) -> Result<Replicas, Unreachable> + Send + Sync>;

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
    balancer: Balancer,
    pool: Pool,
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
        let replica = Replica {
            pod: "on-loopback".into(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, at.port)),
        };
        Ok(Replicas {
            all: vec![replica],
            are_engines: true,
        })
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

/// A connection to a replica for one request.
pub struct Connection {
    engines: Engines,
    at: ServicePort,
    prompt: Prompt,
    chosen: Chosen,
    open: Open,
    /// It had a request before. Its end says nothing about the replica.
    is_kept: bool,
}

impl Engines {
    /// Finds replicas in this way.
    pub fn new(lookup: Lookup) -> Self {
        Self {
            lookup,
            balancer: Balancer::default(),
            pool: Pool::default(),
        }
    }

    /// Connects to the replica that is best for a prompt.
    ///
    /// # Errors
    /// The Service has no replica, or none of those that were tried accepts a connection in time.
    pub async fn connect(&self, at: &ServicePort, prompt: &Prompt) -> Result<Connection, Error> {
        let mut tried = Vec::new();
        let mut obstacle = "it has no ready pod".to_owned();
        while tried.len() < TRIED {
            let Some(chosen) = self.choose(at, prompt, &tried)? else {
                break;
            };
            let opened = match self.pool.take(chosen.address) {
                Some(open) => Ok((open, true)),
                None => open(chosen.address).await.map(|open| (open, false)),
            };
            match opened {
                Ok((open, is_kept)) => {
                    return Ok(Connection {
                        engines: self.clone(),
                        at: at.clone(),
                        prompt: prompt.clone(),
                        chosen,
                        open,
                        is_kept,
                    });
                }
                Err(error) => {
                    chosen.refused(Instant::now());
                    tried.push(chosen.address);
                    obstacle = error;
                }
            }
        }
        Err(Error::NotConnected(at.clone(), obstacle))
    }

    /// Chooses the replica that is best for a prompt, for a client that connects to it itself.
    ///
    /// # Errors
    /// The Service has no replica that may be chosen.
    pub fn pick(
        &self,
        at: &ServicePort,
        prompt: &Prompt,
        may_be_chosen: impl Fn(SocketAddr) -> bool,
    ) -> Result<Chosen, Error> {
        let replicas = self.replicas(at)?;
        let addresses = replicas.all.iter().map(|replica| replica.address);
        // As if they had been tried: what is known about them is kept.
        let others: Vec<SocketAddr> = addresses.filter(|address| !may_be_chosen(*address)).collect();
        let obstacle = if others.is_empty() {
            "it has no ready pod"
        } else {
            "it has no ready pod of those that the Gateway allows"
        };
        let chosen = self.balancer.choose(at, replicas, prompt, &others, Instant::now());
        chosen.ok_or_else(|| Error::NotConnected(at.clone(), obstacle.to_owned()))
    }

    fn choose(&self, at: &ServicePort, prompt: &Prompt, tried: &[SocketAddr]) -> Result<Option<Chosen>, Error> {
        let replicas = self.replicas(at)?;
        Ok(self.balancer.choose(at, replicas, prompt, tried, Instant::now()))
    }

    /// Explains the choice for a prompt. Nothing is sent.
    ///
    /// # Errors
    /// The Service does not exist, or does not lead to pods of its namespace.
    pub fn explain(&self, at: &ServicePort, prompt: &Prompt) -> Result<Version, Error> {
        let replicas = self.replicas(at)?;
        Ok(self.balancer.explain(at, replicas, prompt, Instant::now()))
    }

    fn replicas(&self, at: &ServicePort) -> Result<Replicas, Error> {
        (self.lookup)(at).map_err(|unreachable| match unreachable {
            Unreachable::NotPods(refused) => Error::NotPods(at.clone(), refused),
            Unreachable::Unknown => Error::NotConnected(at.clone(), Unreachable::Unknown.to_string()),
        })
    }

    /// Names of the models that an engine serves; `None` if it does not offer the list.
    ///
    /// # Errors
    /// The engine cannot be reached, or its response is not a list.
    pub async fn models(&self, at: &ServicePort) -> Result<Option<Vec<String>>, Error> {
        let no_list = |error: String| Error::NoList(at.clone(), error);
        let listed = async {
            let connection = self.connect(at, &Prompt::default()).await?;
            let request = connection.request(Method::GET, "/v1/models", HeaderMap::new(), Body::default());
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

/// Opens a connection.
async fn open(address: SocketAddr) -> Result<Open, String> {
    let stream = timeout(CONNECTED_WITHIN, TcpStream::connect(address))
        .await
        .map_err(|_| format!("no connection within {} seconds", CONNECTED_WITHIN.as_secs()))?
        .map_err(|error| error.to_string())?;
    // Only a matter of speed.
    let _ = stream.set_nodelay(true);
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| chain(&error))?;
    let running = AbortOnDropHandle::new(tokio::spawn(async move {
        // The task that waits for the response gets the error.
        let _ = connection.await;
    }));
    Ok(Open { sender, running })
}

impl Connection {
    /// A request with these headers and those of the connection.
    pub fn request(&self, method: Method, path: &'static str, headers: HeaderMap, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_static(path);
        *request.headers_mut() = headers;
        if let Ok(host) = HeaderValue::from_str(&self.at.host()) {
            request.headers_mut().insert(header::HOST, host);
        }
        request
    }

    /// Sends a request, and waits for the header of its response. Dropping the future or the response closes the connection, which
    /// ends the work of the engine.
    ///
    /// # Errors
    /// The connection ended before the response.
    pub async fn send(self, mut request: Request<Body>) -> Result<Response<Answer>, Error> {
        let mut connection = self;
        let mut attempts = 1..TRIED;
        loop {
            let mut failed = match connection.open.sender.try_send_request(request).await {
                Ok(response) => return connection.answered(response),
                Err(failed) => failed,
            };
            let unsent = failed.take_message();
            if unsent.is_none() || !connection.is_kept {
                connection.chosen.failed(Instant::now());
            }
            match unsent.filter(|_| attempts.next().is_some()) {
                // Nothing has been sent.
                Some(unsent) => request = unsent,
                None => return Err(Error::Broken(connection.at, chain(failed.error()))),
            }
            let Self {
                engines, at, prompt, ..
            } = connection;
            connection = engines.connect(&at, &prompt).await?;
        }
    }

    fn answered(self, mut response: Response<Incoming>) -> Result<Response<Answer>, Error> {
        let status = response.status();
        if status.is_informational() {
            return Err(Error::Status(self.at, status));
        }
        if status.is_server_error() {
            self.chosen.failed(Instant::now());
        } else {
            self.chosen.succeeded();
        }
        let open = (self.open, is_kept(response.headers()).then_some(self.engines.pool));
        *response.headers_mut() = returned(response.headers());
        Ok(response.map(|incoming| Answer {
            incoming,
            open: Some(open),
            chosen: self.chosen,
        }))
    }
}

/// The body of a response, read from the engine only as fast as it is taken.
pub struct Answer {
    incoming: Incoming,
    /// The connection, and the pool that keeps it after the last byte.
    open: Option<(Open, Option<Pool>)>,
    chosen: Chosen,
}

impl Answer {
    /// The choice of the replica that answers.
    pub fn decision(&self) -> &Decision {
        &self.chosen.decision
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.incoming).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let is_whole = http_body::Body::is_end_stream(&self.incoming);
        if let Some((open, Some(pool))) = self.open.take().filter(|_| is_whole)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(pool.keep(self.chosen.address, open));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpSocket};

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
        let connection = Engines::new(loopback()).connect(&at, &Prompt::default()).await?;
        let request = connection.request(Method::GET, "/v1/models", HeaderMap::new(), Body::default());
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

    /// An engine that answers any number of requests on each connection with these headers. Counts its connections.
    async fn engine(headers: &'static str, closes: bool) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    while stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {
                        let response = format!("HTTP/1.1 200 OK\r\n{headers}\r\n{{}}");
                        if stream.write_all(response.as_bytes()).await.is_err() || closes {
                            return;
                        }
                    }
                });
            }
        });
        (address, connections)
    }

    fn at() -> ServicePort {
        ServicePort {
            namespace: "team".parse().unwrap(),
            service: "gemma".parse().unwrap(),
            port: 8000,
        }
    }

    /// Engines with replicas at these addresses.
    fn engines(addresses: &[SocketAddr]) -> Engines {
        let all = addresses.iter().map(|address| Replica {
            pod: address.to_string().into(),
            address: *address,
        });
        let replicas = Replicas {
            all: all.collect(),
            are_engines: true,
        };
        Engines::new(Arc::new(move |_| Ok(replicas.clone())))
    }

    /// Sends a request, and reads the response to its end.
    async fn whole(engines: &Engines) -> Result<Bytes, String> {
        let connection = engines
            .connect(&at(), &Prompt::default())
            .await
            .map_err(|error| error.to_string())?;
        let request = connection.request(
            Method::POST,
            "/v1/chat/completions",
            HeaderMap::new(),
            Body::new(["{}".into()]),
        );
        let response = connection.send(request).await.map_err(|error| error.to_string())?;
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        Ok(body.to_bytes())
    }

    /// Waits until the pool has kept the connection of the last request, or cannot.
    async fn kept(engines: &Engines, address: SocketAddr) -> bool {
        for _ in 0..100 {
            if engines.pool.has(address) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        false
    }

    #[tokio::test]
    async fn connection_is_used_again_if_the_engine_keeps_it() {
        let (address, connections) = engine("Content-Length: 2\r\n", false).await;
        let engines = engines(&[address]);
        for _ in 0..5 {
            assert_eq!(whole(&engines).await.unwrap(), "{}");
            assert!(kept(&engines, address).await);
        }
        assert_eq!(connections.load(Ordering::SeqCst), 1);
        for headers in [
            "Content-Length: 2\r\nServer: llama.cpp\r\n",
            "Content-Length: 2\r\nConnection: close\r\n",
        ] {
            let (address, connections) = engine(headers, false).await;
            let engines = super::tests::engines(&[address]);
            for _ in 0..3 {
                assert_eq!(whole(&engines).await.unwrap(), "{}");
            }
            assert_eq!(connections.load(Ordering::SeqCst), 3, "{headers}");
        }
    }

    #[tokio::test]
    async fn connection_that_its_engine_closed_is_replaced() {
        let (address, connections) = engine("Content-Length: 2\r\n", true).await;
        let engines = engines(&[address]);
        for _ in 0..20 {
            assert_eq!(whole(&engines).await.unwrap(), "{}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(connections.load(Ordering::SeqCst), 20);
    }

    #[tokio::test]
    async fn unsent_request_is_a_failure_of_the_replica_only_on_a_new_connection() {
        let (address, _) = engine("Content-Length: 2\r\n", false).await;
        let engines = engines(&[address]);
        for (is_kept, failures) in [(false, 1), (true, 0)] {
            let connection = engines.connect(&at(), &Prompt::default()).await.unwrap();
            assert_eq!(connection.is_kept, is_kept);
            // Such as an engine that closes the connection at this moment.
            connection.open.running.abort();
            tokio::task::yield_now().await;
            let request = connection.request(Method::GET, "/v1/models", HeaderMap::new(), Body::default());
            let mut sent = Box::pin(connection.send(request));
            assert!(futures::poll!(&mut sent).is_pending(), "another connection is opened");
            assert_eq!(engines.balancer.failures(&at(), address), failures);
            assert!(sent.await.is_ok());
            assert_eq!(whole(&engines).await.unwrap(), "{}");
            assert!(kept(&engines, address).await);
        }
    }

    #[tokio::test]
    async fn replica_that_accepts_no_connection_is_skipped() {
        // It has a port and does not listen.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let gone = socket.local_addr().unwrap();
        let (address, _) = engine("Content-Length: 2\r\n", false).await;
        let engines = engines(&[gone, address]);
        for _ in 0..4 {
            assert_eq!(whole(&engines).await.unwrap(), "{}");
        }
        let none = super::tests::engines(&[gone]);
        let refused = whole(&none).await.unwrap_err();
        assert!(
            refused.starts_with("cannot connect to Service 'gemma' port 8000: "),
            "{refused}"
        );
    }

    #[test]
    fn names_are_read_from_a_list() {
        let list = br#"{"object":"list","data":[{"id":"a","extra":1},{"id":"b"}],"models":[]}"#;
        assert_eq!(names(list).unwrap(), ["a", "b"]);
        assert!(names(b"{}").is_err() && names(b"text").is_err());
    }
}
