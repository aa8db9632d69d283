//! Pages of `docs`, and tables in them.

pub(crate) mod api;
pub(crate) mod changes;
pub(crate) mod command;
pub(crate) mod metrics;
pub(crate) mod permissions;
pub(crate) mod reference;
pub(crate) mod settings;
#[cfg(test)]
mod snippets;
pub(crate) mod status;
pub(crate) mod versions;
