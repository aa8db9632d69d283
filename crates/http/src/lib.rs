//! The HTTP servers of every program: metrics and probes, webhooks, the web console.
//!
//! A server answers whatever its clients do: connections, time, headers and bodies are bounded by its [`Limits`], and a
//! connection that has sent no complete request makes room when there are too many ([`slots`]).
//!
//! | module | what |
//! |---|---|
//! | [`limits`] | the bounds, with defaults for each use |
//! | [`server`] | accepts and serves connections, with and without TLS, and drains them at the end |
//! | [`slots`] | which connections are open, and which of them makes room |
//! | [`body`] | bodies of requests, bounded |
//! | [`budget`] | memory for the bodies of one router, bounded over all requests |
//! | [`pool`] | memory that is shared by owners |
//! | [`refusal`] | responses to requests that are refused |
//! | [`unread`] | ends connections whose client does not read |
//! | [`watches`] | requests that wait for news |
//! | [`tls`] | certificates, which may be replaced while serving |

pub mod body;
pub mod budget;
pub mod limits;
pub mod pool;
pub mod refusal;
pub mod server;
pub mod slots;
pub mod tls;
pub mod unread;
pub mod watches;

pub use budget::{Budget, Turn};
pub use limits::{Limits, Protocol};
pub use pool::Owner;
pub use refusal::Form;
pub use server::{Client, serve};
pub use tls::Tls;
