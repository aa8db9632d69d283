//! Demonstrations of `up` on a real node: a model that answers, or with `--demo` one of the other systems, from nothing to an answer.

pub(crate) mod answer;
mod asya;
mod llama_stack;

use anyhow::{Result, bail};
use runway_testbed::Node;

use crate::cluster::Programs;

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

/// Runs kubectl as a person would, shows the command and what it says, and fails with it.
pub(crate) async fn kubectl(node: &Node, args: &[&str]) -> Result<()> {
    let shown: Vec<String> = args
        .iter()
        .map(|arg| {
            if arg.contains(' ') {
                format!("'{arg}'")
            } else {
                (*arg).to_owned()
            }
        })
        .collect();
    println!("\n$ kubectl {}", shown.join(" "));
    let output = node.kubectl()?.args(args).output().await?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
