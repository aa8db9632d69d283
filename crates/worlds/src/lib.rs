//! Namespaces in memory: they carry out the plans of an operator as the API server would, as far as its next plan can see. For tests
//! only.
#![allow(
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test with an input that does not fit fails"
)]

pub mod actor;
pub mod distribution;
