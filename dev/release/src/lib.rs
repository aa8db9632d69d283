//! Parts of a release that are generated files, too.
#![allow(clippy::missing_errors_doc, reason = "an error says what failed")]

pub mod krew;
pub mod yaml;
