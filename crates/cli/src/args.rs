//! The command line: global options and subcommands. The arguments of each subcommand are next to its implementation.

use std::fmt::Write as _;
use std::sync::LazyLock;

use clap::builder::FalseyValueParser;
use clap::{Parser, Subcommand};
use runway_operator::client::ClientArgs;

use crate::check::CheckArgs;
use crate::complete::CompletionArgs;
use crate::install::args::{
    ConsoleInstallArgs, InstallArgs, ProviderInstallArgs, ProviderUninstallArgs, RemoveArgs, UninstallArgs,
};
use crate::support_bundle::SupportBundleArgs;
use crate::ui::UiArgs;
use crate::verbs::asya::AsyaCommand;
use crate::verbs::change::{DeleteArgs, PauseArgs, ScaleArgs};
use crate::verbs::chat::ChatArgs;
use crate::verbs::deploy::DeployArgs;
use crate::verbs::diff::DiffArgs;
use crate::verbs::edit::EditArgs;
use crate::verbs::explain::{TargetArgs, WhyArgs};
use crate::verbs::kit::{BuildArgs, KitCheckArgs, NewArgs, TryArgs};
use crate::verbs::logs::LogsArgs;
use crate::verbs::look::{EventsArgs, GetArgs, StatusArgs};
use crate::verbs::migrate::MigrateArgs;
use crate::verbs::offline::{RenderArgs, ValidateArgs};
use crate::verbs::proxy::ProxyArgs;
use crate::verbs::rollout::RolloutCommand;
use crate::verbs::route::RouteArgs;
use crate::verbs::top::TopArgs;
use crate::verbs::usage::UsageArgs;
use crate::version::VersionArgs;

/// Subcommands in groups, as the help shows them.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Basic", &["deploy", "get", "status", "chat", "proxy", "endpoint"]),
    (
        "Changes",
        &["scale", "edit", "pause", "resume", "rollout", "migrate", "delete"],
    ),
    (
        "Troubleshooting",
        &[
            "why",
            "tree",
            "events",
            "logs",
            "top",
            "usage",
            "route",
            "check",
            "support-bundle",
        ],
    ),
    ("Manifests", &["diff", "render", "validate"]),
    ("Installation", &["controller", "provider", "console", "version"]),
    ("Asya and Llama Stack", &["asya", "llama-stack"]),
    ("Tools", &["ui", "completion"]),
];

/// Template of the help, with subcommands in groups as kubectl shows them.
static TEMPLATE: LazyLock<String> = LazyLock::new(|| {
    let command = Command::augment_subcommands(clap::Command::new(""));
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max();
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        // Writing to a String does not fail.
        let _ = writeln!(template, "\n{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(template, "  {name:<width$}  {about}", width = width.unwrap_or_default());
        }
    }
    template + "\nOptions:\n{options}"
});

/// Deploy, inspect and troubleshoot AI models on Kubernetes
#[derive(Debug, Parser)]
#[command(name = "kubeairunway", version, disable_help_subcommand = true, help_template = TEMPLATE.as_str())]
pub struct CommandLine {
    /// Subcommands of `kubeairunway`.
    #[command(subcommand)]
    pub command: Command,
    /// Connection to the cluster.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Disable colors; they are used only on a terminal
    #[arg(long, global = true, env = "NO_COLOR", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub no_color: bool,
}

