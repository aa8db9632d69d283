//! The provider contract: a trait, a reconcile loop, registration, and the conformance suite.
//!
//! A provider implements [`contract::Provider`]: a name, a registration, the upstream schemas it knows, and two pure functions.
//! The rest is here.
//!
//! | module | what |
//! |---|---|
//! | [`contract`] | the trait and its types |
//! | [`request`] | a ModelDeployment in narrow types |
//! | [`engine`] | command lines, ports, images and metrics of the engines |
//! | [`fields`] | builder for upstream objects |
//! | [`flags`] | flags of an engine's command line |
//! | [`location`] | refusals about the location of a model |
//! | [`model_pods`] | pods of a model, as the watch shows them |
//! | [`names`] | limits on names, for admission and reconcile |
//! | [`pods`], [`volumes`] | fields of pods and their volumes |
//! | [`settings`] | types for settings of an installation that several providers share |
//! | [`overrides`] | checks of overrides that several providers share |
//! | [`upstream`] | detection of installed upstream schemas |
//! | [`observe`], [`plan`], [`probe`] | observed state, the plan, and the request to the endpoint: pure |
//! | [`run`](fn@run) | starts a provider's controller |
//! | `conformance` | test suite for providers; behind the feature of that name |

mod access;
mod answers;
mod caches;
mod configured;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod contract;
pub mod engine;
pub mod fields;
pub mod flags;
pub mod location;
pub mod model_pods;
pub mod names;
pub mod observe;
pub mod overrides;
pub mod plan;
pub mod pods;
pub mod probe;
mod reconcile;
mod register;
pub mod request;
mod run;
pub mod settings;
// Not a part of the contract: public for the fuzz targets.
#[doc(hidden)]
pub mod probe_request;
pub mod upstream;
mod upstream_operator;
pub mod volumes;

pub use access::{access, access_from_outside, access_in_namespace};
pub use configured::Configured;
pub use contract::{
    CLAIM, CONFIG_MAP, ChildRef, Component, Container, Controller, Kind, Object, Provider, Reading, Refusal,
    ReplicaObjects, Settings, Translation, refuse,
};
pub use request::{Request, Topology, Worker};
pub use run::{ProviderArgs, main, run};
pub use settings::InvalidSettings;
pub use upstream::{Installed, Schema, State, Upstream};
