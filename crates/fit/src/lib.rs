//! Whether the pods of a ModelDeployment fit on the nodes of a cluster, and why not. Pure: nodes, pods and planned objects go
//! in, a [`Report`] comes out.
//!
//! The verdict follows the filters of kube-scheduler; settings that are not evaluated give `unknown` instead of a guess. A
//! verdict is about the moment of the snapshot.

mod amount;
mod groups;
mod memory;
mod nodes;
mod pod;
mod report;
mod schedule;

pub use amount::Amounts;
pub use groups::{Group, groups};
pub use memory::{Estimate, Input, Source, estimate};
pub use nodes::{Devices, Snapshot, slim};
pub use pod::Ask;
pub use report::{ClusterObjects, GroupReport, MemoryReport, Planned, Report, Seen, gib, obstacles, report};
pub use schedule::{Batch, Decision, Outcome, Verdict, decide};
