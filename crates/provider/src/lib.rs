//! The provider contract: one trait, one reconcile loop, registration, and the conformance suite every provider runs.
//!
//! A provider implements [`contract::Provider`]: a name, a registration, the upstream schemas it knows and two pure
//! functions. Everything else is here.
//!
//! | module | what |
//! |---|---|
//! | [`contract`] | the trait and what goes through it |
//! | [`request`] | a ModelDeployment in narrow types |
//! | [`fields`] | builds upstream objects |
//! | [`upstream`] | which upstream schemas are installed |
//! | [`observe`], [`plan`] | what a plan is made from, and the plan: pure |
//! | [`run`](fn@run) | starts all of it |
//! | `conformance` | the suite that every provider runs; behind the feature of that name |

mod access;
mod answers;
mod caches;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod contract;
pub mod fields;
pub mod observe;
pub mod plan;
mod reconcile;
mod register;
pub mod request;
mod run;
// Not of the contract: public for the fuzz targets.
#[doc(hidden)]
pub mod talk;
pub mod upstream;

pub use access::{access, access_from_outside, access_in_namespace};
pub use contract::{CONFIG_MAP, ChildRef, Kind, Object, Provider, Reading, Refusal, Translation};
pub use request::{Request, Topology, Worker};
pub use run::{ProviderArgs, main, run};
pub use upstream::{Installed, Schema, State, Upstream};
