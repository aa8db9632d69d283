//! Debian packages that cannot come from Go modules: found, or installed by `apt-get` when we are root.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{cache::hold, process::is_root, say};

/// A package, and how to see that it is there however it came.
#[derive(Clone, Copy)]
pub struct Package {
    pub(crate) name: &'static str,
    pub(crate) evidence: Evidence,
}

#[derive(Clone, Copy)]
pub(crate) enum Evidence {
    /// A program in the search path.
    Program(&'static str),
    File(&'static str),
}

const fn program(name: &'static str, program: &'static str) -> Package {
    Package {
        name,
        evidence: Evidence::Program(program),
    }
}

const fn file(name: &'static str, path: &'static str) -> Package {
    Package {
        name,
        evidence: Evidence::File(path),
    }
}

/// Packages of a real node, and those to build runc and the pause image.
pub(crate) const NODE: [Package; 10] = [
    program("util-linux", "nsenter"),
    program("iproute2", "ip"),
    program("iptables", "iptables"),
    program("conntrack", "conntrack"),
    program("mount", "mount"),
    file("containernetworking-plugins", "/usr/lib/cni/ptp"),
    program("gcc", "gcc"),
    file("libc6-dev", "/usr/include/stdlib.h"),
    program("pkg-config", "pkg-config"),
    file("libseccomp-dev", "/usr/include/seccomp.h"),
];

/// For [`crate::RabbitMq`].
pub(crate) const RABBITMQ: [Package; 1] = [file("rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server")];
/// For [`crate::clocks`].
pub(crate) const FAKETIME: [Package; 1] = [file("libfaketime", FAKETIME_LIBRARY)];
/// Library of that package.
pub(crate) const FAKETIME_LIBRARY: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"
} else {
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
};
/// For `Stage::typed` of the Asya test bed.
pub const CURL: [Package; 1] = [program("curl", "curl")];
/// For tests of alert rules.
pub(crate) const PROMETHEUS: [Package; 1] = [program("prometheus", "promtool")];
/// For [`crate::browser`].
pub(crate) const CHROMIUM: [Package; 1] = [file("chromium", "/usr/bin/chromium")];
/// For `images::busybox`.
pub(crate) const BUSYBOX: [Package; 1] = [program("busybox", "busybox")];
/// For images of Ray: KubeRay's probes use options that busybox has not.
pub(crate) const WGET: [Package; 1] = [program("wget", "wget")];
/// For `images::python`.
pub(crate) const PYTHON: [Package; 1] = [file("python3", "/usr/bin/python3")];

/// Reason why missing packages cannot be installed here; `None` if nothing is missing or they can be.
pub(crate) fn obstacle(packages: &[Package]) -> Option<String> {
    let missing = missing(packages);
    let can_install = is_there(&program("apt", "apt-get")) && is_root();
    (!missing.is_empty() && !can_install).then(|| {
        let names = missing.join(" ");
        format!("these Debian packages are missing, and only root on Debian can install them here: {names}")
    })
}

/// Installs what tests want, save what is large: at once, because apt reads its lists anew each time. Blocking.
pub(crate) fn ensure_small() -> Result<()> {
    ensure(&[RABBITMQ, FAKETIME, CURL, PROMETHEUS, BUSYBOX, PYTHON].concat())
}

/// Installs what is missing. If that is not possible, `what` is skipped and reported, and the result is false. Blocking.
pub(crate) fn ensure_or_skip(packages: &[Package], what: &str) -> Result<bool> {
    if let Some(reason) = obstacle(packages) {
        say(&format!("SKIPPED: {what}, because {reason}"));
        return Ok(false);
    }
    ensure(packages)?;
    Ok(true)
}

/// Installs what is missing. Blocking; says what it does.
pub fn ensure(packages: &[Package]) -> Result<()> {
    if missing(packages).is_empty() {
        return Ok(());
    }
    if let Some(obstacle) = obstacle(packages) {
        bail!(obstacle);
    }
    // apt-get waits for others who install, but not for others who update its lists.
    let _lock = hold("packages")?;
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    say(&format!("Installing Debian packages: {}", missing.join(" ")));
    apt(&["update", "--quiet"])?;
    let mut install = vec!["install", "--quiet", "--yes", "--no-install-recommends"];
    install.extend(&missing);
    apt(&install)?;
    match packages.iter().find(|p| !is_there(p)) {
        Some(package) => bail!("the Debian package {} is installed and yet not usable", package.name),
        None => Ok(()),
    }
}

fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().filter(|p| !is_there(p)).map(|p| p.name).collect()
}

fn is_there(package: &Package) -> bool {
    match package.evidence {
        Evidence::File(path) => Path::new(path).exists(),
        Evidence::Program(name) => Command::new("sh")
            .args(["-c", "PATH=$PATH:/usr/sbin:/sbin command -v \"$0\"", name])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success()),
    }
}

/// Waits for the lock of dpkg, which another process may hold.
fn apt(args: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(["-o", "DPkg::Lock::Timeout=600"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot run apt-get")?;
    if !output.status.success() {
        bail!(
            "`apt-get {}` failed ({}):\n{}{}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
