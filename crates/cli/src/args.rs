//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use runway_api::name::{Container, Name, Namespace};
use runway_asya_operator::ActorArgs;
use runway_client::manifests::console;
use runway_client::source::Place;
use runway_operator::client::ClientArgs;
use runway_operator::telemetry::LogArgs;

use crate::install::Error;
use runway_client::render::Show;
use runway_client::target::{Subject, Target};
use runway_client::text::Format;
use runway_web::guard::Site;

/// Deploy, inspect and troubleshoot AI models on Kubernetes
#[derive(Debug, Parser)]
#[command(name = "kubeairunway", version, disable_help_subcommand = true)]
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
    /// List ModelDeployments, or objects of another kind: `get [NAME]`, `get KIND [NAME]`, `get KIND/NAME`
    ///
    /// Kinds: md (ModelDeployments), asya (AsyncActors), llsd (LlamaStackDistributions), ipc (InferenceProviderConfigs, the
    /// registered providers).
    Get(GetArgs),
    /// Show the state of a ModelDeployment, what it is waiting for, and how to reach it
    Status(StatusArgs),
    /// List Events of a ModelDeployment and of the objects created for it, oldest first
    Events(EventsArgs),
    /// Print the logs of a ModelDeployment's pods
    Logs(LogsArgs),
    /// Show the endpoint of a model or server, or the queue of an actor, with an example request
    Endpoint(TargetArgs),
    /// Chat with a model through the API server, without port forwarding
    ///
    /// Without PROMPT, the prompt is read from standard input; on a terminal, an interactive chat starts. Requires permission
    /// to create services/proxy.
    Chat(ChatArgs),
    /// Pause reconciliation of the given objects; their pods keep running, and deletion still works
    Pause(PauseArgs),
    /// Resume reconciliation of paused objects
    Resume(PauseArgs),
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
    /// Deploy a model: show the plan, ask for confirmation, apply
    ///
    /// Settings that are not given are derived: the name from the model ID, the engine from the registered providers and the
    /// GPUs, the provider from its rules. The upstream objects are shown before anything is changed. If the ModelDeployment
    /// exists, it is updated.
    Deploy(Box<DeployArgs>),
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
    /// Install, upgrade or remove the control plane
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// Install, remove or list providers
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Install or remove the web console in a cluster
    #[command(subcommand)]
    Console(ConsoleCommand),
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
    /// The settings, each as `--name=value`: in the cluster they are read one by one.
    pub fn settings(&self) -> Result<Vec<String>, Error> {
        let mut settings: Vec<String> = Vec::new();
        for word in &self.settings {
            match settings.last_mut() {
                Some(last) if !word.starts_with("--") && !last.contains('=') => *last = format!("{last}={word}"),
                _ => settings.push(word.clone()),
            }
        }
        let component = console::console(&settings);
        let words = [console::PROGRAM.to_owned()].into_iter().chain(component.args);
        match CommandLine::try_parse_from(words) {
            Ok(_) => Ok(settings),
            Err(error) => Err(Error::Settings(error.render().to_string().trim().to_owned())),
        }
    }
}

/// Arguments of `controller install` and `upgrade`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Registry of the images
    #[arg(long, value_name = "REGISTRY", default_value = runway_client::manifests::component::REGISTRY)]
    pub image_registry: String,
    /// Tag of the images; the version of this command if omitted
    #[arg(long, value_name = "TAG")]
    pub image_tag: Option<String>,
    /// Also install ServiceMonitors, for the Prometheus Operator
    #[arg(long)]
    pub monitoring: bool,
    /// Also install admission policies that allow a provider only to users who may create its upstream objects (Kubernetes 1.30)
    #[arg(long)]
    pub provider_policy: bool,
    /// Options for changes in the cluster.
    #[command(flatten)]
    pub change: ChangeArgs,
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
    /// Options for changes in the cluster.
    #[command(flatten)]
    pub install: InstallArgs,
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

