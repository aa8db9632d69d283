//! Optional lanes of tests: with real programs that are too large for every run. CI does not call them.

/// An optional lane.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lane {
    /// The real vLLM on CPUs judges what providers write for it, and serves a model. The first run fetches 3 GB; 5.1 GB of
    /// disk, 4 GB of memory and about ten minutes.
    Vllm,
    /// Dynamo's real frontend, KV router and mocker answer behind the Dynamo provider on a real node. The first run fetches 100 MB; 1 GB
    /// of disk, 4 GB of memory and about eight minutes.
    Dynamo,
    /// The real KubeRay operator and Ray Serve on a real node, with a stand-in for the engine. The first run fetches 150 MB; 1 GB of
    /// disk, 4 GB of memory and about eight minutes.
    Ray,
    /// A real Envoy and the reference endpoint picker as the data path of a Gateway, whose controller is simulated, before llama-server on
    /// a real node. The first run builds the picker; 500 MB of disk and about four minutes.
    Gateway,
    /// RabbitMQ 4: a cluster of three nodes under faults, and the tests of actors with a broker. The first run fetches 80 MB; 200 MB of
    /// disk and about ten minutes.
    Rabbitmq4,
}

/// Tests of a lane.
#[derive(Default)]
pub(crate) struct Tests {
    /// Files of its own tests, which are all ignored elsewhere.
    pub(crate) own: &'static [&'static str],
    /// Files whose tests run in it, too.
    pub(crate) shared: &'static [&'static str],
    /// Variable of all of them.
    pub(crate) variable: Option<(&'static str, &'static str)>,
}

impl Lane {
    pub(crate) fn tests(self) -> Tests {
        match self {
            Self::Vllm => Tests {
                own: &["crates/testbed/tests/vllm.rs"],
                ..Tests::default()
            },
            Self::Dynamo => Tests {
                own: &["crates/testbed/tests/dynamo.rs"],
                ..Tests::default()
            },
            Self::Ray => Tests {
                own: &["crates/testbed/tests/ray.rs", "dev/upstream/tests/ray.rs"],
                ..Tests::default()
            },
            Self::Gateway => Tests {
                own: &["crates/testbed/tests/gateway.rs"],
                ..Tests::default()
            },
            Self::Rabbitmq4 => Tests {
                own: &["crates/asya-sidecar/tests/rabbitmq4.rs"],
                shared: &[
                    "crates/asya-gateway/tests/jobs.rs",
                    "crates/asya-gateway/tests/operators.rs",
                    "crates/asya-gateway/tests/tenants.rs",
                    "crates/asya-operator/tests/queues.rs",
                    "crates/asya-operator/tests/streams.rs",
                    "crates/asya-sidecar/tests/broker.rs",
                    "crates/asya-sidecar/tests/chaos.rs",
                ],
                variable: Some(("TESTBED_RABBITMQ", "4")),
            },
        }
    }
}

impl Tests {
    /// All of its files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &'static str> {
        self.own.iter().chain(self.shared).copied()
    }
}
