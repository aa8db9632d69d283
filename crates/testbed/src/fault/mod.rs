//! Faults between one controller and the real API server.
//!
//! A [`FaultProxy`] stands in front of the API server for one controller. It numbers the controller's writes, and the [`Plan`]
//! decides by number what becomes of each: the connection ends before or after the server has the write, the server seems to
//! refuse it, or the controller is killed there. Events of watches are held back or cut off in the same way. Nothing is
//! chosen at random: [`fault`] maps a seed and a number to a fault, so a seed replays what it did.
//!
//! The controller sees a single namespace through the proxy ([`FaultProxy::start`]), so that many controllers of one kind can
//! share an API server without knowing of each other.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | the faults, and which write or event gets one: pure |
//! | [`proxy`] | the HTTP server that carries them out |
//! | `watch` | the same for the events of a watch |

pub mod plan;
pub mod proxy;
mod watch;

pub use plan::{Bend, Cut, Plan, fault, number};
pub use proxy::{FaultProxy, Write};