/// Subcommands of `kubeairunway`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Render the objects that the controllers would create from manifests, without a cluster
    ///
    /// ModelDeployments, AsyncActors and LlamaStackDistributions are rendered. All other documents are treated as existing
    /// cluster state: InferenceProviderConfigs, CustomResourceDefinitions, upstream objects, Pods. Without
    /// InferenceProviderConfigs, the built-in providers are assumed to be registered and ready; without
    /// CustomResourceDefinitions, the newest supported version of their upstreams is assumed to be installed.
    Render(RenderArgs),
    /// Validate manifests against schema, rules and admission, without a cluster
    ///
    /// All errors are reported at once, with file, line, field and remedy. InferenceProviderConfigs among the manifests are
    /// the registered providers; without any, the built-in providers are. Resources of other kinds are skipped with a note.
    /// Exit code 0: all manifests are valid, 1: some are invalid or cannot be read, 2: wrong usage.
    Validate(ValidateArgs),
    /// List ModelDeployments, or objects of another kind
    ///
    /// Forms: `get [NAME]`, `get KIND [NAME]`, `get KIND/NAME`. Kinds: md (ModelDeployments), asya (AsyncActors), llsd (LlamaStackDistributions), ipc (InferenceProviderConfigs, the
    /// registered providers).
    Get(GetArgs),
    /// Show the state of a ModelDeployment, what it is waiting for, and how to reach it
    Status(StatusArgs),
    /// List Events of a ModelDeployment and of the objects created for it, oldest first
    Events(EventsArgs),
    /// Print the logs of a ModelDeployment's pods
    Logs(LogsArgs),
    /// Show the use of models: running and waiting requests, tokens per second and KV cache, as their engines report them
    ///
    /// Reads the metrics of each pod twice through the API server, for example: kubeairunway top -A. Requires permission to get
    /// pods/proxy. A value that the engine does not export is `-`; reasons why a pod cannot be read are warnings. llama.cpp counts
    /// the tokens of a request when the request ends.
    Top(TopArgs),
    /// Show tokens and requests by model, tenant and day, as the model router counted them
    ///
    /// A tenant is a namespace with its ServiceAccounts, another user, or a key. For a spreadsheet: kubeairunway usage -A --by
    /// day,model,tenant -o csv. Requires permission to get the ConfigMap kubeairunway-router-usage in the router's namespace.
    Usage(UsageArgs),
    /// Show which pod the model router would choose for a prompt, and why, without sending it
    ///
    /// Each pod of the router has its own view, and the API server asks one of them. A prompt has blocks of 256 bytes; SEEN are the
    /// first ones that a pod has seen. Requires permission to create services/proxy of the router and to get the pods of the model, and a
    /// token by which the router identifies you.
    Route(RouteArgs),
    /// Show the endpoint of a model or server, or the queue of an actor, with an example request
    Endpoint(TargetArgs),
    /// Chat with a model through the API server, without port forwarding
    ///
    /// Without PROMPT, the prompt is read from standard input; on a terminal, an interactive chat starts. The answer is written
    /// to stdout; reasoning, calls of tools and the reason why an answer ended early are written to stderr. Requires permission
    /// to create services/proxy.
    Chat(ChatArgs),
    /// Serve a model at an OpenAI address on this machine, for SDKs and tools
    ///
    /// Prints one line that sets OPENAI_BASE_URL and OPENAI_API_KEY, and passes requests on through the API server, as `chat` does. The
    /// key is new each time; requests without it are rejected. Requires permission to create services/proxy, and to get it for GET
    /// requests.
    Proxy(ProxyArgs),
    /// Pause reconciliation of the given objects; their pods keep running, and deletion still works
    Pause(PauseArgs),
    /// Resume reconciliation of paused objects
    Resume(PauseArgs),
    /// Set the number of replicas of ModelDeployments, LlamaStackDistributions, or AsyncActors with a workload of their own
    ///
    /// For example: kubeairunway scale gemma --replicas 2
    Scale(ScaleArgs),
    /// Edit an object in an editor, and send the changed fields
    ///
    /// The editor is that of --editor, KUBE_EDITOR or EDITOR, or vi.
    Edit(EditArgs),
    /// Delete ModelDeployments or objects of another kind, and wait until the objects created for them are gone
    Delete(DeleteArgs),
    /// Explain why a provider was or was not selected, or what blocks an actor or a distribution
    Why(WhyArgs),
    /// Show the objects created for an object, down to pods, endpoint or queue, and the first failure
    Tree(TargetArgs),
    /// Show what the controllers would change in the cluster, field by field, without changing it
    ///
    /// Uses server-side dry run with your credentials, so it requires permission to change these objects. With -f, it shows
    /// what applying these ModelDeployments, AsyncActors and LlamaStackDistributions would change, in them and in the objects
    /// created for them.
    Diff(DiffArgs),
    /// Deploy a model or manifests: show the plan, ask for confirmation, apply
    ///
    /// Settings that are not given are derived: the name from the model ID, the engine from the registered providers and the
    /// GPUs, the provider from its rules. The upstream objects are shown before anything is changed. If the ModelDeployment
    /// exists, it is updated. Pods that do not fit on the present nodes are a warning.
    ///
    /// With -f, ModelDeployments, AsyncActors and LlamaStackDistributions of manifests are applied, as written.
    ///
    /// With --check-fit, nothing is applied: the command reads all nodes and pods of the cluster, and shows on which nodes the
    /// pods of the model would be scheduled and why not on the others, for example: kubeairunway deploy --check-fit -f
    /// model.yaml. It exits with 3 if they do not fit, and with 5 if that is not known.
    Deploy(Box<DeployArgs>),
    /// Try another version of a model on a part of its requests, then promote or revert it
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Migrate a ModelDeployment to another provider: show the plan, ask for confirmation, wait until it runs
    ///
    /// The old upstream object is deleted before the new one is created, so the model is unavailable in between.
    Migrate(MigrateArgs),
    /// Check a cluster for problems, with causes and remedies
    ///
    /// Errors are listed first. Exit code 0: no errors, 1: at least one error, 2: wrong usage.
    Check(CheckArgs),
    /// Collect diagnostics into an archive for support: objects, Events, controller logs, check results; no secrets
    SupportBundle(SupportBundleArgs),
    /// Install the operator of AsyncActors, show queues and dead letters, and submit jobs
    ///
    /// Queues, dead letters and jobs are those of asya-gateway. This requires permission to create and get services/proxy of the gateway, and a token by which it identifies you.
    #[command(subcommand)]
    Asya(AsyaSubcommand),
    /// Install, upgrade or remove the control plane
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// Install, remove or list providers
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Install or remove the web console in a cluster
    #[command(subcommand)]
    Console(ConsoleCommand),
    /// Install the operator of LlamaStackDistributions, and develop Llama Stack providers
    #[command(subcommand)]
    LlamaStack(LlamaStackCommand),
    /// Generate a shell completion script, including names from the cluster
    ///
    /// bash: add to ~/.bashrc: source <(kubeairunway completion bash); zsh and fish work likewise. For kubectl kubeairunway,
    /// create a link to this program in the PATH with the name kubectl_complete-kubeairunway.
    Completion(CompletionArgs),
    /// Show the versions of this command, and of the controllers and CRDs in the cluster
    Version(VersionArgs),
    /// Serve the web console on this machine, with the permissions of the kubeconfig
    ///
    /// The printed address contains a key; requests without the key are rejected. With --login the console can serve other
    /// users: it then has no permissions of its own, and users sign in with their own tokens or at an OpenID Connect issuer.
    Ui(Box<UiArgs>),
}

