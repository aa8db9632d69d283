//! The order of the messages of a request, and the replies to them. Pure.
//!
//! The choice needs the body. Envoy sends it after the reply to the headers, as one message ([`BUFFERED`]), or at once and in parts
//! ([`FULL_DUPLEX_STREAMED`]). In the second mode, all replies wait for the choice, and contain the body. Responses of the replica
//! pass unchanged.

use std::net::SocketAddr;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;

use super::messages::{
    self, BUFFERED, BodyMutation, CommonReply, CommonResponse, FULL_DUPLEX_STREAMED, GRPC, HeaderMutation,
    HeaderValueOption, HttpBody, HttpHeaders, Kind, Metadata, Mutation, NONE, OVERWRITE, Part, ProcessingRequest,
    ProcessingResponse, Reply, Struct, TrailersResponse, Value,
};
use crate::body::Body;
use crate::routes::kinds::HEADER;

/// Header and metadata key of the choice.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Namespace of the metadata with the choice.
const DESTINATION_NAMESPACE: &str = "envoy.lb";
/// Key of the metadata with the endpoints of which the choice must be one.
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Namespace of that metadata.
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// Bytes of a part of a body. Implementations accept at most 64 KiB.
/// Source: `BodyByteLimit` in `pkg/common/envoy/chunking.go` of the inference extension v1.5.
const PART: usize = 62_000;
/// Longest memory that a declared length reserves.
const RESERVED: usize = 256 * 1024;

/// A request, as far as the picker reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Method.
    pub method: String,
    /// Path, without its query.
    pub path: String,
    /// Value of the header `X-Gateway-Model-Name`.
    pub model: Option<String>,
    /// Headers that describe the body.
    pub headers: HeaderMap,
    /// Whether the body was sent.
    pub has_body: bool,
    /// The body.
    pub body: Bytes,
    /// Endpoints of which the choice must be one, as addresses with or without a port.
    pub subset: Option<Vec<String>>,
}

impl Asked {
    /// Whether an endpoint may be chosen.
    pub fn may_be(&self, address: SocketAddr) -> bool {
        let Some(subset) = &self.subset else { return true };
        let is_it = |endpoint: &String| {
            let whole = endpoint.parse() == Ok(address);
            whole || endpoint.trim_matches(['[', ']']).parse() == Ok(address.ip())
        };
        subset.iter().any(is_it)
    }
}

/// The chosen endpoint, and what changes in the request.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Address of the replica.
    pub address: SocketAddr,
    /// Path at the replica, if it differs.
    pub path: Option<&'static str>,
    /// The body for the replica, if it differs.
    pub body: Option<Body>,
}

/// The result of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Replies that are sent now.
    pub replies: Vec<ProcessingResponse>,
    /// Report of the message.
    pub news: Option<News>,
}

/// Report of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The request is complete: [`Exchange::chosen`] is next.
    Complete,
    /// The response has begun, with this status.
    Responded {
        /// The status.
        status: u16,
        /// The response has no body and no trailers.
        ends: bool,
    },
    /// The response has ended.
    Ended,
}

/// Reason why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not come after the one before.
    OutOfOrder,
    /// A body is sent in a mode that is not supported.
    Mode,
    /// The body is larger than allowed.
    TooLarge,
}

/// The exchange about one request.
#[derive(Debug)]
pub struct Exchange {
    largest: usize,
    stage: Stage,
    asked: Asked,
    body: Vec<u8>,
    request_mode: i32,
    response_mode: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begins,
    /// The body of the request follows.
    Receives,
    /// The request is complete; this was the last part.
    Complete(Last),
    /// The choice was sent.
    Chosen,
    /// The body of the response follows.
    Responds,
    Ended,
}

/// The last part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Headers,
    Body,
    Trailers,
}

impl Exchange {
    /// An exchange about a request with a body of at most `largest` bytes.
    pub fn new(largest: usize) -> Self {
        Self {
            largest,
            stage: Stage::Begins,
            asked: Asked::default(),
            body: Vec::new(),
            // Releases of Envoy that do not send the modes have those of the reference picker.
            request_mode: FULL_DUPLEX_STREAMED,
            response_mode: FULL_DUPLEX_STREAMED,
        }
    }

    /// The request, as far as it was received.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// Bytes of the body that were received.
    pub fn kept(&self) -> usize {
        self.body.len().max(self.asked.body.len())
    }

