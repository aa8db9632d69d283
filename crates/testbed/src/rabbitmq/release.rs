//! Releases of RabbitMQ: the one of this machine's Debian, and RabbitMQ 4.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cache::environment;
use crate::packages;
use crate::process::{Component, is_root, with_environment};
use crate::roots::{self, Outcome, Root};

/// The starting script itself. The one in the path changes to another user first.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const CONTROL: &str = "/usr/lib/rabbitmq/bin/rabbitmqctl";
const PORT_MAPPER: &str = "/usr/bin/epmd";
/// RabbitMQ, and the commands that its scripts start.
const PACKAGES: [&str; 5] = ["rabbitmq-server", "dash", "coreutils", "sed", "grep"];
/// The variable that selects the release for all brokers of a test.
const SELECTION: &str = "TESTBED_RABBITMQ";

/// A release of RabbitMQ.
#[derive(Clone)]
pub(super) enum Release {
    /// The package of this machine's Debian: 3.10 on Debian 12.
    Installed,
    /// Debian sid's package, in a root directory of its own.
    Four(Root),
}

impl Release {
    /// The release that the environment selects, installed. Blocking.
    pub(super) fn selected() -> Result<Self> {
        match environment(SELECTION).as_deref() {
            Some("4") => match Self::four()? {
                Outcome::Ready(root) => Ok(Self::Four(root)),
                Outcome::Unavailable(reason) => bail!("RabbitMQ 4 is not available: {reason}"),
            },
            Some(other) => bail!("{SELECTION} is {other:?}: set it to 4, or unset it"),
            None => {
                packages::ensure(&packages::RABBITMQ)?;
                Ok(Self::Installed)
            }
        }
    }

    /// The root of RabbitMQ 4, fetched once for the machine. Blocking.
    pub(super) fn four() -> Result<Outcome> {
        if !is_root() {
            let reason = "only root can give it a root directory of its own";
            return Ok(Outcome::Unavailable(reason.to_owned()));
        }
        roots::with_packages(&PACKAGES)
    }

    pub(super) fn server(&self) -> Vec<String> {
        self.command(SERVER)
    }

    pub(super) fn control(&self) -> Vec<String> {
        self.command(CONTROL)
    }

    /// The port mapper of Erlang (epmd), through which nodes of a machine find each other.
    pub(super) fn port_mapper(&self, folder: &Path, port: u16) -> Component {
        let mut command = self.command(PORT_MAPPER);
        command.extend(["-port", &port.to_string(), "-address", "127.0.0.1"].map(str::to_owned));
        with_environment("epmd", folder, [].into_iter(), &command)
    }

    fn command(&self, program: &str) -> Vec<String> {
        match self {
            Self::Installed => vec![program.to_owned()],
            Self::Four(root) => root.command_inside(program),
        }
    }
}