/// Subcommands of `asya`.
#[derive(Debug, Subcommand)]
pub enum AsyaSubcommand {
    /// Install or upgrade the operator of AsyncActors, with its CRD
    ///
    /// It has the version of the installed core controller, unless --image-tag is given. Then configure a transport: see docs/how-to/asya.md.
    Install(Box<InstallArgs>),
    /// Remove the operator of AsyncActors
    ///
    /// Refused while AsyncActors exist. CRDs are kept.
    Uninstall(RemoveArgs),
    /// Requests to asya-gateway.
    #[command(flatten)]
    Gateway(Box<AsyaCommand>),
}

/// Subcommands of `controller`.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// Install the core controller, including CRDs, webhooks and roles
    ///
    /// Changes are shown before they are applied. Running it again recreates missing objects and leaves the rest unchanged.
    Install(InstallArgs),
    /// Upgrade the core controller and the installed built-in providers to this version
    ///
    /// Models keep serving: no upstream object is changed. To roll back, run the upgrade command of the previous version.
    Upgrade(InstallArgs),
    /// Remove the core controller and the built-in providers
    ///
    /// Refused while ModelDeployments exist, unless --delete-models deletes them first. CRDs are kept unless --crds is given.
    Uninstall(UninstallArgs),
    /// Show the installed components and whether they are ready
    Status,
}

