//! Optional lanes of tests: with real programs that are too large for every run. CI does not call them.

/// An optional lane.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lane {
    /// The real vLLM on CPUs judges what providers write for it, and serves a model. The first run fetches 3 GB; 5.1 GB of
    /// disk, 4 GB of memory and about ten minutes.
    Vllm,
    /// RabbitMQ 4: a cluster of three nodes under faults, and the tests of actors with a broker. The first run fetches 80 MB; 200 MB of
    /// disk.
    Rabbitmq4,
    /// Dynamo's real frontend, KV router and mocker answer behind the Dynamo provider on a real node. The first run fetches 100 MB; 1 GB
    /// of disk, 4 GB of memory and about eight minutes.
    Dynamo,
}

/// Tests of a lane.
pub(crate) struct Tests {
    /// The file of its own tests, which are all ignored elsewhere.
    pub(crate) own: &'static str,
    /// The name of that file for cargo.
    pub(crate) target: &'static str,
    /// Files whose tests run in it, too, with this variable.
    pub(crate) shared: &'static [&'static str],
    pub(crate) environment: Option<(&'static str, &'static str)>,
}

impl Lane {
    pub(crate) fn tests(self) -> Tests {
        match self {
            Self::Vllm => Tests {
                own: "crates/testbed/tests/vllm.rs",
                target: "vllm",
                shared: &[],
                environment: None,
            },
            Self::Rabbitmq4 => Tests {
                own: "crates/asya-sidecar/tests/rabbitmq4.rs",
                target: "rabbitmq4",
                shared: &[
                    "crates/asya-gateway/tests/jobs.rs",
                    "crates/asya-gateway/tests/operators.rs",
                    "crates/asya-gateway/tests/tenants.rs",
                    "crates/asya-operator/tests/queues.rs",
                    "crates/asya-operator/tests/streams.rs",
                    "crates/asya-sidecar/tests/broker.rs",
                    "crates/asya-sidecar/tests/chaos.rs",
                ],
                environment: Some(("TESTBED_RABBITMQ", "4")),
            },
            Self::Dynamo => Tests {
                own: "crates/testbed/tests/dynamo.rs",
                target: "dynamo",
                shared: &[],
                environment: None,
            },
        }
    }
}

impl Tests {
    /// All of its files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.own).chain(self.shared.iter().copied())
    }
}
