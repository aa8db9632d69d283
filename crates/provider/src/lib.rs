//! The provider contract: one trait, one reconcile loop, registration, and the conformance suite every provider runs.
//!
//! A provider implements [`contract::Provider`]: a name, a registration, the upstream schemas it knows and two pure
//! functions. Everything else is here.

pub mod contract;
pub mod request;
pub mod upstream;

pub use contract::{CONFIG_MAP, ChildRef, Kind, Object, Provider, Reading, Refusal, Translation};
pub use request::{Request, Topology, Worker};
pub use upstream::{Installed, Schema, State, Upstream};
