//! `deploy`: works out a ModelDeployment, or reads objects from files, shows what would happen, asks, applies, and waits if that is wanted.

use clap::Args;
use jiff::SignedDuration;
use runway_client::text::Format;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::DynamicObject;
use runway_api::{Name, Namespace};
use runway_client::cluster::{self, Cluster};
use runway_client::deploy::{self, Wish, Worked};
use runway_client::diagnostic::{Diagnostic, Level, one_line};
use runway_client::diff::{self, MANAGER};
use runway_client::documents::Documents;
use runway_client::state::State;
use runway_client::target::{Kind, Target};
use runway_client::text;
use runway_client::{fit_report, fitting};
use runway_core::providers::Providers;
use runway_fit::{self as fit, Verdict};
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use runway_operator::telemetry::chain;

use super::{Error, wait};
use crate::answer::{self, Answer};
use crate::exit::{DOES_NOT_FIT, FIT_UNKNOWN};
use crate::terminal::Terminal;

/// Arguments that a manifest has fields for.
const SETTINGS: [&str; 14] = [
    "name",
    "engine",
    "gpu",
    "gpu_type",
    "cpu",
    "memory",
    "replicas",
    "provider",
    "context_length",
    "secret",
    "served_name",
    "image",
    "engine_args",
    "env",
];