/// Arguments of `ui`.
#[derive(Debug, Args)]
pub struct UiArgs {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub address: SocketAddr,
    /// Open the console in the browser
    #[arg(long)]
    pub open: bool,
    /// Require users to sign in with their own credentials; only the cluster's address is taken from the kubeconfig
    #[arg(long, requires = "sites")]
    pub login: bool,
    /// URL at which browsers reach a console with --login, such as https://console.example.com; repeatable
    #[arg(long = "public-url", value_name = "URL", requires = "login")]
    pub sites: Vec<Site>,
    /// TLS certificate file, if the console itself terminates TLS; reloaded when it changes
    #[arg(long, value_name = "FILE", requires_all = ["login", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// TLS key file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Lifetime of a session in hours; users then sign in again
    #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=720), requires = "login")]
    pub session_lifetime: u16,
    /// Address of /healthz, /readyz and /metrics; not served if omitted
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin_address: Option<SocketAddr>,
    /// Sign-in at an OpenID Connect issuer.
    #[command(flatten)]
    pub oidc: OidcArgs,
    /// Log settings, used with --login.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Sign-in at an OpenID Connect issuer; the flags are named like those of kube-apiserver.
#[derive(Debug, Args)]
pub struct OidcArgs {
    /// OpenID Connect issuer at which users sign in; tokens are accepted as well
    #[arg(long = "oidc-issuer", value_name = "URL", requires_all = ["login", "client_id"])]
    pub issuer: Option<String>,
    /// Client ID of the console at the issuer
    #[arg(long = "oidc-client-id", value_name = "ID", requires = "issuer")]
    pub client_id: Option<String>,
    /// Client secret file; a public client if omitted
    #[arg(long = "oidc-client-secret-file", value_name = "FILE", requires = "issuer")]
    pub client_secret_file: Option<PathBuf>,
    /// Scopes to request in addition to openid; offline_access for sessions that outlive an ID token
    #[arg(
        long = "oidc-scopes",
        value_name = "SCOPE",
        value_delimiter = ',',
        default_value = "profile,email,groups,offline_access"
    )]
    pub scopes: Vec<String>,
    /// CA certificate file for the issuer; the public CAs if omitted
    #[arg(long = "oidc-ca-file", value_name = "FILE", requires = "issuer")]
    pub ca_file: Option<PathBuf>,
    /// Impersonate users with the console's own credentials, for clusters that do not trust the issuer
    #[arg(long, requires = "issuer")]
    pub impersonate: bool,
    /// With --impersonate, the claim that contains the user name
    #[arg(long = "oidc-username-claim", value_name = "CLAIM", default_value = "sub")]
    pub username_claim: String,
    /// Prefix of user names; the issuer URL and # if omitted, none for the claim email or for -
    #[arg(long = "oidc-username-prefix", value_name = "PREFIX", allow_hyphen_values = true)]
    pub username_prefix: Option<String>,
    /// With --impersonate, the claim that contains the user's groups; no groups if omitted
    #[arg(long = "oidc-groups-claim", value_name = "CLAIM")]
    pub groups_claim: Option<String>,
    /// Prefix of group names
    #[arg(long = "oidc-groups-prefix", value_name = "PREFIX", default_value = "")]
    pub groups_prefix: String,
    /// Impersonate only these users
    #[arg(long, value_name = "USER", value_delimiter = ',', requires = "impersonate")]
    pub impersonate_users: Vec<String>,
    /// Impersonate only users in these groups, and pass only these groups on
    #[arg(long, value_name = "GROUP", value_delimiter = ',', requires = "impersonate")]
    pub impersonate_groups: Vec<String>,
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Name of the ModelDeployment
    pub name: Name,
    /// Provider to migrate to
    #[arg(long, value_name = "PROVIDER")]
    pub to: String,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the plan, and write the new provider's objects to stdout
    #[arg(long)]
    pub dry_run: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Wait until the model runs
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// Time to wait, such as 90s or 20m
    #[arg(long, default_value = "20m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

