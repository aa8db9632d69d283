//! The faults of a campaign, as data.

use super::Reason;

/// Fault of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// kill -9 of a sidecar.
    Sidecar,
    /// kill -9 of a runtime.
    Runtime,
    /// The connections between a sidecar and the broker are cut, and responses are lost.
    Connection,
    /// The handler of a runtime hangs for 3 seconds.
    Hang,
    /// kill -9 of a runtime, and no new one for 3 seconds.
    Outage,
    /// The target of a handler is down for 3 seconds, which the handler reports.
    Target,
    /// kill -9 of a sidecar with every delivery of its messages, until one has exceeded the limit of deliveries.
    Limit,
    /// RabbitMQ: kill -9 of the broker, or of a node of a cluster for 3 seconds.
    Broker,
    /// RabbitMQ: a node of a cluster is cut off from the others for 3 seconds, and keeps its clients.
    Partition,
    /// RabbitMQ: a node of a cluster has no memory left for 3 seconds, so that the cluster accepts no messages.
    Alarm,
    /// RabbitMQ: another client binds a queue that accepts no message to the exchanges with `#`, and a message goes to
    /// an actor that does not exist.
    Tap,
    /// An actor is deleted, and created again.
    Deletion,
    /// A target is un-bound from an actor, and another one bound.
    Unbinding,
    /// SQS: no request of a sidecar is answered for 3 seconds.
    Unreachable,
    /// SQS: for 3 seconds, responses are 1 second late.
    Late,
    /// SQS: for 1 second, every request is carried out twice.
    Twice,
    /// SQS: for 1 second, every request is rejected as one too many.
    Refused,
}

impl Fault {
    /// Column of a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar killed",
            Self::Runtime => "runtime killed",
            Self::Connection => "connection cut",
            Self::Hang => "handler hung",
            Self::Outage => "runtime away",
            Self::Target => "target down",
            Self::Limit => "delivery limit",
            Self::Broker => "broker killed",
            Self::Partition => "node cut off",
            Self::Alarm => "memory alarm",
            Self::Tap => "tap bound",
            Self::Deletion => "actor deleted",
            Self::Unbinding => "target un-bound",
            Self::Unreachable => "SQS unreachable",
            Self::Late => "SQS late",
            Self::Twice => "SQS twice",
            Self::Refused => "SQS throttled",
        }
    }

    /// Reasons with which messages may fail because of it.
    pub(super) const fn reasons(self) -> &'static [Reason] {
        match self {
            Self::Tap | Self::Deletion => &["routing_error"],
            Self::Limit => &["too_many_deliveries", "delivery_limit", "max_receives"],
            _ => &[],
        }
    }
}
