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

/// Serve AI models on Kubernetes: what runs, why it runs there, and what the controllers would make of a manifest.
#[derive(Debug, Parser)]
#[command(name = "kubeairunway", version, disable_help_subcommand = true)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Which cluster to talk to.
    #[command(flatten)]
    pub client: ClientArgs,
    /// No colours; they are used on a terminal only
    #[arg(long, global = true, env = "NO_COLOR", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub no_color: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the controllers would make of manifests, without a cluster
    ///
    /// ModelDeployments are rendered; every other document is taken as what the cluster holds: InferenceProviderConfigs,
    /// CustomResourceDefinitions, upstream objects, Pods. Without InferenceProviderConfigs the built-in providers are
    /// registered and ready; without CustomResourceDefinitions their newest upstreams are installed.
    Render(RenderArgs),
    /// Say whether manifests would be let in, without a cluster: schema, rules and admission
    ///
    /// Every error is told at once, with file, line and field, and what to do. InferenceProviderConfigs among the manifests
    /// are the registered providers; without any, the built-in ones are. Kinds that are not ours are named and left out.
    /// Exit code 0: all would be let in, 1: some would not, or cannot be read, 2: wrong usage.
    Validate(ValidateArgs),
    /// List ModelDeployments, or what is of another kind: `get [NAME]`, `get KIND [NAME]`, `get KIND/NAME`
    ///
    /// Kinds: md (ModelDeployments), asya (AsyncActors), llsd (LlamaStackDistributions), ipc (registered providers).
    Get(GetArgs),
    /// Show one ModelDeployment: where it stands, what it waits for, how to reach it
    Status(StatusArgs),
    /// Show what was told of a ModelDeployment and of all that was made for it, the oldest first
    Events(EventsArgs),
    /// Show what the pods of a ModelDeployment write
    Logs(LogsArgs),
    /// Show where an object answers, or the queue of an actor, and how to ask
    Endpoint(TargetArgs),
    /// Talk to a model, through the API server: no port has to be forwarded
    ///
    /// Without a prompt the question is read from standard input; on a terminal it is a talk. It takes the right to create
    /// services/proxy.
    Chat(ChatArgs),
    /// Stop the controllers from changing what runs for objects; the pods run on, and deletion still works
    Pause(PauseArgs),
    /// Let the controllers go on with objects that are paused
    Resume(PauseArgs),
    /// Delete ModelDeployments, or what is of another kind, and wait until all that was made for them is gone
    Delete(DeleteArgs),
    /// Explain which provider serves a ModelDeployment, and why not the others; or what holds an actor or a distribution
    Why(WhyArgs),
    /// Show what was made for an object, down to pods, endpoint or queue, and where that chain breaks first
    Tree(TargetArgs),
    /// Show what the controllers would change in the cluster, field by field; nothing is changed
    ///
    /// The server is asked by dry run, as you: it takes the rights to change what would be changed. With -f, what applying
    /// these ModelDeployments, AsyncActors and LlamaStackDistributions would change, of themselves and of what is made for them.
    Diff(DiffArgs),
    /// Serve a model: works out what is not said, shows the plan, asks, applies
    ///
    /// The name comes from the model's, the engine from what registered providers know and from the GPUs, the provider from
    /// its rules. What would be made upstream is shown before anything is changed. Run again with other wishes, it changes
    /// what is there.
    Deploy(Box<DeployArgs>),
    /// Move a ModelDeployment to another provider: shows what will happen, asks, waits until it runs again
    ///
    /// The old upstream object is deleted before the new one is made, so the model does not answer in between.
    Migrate(MigrateArgs),
    /// Say what is not as it should be in a cluster, why, and what to do
    ///
    /// What is wrong comes first. Exit code 0: nothing is wrong, 1: something does not work, 2: wrong usage.
    Check(CheckArgs),
    /// Write an archive for who is to help: objects, Events, logs of the controllers, the outcome of check; no secrets
    SupportBundle(SupportBundleArgs),
    /// Install the control plane in a cluster, upgrade it, remove it
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// Install and remove providers
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Install the web console in a cluster, where users sign in; remove it
    #[command(subcommand)]
    Console(ConsoleCommand),
    /// Write what a shell needs to complete the command, names in the cluster included
    ///
    /// bash: put into ~/.bashrc: source <(kubeairunway completion bash); zsh and fish likewise. For kubectl kubeairunway, put
    /// a link to this program into the PATH that is called kubectl_complete-kubeairunway.
    Completion(CompletionArgs),
    /// Show the versions of this command, of what runs in the cluster, and of the kinds there
    Version(VersionArgs),
    /// Serve the web console on this machine, with the rights of the kubeconfig
    ///
    /// The address that is printed holds a key: who does not have it is not let in. With --login the console can be served to
    /// others: it then has no rights of its own, and users sign in, with tokens of theirs or at an issuer of OpenID Connect.
    Ui(Box<UiArgs>),
}