    /// Whether the choice was sent, or the request has ended without one.
    pub fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Chosen | Stage::Responds | Stage::Ended)
    }

    /// Takes in a message.
    ///
    /// # Errors
    /// The message is refused.
    pub fn take(&mut self, message: ProcessingRequest) -> Result<Step, Refusal> {
        let ProcessingRequest {
            part,
            metadata_context,
            protocol_config,
        } = message;
        match (part, self.stage) {
            // Such as a change of flow control.
            (None, _) => Ok(Step::default()),
            (Some(Part::RequestHeaders(headers)), Stage::Begins) => {
                if let Some(modes) = protocol_config {
                    self.request_mode = modes.request_body_mode;
                    self.response_mode = modes.response_body_mode;
                }
                self.asked.subset = metadata_context.and_then(subset);
                self.begin(headers)
            }
            (Some(Part::RequestBody(part)), Stage::Receives) => self.receive(&part),
            (Some(Part::RequestTrailers(_)), Stage::Receives) if self.request_mode == FULL_DUPLEX_STREAMED => {
                Ok(self.complete(Last::Trailers))
            }
            (Some(Part::RequestTrailers(_)), Stage::Chosen) if self.request_mode != FULL_DUPLEX_STREAMED => {
                Ok(Step::reply(Reply::RequestTrailers(TrailersResponse {})))
            }
            // Before the choice, it is a response of Envoy itself.
            (Some(Part::ResponseHeaders(headers)), Stage::Receives | Stage::Chosen) => Ok(self.respond(headers)),
            (Some(Part::ResponseBody(part)), Stage::Responds) => Ok(self.pass(part)),
            (Some(Part::ResponseTrailers(_)), Stage::Responds) => {
                self.stage = Stage::Ended;
                Ok(Step {
                    news: Some(News::Ended),
                    ..Step::reply(Reply::ResponseTrailers(TrailersResponse {}))
                })
            }
            _ => Err(Refusal::OutOfOrder),
        }
    }

    /// The replies to the request that is complete. The body is not kept.
    pub fn chosen(&mut self, chosen: Chosen) -> Vec<ProcessingResponse> {
        let Stage::Complete(last) = std::mem::replace(&mut self.stage, Stage::Chosen) else {
            return Vec::new();
        };
        let received = std::mem::take(&mut self.asked.body);
        let mut headers = vec![header(DESTINATION, chosen.address.to_string())];
        headers.extend(chosen.path.map(|path| header(":path", path)));
        let metadata = Some(metadata(chosen.address));
        if last == Last::Headers {
            return vec![reply(Reply::RequestHeaders(changed(headers, None)), metadata)];
        }
        if self.request_mode == BUFFERED {
            let body = chosen.body.map(|body| {
                headers.push(header("content-length", body.len().to_string()));
                Mutation::Body(body.whole())
            });
            return vec![reply(Reply::RequestBody(changed(headers, body)), metadata)];
        }
        let mut replies = vec![reply(Reply::RequestHeaders(changed(headers, None)), metadata)];
        let body = chosen.body.unwrap_or_else(|| Body::new([received]));
        let is_last = last == Last::Body;
        replies.extend(parts(body.into_parts(), is_last).map(|part| passed(part, Reply::RequestBody)));
        if !is_last {
            replies.push(reply(Reply::RequestTrailers(TrailersResponse {}), None));
        }
        replies
    }

    fn begin(&mut self, sent: HttpHeaders) -> Result<Step, Refusal> {
        let mut declared = 0;
        for messages::HeaderValue { key, value, raw_value } in sent.headers.into_iter().flat_map(|map| map.headers) {
            let raw = if raw_value.is_empty() { value.into() } else { raw_value };
            let text = || String::from_utf8_lossy(&raw).into_owned();
            match key.as_str() {
                ":method" => self.asked.method = text(),
                ":path" => {
                    let mut path = text();
                    path.truncate(path.find('?').unwrap_or(path.len()));
                    self.asked.path = path;
                }
                "content-length" => declared = text().parse().unwrap_or_default(),
                "content-type" => {
                    let value = HeaderValue::from_maybe_shared(raw).ok();
                    self.asked.headers.extend(value.map(|value| (CONTENT_TYPE, value)));
                }
                key if key.eq_ignore_ascii_case(HEADER) => self.asked.model = Some(text()),
                _ => {}
            }
        }
        if self.response_mode == GRPC {
            return Err(Refusal::Mode);
        }
        match self.request_mode {
            NONE => Ok(self.complete(Last::Headers)),
            BUFFERED | FULL_DUPLEX_STREAMED if sent.end_of_stream => {
                self.asked.has_body = true;
                Ok(self.complete(Last::Headers))
            }
            BUFFERED | FULL_DUPLEX_STREAMED => {
                if declared > self.largest {
                    return Err(Refusal::TooLarge);
                }
                self.body.reserve_exact(declared.min(RESERVED));
                self.asked.has_body = true;
                self.stage = Stage::Receives;
                if self.request_mode == BUFFERED {
                    return Ok(Step::reply(Reply::RequestHeaders(CommonReply::default())));
                }
                Ok(Step::default())
            }
            _ => Err(Refusal::Mode),
        }
    }

    fn receive(&mut self, part: &HttpBody) -> Result<Step, Refusal> {
        if self.body.len() + part.body.len() > self.largest {
            return Err(Refusal::TooLarge);
        }
        self.body.extend_from_slice(&part.body);
        // With trailers, a whole body is not the end of its request.
        if part.end_of_stream || self.request_mode == BUFFERED {
            return Ok(self.complete(Last::Body));
        }
        Ok(Step::default())
    }

    fn complete(&mut self, last: Last) -> Step {
        self.asked.body = std::mem::take(&mut self.body).into();
        self.stage = Stage::Complete(last);
        Step {
            news: Some(News::Complete),
            ..Step::default()
        }
    }

    fn respond(&mut self, sent: HttpHeaders) -> Step {
        self.body = Vec::new();
        let headers = sent.headers.into_iter().flat_map(|map| map.headers);
        let status = headers.into_iter().find(|header| header.key == ":status");
        let status = status.and_then(|header| {
            let raw: &[u8] = if header.raw_value.is_empty() {
                header.value.as_bytes()
            } else {
                &header.raw_value
            };
            str::from_utf8(raw).ok()?.parse().ok()
        });
        let ends = sent.end_of_stream;
        self.stage = if ends { Stage::Ended } else { Stage::Responds };
        Step {
            news: Some(News::Responded {
                status: status.unwrap_or_default(),
                ends,
            }),
            ..Step::reply(Reply::ResponseHeaders(CommonReply::default()))
        }
    }

    fn pass(&mut self, part: HttpBody) -> Step {
        let ends = part.end_of_stream;
        if ends {
            self.stage = Stage::Ended;
        }
        let replies = if self.response_mode == FULL_DUPLEX_STREAMED {
            let parts = parts([part.body], ends);
            parts.map(|part| passed(part, Reply::ResponseBody)).collect()
        } else {
            vec![reply(Reply::ResponseBody(CommonReply::default()), None)]
        };
        Step {
            replies,
            news: ends.then_some(News::Ended),
        }
    }
}

