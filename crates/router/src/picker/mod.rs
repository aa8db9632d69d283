//! The endpoint picker: Envoy-based Gateways ask it for the replica of each request, and send the request there themselves.
//!
//! It implements the endpoint picker protocol of the Gateway API inference extension
//! (`docs/proposals/004-endpoint-picker-protocol` of kubernetes-sigs/gateway-api-inference-extension, v1.5): Envoy's external
//! processing, a gRPC stream for each request. The choice is that of the router, from the same models and the same
//! [`Balancer`](crate::balance::Balancer). Callers are not authenticated: that is the task of the Gateway.
//!
//! | module | content |
//! |---|---|
//! | [`messages`] | the messages that are used |
//! | [`grpc`] | messages and statuses of gRPC on HTTP/2 |
//! | [`exchange`] | the order of the messages of a request, and the replies; pure |
//! | [`choice`] | the replica for a request |
//! | [`server`] | the services: external processing and health |

pub mod choice;
pub mod exchange;
pub mod grpc;
pub mod messages;
pub mod server;
