//! Views of objects, computed from values.

pub mod change;
pub mod chat;
pub mod depth;
pub mod endpoint;
pub mod events;
pub mod explain;
pub mod fit_report;
pub mod get;
pub mod jsonpath;
pub mod messages;
pub mod pods;
pub mod providers;
pub mod status;
pub mod token_usage;
pub mod top;
pub mod tree;
