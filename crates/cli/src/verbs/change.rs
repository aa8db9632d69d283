//! `pause`, `resume` and `delete`.

use clap::Args;
use jiff::SignedDuration;
use kube::ResourceExt;
use runway_api::labels;
use runway_api::name::Namespace;
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_client::target::Target;

use super::{Error, wait};
use crate::answer::Answer;
use crate::terminal::Terminal;

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
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    for target in &args.targets {
        let Some(annotation) = target.kind.paused_by() else {
            return Err(Error::NotForKind {
                verb: if pause { "pause" } else { "resume" },
                target: target.clone(),
            });
        };
        let object = cluster.get(target, namespace).await?;
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

/// Deletes, and waits until all is gone.
///
/// # Errors
/// A target does not exist or cannot be paused, or the cluster rejects the change.
pub async fn delete(args: &DeleteArgs, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Answer, Error> {
    let namespace = args.namespace.as_ref().unwrap_or(&cluster.namespace);
    // Nothing is deleted before every name is known.
    let mut found = Vec::new();
    for target in &args.targets {
        found.push((target, cluster.get(target, namespace).await?.uid().unwrap_or_default()));
    }
    for (target, uid) in &found {
        cluster.delete(target, namespace, uid, args.dry_run).await?;
        let word = if args.dry_run {
            "would be deleted"
        } else {
            "deletion requested"
        };
        terminal.say(&format!("{target}: {word}"));
    }
    if args.wait && !args.dry_run {
        for (target, uid) in &found {
            wait::until_gone(cluster, namespace, target, uid, args.timeout.unsigned_abs(), terminal).await?;
        }
    }
    Ok(Answer::default())
}
