//! `diff`.

use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use kube::core::DynamicObject;
use runway_api::Namespace;
use runway_client::cluster::{self, Cluster};
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::documents::Documents;
use runway_client::target::{Kind, Target};
use runway_client::text::{self, Format};
use runway_client::{diff, operated, source};
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use runway_operator::telemetry::chain;

use crate::answer::{Answer, Error, screens};
use crate::exit::DIFFERS;

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

/// `diff`.
///
/// # Errors
/// The cluster cannot be read, or rejects the dry run.
pub async fn diff(args: &DiffArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(source::Error::from)?;
    let (mut diffs, mut said) = (Vec::new(), Vec::new());
    if let Some(target) = &args.target {
        diffs.push(diff_of_live(&cluster, target, args.namespace.as_ref()).await?);
    }
    let documents = Documents::read(&args.files, stdin);
    said.extend(documents.errors.iter().map(Diagnostic::error));
    for document in documents.found {
        let Some(kind) = Kind::known_as(document.kind()).filter(|kind| kind.is_namespaced()) else {
            let text = "skipped: diff shows only ModelDeployments, AsyncActors and LlamaStackDistributions (use kubectl diff for other kinds)";
            said.push(Diagnostic::about(Level::Note, document.subject(), text));
            continue;
        };
        let tried = async {
            let mut written: DynamicObject = document.parse()?;
            written.metadata.namespace = written
                .metadata
                .namespace
                .or_else(|| args.namespace.clone().map(String::from));
            let tried = Box::pin(of_written(&cluster, kind, &written)).await;
            Ok::<_, Error>(tried.map_err(source::Error::from)?)
        };
        match tried.await {
            Ok(diff) => diffs.push(diff),
            Err(error) => said.push(Diagnostic::about(Level::Error, document.subject(), chain(&error))),
        }
    }
    let data = match args.output {
        Some(format) => text::documents(&diffs, format)?,
        None => screens(diffs.iter().map(diff::screen)),
    };
    let mut answer = Answer::new(data, said);
    if args.exit_code && !answer.failed && diffs.iter().any(|diff| !diff.is_empty()) {
        answer.code = Some(DIFFERS);
    }
    Ok(answer)
}

/// Changes that applying an object would cause, in it and in the objects created for it.
pub(super) async fn of_written(
    cluster: &Cluster,
    kind: Kind,
    written: &DynamicObject,
) -> Result<diff::Diff, cluster::Error> {
    let now = clock::now();
    match kind {
        Kind::AsyncActor => operated::of_new_actor(cluster, written, now).await,
        Kind::LlamaStackDistribution => operated::of_new_distribution(cluster, written, now).await,
        _ => diff::of_new(cluster, written, now).await,
    }
}

/// Changes that the controllers would make for an object in the cluster.
async fn diff_of_live(cluster: &Cluster, target: &Target, namespace: Option<&Namespace>) -> Result<diff::Diff, Error> {
    let namespace = namespace.unwrap_or(&cluster.namespace);
    let (name, now) = (&target.name, clock::now());
    let asked = async {
        match target.kind {
            Kind::AsyncActor => {
                let actor = cluster.one(namespace, name).await?;
                Ok(operated::of_actor(cluster, actor, now).await?)
            }
            Kind::LlamaStackDistribution => {
                let llsd = cluster.one(namespace, name).await?;
                Ok(operated::of_distribution(cluster, llsd, now).await?)
            }
            Kind::ModelDeployment => {
                let md = cluster.deployment(namespace, name).await?;
                Ok(diff::of_live(cluster, md, now).await?)
            }
            Kind::InferenceProviderConfig => Err(source::Error::NothingBelow(target.clone())),
        }
    };
    Ok(asked.await?)
}
