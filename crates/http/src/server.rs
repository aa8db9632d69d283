//! Accepts and serves connections, with and without TLS, and drains them at the end.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::{Extensions, Request, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::body::{Bounded, Holding, TooLarge};
#[cfg(feature = "http2")]
use crate::limits::Protocol;
use crate::slots::{Place, Slots};
use crate::unread::Unread;
use crate::{Form, Limits, Tls};

/// Pause after the system has refused a new connection: it lacks memory or file descriptors.
const RECOVERY: Duration = Duration::from_secs(1);

/// Serves `router` until shutdown, then lets requests under way end for [`Limits::drain`].
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let slots = Arc::new(Slots::new(limits.connections));
    let server = |tls, router: Router| Server {
        tls,
        // The limit of the server holds for every handler.
        router: router.layer(DefaultBodyLimit::disable()),
        limits,
        shutdown: shutdown.clone(),
    };
    let tls = tls.map(|tls| (tls, Arc::new(server(None, refuse_plain_http(limits.form)))));
    let server = Arc::new(server(tls, router));
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // Without a place it is closed here.
        if let Some(place) = slots.admit(peer.ip()) {
            connections.spawn(Arc::clone(&server).connection(stream, Arc::new(place)));
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.drain, ended).await.is_err() {
        tracing::warn!(
            open = connections.len(),
            "connections are closed before their requests have ended"
        );
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(RECOVERY).await;
            }
        }
    }
}

/// Bytes of a body that a client may send with HTTP/2 before its handler reads: they are kept in memory.
#[cfg(feature = "http2")]
const WINDOW: u32 = 64 * 1024;

/// Address of the client of a request, in its extensions: of IPv4, or the 64 bits of IPv6 that a host has for itself.
#[derive(Clone, Copy, Debug)]
pub struct Client(IpAddr);

impl Client {
    /// The address in the extensions of a request. Without a server, all have the same.
    pub fn of(extensions: &Extensions) -> IpAddr {
        let client = extensions.get().map(|Self(address)| *address);
        client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

/// First byte of a TLS connection: a handshake record.
/// Source: RFC 8446, section 5.1.
const HANDSHAKE: u8 = 22;

/// Whether a client begins with TLS. The byte stays in the stream.
async fn begins_with_tls(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [HANDSHAKE];
    stream.peek(&mut first).await?;
    Ok(first == [HANDSHAKE])
}

/// Answers of a port with TLS to clients that speak plain HTTP.
fn refuse_plain_http(form: Form) -> Router {
    let text = "this port serves HTTPS only: use https:// in the URL";
    Router::new().fallback(async move || form.refusal(StatusCode::BAD_REQUEST, "https_required", text))
}

/// State that all connections share.
struct Server {
    /// The certificate, and the server for clients without TLS.
    tls: Option<(Tls, Arc<Self>)>,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
}

impl Server {
    /// Serves a connection until either side closes it, or until it makes room.
    async fn connection(self: Arc<Self>, stream: TcpStream, place: Arc<Place>) {
        let closed = place.slot.closed.clone();
        tokio::select! {
            () = closed.cancelled() => {}
            () = self.speak(stream, place) => {}
        }
    }

    async fn speak(self: &Arc<Self>, stream: TcpStream, place: Arc<Place>) {
        // Only a matter of speed.
        let _ = stream.set_nodelay(true);
        let Some((tls, plain)) = &self.tls else {
            let stream = Unread::new(stream, self.limits.unread);
            #[cfg(feature = "http2")]
            if self.limits.protocol == Protocol::Http2 {
                return self.http2(stream, place).await;
            }
            return self.http1(stream, place).await;
        };
        let Ok(Ok(is_tls)) = timeout(self.limits.handshake, begins_with_tls(&stream)).await else {
            return;
        };
        let stream = Unread::new(stream, self.limits.unread);
        if !is_tls {
            return plain.http1(stream, place).await;
        }
        let Ok(Ok(stream)) = timeout(self.limits.handshake, tls.acceptor(self.limits.protocol).accept(stream)).await
        else {
            return;
        };
        #[cfg(feature = "http2")]
        if self.limits.protocol == Protocol::Http2 || stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return self.http2(stream, place).await;
        }
        self.http1(stream, place).await;
    }

    async fn http1(self: &Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, place: Arc<Place>) {
        let server = Arc::clone(self);
        let service = service_fn(move |request| Arc::clone(&server).answer(request, Arc::clone(&place)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header)
            .max_buf_size(self.limits.header_bytes)
            .serve_connection(TokioIo::new(stream), service);
        self.until_shutdown(connection).await;
    }

    #[cfg(feature = "http2")]
    async fn http2(self: &Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, place: Arc<Place>) {
        let server = Arc::clone(self);
        let service = service_fn(move |request| Arc::clone(&server).answer(request, Arc::clone(&place)));
        let headers = u32::try_from(self.limits.header_bytes).unwrap_or(u32::MAX);
        let connection = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.limits.header)
            .keep_alive_timeout(self.limits.handshake)
            .max_concurrent_streams(self.limits.streams)
            .max_header_list_size(headers)
            .max_send_buf_size(self.limits.header_bytes)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(4 * WINDOW)
            .serve_connection(TokioIo::new(stream), service);
        self.until_shutdown(connection).await;
    }

    /// Serves a connection until it ends; at shutdown, until the requests under way have ended.
    async fn until_shutdown(&self, connection: impl GracefulConnection) {
        let mut connection = std::pin::pin!(connection);
        // Errors are the client's: it has left, or does not speak HTTP.
        let _ = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
    }

    /// Answers a request; the connection does not make room from the end of the request to the beginning of the response.
    async fn answer(self: Arc<Self>, request: Request<Incoming>, place: Arc<Place>) -> Result<Response, Infallible> {
        let work = Arc::new(place.request());
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Client(place.slot.client));
        let body = Bounded::new(body, self.limits.body, Arc::clone(&work));
        let (exceeded, form) = (body.exceeded(), self.limits.form);
        let too_large = TooLarge {
            limit: self.limits.body,
        };
        let answered = async {
            if body.declares_too_much() {
                body.discard(&parts.headers).await;
                return too_large.refusal(form);
            }
            let request = Request::from_parts(parts, Body::new(body));
            let Ok(response) = self.router.clone().oneshot(request).await;
            // Handlers report it in many words, or take it for the end of the body.
            if exceeded.load(Ordering::Relaxed) {
                too_large.refusal(form)
            } else {
                response
            }
        };
        let response = match self.limits.request {
            Some(limit) => timeout(limit, answered).await.unwrap_or_else(|_| too_slow(form, limit)),
            None => answered.await,
        };
        if self.limits.whole_responses {
            return Ok(response.map(|body| Body::new(Holding::new(body, work))));
        }
        work.ends();
        Ok(response)
    }
}

fn too_slow(form: Form, limit: Duration) -> Response {
    let text = format!("the request was not answered within {} seconds", limit.as_secs());
    form.refusal(StatusCode::SERVICE_UNAVAILABLE, "too_slow", &text)
}
