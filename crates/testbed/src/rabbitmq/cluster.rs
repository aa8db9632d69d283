//! A cluster of three nodes of RabbitMQ 4, whose nodes can be killed, stopped and separated from the others.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use super::release::Release;
use super::{PortMapper, Ports, RabbitMq, RabbitMqOptions};
use crate::{PATIENCE, eventually};

/// Expressions of Erlang for `rabbitmqctl eval`: nodes with different cookies refuse each other's connections.
const SEPARATE: &str = "[begin erlang:set_cookie(N, apart), erlang:disconnect_node(N) end || N <- nodes()].";
const REJOIN: &str = "[begin erlang:set_cookie(N, erlang:get_cookie()), net_adm:ping(N) end || N <- rabbit_nodes:list_members(), N =/= node()].";
const RUNNING: &str = "length(rabbit_nodes:list_running()).";

/// A cluster of [`RabbitMq`]s. Dropping it kills all nodes and removes their data.
pub struct RabbitMqCluster {
    nodes: Vec<RabbitMq>,
}

impl RabbitMqCluster {
    /// Number of nodes.
    pub const NODES: usize = 3;

    /// Fetches RabbitMQ 4, once for the machine, or prints `SKIPPED: what, because …`. Blocking.
    pub fn prepare(what: &str) -> Result<()> {
        Release::four()?.or_skip(what);
        Ok(())
    }

    /// Starts three nodes and waits until each knows the others: about 30 seconds. `None` where this machine cannot have RabbitMQ 4:
    /// `SKIPPED: what, because …` is printed past the test harness.
    pub async fn start(what: &str) -> Result<Option<Self>> {
        let Some(root) = tokio::task::spawn_blocking(Release::four).await??.or_skip(what) else {
            return Ok(None);
        };
        let release = Release::Four(root);
        let mapper = Arc::new(PortMapper::start(&release).await?);
        let ports = (0..Self::NODES)
            .map(|_| Ports::choose(&RabbitMqOptions::default()))
            .collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = ports.iter().map(Ports::node).collect();
        let start = |ports| RabbitMq::start_at(ports, RabbitMqOptions::default(), &release, &mapper, &names);
        let cluster = Self {
            nodes: try_join_all(ports.into_iter().map(start)).await?,
        };
        cluster.wait_until_whole().await?;
        Ok(Some(cluster))
    }

    /// A node, by its number from 0.
    ///
    /// # Panics
    ///
    /// If the number is [`Self::NODES`] or more.
    pub fn node(&self, number: usize) -> &RabbitMq {
        &self.nodes[number]
    }

    /// Like [`Self::node`], to be killed and started again.
    ///
    /// # Panics
    ///
    /// If the number is [`Self::NODES`] or more.
    pub fn node_mut(&mut self, number: usize) -> &mut RabbitMq {
        &mut self.nodes[number]
    }

    /// Cuts a node off from the others. Its clients stay connected to it.
    pub async fn separate(&self, number: usize) -> Result<()> {
        self.evaluate(number, SEPARATE).await.map(drop)
    }

    /// Ends what [`Self::separate`] did; done before all nodes know each other.
    pub async fn rejoin(&self, number: usize) -> Result<()> {
        self.evaluate(number, REJOIN).await.map(drop)
    }

    /// Takes a node's memory away, so that no node accepts messages.
    pub async fn raise_memory_alarm(&self, number: usize) -> Result<()> {
        self.limit_memory(number, "0.000001").await
    }

    /// Ends what [`Self::raise_memory_alarm`] did.
    pub async fn end_memory_alarm(&self, number: usize) -> Result<()> {
        self.limit_memory(number, "0.6").await
    }

    async fn limit_memory(&self, number: usize, share: &str) -> Result<()> {
        self.control(number, &["set_vm_memory_high_watermark", share])
            .await
            .map(drop)
    }

    /// Waits until each node knows all others.
    pub async fn wait_until_whole(&self) -> Result<()> {
        for number in 0..Self::NODES {
            eventually(PATIENCE, async || {
                let running = self.evaluate(number, RUNNING).await?;
                ensure!(
                    running == Self::NODES.to_string(),
                    "node {number} knows {running} running nodes"
                );
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Value of an expression of Erlang on a node.
    async fn evaluate(&self, number: usize, expression: &str) -> Result<String> {
        self.control(number, &["eval", expression]).await
    }

    /// Output of `rabbitmqctl` for a node.
    async fn control(&self, number: usize, arguments: &[&str]) -> Result<String> {
        let node = self.node(number);
        let command = node.release.control();
        let (program, first) = command.split_first().context("a command has a program")?;
        let mut control = Command::new(program);
        control
            .args(first)
            .args(["--quiet", "--node", &node.ports.node()])
            .args(arguments);
        control.envs(node.ports.environment(node.folder.path(), &node.port_mapper));
        let output = tokio::task::spawn_blocking(move || crate::process::output(&mut control)).await??;
        Ok(output.trim().to_owned())
    }
}
