//! The bounds of a server.

use std::time::Duration;

use crate::Form;

/// Versions of HTTP that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/1.1, and HTTP/2 for clients that negotiate it with TLS. Without the feature `http2`, HTTP/1.1.
    Negotiated,
    /// HTTP/2 with and without TLS, for gRPC. Clients need not negotiate it.
    #[cfg(feature = "http2")]
    Http2,
}

impl Protocol {
    /// Protocols that are offered with TLS (ALPN), the preferred one first.
    pub(crate) fn offered(self) -> Vec<Vec<u8>> {
        let (one, two) = (b"http/1.1".to_vec(), b"h2".to_vec());
        match self {
            Self::Negotiated if cfg!(feature = "http2") => vec![two, one],
            Self::Http1 | Self::Negotiated => vec![one],
            #[cfg(feature = "http2")]
            Self::Http2 => vec![two],
        }
    }
}

/// The bounds of a server. Each use has its own, and says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once. One more closes a connection that waits for a request; if all are at work, the new one is
    /// closed.
    pub connections: usize,
    /// Longest TLS handshake.
    pub handshake: Duration,
    /// Longest time for a client to send the header of a request, from the moment that the server waits for it; so this is
    /// also how long a connection may be idle.
    pub header: Duration,
    /// Bytes of the header of a request. Buffers for reading and writing are no larger. At least 8 KiB.
    pub header_bytes: usize,
    /// Versions of HTTP.
    pub protocol: Protocol,
    /// Requests under way in one connection, with HTTP/2.
    pub streams: u32,
    /// Bytes of the body of a request.
    pub body: usize,
    /// Longest time until a response begins, the body of the request included. `None`: no limit.
    pub request: Option<Duration>,
    /// Longest time for which a client may read nothing of a response. Its connection is closed then.
    pub unread: Duration,
    /// Whether a connection stays until the end of its response. Otherwise it makes room once the response begins.
    pub whole_responses: bool,
    /// Form of the server's own refusals.
    pub form: Form,
    /// Time for requests in progress at shutdown.
    pub drain: Duration,
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

impl Limits {
    /// Metrics and probes: asked by the kubelet and by a Prometheus or two, without bodies.
    pub const ADMIN: Self = Self {
        connections: 64,
        handshake: Duration::from_secs(5),
        header: Duration::from_secs(30),
        header_bytes: 16 * KIB,
        protocol: Protocol::Http1,
        streams: 16,
        body: 64 * KIB,
        request: Some(Duration::from_secs(10)),
        unread: Duration::from_mins(1),
        whole_responses: false,
        form: Form::Text,
        drain: Duration::from_secs(1),
    };

    /// Webhooks: asked by a few API servers, which open a connection for each request under way.
    ///
    /// An API server reads at most 3 MiB of a request, so the object that it sends to a webhook is at most about as large; with
    /// the old object, of at most 3 MiB too, and 1 MiB around them, a review is at most 7 MiB. At shutdown, a request may take
    /// longer than an API server waits for a webhook by default (10 s).
    pub const WEBHOOK: Self = Self {
        connections: 128,
        body: 7 * MIB,
        drain: Duration::from_secs(12),
        ..Self::ADMIN
    };

    /// The web console: a browser has several connections, and streams pages for as long as they are open. The largest form
    /// holds a manifest.
    pub const CONSOLE: Self = Self {
        connections: 256,
        header_bytes: 32 * KIB,
        protocol: Protocol::Negotiated,
        streams: 64,
        body: 2 * MIB,
        request: None,
        drain: Duration::from_secs(12),
        ..Self::ADMIN
    };

    /// The gateway of Asya: clients that submit, and clients that wait or stream for minutes, of which there are 1,024
    /// (`--largest-waits`). The body is a setting of its own.
    pub const GATEWAY: Self = Self {
        connections: 1280,
        body: MIB,
        request: None,
        form: Form::OpenAi,
        drain: Duration::from_secs(12),
        ..Self::ADMIN
    };

    /// The model router: requests that wait for an answer of a model, or for a model that starts, and streams of minutes. Bodies
    /// and the time to drain are settings of its own.
    pub const ROUTER: Self = Self {
        connections: 16 * 1024,
        body: 16 * MIB,
        request: None,
        whole_responses: true,
        form: Form::OpenAi,
        drain: Duration::from_mins(2),
        ..Self::ADMIN
    };

    /// Reports of progress to the gateway of Asya: from every sidecar, small and short.
    pub const REPORTS: Self = Self {
        connections: 2048,
        ..Self::ADMIN
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_console_negotiates() {
        assert_eq!(Limits::CONSOLE.protocol, Protocol::Negotiated);
        for limits in [
            Limits::ADMIN,
            Limits::WEBHOOK,
            Limits::GATEWAY,
            Limits::ROUTER,
            Limits::REPORTS,
        ] {
            assert_eq!(limits.protocol.offered(), [b"http/1.1"]);
        }
        let both = Protocol::Negotiated.offered();
        assert_eq!(both.len(), if cfg!(feature = "http2") { 2 } else { 1 });
        assert_eq!(both.last().map(Vec::as_slice), Some(&b"http/1.1"[..]));
    }
}
