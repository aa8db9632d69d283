//! A control plane or a node with everything of ours on it, for the development programs.
#![allow(clippy::print_stdout, reason = "development programs are command line tools")]
#![allow(
    clippy::missing_errors_doc,
    reason = "every step can fail, and its error says what did"
)]

pub mod answer;
pub mod installed;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::core::DynamicObject;
use runway_api::labels;
use runway_dev_support::shell;
use runway_manifests::{self as manifests, Identity, WEBHOOK_SECRET};
use runway_operator::scope::Namespaces;
use runway_operator::webhook::Endpoint;
use runway_testbed::{ControlPlane, Node, crds, programs};

/// Field manager for objects that users would apply.
const ADMIN: &str = "xtask";
/// Name of the upstream simulator's program, and its identity.
pub const SIMULATOR: &str = "upstream-simulator";

/// The programs that `up` and `bench` run beside a control plane.
pub struct Programs {
    dir: PathBuf,
    /// Those that are here are taken instead.
    preferred: Option<PathBuf>,
}

impl Programs {
    /// Builds them.
    pub async fn build(release: bool) -> Result<Self> {
        let dir = programs::build(release).await?;
        Ok(Self { dir, preferred: None })
    }

    /// Takes what is in this folder instead.
    #[must_use]
    pub fn preferring(self, folder: Option<PathBuf>) -> Self {
        Self {
            preferred: folder,
            ..self
        }
    }

    /// The path of one of them.
    pub fn path(&self, name: &str) -> PathBuf {
        let preferred = self.preferred.as_ref().map(|folder| folder.join(name));
        preferred
            .filter(|program| program.is_file())
            .unwrap_or_else(|| self.dir.join(name))
    }
}

/// Puts CRDs, roles, webhooks and the upstream's CRDs into a cluster.
pub async fn install(client: &Client, webhook_url: Option<&str>, identity: Identity) -> Result<()> {
    install_within(client, webhook_url, identity, &Namespaces::default()).await
}

/// Installs the same, with roles in these existing namespaces only.
pub async fn install_within(
    client: &Client,
    webhook_url: Option<&str>,
    identity: Identity,
    namespaces: &Namespaces,
) -> Result<()> {
    for crd in manifests::crds() {
        crds::install_crd(client, crd).await?;
    }
    let endpoint = Endpoint::Url(webhook_url.unwrap_or("https://127.0.0.1").to_owned());
    for object in manifests::objects(&endpoint, identity, namespaces) {
        let is_webhook = object
            .types
            .as_ref()
            .is_some_and(|t| t.kind.ends_with("WebhookConfiguration"));
        if webhook_url.is_some() || !is_webhook {
            apply(client, &object).await?;
        }
    }
    Ok(())
}

/// Applies an object as a person would.
pub async fn apply(client: &Client, object: &DynamicObject) -> Result<DynamicObject> {
    runway_testbed::apply::apply(client, object, ADMIN).await
}

/// The providers that come with the product, by name.
pub fn providers() -> Vec<&'static str> {
    manifests::built_in_providers()
        .iter()
        .map(|provider| provider.name())
        .collect()
}

/// The CRDs of their upstreams.
pub fn upstream_crds() -> Result<Vec<CustomResourceDefinition>> {
    crds::upstream_crds(&[
        crds::KAITO_WORKSPACES,
        crds::KAITO_INFERENCE_SETS,
        crds::DYNAMO_V1BETA1,
        crds::KUBERAY_SERVICES,
    ])
}

/// The core controller, a provider's controller for each of `providers`, and the upstream simulator, each as a process
/// with an identity of its own.
pub fn start_controllers(
    control_plane: &mut ControlPlane,
    programs: &Programs,
    providers: &[&str],
    webhook_port: u16,
    ready_after: Duration,
) -> Result<()> {
    start_core(control_plane, programs, webhook_port)?;
    for provider in providers {
        // No pod runs behind the simulator, so no endpoint could answer.
        start_provider(control_plane, programs, provider, &["--verify-endpoints=false"])?;
    }
    start_simulator(control_plane, programs, ready_after, &[])
}

/// The core controller.
pub fn start_core(control_plane: &mut ControlPlane, programs: &Programs, webhook_port: u16) -> Result<()> {
    let core = kubeconfig(control_plane, labels::CORE_MANAGER, &[])?;
    let webhooks = webhook_flags(([127, 0, 0, 1], webhook_port).into());
    let webhooks = webhooks.each_ref().map(String::as_str);
    control_plane.run(
        "kubeairunway-controller",
        programs.path("kubeairunway-controller"),
        &[["--kubeconfig", &core].as_slice(), &webhooks, &ALONE].concat(),
    )
}