/// What to do with the control plane.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// Install the core controller: CRDs, webhooks and roles included
    ///
    /// What would change is shown before anything is done. Running it again mends what is missing and leaves the rest.
    Install(InstallArgs),
    /// Bring the core controller and the built-in providers that are installed to this version
    ///
    /// Models go on serving: no upstream object is changed. To go back, run the upgrade of the version before.
    Upgrade(InstallArgs),
    /// Remove the core controller and the built-in providers
    ///
    /// Refused while there are ModelDeployments, unless --delete-models deletes them first. CRDs stay unless --crds is given.
    Uninstall(UninstallArgs),
    /// Show what is installed, and whether it is ready
    Status,
}

/// What to do with providers.
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// Install the controllers of built-in providers, or what a third party's manifest holds
    ///
    /// This installs the controller that translates for a provider, not the provider itself: KAITO, Dynamo and KubeRay have
    /// installers of their own. The provider direct needs nothing else.
    Install(ProviderInstallArgs),
    /// Remove providers
    Uninstall(ProviderUninstallArgs),
    /// List the providers, installed or not
    List,
}

/// What to do with the console in a cluster.
#[derive(Debug, Subcommand)]
pub enum ConsoleCommand {
    /// Install the web console, or change how it is reached and how users sign in
    ///
    /// It has no rights of its own. What stands after -- is given to `kubeairunway ui --login` in its pod: --public-url, and
    /// what begins with --oidc, --impersonate or --tls. Files are those of the Secrets kubeairunway-console-oidc, in
    /// /etc/kubeairunway/oidc, and kubeairunway-console-tls, in /etc/kubeairunway/tls.
    Install(ConsoleInstallArgs),
    /// Remove the web console
    Uninstall(RemoveArgs),
}

/// Arguments of `console install`.
#[derive(Debug, Args)]
pub struct ConsoleInstallArgs {
    /// How to go about it.
    #[command(flatten)]
    pub install: InstallArgs,
    /// Settings of `kubeairunway ui --login`, after --
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
    /// Where the images are
    #[arg(long, value_name = "REGISTRY", default_value = runway_client::manifests::component::REGISTRY)]
    pub image_registry: String,
    /// Tag of the images; this command's own version if omitted
    #[arg(long, value_name = "TAG")]
    pub image_tag: Option<String>,
    /// Also ServiceMonitors, for the Prometheus operator
    #[arg(long)]
    pub monitoring: bool,
    /// Also policies by which only those may use a provider who may create its upstream objects (Kubernetes 1.30)
    #[arg(long)]
    pub provider_policy: bool,
    /// How to go about it.
    #[command(flatten)]
    pub change: ChangeArgs,
}

/// How to change a cluster.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct ChangeArgs {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Only show what would change
    #[arg(long)]
    pub dry_run: bool,
    /// Take back fields that somebody else has changed
    #[arg(long)]
    pub force_conflicts: bool,
    /// Wait until all pods are ready
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait, as 90s or 5m
    #[arg(long, default_value = "5m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// Which providers: some of ours, or a third party's.
