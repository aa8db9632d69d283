//! Clients that are slow, many, silent, or send too much.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use runway_http::{Budget, Form, Limits, Tls, serve};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

const LIMITS: Limits = Limits {
    connections: 8,
    handshake: Duration::from_secs(2),
    header: Duration::from_secs(2),
    header_bytes: 8 * 1024,
    body: 64 * 1024,
    ..Limits::ADMIN
};
/// Longest time to wait for what must happen: long on a busy machine, and shorter than limits of servers that a test does not set.
const PATIENCE: Duration = Duration::from_secs(20);
const GET: &str = "GET /ok HTTP/1.1\r\nhost: h\r\n\r\n";

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    /// Lets one request to `/wait` go on.
    go_on: Arc<Semaphore>,
}

impl Server {
    async fn start(limits: Limits) -> Self {
        Self::with(limits, None, Router::new()).await
    }

    async fn with(limits: Limits, tls: Option<Tls>, more: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, go_on) = (CancellationToken::new(), Arc::new(Semaphore::new(0)));
        let wait = Arc::clone(&go_on);
        let router = more
            .route("/ok", get(async || "fine"))
            .route("/length", post(async |body: Bytes| body.len().to_string()))
            .route(
                "/wait",
                post(async move |_: Bytes| {
                    wait.acquire().await.unwrap().forget();
                    "waited"
                }),
            );
        let task = tokio::spawn(serve(listener, tls, router, limits, shutdown.clone()));
        Self {
            address,
            shutdown,
            task,
            go_on,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request on a connection of its own, and returns the whole response; what there is of it if the connection is closed.
    async fn ask(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        read(&mut stream).await
    }
}

/// A whole response, or what there is of it when the connection is closed.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    while !is_whole(&text) {
        match timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap() {
            Ok(count @ 1..) => text.extend_from_slice(&buffer[..count]),
            _ => break,
        }
    }
    String::from_utf8(text).unwrap()
}

/// Whether it has as much body as its header says.
fn is_whole(response: &[u8]) -> bool {
    let text = String::from_utf8_lossy(response);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| body.len() >= length.parse().unwrap())
}

/// Waits until the server closes the connection.
async fn is_closed(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.is_ok()
}

fn post_of(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n")
}

fn chunk(length: usize) -> String {
    format!("{length:x}\r\n{}\r\n", "x".repeat(length))
}

/// A certificate for 127.0.0.1, and a client that trusts it.
fn tls() -> (Tls, TlsConnector) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let tls = Tls::from_pem(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(made.cert.der().to_vec())).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (tls, TlsConnector::from(Arc::new(config)))
}

async fn over_tls(server: &Server, client: &TlsConnector) -> impl AsyncRead + AsyncWrite + Unpin + use<> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    client.connect(name, server.connect().await).await.unwrap()
}

#[tokio::test]
async fn a_header_that_does_not_end_closes_the_connection() {
    let server = Server::start(LIMITS).await;
    let (mut silent, mut partial) = (server.connect().await, server.connect().await);
    partial.write_all(b"GET /ok HTTP/1.1\r\nhost:").await.unwrap();
    assert!(is_closed(&mut silent).await && is_closed(&mut partial).await);
}

