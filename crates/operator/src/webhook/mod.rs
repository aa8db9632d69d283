//! Servers over TLS without external tools: certificates, and the CA bundle in the webhook configurations, or in a ConfigMap for
//! other clients. Served by [`runway_http::serve`].
//!
//! | module | what |
//! |---|---|
//! | [`certificates`] | authorities, leaves, and their rotation; pure |
//! | [`authority`] | keeps the authority in a Secret, and the leaf and the bundle current |
//! | [`bundle`] | keeps the bundle in webhook configurations, in CRDs with a conversion webhook, and in ConfigMaps |
//! | [`conversion`] | serves the conversion of objects between versions |
//!
//! In steady state no request is sent: everything waits for a watch or a timer.

pub mod authority;
pub mod bundle;
pub mod certificates;
pub mod conversion;

pub use authority::{Authority, Settings, access_in_namespace};
pub use bundle::{Endpoint, Target, keep_bundle, publish_bundle};
pub use certificates::Lifetimes;