#[derive(Debug, Args)]
pub struct ProvidersArgs {
    /// Built-in providers: kaito, dynamo, kuberay, direct
    #[arg(required_unless_present = "files", conflicts_with = "files")]
    pub names: Vec<String>,
    /// A third party's manifest: a file, a folder, or - for standard input; may be given more than once
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `provider install`.
#[derive(Debug, Args)]
pub struct ProviderInstallArgs {
    /// Which providers.
    #[command(flatten)]
    pub which: ProvidersArgs,
    /// How to go about it.
    #[command(flatten)]
    pub install: InstallArgs,
}

/// How to remove something from a cluster.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Only show what would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until all is gone
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait for each step, as 90s or 6m
    #[arg(long, default_value = "6m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// Arguments of `controller uninstall`: what others may still need goes only when that is said.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Delete the ModelDeployments that are served, first
    #[arg(long)]
    pub delete_models: bool,
    /// Delete the CRDs as well
    #[arg(long)]
    pub crds: bool,
    /// How to go about it.
    #[command(flatten)]
    pub remove: RemoveArgs,
}

/// Arguments of `provider uninstall`.
#[derive(Debug, Args)]
pub struct ProviderUninstallArgs {
    /// Which providers.
    #[command(flatten)]
    pub which: ProvidersArgs,
    /// How to go about it.
    #[command(flatten)]
    pub uninstall: UninstallArgs,
}

/// Arguments of `ui`.
#[derive(Debug, Args)]
pub struct UiArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub address: SocketAddr,
    /// Open it in the browser
    #[arg(long)]
    pub open: bool,
    /// Users sign in, each as themselves; the kubeconfig only says where the cluster is
    #[arg(long, requires = "sites")]
    pub login: bool,
    /// An address by which browsers reach a console with --login, as https://console.example.com; may be given more than once
    #[arg(long = "public-url", value_name = "URL", requires = "login")]
    pub sites: Vec<Site>,
    /// A file with the certificate, if the console itself ends TLS; read again when it is renewed
    #[arg(long, value_name = "FILE", requires_all = ["login", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// A file with its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Hours after which users sign in again, however much they use their session
    #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=720), requires = "login")]
    pub session_lifetime: u16,
    /// Where to serve /healthz, /readyz and /metrics; nowhere if omitted
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin_address: Option<SocketAddr>,
    /// Signing in at an issuer.
    #[command(flatten)]
    pub oidc: OidcArgs,
    /// What to log, with --login.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Signing in at an issuer of OpenID Connect; the words are kube-apiserver's.
#[derive(Debug, Args)]
pub struct OidcArgs {
    /// Users sign in at this issuer of OpenID Connect; a token still does as well
    #[arg(long = "oidc-issuer", value_name = "URL", requires_all = ["login", "client_id"])]
    pub issuer: Option<String>,
    /// The client that the console is at the issuer
    #[arg(long = "oidc-client-id", value_name = "ID", requires = "issuer")]
    pub client_id: Option<String>,
    /// A file with the client's secret; without one the client is public
    #[arg(long = "oidc-client-secret-file", value_name = "FILE", requires = "issuer")]
    pub client_secret_file: Option<PathBuf>,
    /// What to ask the issuer for, beside openid; offline_access for sessions that outlive an ID token
    #[arg(
        long = "oidc-scopes",
        value_name = "SCOPE",
        value_delimiter = ',',
        default_value = "profile,email,groups,offline_access"
    )]
    pub scopes: Vec<String>,
    /// A file with the authorities that vouch for the issuer's certificate; the public ones if omitted
    #[arg(long = "oidc-ca-file", value_name = "FILE", requires = "issuer")]
    pub ca_file: Option<PathBuf>,
    /// Call the cluster with the console's own credentials in the name of users, whom the cluster then need not know from the issuer
    #[arg(long, requires = "issuer")]
    pub impersonate: bool,
    /// With --impersonate, the claim with the name of the user
    #[arg(long = "oidc-username-claim", value_name = "CLAIM", default_value = "sub")]
    pub username_claim: String,
    /// What is put before the name; the issuer and # if omitted, nothing for the claim email or for -
    #[arg(long = "oidc-username-prefix", value_name = "PREFIX", allow_hyphen_values = true)]
    pub username_prefix: Option<String>,
    /// With --impersonate, the claim with the groups of the user; none if omitted
    #[arg(long = "oidc-groups-claim", value_name = "CLAIM")]
    pub groups_claim: Option<String>,
    /// What is put before each group
    #[arg(long = "oidc-groups-prefix", value_name = "PREFIX", default_value = "")]
    pub groups_prefix: String,
    /// Impersonate only these users
    #[arg(long, value_name = "USER", value_delimiter = ',', requires = "impersonate")]
    pub impersonate_users: Vec<String>,
    /// Impersonate users in these groups only, and leave out others of theirs
    #[arg(long, value_name = "GROUP", value_delimiter = ',', requires = "impersonate")]
    pub impersonate_groups: Vec<String>,
}

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The ModelDeployment
    pub name: Name,
    /// The provider that is to serve it
    #[arg(long, value_name = "PROVIDER")]
    pub to: String,
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Only show what would happen, and write what the new provider would make to stdout
    #[arg(long)]
    pub dry_run: bool,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Wait until it runs
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait, as 90s or 20m
    #[arg(long, default_value = "20m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

