//! `deploy`: works out a ModelDeployment, shows what would happen, asks, applies, and waits if that is wanted.

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
use runway_client::fit::{self, Verdict};
use runway_client::fitting;
use runway_client::state::State;
use runway_client::target::{Kind, Target};
use runway_client::text;
use runway_core::providers::Providers;
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use runway_operator::telemetry::chain;

use super::{Error, wait};
use crate::answer::{self, Answer};
use crate::exit::{DOES_NOT_FIT, FIT_UNKNOWN};
use crate::terminal::Terminal;

/// Arguments of `deploy`.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[derive(Debug, Args)]
pub struct DeployArgs {
    /// Model ID on Hugging Face, such as meta-llama/Llama-3.1-8B-Instruct
    #[arg(required_unless_present = "files", conflicts_with = "files")]
    pub model: Option<String>,
    /// Manifests to check with --check-fit: a file, a directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE", requires = "check_fit")]
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
        Err(cluster::Error::Client(error)) if args.dry_run => return without_cluster(args, &error, terminal),
        Err(error) => return Err(Error::from(error).into()),
    };
    let configs = cluster.configs().await.map_err(Error::from)?.into_iter().map(Arc::new);
    let providers = Providers::compile(configs, &Providers::default());
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    let worked = deploy::work_out(&wish(args, namespace), &providers, clock::now()).map_err(Error::from)?;
    terminal.say(choices(&worked).trim_end());

    let written: DynamicObject = serde_json::from_value(worked.manifest.clone()).map_err(text::Error::from)?;
    let diff = diff::of_new(&cluster, &written, clock::now()).await;
    // Who may not make upstream objects may well be allowed to make a ModelDeployment: the controllers do the rest.
    let nothing_changes = match diff {
        Ok(diff) => {
            terminal.say(diff::screen(&diff).trim_end());
            diff.is_empty()
        }
        Err(error @ cluster::Error::Forbidden { .. }) => {
            terminal.say(&format!("note: the plan is incomplete: {}", chain(&error)));
            false
        }
        Err(error) => return Err(Error::from(error).into()),
    };
    let data = match args.output {
        Some(format) => text::documents(&[&worked.manifest], format)?,
        None => String::new(),
    };
    let done = Answer {
        data,
        ..Answer::default()
    };
    if args.dry_run {
        return Ok(done);
    }
    if nothing_changes {
        terminal.say("unchanged: the ModelDeployment already has these settings");
    } else {
        if !args.yes && !terminal.ask("Deploy?") {
            return Err(Error::NotConfirmed.into());
        }
        apply(&cluster, namespace, &written).await?;
        terminal.say(&format!("applied ModelDeployment/{} in {namespace}", worked.why.name));
    }
    if args.wait {
        let name = worked.why.name.parse::<Name>().map_err(cluster::Error::Name);
        let name = name.map_err(Error::from)?;
        let target = Target {
            kind: Kind::ModelDeployment,
            name,
        };
        wait::until_ready(&cluster, namespace, &target, args.timeout.unsigned_abs(), terminal).await?;
        terminal.say(&format!(
            "To chat with it, run: kubeairunway chat {} -n {namespace}",
            target.name
        ));
    }
    Ok(done)
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
        let configs = cluster.configs().await.map_err(Error::from)?.into_iter().map(Arc::new);
        let providers = Providers::compile(configs, &Providers::default());
        let worked = deploy::work_out(&wish(args, namespace), &providers, clock::now()).map_err(Error::from)?;
        terminal.say(choices(&worked).trim_end());
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
        None => answer::screens(reports.iter().map(fit::screen)),
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
    error: &dyn std::error::Error,
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

async fn apply(cluster: &Cluster, namespace: &Namespace, written: &DynamicObject) -> Result<(), Error> {
    let params = PatchParams {
        force: true,
        field_manager: Some(MANAGER.to_owned()),
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let name = written.name_any().parse::<Name>().map_err(cluster::Error::Name)?;
    let api = cluster.api(Kind::ModelDeployment, Some(namespace));
    let applied = api.patch(&name, &params, &Patch::Apply(written)).await;
    applied.map_err(|e| cluster.explain(e, format!("apply ModelDeployment '{name}'"), "ModelDeployment"))?;
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
