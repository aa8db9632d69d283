//! `pause`, `resume`, `scale` and `delete`.

use clap::Args;
use jiff::SignedDuration;
use kube::ResourceExt;
use kube::api::Patch;
use runway_api::labels;
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_client::target::Kind;
use serde_json::{Value, json};

use super::selection::{Selected, Selection};
use super::{Error, wait};
use crate::answer::Answer;
use crate::terminal::Terminal;

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Selected objects.
    #[command(flatten)]
    pub which: Selection,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Selected objects.
    #[command(flatten)]
    pub which: Selection,
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

/// Pauses or resumes reconciliation of objects.
///
/// # Errors
/// A target does not exist or cannot be paused, or the cluster rejects the change.
pub async fn pause(
    args: &PauseArgs,
    pause: bool,
    cluster: &Cluster,
    terminal: &mut Terminal<'_>,
) -> Result<Answer, Error> {
    let selected = args.which.read(cluster, terminal).await?;
    none(&selected, terminal);
    for Selected {
        target,
        namespace,
        object,
    } in &selected
    {
        let Some(annotation) = target.kind.paused_by() else {
            return Err(Error::NotForKind {
                verb: if pause { "pause" } else { "resume" },
                target: target.clone(),
            });
        };
        if labels::is_set(&object.metadata, annotation) == pause {
            terminal.say(&format!("{target}: unchanged"));
            continue;
        }
        let value = pause.then_some("true");
        cluster
            .annotate(target, namespace, (annotation, value), MANAGER)
            .await?;
        terminal.say(&if pause {
            let resume = format!("kubeairunway resume {} -n {namespace}", target.short());
            format!("{target}: paused; its pods keep running, and deletion still works. To resume, run: {resume}")
        } else {
            format!("{target}: resumed")
        });
    }
    Ok(Answer::default())
}

/// Reports that nothing is selected, which is not an error, as in kubectl.
fn none(selected: &[Selected], terminal: &mut Terminal<'_>) {
    if selected.is_empty() {
        terminal.say("note: no objects found");
    }
}

/// Deletes, and waits until all is gone.
///
/// # Errors
/// A target does not exist or cannot be paused, or the cluster rejects the change.
pub async fn delete(args: &DeleteArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    // Nothing is deleted before every name is known.
    let selected = args.which.read(cluster, terminal).await?;
    none(&selected, terminal);
    let uid = |one: &Selected| one.object.uid().unwrap_or_default();
    for one in &selected {
        let target = &one.target;
        cluster.delete(target, &one.namespace, &uid(one), args.dry_run).await?;
        let word = if args.dry_run {
            "would be deleted"
        } else {
            "deletion requested"
        };
        terminal.say(&format!("{target}: {word}"));
    }
    if args.wait && !args.dry_run {
        let timeout = args.timeout.unsigned_abs();
        for one in &selected {
            wait::until_gone(cluster, &one.namespace, &one.target, &uid(one), timeout, terminal).await?;
        }
    }
    Ok(Answer::default())
}

/// Arguments of `scale`.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Selected objects.
    #[command(flatten)]
    pub which: Selection,
    /// Number of replicas; 0 stops the pods
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(0..))]
    pub replicas: i32,
}

/// Sets the number of replicas.
///
/// # Errors
/// A target does not exist or has no fixed number of replicas, or the cluster rejects the change.
pub async fn scale(args: &ScaleArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let selected = args.which.read(cluster, terminal).await?;
    none(&selected, terminal);
    // Nothing is changed before every object is known to have replicas.
    let mut changes = Vec::new();
    for one in &selected {
        let path = match one.target.kind {
            Kind::ModelDeployment => "/spec/scaling/replicas",
            Kind::LlamaStackDistribution => "/spec/replicas",
            Kind::AsyncActor if one.object.data["spec"]["workload"].is_object() => "/spec/workload/replicas",
            Kind::AsyncActor | Kind::InferenceProviderConfig => return Err(Error::NotScaled(one.target.clone())),
        };
        changes.push((one, path));
    }
    for (one, path) in changes {
        let (target, namespace) = (&one.target, &one.namespace);
        let before = one.object.data.pointer(path).and_then(Value::as_i64);
        if before == Some(i64::from(args.replicas)) {
            terminal.say(&format!("{target}: unchanged"));
            continue;
        }
        let patch = path.rsplit('/').filter(|name| !name.is_empty());
        let patch = patch.fold(json!(args.replicas), |inner, name| json!({ name: inner }));
        cluster.change(target, namespace, &Patch::Merge(patch), MANAGER).await?;
        let before = before.map_or_else(|| "the default".to_owned(), |number| number.to_string());
        terminal.say(&format!(
            "{target}: replicas changed from {before} to {}. To wait until it is ready, run: kubeairunway status {} -n {namespace} --wait",
            args.replicas,
            target.short()
        ));
    }
    Ok(Answer::default())
}