impl Step {
    fn reply(to: Reply) -> Self {
        Self {
            replies: vec![reply(to, None)],
            news: None,
        }
    }
}

/// The endpoints of which the choice must be one.
fn subset(mut metadata: Metadata) -> Option<Vec<String>> {
    let mut hint = metadata.filter_metadata.remove(SUBSET_NAMESPACE)?;
    let endpoints = match hint.fields.remove(SUBSET)?.kind {
        Some(Kind::List(list)) => list.values,
        // Anything else means no endpoint, and not all of them.
        kind => vec![Value { kind }],
    };
    let texts = endpoints.into_iter().filter_map(|endpoint| match endpoint.kind {
        Some(Kind::String(text)) => Some(text),
        _ => None,
    });
    let all = texts.flat_map(|text| text.split(',').map(|one| one.trim().to_owned()).collect::<Vec<_>>());
    Some(all.collect())
}

/// A header to set.
pub(super) fn header(name: &str, value: impl Into<Bytes>) -> HeaderValueOption {
    let header = messages::HeaderValue {
        key: name.to_owned(),
        value: String::new(),
        raw_value: value.into(),
    };
    HeaderValueOption {
        header: Some(header),
        append_action: OVERWRITE,
    }
}

fn metadata(address: SocketAddr) -> Struct {
    let value = |kind| Value { kind: Some(kind) };
    let object = |name: &str, value| Struct {
        fields: [(name.to_owned(), value)].into(),
    };
    let endpoint = object(DESTINATION, value(Kind::String(address.to_string())));
    object(DESTINATION_NAMESPACE, value(Kind::Struct(endpoint)))
}

