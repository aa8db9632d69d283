//! For authors of Llama Stack providers: a skeleton, an image, and what pods do with a provider, without a cluster.

mod archive;
mod build;
mod check;
mod error;
mod new;
mod packages;
mod serve;

pub use archive::Error as ArchiveError;
pub use build::{Build, Built, build};
pub use check::{Check, Checked, Distribution, check};
pub use error::Error;
pub use new::{skeleton, write_new};
pub use serve::{Serve, serve};
