//! The web console: what is there, what is wrong with it and why, live; and the forms to change it. Served by
//! `kubeairunway ui`.
//!
//! Pages are made on the server and can be read without a script. A script of ours keeps them up to date: it hears of changes
//! over server-sent events and reads the page again.
//!
//! | module | content |
//! |---|---|
//! | [`server`] | the routes, and the socket |
//! | [`guard`] | what every request goes through: name, origin, session, form token; headers of every answer |
//! | [`sessions`] | who asks |
//! | [`credentials`] | with what a session calls the cluster, and who that is |
//! | [`oidc`] | sign-in at an issuer of OpenID Connect |
//! | [`lens`] | what one session sees of the cluster |
//! | [`caches`] | what the sessions of one user share |
//! | [`watches`], [`store`] | the watch of a kind, and the objects it has shown |
//! | [`live`] | tells browsers what has changed |
//! | [`history`] | what a watch tells and nobody keeps, for the small charts |
//! | [`page`], [`pages`] | the frame of a page, and the pages |
//! | [`form`] | what a form sends |

pub mod caches;
pub mod credentials;
pub mod form;
pub mod guard;
pub mod history;
pub mod lens;
pub mod live;
pub mod oidc;
pub mod page;
pub mod pages;
pub mod server;
pub mod sessions;
pub mod store;
#[cfg(test)]
mod tests;
pub mod watches;

pub use server::{Console, Options};