fn changed(headers: Vec<HeaderValueOption>, body: Option<Mutation>) -> CommonReply {
    let response = CommonResponse {
        header_mutation: Some(HeaderMutation { set_headers: headers }),
        body_mutation: body.map(|body| BodyMutation { mutation: Some(body) }),
    };
    CommonReply {
        response: Some(response),
    }
}

/// A body in parts. `ends` if there are no trailers after it.
fn parts(body: impl IntoIterator<Item = Bytes>, ends: bool) -> impl Iterator<Item = HttpBody> {
    let mut all: Vec<Bytes> = Vec::new();
    for mut part in body {
        while part.len() > PART {
            all.push(part.split_to(PART));
        }
        all.push(part);
    }
    if all.is_empty() {
        all.push(Bytes::new());
    }
    let last = all.len() - 1;
    let numbered = all.into_iter().enumerate();
    numbered.map(move |(number, body)| HttpBody {
        body,
        end_of_stream: ends && number == last,
    })
}

fn passed(part: HttpBody, to: fn(CommonReply) -> Reply) -> ProcessingResponse {
    let response = CommonResponse {
        header_mutation: None,
        body_mutation: Some(BodyMutation {
            mutation: Some(Mutation::Streamed(part)),
        }),
    };
    let common = CommonReply {
        response: Some(response),
    };
    reply(to(common), None)
}

