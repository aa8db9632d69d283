//! `pause`, `resume` and `delete`.

use kube::ResourceExt;
use runway_api::labels;
use runway_client::cluster::Cluster;
use runway_client::diff::MANAGER;
use runway_client::target::Kind;

use super::{Error, wait};
use crate::args::{DeleteArgs, PauseArgs};
use crate::commands::Answer;
use crate::install::console::Console;

/// Stops the controllers from changing what runs, or lets them go on.
pub async fn pause(
    args: &PauseArgs,
    pause: bool,
    cluster: &Cluster,
    console: &mut Console<'_>,
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
            console.say(&format!("{target}: unchanged"));
            continue;
        }
        let value = pause.then_some("true");
        cluster
            .annotate(target, namespace, (annotation, value), MANAGER)
            .await?;
        console.say(&if pause {
            let shortest = match target.kind {
                Kind::ModelDeployment => target.name.to_string(),
                _ => target.to_string(),
            };
            format!("{target}: paused; its pods keep running, and deletion still works. To resume, run: kubeairunway resume {shortest}")
        } else {
            format!("{target}: resumed")
        });
    }
    Ok(Answer::default())
}

/// Deletes, and waits until all is gone.
pub async fn delete(args: &DeleteArgs, cluster: &Cluster, console: &mut Console<'_>) -> Result<Answer, Error> {
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
        console.say(&format!("{target}: {word}"));
    }
    if args.wait && !args.dry_run {
        for (target, uid) in &found {
            wait::until_gone(cluster, namespace, target, uid, args.timeout.unsigned_abs(), console).await?;
        }
    }
    Ok(Answer::default())
}
