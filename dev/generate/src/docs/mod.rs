//! Pages of `docs`, and tables in them.

pub(crate) mod api;
pub(crate) mod changes;
pub(crate) mod command;
pub(crate) mod images;
pub(crate) mod metrics;
pub(crate) mod permissions;
pub(crate) mod reference;
pub(crate) mod settings;
pub(crate) mod shapes;
#[cfg(test)]
mod snippets;
pub(crate) mod split;
pub(crate) mod status;
pub(crate) mod versions;

/// Folders whose pages are all generated.
pub(crate) const FOLDERS: [&str; 4] = [api::FOLDER, command::FOLDER, reference::FOLDER, status::FOLDER];
