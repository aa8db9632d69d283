//! The provider contract: a trait, a reconcile loop, registration, and the conformance suite.
//!
//! A provider implements [`contract::Provider`]: a name, a registration, the upstream schemas it knows, and two pure functions.
//! The rest is here.
//!
//! | module | what |
//! |---|---|
//! | [`contract`] | the trait and its types |
//! | [`request`] | a ModelDeployment in narrow types |
//! | [`fields`] | builder for upstream objects |
//! | [`names`] | limits on names, for admission and reconcile |
//! | [`overrides`], [`parallel`] | checks of overrides and of parallel sizes that several providers share |
//! | [`upstream`] | detection of installed upstream schemas |
//! | [`observe`], [`plan`] | observed state, and the plan: pure |
//! | [`run`](fn@run) | starts a provider's controller |
//! | `conformance` | test suite for providers; behind the feature of that name |

mod access;
mod answers;
mod caches;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod contract;
pub mod fields;
pub mod names;
pub mod observe;
pub mod overrides;
pub mod parallel;
pub mod plan;
mod reconcile;
mod register;
pub mod request;
mod run;
// Not a part of the contract: public for the fuzz targets.
#[doc(hidden)]
pub mod talk;
pub mod upstream;

pub use access::{access, access_from_outside, access_in_namespace};
pub use contract::{CONFIG_MAP, ChildRef, Kind, Object, Provider, Reading, Refusal, Translation};
pub use request::{Request, Topology, Worker};
pub use run::{ProviderArgs, main, run};
pub use upstream::{Installed, Schema, State, Upstream};
