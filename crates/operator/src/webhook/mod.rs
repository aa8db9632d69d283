//! Webhooks over TLS without anybody's help: certificates, and the CA bundle where the API server looks for it. Served by
//! [`runway_http::serve`].
//!
//! | module | what |
//! |---|---|
//! | [`certificates`] | authorities, leaves, and who signs when; pure |
//! | [`authority`] | keeps the authority in a Secret, and the leaf and the bundle current |
//! | [`bundle`] | keeps the bundle in webhook configurations, and in CRDs that are converted |
//! | [`conversion`] | serves the conversion of objects between versions |
//!
//! At rest nothing is sent: everything waits for a watch or a timer.

pub mod authority;
pub mod bundle;
pub mod certificates;
pub mod conversion;

pub use authority::{Authority, Settings};
pub use bundle::{Endpoint, Target, keep_bundle};
pub use certificates::Lifetimes;
