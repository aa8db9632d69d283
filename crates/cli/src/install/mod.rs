//! Installs, upgrades and removes the product: `kubeairunway controller`, `provider` and `console`.
//!
//! All problems that can be found before the first write are found before it: the server's version, missing permissions,
//! objects of other owners, and (by a server-side dry run) the change of every field.
//!
//! | module | content |
//! |---|---|
//! | [`args`] | arguments |
//! | [`apply`] | installing and upgrading |
//! | [`remove`] | uninstalling |
//! | [`report`] | tables of installed components |
//! | [`survey`] | the reader: version, permissions, existing objects, dry run |
//! | [`wait`] | waits for Deployments, and reports what blocks them |
//! | [`manifest`] | components to install |
//! | `settings` | settings of a provider's installation |
//! | [`kinds`] | names and scope of the kinds that are installed |

pub mod apply;
pub mod args;
pub mod error;
pub mod kinds;
pub mod manifest;
pub mod remove;
pub mod report;
mod settings;
pub mod survey;
pub mod wait;

pub use error::Error;