impl MigrateArgs {
    /// Longest time to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

impl ChangeArgs {
    /// Longest time to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

impl RemoveArgs {
    /// Longest time to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

/// Arguments of `render`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// File, directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Parts of the plan to show
    #[arg(long, value_enum, default_value_t)]
    pub show: Show,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Time to use as now, such as 2026-11-21T10:00:00Z; the current time if omitted
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<Timestamp>,
    /// Options for AsyncActors.
    #[command(flatten)]
    pub actors: ActorArgs,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// File, directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Output format; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Shell to generate the script for
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Shells with a completion script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "names of the shells")]
pub enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

/// Arguments of `version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Show only the version of this command, without contacting a cluster
    #[arg(long = "client")]
    pub client_only: bool,
    /// Output format; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Name of a ModelDeployment, a kind, or KIND/NAME
    #[arg(value_name = "NAME|KIND|KIND/NAME")]
    pub what: Option<Subject>,
    /// Name of an object of the given kind
    pub name: Option<Name>,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Select all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    pub all_namespaces: bool,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<ListFormat>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format of the object; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Wait until the object is ready, and report progress
    #[arg(long)]
    pub wait: bool,
    /// Time to wait, such as 90s or 20m
    #[arg(long, default_value = "20m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// Arguments of `deploy`.
#[derive(Debug, Args)]
pub struct DeployArgs {
    /// Model ID on Hugging Face, such as meta-llama/Llama-3.1-8B-Instruct
    pub model: String,
    /// Name of the ModelDeployment; derived from the model ID if omitted
    #[arg(long)]
    pub name: Option<Name>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Engine, such as vllm, sglang, trtllm or llamacpp; the first that a registered provider supports if omitted
    #[arg(long)]
    pub engine: Option<String>,
    /// GPUs per replica; 1 if omitted, 0 for models in the format of llama.cpp
    #[arg(long, value_name = "NUMBER")]
    pub gpu: Option<i32>,
    /// Resource name of the GPU, such as amd.com/gpu
    #[arg(long, value_name = "NAME")]
    pub gpu_type: Option<String>,
    /// CPUs per replica, such as 4 or 500m
    #[arg(long)]
    pub cpu: Option<String>,
    /// Memory per replica, such as 32Gi
    #[arg(long)]
    pub memory: Option<String>,
    /// Number of replicas
    #[arg(long, value_name = "NUMBER")]
    pub replicas: Option<i32>,
    /// Provider; selected by its rules if omitted
    #[arg(long)]
    pub provider: Option<String>,
    /// Maximum context length in tokens
    #[arg(long, value_name = "TOKENS")]
    pub context_length: Option<i32>,
    /// Secret that contains the Hugging Face token under the key HF_TOKEN
    #[arg(long, value_name = "NAME")]
    pub secret: Option<String>,
    /// Name of the model in API requests
    #[arg(long, value_name = "NAME")]
    pub served_name: Option<String>,
    /// Container image; the provider's image for the engine if omitted
    #[arg(long)]
    pub image: Option<String>,
    /// Argument for the engine, such as max-num-seqs=64; repeatable
    #[arg(long = "engine-arg", value_name = "FLAG=VALUE", value_parser = pair)]
    pub engine_args: Vec<(String, String)>,
    /// Environment variable; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Only show the plan, without applying it
    #[arg(long)]
    pub dry_run: bool,
    /// Also write the manifest to stdout, in this format
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Wait until the model runs
    #[arg(long)]
    pub wait: bool,
    /// Time to wait, such as 90s or 20m
    #[arg(long, default_value = "20m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// `NAME=VALUE`; a name alone has an empty value.
fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if name.is_empty() {
        return Err("a name is missing before '='".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<ListFormat>,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct LogsArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Name of a single pod
    #[arg(long)]
    pub pod: Option<Name>,
    /// Container; if omitted, the main container, or the init container that blocks it
    #[arg(short, long)]
    pub container: Option<Container>,
    /// All containers
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Stream the logs
    #[arg(short, long)]
    pub follow: bool,
    /// Print the logs of the previous instance of the container
    #[arg(short, long)]
    pub previous: bool,
    /// Number of recent lines to print
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// Print only logs newer than this, such as 90s or 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<SignedDuration>,
    /// Include timestamps
    #[arg(long)]
    pub timestamps: bool,
}

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// Name of the ModelDeployment
    pub name: Name,
    /// Prompt; read from standard input if omitted, or an interactive chat on a terminal
    pub prompt: Option<String>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Name of the model in API requests; requested from the server if omitted
    #[arg(long)]
    pub model: Option<String>,
    /// Maximum tokens per answer
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    /// Sampling temperature; 0 is deterministic
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f64>,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Names of ModelDeployments, or KIND/NAME
    #[arg(value_name = "NAME", required = true)]
    pub targets: Vec<Target>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Names of ModelDeployments, or KIND/NAME
    #[arg(value_name = "NAME", required = true)]
    pub targets: Vec<Target>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Submit a server-side dry run without deleting anything
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until the objects are gone, and report progress
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// Time to wait, such as 90s or 6m; controllers wait at most 5 minutes for an upstream object to be deleted
    #[arg(long, default_value = "6m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// Arguments of `tree` and `endpoint`.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `support-bundle`.
#[derive(Debug, Args)]
pub struct SupportBundleArgs {
    /// Archive to write; named after the current time if omitted
    #[arg(short, long, value_name = "FILE.tar.gz")]
    pub output: Option<PathBuf>,
    /// Collect only this namespace and the namespace of the controllers
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Check whether the control plane can be installed, before an installation
    #[arg(long)]
    pub pre: bool,
    /// Repeat the check until there are no errors, for at most this time, such as 90s or 5m
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "5m", conflicts_with = "files")]
    pub wait: Option<SignedDuration>,
    /// Objects to check; all namespaces if none is given.
    #[command(flatten)]
    pub place: Place,
    /// Check all namespaces; this is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: runway_client::check::report::Format,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Name of the ModelDeployment, or KIND/NAME; optional with -f
    #[arg(value_name = "NAME", required_unless_present = "files")]
    pub target: Option<Target>,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Name of the ModelDeployment, or KIND/NAME; optional with -f
    #[arg(value_name = "NAME", required_unless_present = "files", conflicts_with = "files")]
    pub target: Option<Target>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Manifests to compare: a file, a directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Exit with code 3 if anything would change
    #[arg(long)]
    pub exit_code: bool,
}

/// Output formats of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Objects as YAML
    Yaml,
    /// Objects as JSON
    Json,
    /// Table with additional columns
    Wide,
    /// Kind and name only, such as asyncactor.asya.sh/resize
    Name,
}

impl ListFormat {
    /// Document format, for the formats that write whole objects.
    pub fn document(self) -> Option<Format> {
        match self {
            Self::Yaml => Some(Format::Yaml),
            Self::Json => Some(Format::Json),
            Self::Wide | Self::Name => None,
        }
    }
}