/// Subcommands of `provider`.
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// Install the controllers of built-in providers, or a third-party provider from a manifest
    ///
    /// Installs the controller for a provider, not the provider's own operator: KAITO, Dynamo and KubeRay have installers of
    /// their own. The provider direct requires nothing else.
    Install(ProviderInstallArgs),
    /// Remove providers
    Uninstall(ProviderUninstallArgs),
    /// List providers, installed or not
    List,
}

/// Subcommands of `llama-stack`.
#[derive(Debug, Subcommand)]
pub enum LlamaStackCommand {
    /// Install or upgrade the operator of LlamaStackDistributions
    ///
    /// It has the version of the installed core controller, unless --image-tag is given.
    Install(Box<InstallArgs>),
    /// Remove the operator of LlamaStackDistributions
    ///
    /// Refused while LlamaStackDistributions exist. CRDs are kept.
    Uninstall(RemoveArgs),
    /// Create, build, check or try external providers, without a cluster
    #[command(subcommand)]
    Provider(KitCommand),
}

/// Subcommands of `llama-stack provider`.
#[derive(Debug, Subcommand)]
pub enum KitCommand {
    /// Create the sources of a new inference provider: package, metadata, Containerfile
    ///
    /// The provider answers with the prompt. Existing files are never replaced.
    New(NewArgs),
    /// Build the image of a provider, without a container engine
    ///
    /// pip builds the wheels of DIR and of all that it requires. The image is the base with one more layer, /lls-provider. The same
    /// sources, wheels and base give the same digest. Push the archive with `skopeo copy oci-archive:FILE docker://IMAGE`.
    Build(BuildArgs),
    /// Install, merge and validate providers as a pod does
    ///
    /// A directory has the contents of /lls-provider in a provider image: lls-provider-spec.yaml and packages/*.whl. The order is
    /// that of installation. The messages are those that a pod reports. Exit code 0: the providers fit together, 1: they do not, 2:
    /// wrong usage.
    Check(KitCheckArgs),
    /// Start a Llama Stack server with providers, and send it a chat completion
    ///
    /// The server runs on this machine, with the packages of --distribution-python, the environment variables of this command, and
    /// an unused port. It is checked as by `check` before, and stopped after the answer. Exit code 0: the provider answered, 1: it did
    /// not, 2: wrong usage.
    Try(TryArgs),
}

/// Subcommands of `console`.
#[derive(Debug, Subcommand)]
pub enum ConsoleCommand {
    /// Install the web console, or change its address and sign-in settings
    ///
    /// The console has no permissions of its own. Arguments after -- are passed to `kubeairunway ui --login` in its pod:
    /// --public-url, and options that begin with --oidc, --impersonate or --tls. Files come from the Secrets
    /// kubeairunway-console-oidc, mounted at /etc/kubeairunway/oidc, and kubeairunway-console-tls, mounted at
    /// /etc/kubeairunway/tls.
    Install(ConsoleInstallArgs),
    /// Remove the web console
    Uninstall(RemoveArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_subcommand_is_in_one_group_of_the_help() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let command = CommandLine::command();
        let mut known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known);
    }
}