fn reply(to: Reply, metadata: Option<Struct>) -> ProcessingResponse {
    ProcessingResponse {
        reply: Some(to),
        dynamic_metadata: metadata,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picker::messages::{HeaderMap as Headers, HttpTrailers, ListValue, ProtocolConfiguration};

    const LARGEST: usize = 200_000;

    fn message(part: Part) -> ProcessingRequest {
        ProcessingRequest {
            part: Some(part),
            ..ProcessingRequest::default()
        }
    }

    fn sent(headers: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
        let headers = headers.iter().map(|(key, value)| messages::HeaderValue {
            key: (*key).to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        });
        let headers = Some(Headers {
            headers: headers.collect(),
        });
        HttpHeaders { headers, end_of_stream }
    }

    fn part(text: &str, end_of_stream: bool) -> HttpBody {
        HttpBody {
            body: Bytes::copy_from_slice(text.as_bytes()),
            end_of_stream,
        }
    }

    /// An exchange with bodies in these modes, whose headers were sent.
    fn begun(request_body_mode: i32, response_body_mode: i32) -> (Exchange, Step) {
        let mut exchange = Exchange::new(LARGEST);
        let headers = [
            (":method", "POST"),
            (":path", "/v1/completions?x=1"),
            ("x-gateway-model-name", "llama"),
        ];
        let step = exchange.take(ProcessingRequest {
            part: Some(Part::RequestHeaders(sent(&headers, false))),
            protocol_config: Some(ProtocolConfiguration {
                request_body_mode,
                response_body_mode,
            }),
            metadata_context: None,
        });
        (exchange, step.unwrap())
    }

    fn address() -> SocketAddr {
        "10.0.0.1:8000".parse().unwrap()
    }

    fn choice(body: &[Bytes]) -> Chosen {
        Chosen {
            address: address(),
            path: None,
            body: (!body.is_empty()).then(|| Body::new(body.iter().cloned())),
        }
    }

    /// Kinds of replies, with the bytes and the end of their bodies.
    fn kinds(replies: &[ProcessingResponse]) -> Vec<String> {
        let common = |name: &str, reply: &CommonReply| {
            let response = reply.response.clone().unwrap_or_default();
            let headers = response
                .header_mutation
                .map_or(0, |mutation| mutation.set_headers.len());
            match response.body_mutation.and_then(|body| body.mutation) {
                Some(Mutation::Body(body)) => format!("{name} {headers} whole {}", body.len()),
                Some(Mutation::Streamed(part)) => format!("{name} {} {}", part.body.len(), part.end_of_stream),
                None => format!("{name} {headers}"),
            }
        };
        let kind = |reply: &ProcessingResponse| match reply.reply.as_ref().unwrap() {
            Reply::RequestHeaders(reply) => common("headers", reply),
            Reply::RequestBody(reply) => common("body", reply),
            Reply::ResponseHeaders(reply) => common("response headers", reply),
            Reply::ResponseBody(reply) => common("response body", reply),
            Reply::RequestTrailers(_) => "trailers".to_owned(),
            Reply::ResponseTrailers(_) => "response trailers".to_owned(),
            Reply::Immediate(_) => "immediate".to_owned(),
        };
        replies.iter().map(kind).collect()
    }

    #[test]
    fn streamed_body_is_replied_to_after_the_choice_in_small_parts() {
        let (mut exchange, step) = begun(FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED);
        assert_eq!(step, Step::default());
        let text = "x".repeat(100_000);
        assert_eq!(
            exchange.take(message(Part::RequestBody(part(&text, false)))),
            Ok(Step::default())
        );
        let step = exchange.take(message(Part::RequestBody(part("y", true)))).unwrap();
        assert_eq!((step.replies.len(), step.news), (0, Some(News::Complete)));
        let asked = exchange.asked().clone();
        assert_eq!(
            (asked.path.as_str(), asked.model.as_deref(), asked.body.len()),
            ("/v1/completions", Some("llama"), 100_001)
        );
        let replies = exchange.chosen(choice(&[asked.body.slice(..10), asked.body.slice(10..)]));
        let expected = ["headers 1", "body 10 false", "body 62000 false", "body 37991 true"];
        assert_eq!(kinds(&replies), expected);
        let Some(Reply::RequestHeaders(first)) = &replies[0].reply else {
            panic!("{replies:?}")
        };
        let mutation = first.response.clone().unwrap().header_mutation.unwrap();
        assert_eq!(mutation.set_headers, [header(DESTINATION, "10.0.0.1:8000")]);
        assert_eq!(replies[0].dynamic_metadata, Some(metadata(address())));
        assert_eq!(exchange.kept(), 0);
    }

    #[test]
    fn trailers_end_a_streamed_body() {
        let (mut exchange, _) = begun(FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED);
        exchange.take(message(Part::RequestBody(part("x", false)))).unwrap();
        let step = exchange.take(message(Part::RequestTrailers(HttpTrailers {}))).unwrap();
        assert_eq!(step.news, Some(News::Complete));
        let replies = exchange.chosen(choice(&[]));
        assert_eq!(kinds(&replies), ["headers 1", "body 1 false", "trailers"]);
    }

    #[test]
    fn buffered_body_is_replied_to_at_once_and_replaced_if_it_changes() {
        for (new, expected) in [(None, "body 1"), (Some("{ }"), "body 2 whole 3")] {
            let (mut exchange, step) = begun(BUFFERED, NONE);
            assert_eq!(kinds(&step.replies), ["headers 0"]);
            let step = exchange.take(message(Part::RequestBody(part("{}", true)))).unwrap();
            assert_eq!(step.news, Some(News::Complete));
            let new: Vec<Bytes> = new.into_iter().map(Bytes::from).collect();
            assert_eq!(kinds(&exchange.chosen(choice(&new))), [expected]);
        }
    }

    #[test]
    fn request_without_a_body_is_complete_with_its_headers() {
        let (mut exchange, step) = begun(NONE, NONE);
        assert_eq!(step.news, Some(News::Complete));
        assert!(!exchange.asked().has_body);
        let mut chosen = choice(&[]);
        chosen.path = Some("/classify");
        assert_eq!(kinds(&exchange.chosen(chosen)), ["headers 2"]);
    }

    #[test]
    fn response_passes_unchanged_and_reports_its_status_and_its_end() {
        for (mode, expected) in [
            (FULL_DUPLEX_STREAMED, "response body 5 true"),
            (BUFFERED, "response body 0"),
        ] {
            let (mut exchange, _) = begun(NONE, mode);
            exchange.chosen(choice(&[]));
            let headers = sent(&[(":status", "503")], false);
            let step = exchange.take(message(Part::ResponseHeaders(headers))).unwrap();
            let responded = News::Responded {
                status: 503,
                ends: false,
            };
            assert_eq!(
                (kinds(&step.replies), step.news),
                (vec!["response headers 0".to_owned()], Some(responded))
            );
            let step = exchange.take(message(Part::ResponseBody(part("whole", true)))).unwrap();
            assert_eq!(
                (kinds(&step.replies), step.news),
                (vec![expected.to_owned()], Some(News::Ended))
            );
        }
    }

    #[test]
    fn response_may_come_before_the_end_of_its_request() {
        let (mut exchange, _) = begun(FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED);
        let headers = sent(&[(":status", "408")], true);
        let step = exchange.take(message(Part::ResponseHeaders(headers))).unwrap();
        assert_eq!(
            step.news,
            Some(News::Responded {
                status: 408,
                ends: true
            })
        );
        assert!(exchange.is_answered());
    }

    #[test]
    fn messages_out_of_order_are_refused() {
        let request = || message(Part::RequestHeaders(sent(&[], false)));
        let body = || message(Part::RequestBody(part("x", true)));
        let response = || message(Part::ResponseBody(part("x", true)));
        let trailers = || message(Part::RequestTrailers(HttpTrailers {}));
        for first in [body(), response(), trailers()] {
            assert_eq!(Exchange::new(LARGEST).take(first), Err(Refusal::OutOfOrder));
        }
        let (mut exchange, _) = begun(FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED);
        assert_eq!(exchange.take(request()), Err(Refusal::OutOfOrder));
        exchange.take(body()).unwrap();
        exchange.chosen(choice(&[]));
        for late in [body(), request(), response(), trailers()] {
            assert_eq!(exchange.take(late), Err(Refusal::OutOfOrder));
        }
        assert_eq!(
            exchange.take(ProcessingRequest::default()),
            Ok(Step::default()),
            "flow control"
        );
    }

    #[test]
    fn large_bodies_and_other_modes_are_refused() {
        let (mut exchange, _) = begun(FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED);
        let text = "x".repeat(LARGEST);
        exchange.take(message(Part::RequestBody(part(&text, false)))).unwrap();
        assert_eq!(
            exchange.take(message(Part::RequestBody(part("x", true)))),
            Err(Refusal::TooLarge)
        );
        let declared = sent(&[("content-length", "200001")], false);
        assert_eq!(
            Exchange::new(LARGEST).take(message(Part::RequestHeaders(declared))),
            Err(Refusal::TooLarge)
        );
        for (request_body_mode, response_body_mode) in [(1, 0), (3, 0), (GRPC, 0), (BUFFERED, GRPC)] {
            let modes = ProtocolConfiguration {
                request_body_mode,
                response_body_mode,
            };
            let refused = Exchange::new(LARGEST).take(ProcessingRequest {
                protocol_config: Some(modes),
                ..message(Part::RequestHeaders(sent(&[], false)))
            });
            assert_eq!(refused, Err(Refusal::Mode), "{modes:?}");
        }
    }

    #[test]
    fn subset_of_endpoints_is_respected() {
        let text = |text: &str| Value {
            kind: Some(Kind::String(text.to_owned())),
        };
        let list = |texts: &[&str]| {
            let values = texts.iter().map(|one| text(one)).collect();
            Value {
                kind: Some(Kind::List(ListValue { values })),
            }
        };
        let may_be = |hint: Value, endpoint: &str| {
            let hint = Struct {
                fields: [(SUBSET.to_owned(), hint)].into(),
            };
            let metadata = Metadata {
                filter_metadata: [(SUBSET_NAMESPACE.to_owned(), hint)].into(),
            };
            let asked = Asked {
                subset: subset(metadata),
                ..Asked::default()
            };
            asked.may_be(endpoint.parse().unwrap())
        };
        assert!(may_be(list(&["10.0.0.2:8000", "10.0.0.1:8000"]), "10.0.0.1:8000"));
        assert!(may_be(list(&["10.0.0.1", "[fd00::1]"]), "10.0.0.1:8000"));
        assert!(may_be(list(&["10.0.0.1", "[fd00::1]"]), "[fd00::1]:8000"));
        assert!(may_be(text("10.0.0.2:8000, 10.0.0.1:8000"), "10.0.0.1:8000"));
        for none in [list(&["10.0.0.2:8000", "10.0.0.1:9000"]), list(&[]), Value::default()] {
            assert!(!may_be(none, "10.0.0.1:8000"));
        }
        assert!(Asked::default().may_be(address()), "without a hint, each may be chosen");
    }
}