/// Flags of the core for webhooks at an address that the API server reaches.
pub fn webhook_flags(address: SocketAddr) -> [String; 3] {
    [
        format!("--webhook-address={address}"),
        format!("--webhook-url={}", webhook_url(address)),
        format!("--webhook-secret={WEBHOOK_SECRET}"),
    ]
}

/// URL of webhooks at an address.
pub fn webhook_url(address: SocketAddr) -> String {
    format!("https://{address}")
}

/// Flags for a single replica on this machine: no leader election, and a separate port for each.
pub const ALONE: [&str; 2] = ["--leader-elect=false", "--admin-address=127.0.0.1:0"];

/// A provider's controller, with these further options.
pub fn start_provider(
    control_plane: &mut ControlPlane,
    programs: &Programs,
    provider: &str,
    options: &[&str],
) -> Result<()> {
    let name = labels::provider_manager(provider);
    let kubeconfig = kubeconfig(control_plane, &name, &[])?;
    control_plane.run(
        &name,
        programs.path(&name),
        &[&["--kubeconfig", &kubeconfig, ALONE[0], ALONE[1]], options].concat(),
    )
}

/// The upstream simulator, which plays the operators of KAITO, Dynamo and KubeRay; with these further options.
pub fn start_simulator(
    control_plane: &mut ControlPlane,
    programs: &Programs,
    ready_after: Duration,
    options: &[&str],
) -> Result<()> {
    let simulator = kubeconfig(control_plane, SIMULATOR, &["system:masters"])?;
    let ready_after = format!("{}ms", ready_after.as_millis());
    control_plane.run(
        SIMULATOR,
        programs.path(SIMULATOR),
        &[&["--kubeconfig", &simulator, "--ready-after", &ready_after], options].concat(),
    )
}

/// A program as a child of ours, against a cluster that is there. It ends with us.
pub fn child(programs: &Programs, name: &str, kubeconfig: &Path, args: &[&str]) -> Result<tokio::process::Child> {
    tokio::process::Command::new(programs.path(name))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

/// The web console, with the rights of a kubeconfig. Returns the address to open.
pub async fn start_console(control_plane: &mut ControlPlane, programs: &Programs, kubeconfig: &Path) -> Result<String> {
    let name = "kubeairunway-ui";
    let kubeconfig = kubeconfig.display().to_string();
    control_plane.run(
        name,
        programs.path("kubeairunway"),
        &["ui", "--kubeconfig", &kubeconfig],
    )?;
    let log = control_plane.dir.join(format!("{name}.log"));
    runway_testbed::eventually(runway_testbed::PATIENCE, async || {
        let said = std::fs::read_to_string(&log)?;
        let address = said.lines().find(|line| line.starts_with("http://"));
        address
            .map(str::to_owned)
            .with_context(|| format!("the console has not said where it is: {said}"))
    })
    .await
}

/// The kubeconfig of a user with a certificate, in the control plane's folder.
pub fn kubeconfig(control_plane: &ControlPlane, user: &str, groups: &[&str]) -> Result<String> {
    Ok(control_plane.kubeconfig(user, groups)?.display().to_string())
}

/// The id of a process beside a control plane, if it runs.
pub fn pid(control_plane: &ControlPlane, name: &str) -> Option<u32> {
    let file = control_plane.dir.join(format!("{name}.pid"));
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Ends them in order, as an upgrade would.
pub async fn end(control_plane: &ControlPlane, names: &[&str]) -> Result<()> {
    for name in names {
        let pid = pid(control_plane, name).with_context(|| format!("{name} does not run"))?;
        shell::run("sh", &["-c", &format!("kill -TERM {pid}")])?;
    }
    runway_testbed::eventually(runway_testbed::PATIENCE, async || {
        let running: Vec<_> = names.iter().filter(|name| pid(control_plane, name).is_some()).collect();
        ensure!(running.is_empty(), "{running:?} do not end");
        Ok(())
    })
    .await
}

/// Runs kubectl as a person would, shows the command and what it says, and fails with it.
pub async fn kubectl(node: &Node, args: &[&str]) -> Result<()> {
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