impl MigrateArgs {
    /// How long to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

impl ChangeArgs {
    /// How long to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

impl RemoveArgs {
    /// How long to wait.
    pub fn timeout(&self) -> Duration {
        self.timeout.unsigned_abs()
    }
}

/// Arguments of `render`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// A file, a folder, or - for standard input; may be given more than once
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// What to show
    #[arg(long, value_enum, default_value_t)]
    pub show: Show,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// The time, as 2026-11-21T10:00:00Z; the wall clock if omitted
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<Timestamp>,
    /// What AsyncActors need.
    #[command(flatten)]
    pub actors: ActorArgs,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// A file, a folder, or - for standard input; may be given more than once
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Write it for programs
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// A shell that can be helped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "they are called so")]
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
    /// Only of this command; no cluster is asked
    #[arg(long = "client")]
    pub client_only: bool,
    /// Write it for programs
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// A ModelDeployment, a kind, or KIND/NAME
    #[arg(value_name = "NAME|KIND|KIND/NAME")]
    pub what: Option<Subject>,
    /// With a kind: only this one
    pub name: Option<Name>,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    pub all_namespaces: bool,
    /// How to write it
    #[arg(short, long, value_enum)]
    pub output: Option<ListFormat>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// Write the object itself
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Wait until it is ready; says what it waits for
    #[arg(long)]
    pub wait: bool,
    /// How long to wait, as 90s or 20m
    #[arg(long, default_value = "20m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// Arguments of `deploy`.
#[derive(Debug, Args)]
pub struct DeployArgs {
    /// Id of the model on the hub, as meta-llama/Llama-3.1-8B-Instruct
    pub model: String,
    /// Name of the ModelDeployment; from the model's if omitted
    #[arg(long)]
    pub name: Option<Name>,
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// The engine, as vllm, sglang, trtllm, llamacpp; the best that a registered provider knows if omitted
    #[arg(long)]
    pub engine: Option<String>,
    /// GPUs of each replica; 1 if omitted, 0 for models in llama.cpp's format
    #[arg(long, value_name = "NUMBER")]
    pub gpu: Option<i32>,
    /// Resource name of the GPU, as amd.com/gpu
    #[arg(long, value_name = "NAME")]
    pub gpu_type: Option<String>,
    /// Processors of each replica, as 4 or 500m
    #[arg(long)]
    pub cpu: Option<String>,
    /// Memory of each replica, as 32Gi
    #[arg(long)]
    pub memory: Option<String>,
    /// How many replicas serve it
    #[arg(long, value_name = "NUMBER")]
    pub replicas: Option<i32>,
    /// The provider; chosen by its rules if omitted
    #[arg(long)]
    pub provider: Option<String>,
    /// Longest context in tokens
    #[arg(long, value_name = "TOKENS")]
    pub context_length: Option<i32>,
    /// The Secret with the hub's token under HF_TOKEN
    #[arg(long, value_name = "NAME")]
    pub secret: Option<String>,
    /// What clients call the model
    #[arg(long, value_name = "NAME")]
    pub served_name: Option<String>,
    /// The image; the provider's for the engine if omitted
    #[arg(long)]
    pub image: Option<String>,
    /// A flag for the engine, as max-num-seqs=64; may be given more than once
    #[arg(long = "engine-arg", value_name = "FLAG=VALUE", value_parser = pair)]
    pub engine_args: Vec<(String, String)>,
    /// An environment variable; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Only show what would happen
    #[arg(long)]
    pub dry_run: bool,
    /// Write the manifest as well
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Wait until it runs
    #[arg(long)]
    pub wait: bool,
    /// How long to wait, as 90s or 20m
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
    /// The ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// How to write them
    #[arg(short, long, value_enum)]
    pub output: Option<ListFormat>,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct LogsArgs {
    /// The ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Only this pod
    #[arg(long)]
    pub pod: Option<Name>,
    /// This container; the main one if omitted, or the init container that keeps it from starting
    #[arg(short, long)]
    pub container: Option<Container>,
    /// All containers
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Go on while they write
    #[arg(short, long)]
    pub follow: bool,
    /// What they wrote before they were started again
    #[arg(short, long)]
    pub previous: bool,
    /// Only the last lines
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// Only what is younger, as 90s or 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<SignedDuration>,
    /// With the time of each line
    #[arg(long)]
    pub timestamps: bool,
}

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// The ModelDeployment
    pub name: Name,
    /// What to say; standard input if omitted, on a terminal a talk
    pub prompt: Option<String>,
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// What the model is to be
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// What the server calls the model; asked for if omitted
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens of each answer at most
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    /// How much chance there is in an answer: 0 for none
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f64>,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The ModelDeployments, or KIND/NAME
    #[arg(value_name = "NAME", required = true)]
    pub targets: Vec<Target>,
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The ModelDeployments, or KIND/NAME
    #[arg(value_name = "NAME", required = true)]
    pub targets: Vec<Target>,
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Only ask the server whether it would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until it is gone; says what it waits for
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait, as 90s or 6m: the controllers give up on an upstream after five minutes
    #[arg(long, default_value = "6m", value_name = "TIME")]
    pub timeout: SignedDuration,
}

/// Arguments of `tree` and `endpoint`.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// The ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// Write it for programs
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `support-bundle`.
#[derive(Debug, Args)]
pub struct SupportBundleArgs {
    /// The archive; named by the time if omitted
    #[arg(short, long, value_name = "FILE.tar.gz")]
    pub output: Option<PathBuf>,
    /// Only this namespace, beside that of the controllers
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Before an installation: whether the control plane can be installed here
    #[arg(long)]
    pub pre: bool,
    /// Look again until nothing is wrong, at most this long, as 90s or 5m
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "5m", conflicts_with = "files")]
    pub wait: Option<SignedDuration>,
    /// Where to look; all namespaces if none is given.
    #[command(flatten)]
    pub place: Place,
    /// In all namespaces, as without it
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: runway_client::check::report::Format,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The ModelDeployment, or KIND/NAME; may be omitted with -f
    #[arg(value_name = "NAME", required_unless_present = "files")]
    pub target: Option<Target>,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// How to write it
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The ModelDeployment, or KIND/NAME; may be omitted with -f
    #[arg(value_name = "NAME", required_unless_present = "files", conflicts_with = "files")]
    pub target: Option<Target>,
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// What is not applied yet: a file, a folder, or - for standard input; may be given more than once
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// How to write it
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// End with code 3 if anything would change
    #[arg(long)]
    pub exit_code: bool,
}

/// How a list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// The whole objects as YAML
    Yaml,
    /// The whole objects as JSON
    Json,
    /// A table with reason and message
    Wide,
    /// Only kind and name, as other commands take them
    Name,
}

impl ListFormat {
    /// How whole objects are written, if they are.
    pub fn document(self) -> Option<Format> {
        match self {
            Self::Yaml => Some(Format::Yaml),
            Self::Json => Some(Format::Json),
            Self::Wide | Self::Name => None,
        }
    }
}
