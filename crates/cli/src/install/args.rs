//! Arguments of `controller`, `provider` and `console`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use runway_api::{Namespace, labels};
use runway_operator::scope::Namespaces;

/// Arguments of `controller install` and `upgrade`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Registry of the images
    #[arg(long, value_name = "REGISTRY", default_value = runway_manifests::component::REGISTRY)]
    pub image_registry: String,
    /// Tag of the images; the version of this command if omitted
    #[arg(long, value_name = "TAG")]
    pub image_tag: Option<String>,
    /// Also install ServiceMonitors, for the Prometheus Operator
    #[arg(long)]
    pub monitoring: bool,
    /// Also install PodMonitors for the engines of all models, for the Prometheus Operator
    #[arg(long)]
    pub engine_monitoring: bool,
    /// Also install admission policies that allow a provider only to users who may create its upstream objects (Kubernetes 1.30)
    #[arg(long)]
    pub provider_policy: bool,
    /// Install admission policies that require permissions of users for fields such as serviceAccountName (Kubernetes 1.30). If
    /// omitted, the choice of the installation is kept; true at first
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub permission_policy: Option<bool>,
    /// Aggregate the roles of users to view, edit and admin. If omitted, the choice of the installation is kept; true at first
    #[arg(long, value_name = "BOOL")]
    pub aggregate_roles: Option<bool>,
    /// Namespaces that controllers watch, such as team-a,team-b: they get Roles in these instead of permissions everywhere. An
    /// empty list is all namespaces. If omitted, the choice of the installation is kept
    #[arg(long, value_name = "NAMESPACES", value_parser = of_users)]
    pub namespaces: Option<Namespaces>,
    /// Objects to apply
    #[arg(long, value_enum, default_value_t = Step::All)]
    pub step: Step,
    /// Options for changes in the cluster.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// Part of an installation, by the permissions that it requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// All objects
    All,
    /// Objects without a namespace, which only an administrator of the cluster may create: CRDs, webhooks, policies, the namespace of
    /// the controllers, and their ClusterRoles
    Cluster,
    /// Objects in namespaces: Deployments, Roles, Services
    Namespaced,
}

impl Step {
    /// Whether it has the objects with, or without, a namespace.
    pub fn includes(self, namespaced: bool) -> bool {
        match self {
            Self::All => true,
            Self::Cluster => !namespaced,
            Self::Namespaced => namespaced,
        }
    }
}

/// Parses namespaces of users: controllers may not write in those of the cluster and in their own.
fn of_users(text: &str) -> Result<Namespaces, String> {
    let namespaces: Namespaces = text
        .parse()
        .map_err(|error: runway_operator::scope::BadList| error.to_string())?;
    let is_closed = |name: &&Namespace| name.starts_with("kube-") || name.as_str() == labels::SYSTEM_NAMESPACE;
    match namespaces.names().iter().find(is_closed) {
        Some(closed) => Err(format!(
            "namespace `{closed}` belongs to the cluster or to the control plane, and controllers may not write in it: name namespaces of users"
        )),
        None => Ok(namespaces),
    }
}

/// Options of commands that apply objects.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct ChangeArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the changes, without applying them
    #[arg(long)]
    pub dry_run: bool,
    /// Take over fields that another field manager has changed
    #[arg(long)]
    pub force_conflicts: bool,
    /// Wait until all pods are ready
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// Time to wait, such as 90s or 5m
    #[arg(long, default_value = "5m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

impl ChangeArgs {
    /// Longest time to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

/// Selection of built-in or third-party providers.
#[derive(Debug, Args)]
pub struct ProvidersArgs {
    /// Names of built-in providers: kaito, dynamo, kuberay, direct
    #[arg(required_unless_present = "files", conflicts_with = "files")]
    pub names: Vec<String>,
    /// Manifest of a third-party provider: a file, a directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `provider install`.
#[derive(Debug, Args)]
pub struct ProviderInstallArgs {
    /// Selected providers.
    #[command(flatten)]
    pub which: ProvidersArgs,
    /// Settings of the installation.
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// Options for changes in the cluster.
    #[command(flatten)]
    pub install: InstallArgs,
}

/// Settings of a provider's installation. Without them, existing settings are kept.
#[derive(Debug, Args)]
pub struct SettingsArgs {
    /// Setting of the provider, such as images.vllm=registry.example.com/vllm:v1; null removes it; repeatable. Other settings are
    /// kept. Requires a single NAME
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, conflicts_with = "files")]
    pub set: Vec<(String, String)>,
    /// File with all settings of the provider, as YAML or JSON. It replaces the existing ones. Requires a single NAME
    #[arg(long = "settings", value_name = "FILE", conflicts_with = "files")]
    pub file: Option<PathBuf>,
}

impl SettingsArgs {
    /// Whether no settings are given.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.file.is_none()
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as images.vllm=registry.example.com/vllm:v1".to_owned()),
    }
}

/// Options of commands that delete objects.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the objects that would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until all objects are gone
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// Time to wait for each step, such as 90s or 6m
    #[arg(long, default_value = "6m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

impl RemoveArgs {
    /// Longest time to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

/// Arguments of `controller uninstall`. ModelDeployments and CRDs are deleted only on request.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// First delete all ModelDeployments that use it
    #[arg(long)]
    pub delete_models: bool,
    /// Also delete the CRDs
    #[arg(long)]
    pub crds: bool,
    /// Options for changes in the cluster.
    #[command(flatten)]
    pub remove: RemoveArgs,
}

/// Arguments of `provider uninstall`.
#[derive(Debug, Args)]
pub struct ProviderUninstallArgs {
    /// Selected providers.
    #[command(flatten)]
    pub which: ProvidersArgs,
    /// Options for changes in the cluster.
    #[command(flatten)]
    pub uninstall: UninstallArgs,
}

/// Arguments of `console install`.
#[derive(Debug, Args)]
pub struct ConsoleInstallArgs {
    /// Options for changes in the cluster.
    #[command(flatten)]
    pub install: InstallArgs,
    /// Arguments of `kubeairunway ui --login`, after --
    #[arg(last = true, value_name = "SETTINGS")]
    pub settings: Vec<String>,
}

impl ConsoleInstallArgs {
    /// Settings, each as `--name=value`, because they are parsed one by one in the cluster.
    pub fn settings(&self) -> Vec<String> {
        let mut settings: Vec<String> = Vec::new();
        for word in &self.settings {
            match settings.last_mut() {
                Some(last) if !word.starts_with("--") && !last.contains('=') => *last = format!("{last}={word}"),
                _ => settings.push(word.clone()),
            }
        }
        settings
    }
}
