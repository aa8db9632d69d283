//! A control plane with everything of ours on it: for `up` and for `bench`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{self, Scope};
use kube::{Api, Client, ResourceExt};
use runway_api::labels;
use runway_cli::manifests::{self, Identity, WEBHOOK_SECRET};
use runway_operator::webhook::Endpoint;
use runway_testbed::{ControlPlane, crds};

use crate::shell;

/// Who applies what people would apply.
const ADMIN: &str = "xtask";
/// Name of the upstream simulator's program, and its identity.
pub(crate) const SIMULATOR: &str = "upstream-simulator";

/// The programs that `up` and `bench` run beside a control plane.
pub(crate) struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Builds them.
    pub(crate) fn build(release: bool) -> Result<Self> {
        let mut args = vec!["build", "--quiet"];
        if release {
            args.push("--release");
        }
        let providers = providers().into_iter().map(|name| format!("runway-provider-{name}"));
        let packages: Vec<String> = ["runway-core", "runway-testbed", "runway-cli"]
            .map(str::to_owned)
            .into_iter()
            .chain(providers)
            .collect();
        args.extend(packages.iter().flat_map(|package| ["-p", package.as_str()]));
        shell::run("cargo", &args)?;
        // Beside ourselves: cargo knows where that is.
        let own = std::env::current_exe().context("cannot find the folder of our own program")?;
        let target = own
            .parent()
            .and_then(Path::parent)
            .context("our own program is not in a target folder")?;
        Ok(Self {
            dir: target.join(if release { "release" } else { "debug" }),
        })
    }

    /// The path of one of them.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Puts CRDs, roles, webhooks and the upstream's CRDs into a cluster.
pub(crate) async fn install(client: &Client, webhook_url: Option<&str>, identity: Identity) -> Result<()> {
    for crd in manifests::crds() {
        crds::install_crd(client, crd).await?;
    }
    let endpoint = Endpoint::Url(webhook_url.unwrap_or("https://127.0.0.1").to_owned());
    for object in manifests::objects(&endpoint, identity) {
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
pub(crate) async fn apply(client: &Client, object: &DynamicObject) -> Result<DynamicObject> {
    let types = object.types.clone().context("an object without kind")?;
    let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
    let (resource, capabilities) = discovery::pinned_kind(client, &GroupVersionKind::gvk(group, version, &types.kind))
        .await
        .with_context(|| format!("the cluster does not know {}", types.kind))?;
    let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), &namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    let name = object.name_any();
    api.patch(&name, &PatchParams::apply(ADMIN).force(), &Patch::Apply(object))
        .await
        .with_context(|| format!("cannot apply {} '{name}'", types.kind))
}

/// The providers that come with the product, by name.
pub(crate) fn providers() -> Vec<&'static str> {
    manifests::built_in_providers()
        .iter()
        .map(|provider| provider.name())
        .collect()
}

/// The CRDs of their upstreams.
pub(crate) fn upstream_crds() -> Result<Vec<CustomResourceDefinition>> {
    crds::upstream_crds(&[
        crds::KAITO_WORKSPACES,
        crds::KAITO_INFERENCE_SETS,
        crds::DYNAMO_V1BETA1,
        crds::KUBERAY_SERVICES,
    ])
}

/// The core controller, a provider's controller for each of `providers`, and the upstream simulator, each as a process
/// with an identity of its own.
pub(crate) fn start_controllers(
    control_plane: &mut ControlPlane,
    programs: &Programs,
    providers: &[&str],
    webhook_port: u16,
    ready_after: Duration,
) -> Result<()> {
    start_core(control_plane, programs, webhook_port)?;
    for provider in providers {
        start_provider(control_plane, programs, provider)?;
    }
    start_simulator(control_plane, programs, ready_after)
}

/// The core controller.
pub(crate) fn start_core(control_plane: &mut ControlPlane, programs: &Programs, webhook_port: u16) -> Result<()> {
    let address = format!("127.0.0.1:{webhook_port}");
    let core = kubeconfig(control_plane, labels::CORE_MANAGER, &[])?;
    control_plane.run(
        "kubeairunway-controller",
        programs.path("kubeairunway-controller"),
        &[
            "--kubeconfig",
            &core,
            "--webhook-address",
            &address,
            "--webhook-url",
            &format!("https://{address}"),
            "--webhook-secret",
            WEBHOOK_SECRET,
        ],
    )
}

/// A provider's controller.
pub(crate) fn start_provider(control_plane: &mut ControlPlane, programs: &Programs, provider: &str) -> Result<()> {
    let name = labels::provider_manager(provider);
    let kubeconfig = kubeconfig(control_plane, &name, &[])?;
    control_plane.run(&name, programs.path(&name), &["--kubeconfig", &kubeconfig])
}

/// The upstream simulator, which plays the operators of KAITO, Dynamo and KubeRay.
pub(crate) fn start_simulator(
    control_plane: &mut ControlPlane,
    programs: &Programs,
    ready_after: Duration,
) -> Result<()> {
    let simulator = kubeconfig(control_plane, SIMULATOR, &["system:masters"])?;
    let ready_after = format!("{}ms", ready_after.as_millis());
    control_plane.run(
        SIMULATOR,
        programs.path(SIMULATOR),
        &["--kubeconfig", &simulator, "--ready-after", &ready_after],
    )
}

fn kubeconfig(control_plane: &ControlPlane, user: &str, groups: &[&str]) -> Result<String> {
    Ok(control_plane.kubeconfig(user, groups)?.display().to_string())
}

/// A port that is free now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
