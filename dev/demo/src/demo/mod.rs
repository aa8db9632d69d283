//! Demonstrations of `up` on a real node: a model that answers, or with `--demo` one of the other systems, from nothing to an answer.

mod asya;
mod llama_stack;

use anyhow::Result;
use runway_dev_cluster::Programs;
use runway_testbed::Node;

/// System to show instead of models.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Demo {
    /// A model server that answers through a queue, goes to sleep, and wakes for the next question.
    Asya,
    /// A Llama Stack server, answering through a provider that was installed from an image when its pod started, and through a
    /// model of the provider direct.
    LlamaStack,
}

impl Demo {
    pub(crate) async fn show(self, node: &mut Node, programs: &Programs) -> Result<()> {
        match self {
            Self::Asya => asya::show(node).await,
            Self::LlamaStack => llama_stack::show(node, programs).await,
        }
    }
}
