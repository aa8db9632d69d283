//! Problems of a cluster, and archives of diagnostics.

pub mod bundle;
pub mod check;
