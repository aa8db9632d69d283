//! Messages of Envoy's external processing and of gRPC's health check, with the fields that are used. Others are skipped.
//!
//! Source: `envoy/service/ext_proc/v3/external_processor.proto`, `envoy/config/core/v3/base.proto`,
//! `envoy/extensions/filters/http/ext_proc/v3/processing_mode.proto` and `envoy/type/v3/http_status.proto` of Envoy 1.40;
//! `google/protobuf/struct.proto` of Protocol Buffers; `grpc/health/v1/health.proto` of gRPC. Enumerations are numbers here, which
//! have the same encoding.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// Path of the method `Process`, a stream in each direction.
pub const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// Path of the method `Check`.
pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// `ProcessingMode.BodySendMode`: a body is not sent.
pub const NONE: i32 = 0;
/// `ProcessingMode.BodySendMode`: a body is sent as one message, after the reply to its headers.
pub const BUFFERED: i32 = 2;
/// `ProcessingMode.BodySendMode`: a body is sent in parts as they arrive, and the replies contain the body.
pub const FULL_DUPLEX_STREAMED: i32 = 4;
/// `ProcessingMode.BodySendMode`: as [`FULL_DUPLEX_STREAMED`], by messages of gRPC.
pub const GRPC: i32 = 5;
/// `HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD`.
pub const OVERWRITE: i32 = 2;
/// `HealthCheckResponse.ServingStatus.SERVING`.
pub const SERVING: i32 = 1;
/// `HealthCheckResponse.ServingStatus.NOT_SERVING`.
pub const NOT_SERVING: i32 = 2;

/// A part of an HTTP request or response, from Envoy.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingRequest {
    /// The part. `None` for messages of other kinds.
    #[prost(oneof = "Part", tags = "2, 3, 4, 5, 6, 7")]
    pub part: Option<Part>,
    /// Metadata of the request.
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<Metadata>,
    /// Modes of bodies, in the first message.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
}

/// A part of an HTTP request or response.
#[derive(Clone, PartialEq, Oneof)]
pub enum Part {
    /// Headers of the request.
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    /// Headers of the response.
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    /// Body of the request, or a part of it.
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    /// Body of the response, or a part of it.
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    /// Trailers of the request.
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    /// Trailers of the response.
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// Modes in which Envoy sends bodies.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ProtocolConfiguration {
    /// Mode of the request.
    #[prost(int32, tag = "1")]
    pub request_body_mode: i32,
    /// Mode of the response.
    #[prost(int32, tag = "2")]
    pub response_body_mode: i32,
}

/// Metadata by filters.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// Objects by the name of their filter or namespace.
    #[prost(btree_map = "string, message", tag = "1")]
    pub filter_metadata: BTreeMap<String, Struct>,
}

/// An object of JSON.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    /// Fields.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// A value of JSON. Numbers, booleans and null are not read.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The value.
    #[prost(oneof = "Kind", tags = "3, 5, 6")]
    pub kind: Option<Kind>,
}

/// Kinds of values of JSON.
#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    /// A string.
    #[prost(string, tag = "3")]
    String(String),
    /// An object.
    #[prost(message, tag = "5")]
    Struct(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// A list of JSON.
#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    /// The values.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// Headers of a request or response.
#[derive(Clone, PartialEq, Message)]
pub struct HttpHeaders {
    /// The headers, with those of HTTP/2, such as `:path`.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// The message has neither a body nor trailers.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

/// A body, or a part of it.
#[derive(Clone, PartialEq, Message)]
pub struct HttpBody {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// It is the last part, and there are no trailers.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// Trailers of a request or response, which are not read.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HttpTrailers {}

/// Headers.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderMap {
    /// The headers.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

/// A header.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    /// Name, in lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value, if it is text. Otherwise it is in `raw_value`.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The value.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

/// A reply to Envoy.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessingResponse {
    /// The part that is replied to.
    #[prost(oneof = "Reply", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub reply: Option<Reply>,
    /// Metadata for the filters after this one.
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
}

/// A reply to a part of a request or response.
#[derive(Clone, PartialEq, Oneof)]
pub enum Reply {
    /// To the headers of the request.
    #[prost(message, tag = "1")]
    RequestHeaders(CommonReply),
    /// To the headers of the response.
    #[prost(message, tag = "2")]
    ResponseHeaders(CommonReply),
    /// To the body of the request.
    #[prost(message, tag = "3")]
    RequestBody(CommonReply),
    /// To the body of the response.
    #[prost(message, tag = "4")]
    ResponseBody(CommonReply),
    /// To the trailers of the request.
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    /// To the trailers of the response.
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    /// Instead of the request: a response to the client.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct CommonReply {
    /// Changes.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// Changes of headers and body.
#[derive(Clone, PartialEq, Message)]
pub struct CommonResponse {
    /// Changes of the headers.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// Changes of the body.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
}

/// Trailers stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TrailersResponse {}

/// A response to the client.
#[derive(Clone, PartialEq, Message)]
pub struct ImmediateResponse {
    /// Status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Headers.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    /// Body.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// Reason in the access log of Envoy.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// Status of a response.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HttpStatus {
    /// Code.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// Changes of headers.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderMutation {
    /// Headers to set.
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
}

/// A header to set.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValueOption {
    /// The header.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// Treatment of a header of the same name, such as [`OVERWRITE`].
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

/// A change of a body.
#[derive(Clone, PartialEq, Message)]
pub struct BodyMutation {
    /// The new body, or a part of it.
    #[prost(oneof = "Mutation", tags = "1, 3")]
    pub mutation: Option<Mutation>,
}

/// Kinds of changes of a body.
#[derive(Clone, PartialEq, Oneof)]
pub enum Mutation {
    /// The whole body, if its mode is [`BUFFERED`].
    #[prost(bytes = "bytes", tag = "1")]
    Body(Bytes),
    /// A part of the body, if its mode is [`FULL_DUPLEX_STREAMED`].
    #[prost(message, tag = "3")]
    Streamed(HttpBody),
}

/// Reply to a health check.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HealthCheckResponse {
    /// Status.
    #[prost(int32, tag = "1")]
    pub status: i32,
}
