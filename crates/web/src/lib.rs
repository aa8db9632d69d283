//! The web console: what is there, what is wrong with it and why, live; and the forms to change it. Served by
//! `kubeairunway ui`.
//!
//! Pages are made on the server and can be read without a script. A script of ours keeps them up to date: it hears of changes
//! over server-sent events and reads the page again.
//!
//! | module | content |
//! |---|---|
//! | [`server`], [`app`] | the routes and the socket; state shared by all handlers |
//! | [`guard`] | checks of every request: host, origin, session, form token; headers of every response |
//! | [`site`] | addresses of the console |
//! | [`sessions`] | open sessions and sign-in |
//! | [`credentials`] | credentials of a session, and the identity of its user |
//! | [`oidc`] | sign-in at an OpenID Connect issuer |
//! | [`crypto`] | random keys, comparison of secrets |
//! | [`session_view`] | the cluster as one session sees it |
//! | [`caches`] | watches shared by the sessions of one user |
//! | [`watches`], [`store`], [`kind`], [`seen`] | the watch of a kind, its objects and its changes |
//! | [`asya_gateway`] | requests to asya-gateway |
//! | [`health`] | health of the connection to the cluster |
//! | [`live`] | server-sent events about changes |
//! | [`history`], [`gauges`] | recent replicas, rollouts and failures; recent metrics of engines; their charts |
//! | [`refusal`], [`page`], [`pages`] | rendering and refusals; the frame of a page; the pages |
//! | [`form`], [`moment`], [`said`] | values of forms; points in time; messages of a status |

pub mod app;
pub mod asya_gateway;
pub mod caches;
pub mod credentials;
pub mod crypto;
pub mod form;
pub mod gauges;
pub mod guard;
pub mod health;
pub mod history;
pub mod kind;
pub mod live;
pub mod moment;
pub mod oidc;
pub mod operations;
pub mod page;
pub mod pages;
pub mod refusal;
pub mod said;
pub mod seen;
pub mod server;
pub mod session_view;
pub mod sessions;
pub mod site;
pub mod store;
#[cfg(test)]
mod tests;
pub mod watches;

pub use server::{Console, Options};
