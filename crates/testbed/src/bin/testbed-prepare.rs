//! Gets what tests need of the machine, ahead of them: for `cargo xtask test`.
#![expect(clippy::print_stdout, reason = "a program talks to its user on stdout")]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use runway_dev_support::{OlderKubernetes, ended};
use runway_testbed::binaries::{Binaries, of_older_kubernetes};
use runway_testbed::dynamo::Dynamo;
use runway_testbed::vllm::Vllm;
use runway_testbed::{RabbitMqCluster, node, prepare, ray};

/// Prerequisites of tests.
#[derive(Parser)]
enum Args {
    /// Programs of a control plane and a node.
    Cluster,
    /// The same, and then prerequisites of some tests. Those that the machine cannot have are reported.
    All,
    /// Programs of an older control plane. Prints their folder.
    Kubernetes {
        /// Release, such as 1.30.
        release: OlderKubernetes,
    },
    /// The real vLLM, for the lane of that name.
    Vllm,
    /// RabbitMQ 4, for the lane of that name.
    Rabbitmq4,
    /// Programs of a node, and Dynamo's frontend and mocker, for the lane of that name.
    Dynamo,
    /// Programs of a node, Envoy, llama-server and the reference endpoint picker, for the lane of that name.
    Gateway,
    /// KubeRay's operator and the image with Ray, for the lane of that name.
    Ray,
}

fn main() -> ExitCode {
    ended(run(&Args::parse()))
}

fn run(args: &Args) -> Result<()> {
    match args {
        Args::Cluster => {
            if let Some(reason) = node::unavailable() {
                println!("SKIPPED: everything that needs a real node, because {reason}");
            }
            cluster()
        }
        Args::All => {
            let cluster = cluster();
            prepare::what_some_tests_need();
            cluster
        }
        Args::Kubernetes { release } => {
            println!("{}", of_older_kubernetes(*release)?.display());
            Ok(())
        }
        Args::Vllm => Vllm::prepare("the lane vllm").map(drop),
        Args::Rabbitmq4 => RabbitMqCluster::prepare("the lane rabbitmq4"),
        Args::Dynamo => {
            if Dynamo::prepare("the lane dynamo")?.is_some() {
                cluster()?;
            }
            Ok(())
        }
        Args::Gateway => {
            if prepare::gateway("the lane gateway")? {
                cluster()?;
            }
            Ok(())
        }
        Args::Ray => {
            if ray::prepare("the lane ray")? {
                cluster()?;
            }
            Ok(())
        }
    }
}

fn cluster() -> Result<()> {
    Binaries::ensure()?;
    if node::unavailable().is_some() {
        return Ok(());
    }
    node::prepare()
}
