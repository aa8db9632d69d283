//! Optional lanes of tests: with real programs that are too large for every run. CI does not call them.

/// An optional lane.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lane {
    /// The real vLLM on CPUs judges what providers write for it, and serves a model. The first run fetches 3 GB; 5.1 GB of
    /// disk, 4 GB of memory and about ten minutes.
    Vllm,
    /// The real KubeRay operator and Ray Serve on a real node, with a stand-in for the engine. The first run fetches 150 MB; 1 GB of
    /// disk, 4 GB of memory and about eight minutes.
    Ray,
}

impl Lane {
    /// The files of its tests, which are all ignored elsewhere.
    pub(crate) fn files(self) -> &'static [&'static str] {
        match self {
            Self::Vllm => &["crates/testbed/tests/vllm.rs"],
            Self::Ray => &["crates/testbed/tests/ray.rs", "dev/upstream/tests/ray.rs"],
        }
    }

    /// The name of these files for cargo.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Ray => "ray",
        }
    }
}
