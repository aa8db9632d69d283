//! Completion: what may stand at the cursor, the live names of a cluster included. Never slow, and silent without a cluster.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use clap::{Arg, Args, Command, ValueEnum};
use clap_complete::engine::{self, ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use k8s_openapi::api::core::v1;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use runway_api::Namespace;
use runway_client::cluster::Cluster;
use runway_client::target::Kind;
use runway_manifests as manifests;
use runway_operator::client::ClientArgs;

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

/// The variable by which a shell's script asks for completion.
const ASKED: &str = "KUBEAIRUNWAY_COMPLETE";
/// Longest wait for names from the cluster.
const PATIENCE: Duration = Duration::from_secs(1);
/// Name of the program that kubectl runs to complete `kubectl kubeairunway`.
/// <https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>
const KUBECTL: &str = "kubectl_complete-kubeairunway";
/// Directive for kubectl not to complete file names (`ShellCompDirectiveNoFileComp` of cobra).
const NO_FILES: &str = ":4";

/// Answers if a shell, or kubectl, asks for completion; false if it is another call.
pub fn answered(line: &[OsString], command: fn() -> Command) -> bool {
    let called = line.first().map(Path::new).and_then(Path::file_stem);
    if called.is_some_and(|name| name == KUBECTL) {
        let mut words = vec![OsString::from("kubeairunway")];
        words.extend_from_slice(line.get(1..).unwrap_or_default());
        for_kubectl(words, command());
        return true;
    }
    let words: Vec<OsString> = line.iter().skip_while(|word| *word != "--").skip(1).cloned().collect();
    let env = CompleteEnv::with_factory(|| taught(command(), &Words::new(&words))).var(ASKED);
    let here = std::env::current_dir().ok();
    // A shell has no use for an error.
    env.try_complete(line.to_vec(), here.as_deref()).unwrap_or(true)
}

/// Writes one candidate per line, its help after a tab, and a directive for kubectl.
fn for_kubectl(words: Vec<OsString>, command: Command) {
    let last = words.len().saturating_sub(1);
    let mut command = taught(command, &Words::new(&words));
    let found = engine::complete(&mut command, words, last, None).unwrap_or_default();
    let mut out = io::stdout().lock();
    for candidate in found {
        let help = candidate
            .get_help()
            .map(|help| format!("\t{}", help.to_string().lines().next().unwrap_or_default()));
        // A closed stdout cannot be reported.
        let _ = writeln!(
            out,
            "{}{}",
            candidate.get_value().to_string_lossy(),
            help.unwrap_or_default()
        );
    }
    let _ = writeln!(out, "{NO_FILES}");
}

/// Completion script of a shell.
///
/// # Errors
/// The shell is not supported.
pub fn script(shell: Shell) -> io::Result<String> {
    let (shells, called) = (Shells::builtins(), shell.to_possible_value());
    let shell = called.and_then(|shell| shells.completer(shell.get_name()));
    let shell = shell.ok_or_else(|| io::Error::other("there is none"))?;
    let (name, mut script) = ("kubeairunway", Vec::new());
    shell.write_registration(ASKED, name, name, name, &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Adds completers of live names to the arguments of a command.
fn taught(command: Command, words: &Words) -> Command {
    let verb = command.get_name().to_owned();
    let command = command.mut_args(|arg| match Names::of(&verb, &arg) {
        Some(names) => {
            let words = words.clone();
            arg.add(ArgValueCompleter::new(move |typed: &OsStr| {
                candidates(names, &words, typed)
            }))
        }
        None => arg,
    });
    command.mut_subcommands(|inner| taught(inner, words))
}

/// Kinds of names that complete an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// Names of ModelDeployments.
    Deployments,
    /// Names of ModelDeployments, and `KIND/NAME` of other kinds.
    Targets,
    /// Names of providers, including registered ones.
    Providers,
    /// Names of namespaces.
    Namespaces,
    /// Names of contexts of the kubeconfig.
    Contexts,
}

impl Names {
    fn of(verb: &str, arg: &Arg) -> Option<Self> {
        Some(match (verb, arg.get_id().as_str()) {
            (_, "namespace") => Self::Namespaces,
            (_, "context") => Self::Contexts,
            (_, "target" | "targets" | "what") => Self::Targets,
            ("why" | "tree" | "endpoint" | "diff" | "migrate" | "chat" | "top", "name") => Self::Deployments,
            ("migrate", "to") | ("deploy", "provider") | ("install" | "uninstall", "names") => Self::Providers,
            _ => return None,
        })
    }
}

/// Cluster and namespace options on the command line so far.
#[derive(Clone, Debug, Default)]
struct Words {
    client: ClientArgs,
    namespace: Option<Namespace>,
    all_namespaces: bool,
}

impl Words {
    fn new(words: &[OsString]) -> Self {
        let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
        let value = |long: &str, short: &str| {
            let after = words.iter().position(|word| *word == long || *word == short);
            let joined = words.iter().find_map(|word| word.strip_prefix(long)?.strip_prefix('='));
            joined.or_else(|| words.get(after? + 1).copied()).map(str::to_owned)
        };
        Self {
            client: ClientArgs {
                kubeconfig: value("--kubeconfig", "--kubeconfig").map(Into::into),
                context: value("--context", "--context"),
            },
            namespace: value("--namespace", "-n").and_then(|typed| typed.parse().ok()),
            all_namespaces: words.contains(&"-A") || words.contains(&"--all-namespaces"),
        }
    }
}

fn candidates(names: Names, words: &Words, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else {
        return Vec::new();
    };
    let (asked, begun) = (words.clone(), typed.to_owned());
    let mut found = known(names, typed);
    found.extend(in_time(move || live(names, &asked, &begun)).unwrap_or_default());
    found.retain(|name| name.starts_with(typed));
    found.sort();
    found.dedup();
    found.into_iter().map(CompletionCandidate::new).collect()
}

/// The result of `work`, or `None` after a timeout, because a plugin of the kubeconfig may hang.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(PATIENCE).ok()?
}

/// Candidates that are the same in every cluster: kinds with a slash, and built-in providers.
fn known(names: Names, typed: &str) -> Vec<String> {
    match names {
        Names::Targets if !typed.contains('/') => ["asya/", "llsd/", "ipc/"].map(str::to_owned).into(),
        Names::Providers => manifests::built_in_providers()
            .iter()
            .map(|p| p.name().to_owned())
            .collect(),
        _ => Vec::new(),
    }
}

/// Candidates from the cluster.
#[tokio::main(flavor = "current_thread")]
async fn live(names: Names, words: &Words, typed: &str) -> Option<Vec<String>> {
    if names == Names::Contexts {
        return contexts(&words.client);
    }
    let cluster = Cluster::connect(&words.client).await.ok()?;
    let here = words.namespace.as_ref().unwrap_or(&cluster.namespace);
    let here = Some(here).filter(|_| !words.all_namespaces);
    Some(match (names, typed.split_once('/')) {
        (Names::Targets, Some((word, _))) => {
            let found = cluster.names(Kind::known_as(word)?, here).await;
            found.iter().map(|name| format!("{word}/{name}")).collect()
        }
        (Names::Providers, _) => cluster.names(Kind::InferenceProviderConfig, None).await,
        (Names::Namespaces, _) => {
            let all = Api::<v1::Namespace>::all(cluster.client());
            let list = all.list_metadata(&ListParams::default()).await.ok()?;
            list.items.iter().map(ResourceExt::name_any).collect()
        }
        _ => cluster.names(Kind::ModelDeployment, here).await,
    })
}

fn contexts(client: &ClientArgs) -> Option<Vec<String>> {
    let file = client.kubeconfig().ok()?;
    Some(file.contexts.into_iter().map(|context| context.name).collect())
}
