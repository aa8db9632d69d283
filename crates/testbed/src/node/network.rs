//! The addresses of a node, and the cable between it and the host.
//!
//! ```text
//! host 10.213.N.1 ── veth ── 10.213.N.2 node ── pods 10.214.N.0/24, services 10.(215 + N/32).(N%32 * 8).0/21
//! ```
//!
//! Pods are reached by routes, not bridged: so every packet passes the node's iptables, and services work from
//! everywhere, also from a pod to itself and from the host.

use std::{net::Ipv4Addr, process::Command};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// The addresses of one node and its cluster; each node on this machine has its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Network {
    index: u8,
}

impl Network {
    /// At most this many nodes on a machine.
    pub(crate) const MOST: u8 = 200;

    pub(crate) fn new(index: u8) -> Self {
        Self { index }
    }

    /// Address of the host for pods and the node, such as for the API server.
    pub fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.index, 1)
    }

    /// The node, and the cluster's DNS server.
    pub fn node(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.index, 2)
    }

    /// The addresses of pods, reached from the host too.
    pub fn pods(&self) -> String {
        format!("10.214.{}.0/24", self.index)
    }

    /// The addresses of services, reached from the host too.
    pub fn services(&self) -> String {
        format!("{}/21", self.service(0))
    }

    /// The service `kubernetes`, by which pods find the API server.
    pub fn api_service(&self) -> Ipv4Addr {
        self.service(1)
    }

    /// The address of a service with this last number. A node has room for 2,046, because some tests create a thousand.
    fn service(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 215 + self.index / 32, self.index % 32 * 8, last)
    }

    /// The host's end of the cable.
    fn cable(&self) -> String {
        format!("rwnode{}", self.index)
    }

    /// [`Self::host`] without a net around it.
    fn host_alone(&self) -> String {
        format!("{}/32", self.host())
    }

    fn other_end(&self) -> String {
        format!("rwnode{}p", self.index)
    }

    /// Whether no other network uses these addresses.
    pub(crate) fn is_free(&self) -> Result<bool> {
        let routes = ip(&["route", "show", "table", "all"])?;
        let others = [213, 214].map(|second| (second, self.index));
        let [_, second, first, _] = self.service(0).octets();
        let services = (first..=first + 7).map(|third| (second, third));
        let is_used = |(second, third)| routes.contains(&format!("10.{second}.{third}."));
        Ok(!others.into_iter().chain(services).any(is_used))
    }

    /// Lays the cable. Until [`Self::plug_in`] both ends are the host's, but the host's address can be used already.
    ///
    /// The address is the loopback's as well: the kernel takes the cable away with the node, and programs on the host
    /// still need the API server to end in order.
    pub(crate) fn lay(&self) -> Result<()> {
        let (cable, other) = (self.cable(), self.other_end());
        ip(&["address", "add", &self.host_alone(), "dev", "lo"])?;
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", &other])?;
        ip(&["address", "add", &format!("{}/24", self.host()), "dev", &cable])?;
        ip(&["link", "set", &cable, "up"])?;
        Ok(())
    }

    /// Gives the other end to the network namespace of process `pid`, and leads traffic both ways.
    pub(crate) fn plug_in(&self, pid: u32) -> Result<()> {
        let pid = pid.to_string();
        ip(&["link", "set", &self.other_end(), "netns", &pid, "name", "eth0"])?;
        let node = self.node().to_string();
        ip_inside(&pid, &["address", "add", &format!("{node}/24"), "dev", "eth0"])?;
        ip_inside(&pid, &["link", "set", "eth0", "up"])?;
        ip_inside(&pid, &["route", "add", "default", "via", &self.host().to_string()])?;
        for range in [self.pods(), self.services()] {
            ip(&["route", "add", &range, "via", &node])?;
        }
        Ok(())
    }

    /// Takes the cable away, and with it the routes; the kernel may have done so already. Then the host's address.
    pub(crate) fn remove(&self) {
        let _ = ip(&["link", "delete", &self.cable()]);
        let _ = ip(&["address", "delete", &self.host_alone(), "dev", "lo"]);
    }
}

fn ip(args: &[&str]) -> Result<String> {
    run(Command::new("ip").args(args))
}

fn ip_inside(pid: &str, args: &[&str]) -> Result<String> {
    run(Command::new("nsenter")
        .args(["--target", pid, "--net", "ip"])
        .args(args))
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run `ip`")?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