/// Arguments of `deploy`.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[derive(Debug, Args)]
pub struct DeployArgs {
    /// Model ID on Hugging Face, such as meta-llama/Llama-3.1-8B-Instruct, or its URL
    #[arg(required_unless_present = "files", conflicts_with = "files")]
    pub model: Option<String>,
    /// Manifests to deploy instead of a model: a file, a directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE", conflicts_with_all = SETTINGS)]
    pub files: Vec<PathBuf>,
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
    /// Only check whether the pods fit on the present nodes, without applying anything
    #[arg(long, conflicts_with = "wait")]
    pub check_fit: bool,
    /// Also write the manifest to stdout, in this format; with --check-fit, the report instead
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

/// An object to apply.
struct Wanted {
    target: Target,
    namespace: Namespace,
    object: DynamicObject,
}

impl Wanted {
    fn new(kind: Kind, mut object: DynamicObject, namespace: &Namespace) -> Result<Self, Error> {
        let given = object.namespace().map(Namespace::try_from).transpose();
        let namespace = given
            .map_err(cluster::Error::Name)?
            .unwrap_or_else(|| namespace.clone());
        object.metadata.namespace = Some(namespace.to_string());
        let name = object.name_any().parse().map_err(cluster::Error::Name)?;
        let target = Target { kind, name };
        Ok(Self {
            target,
            namespace,
            object,
        })
    }
}

/// Plan first, then the question, then the change.
///
/// # Errors
/// Settings cannot be derived, the confirmation is missing, or the cluster rejects the change.
pub async fn deploy(
    args: &DeployArgs,
    client: &ClientArgs,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, answer::Error> {
    if args.check_fit {
        return check_fit(args, client, terminal).await;
    }
    let cluster = match Cluster::connect_patiently(client).await {
        Ok(cluster) => cluster,
        Err(cluster::Error::Client(error)) if args.dry_run && args.files.is_empty() => {
            return without_cluster(args, &error, terminal);
        }
        Err(error) => return Err(Error::from(error).into()),
    };
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let (wanted, talk) = if args.files.is_empty() {
        (vec![derived(args, &cluster, namespace, terminal).await?], Vec::new())
    } else {
        in_files(args, namespace, terminal)?
    };
    if talk.iter().any(|said| said.level == Level::Error) {
        return Ok(Answer::new(String::new(), talk));
    }
    let mut changed = Vec::new();
    for one in &wanted {
        if changes(&cluster, one, terminal).await? {
            changed.push(one);
        }
    }
    let objects: Vec<&DynamicObject> = wanted.iter().map(|one| &one.object).collect();
    let data = match args.output {
        Some(format) => text::documents(&objects, format)?,
        None => String::new(),
    };
    let done = Answer::new(data, talk);
    if args.dry_run {
        return Ok(done);
    }
    if !changed.is_empty() && !args.yes && !terminal.ask("Deploy?") {
        return Err(Error::NotConfirmed.into());
    }
    for one in changed {
        apply(&cluster, one).await?;
        terminal.say(&format!("applied {} in {}", one.target, one.namespace));
    }
    for one in &wanted {
        let (name, namespace) = (one.target.short(), &one.namespace);
        if !args.wait {
            terminal.say(&format!(
                "To wait until it is ready, run: kubeairunway status {name} -n {namespace} --wait"
            ));
            continue;
        }
        let timeout = args.timeout.unsigned_abs();
        wait::until_ready(&cluster, namespace, &one.target, timeout, terminal).await?;
        terminal.say(&match one.target.kind {
            Kind::ModelDeployment => format!("To chat with it, run: kubeairunway chat {name} -n {namespace}"),
            _ => format!("To see how to reach it, run: kubeairunway endpoint {name} -n {namespace}"),
        });
    }
    Ok(done)
}

/// A ModelDeployment from the arguments.
async fn derived(
    args: &DeployArgs,
    cluster: &Cluster,
    namespace: &Namespace,
    terminal: &mut Terminal<'_>,
) -> Result<Wanted, answer::Error> {
    let worked = worked_out(args, cluster, namespace, terminal).await?;
    let object = serde_json::from_value(worked.manifest).map_err(text::Error::from)?;
    Ok(Wanted::new(Kind::ModelDeployment, object, namespace)?)
}

async fn worked_out(
    args: &DeployArgs,
    cluster: &Cluster,
    namespace: &Namespace,
    terminal: &mut Terminal<'_>,
) -> Result<Worked, Error> {
    let configs = cluster.configs().await?.into_iter().map(Arc::new);
    let providers = Providers::compile(configs, &Providers::default());
    let worked = deploy::work_out(&wish(args, namespace), &providers, clock::now())?;
    terminal.say(choices(&worked).trim_end());
    Ok(worked)
}

/// The objects in the files that can be deployed, and remarks about the others.
fn in_files(
    args: &DeployArgs,
    namespace: &Namespace,
    terminal: &mut Terminal<'_>,
) -> Result<(Vec<Wanted>, Vec<Diagnostic>), answer::Error> {
    let documents = Documents::read(&args.files, terminal.stdin);
    let mut talk: Vec<Diagnostic> = documents.errors.iter().map(Diagnostic::error).collect();
    let mut wanted = Vec::new();
    for document in documents.found {
        match Kind::known_as(document.kind()).filter(|kind| kind.is_namespaced()) {
            Some(kind) => wanted.push(Wanted::new(kind, document.parse()?, namespace)?),
            None => talk.push(Diagnostic::about(
                Level::Warning,
                document.subject(),
                "skipped: deploy applies only ModelDeployments, AsyncActors and LlamaStackDistributions (use kubectl apply for other kinds)",
            )),
        }
    }
    if wanted.is_empty() && talk.iter().all(|said| said.level != Level::Error) {
        let text = "nothing to deploy: no ModelDeployment, AsyncActor or LlamaStackDistribution is in the given files";
        talk.push(Diagnostic {
            level: Level::Error,
            subject: None,
            text: text.to_owned(),
        });
    }
    Ok((wanted, talk))
}

/// Shows the changes, and pods that do not fit. Returns whether anything changes.
async fn changes(cluster: &Cluster, one: &Wanted, terminal: &mut Terminal<'_>) -> Result<bool, Error> {
    // Who may not make upstream objects may well be allowed to make a ModelDeployment: the controllers do the rest.
    match Box::pin(super::diff::of_written(cluster, one.target.kind, &one.object)).await {
        Ok(diff) if diff.is_empty() => {
            terminal.say(&format!("{}: unchanged", one.target));
            return Ok(false);
        }
        Ok(diff) => terminal.say(diff::screen(&diff).trim_end()),
        Err(error @ cluster::Error::Forbidden { .. }) => {
            terminal.say(&format!("note: the plan is incomplete: {}", chain(&error)));
        }
        Err(error) => return Err(error.into()),
    }
    if one.target.kind != Kind::ModelDeployment {
        return Ok(true);
    }
    match Box::pin(fitting::of_new(cluster, &one.object, clock::now())).await {
        Ok(report) => {
            for line in fit::obstacles(&report) {
                terminal.say(&format!("warning: {}", one_line(&line)));
            }
        }
        Err(fitting::Error::Forbidden { plural, .. }) => {
            let note = format!("note: not known whether the pods fit: you may not list {plural} in all namespaces");
            terminal.say(&note);
        }
        Err(error) => terminal.say(&format!("note: not known whether the pods fit: {}", chain(&error))),
    }
    Ok(true)
}

/// Checks whether the pods fit on the present nodes.
async fn check_fit(
    args: &DeployArgs,
    client: &ClientArgs,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, answer::Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(Error::from)?;
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let (mut written, mut said) = (Vec::new(), Vec::new());
    if args.files.is_empty() {
        let worked = worked_out(args, &cluster, namespace, terminal).await?;
        written.push(serde_json::from_value(worked.manifest).map_err(text::Error::from)?);
    }
    let documents = Documents::read(&args.files, terminal.stdin);
    said.extend(documents.errors.iter().map(Diagnostic::error));
    for document in documents.found {
        if Kind::known_as(document.kind()) != Some(Kind::ModelDeployment) {
            let text = "skipped: --check-fit checks only ModelDeployments";
            said.push(Diagnostic::about(Level::Note, document.subject(), text));
            continue;
        }
        let mut object: DynamicObject = document.parse()?;
        object.metadata.namespace = object.metadata.namespace.or_else(|| Some(namespace.to_string()));
        written.push(object);
    }
    let mut reports = Vec::new();
    for object in &written {
        match Box::pin(fitting::of_new(&cluster, object, clock::now())).await {
            Ok(report) => reports.push(report),
            Err(error) => {
                let subject = format!("ModelDeployment/{}", object.name_any());
                said.push(Diagnostic::about(Level::Error, subject, chain(&error)));
            }
        }
    }
    let data = match args.output {
        Some(format) => text::documents(&reports, format)?,
        None => answer::screens(reports.iter().map(fit_report::screen)),
    };
    let mut answer = Answer::new(data, said);
    let worst = reports.iter().map(|report| report.verdict).max();
    answer.code = match worst {
        _ if answer.failed => None,
        Some(Verdict::No) => Some(DOES_NOT_FIT),
        Some(Verdict::Unknown) => Some(FIT_UNKNOWN),
        Some(Verdict::Yes) | None => None,
    };
    Ok(answer)
}

/// Plan without a cluster: built-in providers are assumed to be registered and ready, as in `render`.
fn without_cluster(
    args: &DeployArgs,
    error: &(dyn std::error::Error + 'static),
    terminal: &mut Terminal<'_>,
) -> Result<Answer, answer::Error> {
    let (state, _) = State::new(runway_client::documents::Documents::default());
    let namespace = args.namespace.clone().unwrap_or_default();
    let worked = deploy::work_out(&wish(args, &namespace), &state.providers, clock::now()).map_err(Error::from)?;
    terminal.say(choices(&worked).trim_end());
    let note = Diagnostic {
        level: Level::Note,
        subject: None,
        text: format!(
            "the built-in providers are assumed to be registered and ready: {}",
            chain(error)
        ),
    };
    Ok(Answer {
        data: text::documents(&[&worked.manifest], args.output.unwrap_or_default())?,
        talk: vec![note],
        ..Answer::default()
    })
}

/// Derived settings and provider, as text.
fn choices(worked: &Worked) -> String {
    let mut said = String::new();
    // Writing to a String does not fail.
    for (what, value, why) in &worked.choices {
        let _ = writeln!(said, "{what:<9} {value} ({why})");
    }
    let provider = worked.why.provider.as_deref().unwrap_or("none");
    let _ = writeln!(said, "provider  {provider} ({})", one_line(&worked.why.because));
    for warning in &worked.warnings {
        let _ = writeln!(said, "warning: {}", one_line(warning));
    }
    said
}

async fn apply(cluster: &Cluster, one: &Wanted) -> Result<(), Error> {
    let params = PatchParams {
        force: true,
        field_manager: Some(MANAGER.to_owned()),
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let Target { kind, name } = &one.target;
    let api = cluster.api(*kind, Some(&one.namespace));
    let applied = api.patch(name, &params, &Patch::Apply(&one.object)).await;
    let kind = kind.as_str();
    applied.map_err(|e| cluster.explain(e, format!("apply {kind} '{name}'"), kind))?;
    Ok(())
}

fn wish(args: &DeployArgs, namespace: &Namespace) -> Wish {
    Wish {
        model: args.model.clone().unwrap_or_default(),
        name: args.name.clone().map(String::from),
        namespace: namespace.to_string(),
        engine: args.engine.clone(),
        gpu: args.gpu,
        gpu_type: args.gpu_type.clone(),
        cpu: args.cpu.clone(),
        memory: args.memory.clone(),
        replicas: args.replicas,
        provider: args.provider.clone(),
        context_length: args.context_length,
        secret: args.secret.clone(),
        served_name: args.served_name.clone(),
        image: args.image.clone(),
        engine_args: args.engine_args.iter().cloned().collect(),
        env: args.env.iter().cloned().collect(),
    }
}