#[tokio::test]
async fn a_header_that_is_too_long_is_refused() {
    let server = Server::start(LIMITS).await;
    let answer = server
        .ask(&format!("GET /ok HTTP/1.1\r\nhost: h\r\nx: {}", "x".repeat(9000)))
        .await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_request_is_answered_while_half_open_connections_keep_coming() {
    let server = Server::start(Limits {
        header: Duration::from_mins(1),
        ..LIMITS
    })
    .await;
    let mut held = Vec::new();
    for number in 0..200 {
        let mut stream = server.connect().await;
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET /ok HTTP/1.1\r\nx: ").await;
        }
        held.push(stream);
    }
    let mut stream = server.connect().await;
    stream.write_all(GET.as_bytes()).await.unwrap();
    let answer = read(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn an_idle_connection_of_another_client_survives_the_flood() {
    let server = Server::start(Limits {
        header: Duration::from_mins(1),
        ..LIMITS
    })
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(server.address).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(server.connect().await);
    }
    other.write_all(GET.as_bytes()).await.unwrap();
    let answer = read(&mut other).await;
    assert!(answer.ends_with("fine"), "{answer}");
}

#[tokio::test]
async fn requests_that_are_worked_on_are_not_closed_and_more_are_refused() {
    let server = Server::start(LIMITS).await;
    let mut working = Vec::new();
    for _ in 0..LIMITS.connections {
        let mut stream = server.connect().await;
        stream.write_all((post_of("/wait", 1) + "x").as_bytes()).await.unwrap();
        working.push(stream);
    }
    sleep(Duration::from_millis(200)).await;
    assert_eq!(server.ask(GET).await, "");
    server.go_on.add_permits(working.len());
    for mut stream in working {
        assert!(read(&mut stream).await.ends_with("waited"));
    }
}

#[tokio::test]
async fn a_body_that_is_declared_too_large_is_refused_with_the_limit() {
    let server = Server::start(LIMITS).await;
    for path in ["/length", "/ok", "/nowhere"] {
        let answer = server.ask(&(post_of(path, 100_000) + &"x".repeat(100_000))).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{path}: {answer}");
        assert!(
            answer.contains("too large: at most 64 KiB are read"),
            "{path}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_body_in_chunks_is_bounded_too() {
    let server = Server::start(LIMITS).await;
    let head = "POST /length HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    let fits = server.ask(&format!("{head}{}0\r\n\r\n", chunk(64 * 1024))).await;
    assert!(fits.ends_with("65536"), "{fits}");
    let chunks = chunk(10_000).repeat(50);
    let answer = server.ask(&format!("{head}{chunks}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("at most 64 KiB are read"), "{answer}");
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_answered() {
    let server = Server::start(Limits {
        request: Some(Duration::from_millis(200)),
        ..LIMITS
    })
    .await;
    let answer = server.ask(&(post_of("/wait", 1) + "x")).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let slow_body = server.ask(&post_of("/length", 10)).await;
    assert!(slow_body.starts_with("HTTP/1.1 503"), "{slow_body}");
}

#[tokio::test]
async fn plain_request_to_a_port_with_tls_is_answered_with_the_remedy() {
    let (tls, _) = tls();
    let server = Server::with(LIMITS, Some(tls), Router::new()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(b"GET /ok HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"),
        "{answer}"
    );
}

#[tokio::test]
async fn tls_is_spoken_and_half_a_hello_closes_the_connection() {
    let (tls, client) = tls();
    let server = Server::with(LIMITS, Some(tls), Router::new()).await;
    let mut partial = server.connect().await;
    partial.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let mut stream = over_tls(&server, &client).await;
    stream.write_all(GET.as_bytes()).await.unwrap();
    assert!(read(&mut stream).await.ends_with("fine"));
    assert!(is_closed(&mut partial).await);
}

#[tokio::test]
async fn at_shutdown_a_request_is_answered_and_an_idle_connection_is_closed() {
    let server = Server::start(Limits {
        header: Duration::from_mins(1),
        ..LIMITS
    })
    .await;
    let (mut idle, mut working) = (server.connect().await, server.connect().await);
    working.write_all((post_of("/wait", 1) + "x").as_bytes()).await.unwrap();
    idle.write_all(GET.as_bytes()).await.unwrap();
    assert!(read(&mut idle).await.ends_with("fine"));
    server.shutdown.cancel();
    assert!(is_closed(&mut idle).await);
    server.go_on.add_permits(1);
    assert!(read(&mut working).await.ends_with("waited"));
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn at_shutdown_nothing_is_waited_for_longer_than_the_limit() {
    let server = Server::start(Limits {
        drain: Duration::from_millis(100),
        // The drain ends, not the request.
        request: None,
        ..LIMITS
    })
    .await;
    let mut working = server.connect().await;
    working.write_all((post_of("/wait", 1) + "x").as_bytes()).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    server.shutdown.cancel();
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
    assert!(is_closed(&mut working).await);
}

/// 64 KiB for bodies, beyond the first KiB of each.
const BUDGET: Budget = Budget {
    body: 64 * 1024,
    always: 1024,
    received: 64 * 1024,
    worked_on: 32 * 1024,
    patience: Duration::from_secs(5),
    form: Form::Text,
};

async fn with_budget() -> Server {
    let review = Router::new().route("/review", post(async |body: Bytes| body.len().to_string()));
    Server::with(LIMITS, None, BUDGET.hold(review)).await
}

#[tokio::test]
async fn bodies_beyond_the_budget_are_refused_and_small_ones_are_not() {
    let server = with_budget().await;
    let mut held = server.connect().await;
    held.write_all((post_of("/review", 60_000) + &"x".repeat(59_000)).as_bytes())
        .await
        .unwrap();
    sleep(Duration::from_millis(200)).await;
    let refused = server.ask(&(post_of("/review", 30_000) + &"x".repeat(30_000))).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert!(refused.contains("64 KiB of memory"), "{refused}");
    let small = server.ask(&(post_of("/review", 1000) + &"x".repeat(1000))).await;
    assert!(small.ends_with("1000"), "{small}");

    held.write_all("x".repeat(1000).as_bytes()).await.unwrap();
    assert!(read(&mut held).await.ends_with("60000"));
    let now = server.ask(&(post_of("/review", 30_000) + &"x".repeat(30_000))).await;
    assert!(now.ends_with("30000"), "{now}");
}

#[tokio::test]
async fn body_counts_until_it_was_dropped_and_not_until_the_response() {
    let kept: Arc<std::sync::Mutex<Vec<Bytes>>> = Arc::default();
    let keeping = Arc::clone(&kept);
    let keep = post(async move |body: Bytes| keeping.lock().unwrap().push(body));
    let server = Server::with(LIMITS, None, BUDGET.hold(Router::new().route("/keep", keep))).await;
    let large = post_of("/keep", 60_000) + &"x".repeat(60_000);
    assert!(server.ask(&large).await.starts_with("HTTP/1.1 200"));
    assert!(server.ask(&large).await.starts_with("HTTP/1.1 503"));
    kept.lock().unwrap().clear();
    assert!(server.ask(&large).await.starts_with("HTTP/1.1 200"));
}

/// A server with a response that never ends and whose client does not read it.
async fn with_unread_response(limits: Limits) -> (Server, TcpStream) {
    let endless = || repeated(vec![0; 64 * 1024]);
    let server = Server::with(
        limits,
        None,
        Router::new().route("/endless", get(async move || endless())),
    )
    .await;
    let mut client = server.connect().await;
    client
        .write_all(b"GET /endless HTTP/1.1\r\nhost: h\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 15];
    client.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    (server, client)
}

/// A body that is this part again and again.
fn repeated(part: Vec<u8>) -> axum::body::Body {
    struct Endless(Bytes);
    impl http_body::Body for Endless {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Ready(Some(Ok(http_body::Frame::data(self.0.clone()))))
        }
    }
    axum::body::Body::new(Endless(part.into()))
}

#[tokio::test]
async fn client_that_reads_nothing_loses_its_connection() {
    let (server, _client) = with_unread_response(Limits {
        connections: 1,
        unread: Duration::from_millis(300),
        whole_responses: true,
        ..LIMITS
    })
    .await;
    // Its place is free once its connection is closed.
    let mut answer = String::new();
    for _ in 0..100 {
        answer = server.ask(GET).await;
        if !answer.is_empty() {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert!(answer.contains("fine"), "{answer}");
}

#[tokio::test]
async fn whole_responses_do_not_make_room() {
    let kept = Limits {
        connections: 1,
        unread: Duration::from_hours(1),
        whole_responses: true,
        ..LIMITS
    };
    let (server, mut client) = with_unread_response(kept).await;
    assert_eq!(server.ask(GET).await, "", "the only connection is at work");
    let mut part = [0; 64];
    client.read_exact(&mut part).await.unwrap();

    let (server, _client) = with_unread_response(Limits {
        whole_responses: false,
        ..kept
    })
    .await;
    assert!(server.ask(GET).await.contains("fine"));
}

#[tokio::test]
async fn refusals_have_the_form_of_the_server() {
    let request = format!(
        "POST /length HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n",
        64 * 1024 + 1
    );
    let server = Server::start(Limits {
        form: Form::OpenAi,
        ..LIMITS
    })
    .await;
    let mut client = server.connect().await;
    client.write_all(request.as_bytes()).await.unwrap();
    client.write_all(&vec![b'a'; 64 * 1024 + 1]).await.unwrap();
    let answer = read(&mut client).await;
    assert!(
        answer.starts_with("HTTP/1.1 413") && answer.contains("application/json"),
        "{answer}"
    );
    assert!(
        answer.contains(r#""error":{"message":"the body of the request is too large"#),
        "{answer}"
    );
}
