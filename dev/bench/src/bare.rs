//! The bare client: sends what the pilot's controllers sent, for every object, and looks at nothing. No controller can do
//! with less.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures::{TryStreamExt, stream};
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, ValidationDirective};
use serde_json::json;

use super::measure::{Figures, Meter, as_number, seconds};
use super::mix::{self, Line, deployments, names};
use super::pilot::{Script, Target, Write};
use super::stage::{CONCURRENCY, SETTLE, Stage, delete_all};

const USER: [&str; 1] = ["bare-client"];

/// Creates and deletes this many. Admission webhooks are removed, because their server does not run.
pub(super) async fn measure(stage: &Stage<'_>, scripts: &[Script], count: usize) -> Result<Figures> {
    stage.remove_webhooks().await?;
    let mut figures = Figures::new();
    create(stage, scripts, count, &mut figures).await?;
    delete(stage, count, &mut figures).await?;
    Ok(figures)
}

async fn create(stage: &Stage<'_>, scripts: &[Script], count: usize, figures: &mut Figures) -> Result<()> {
    let scripts = names(count)
        .zip(scripts.iter().cycle())
        .map(|(name, script)| script.renamed(&name))
        .collect::<Result<Vec<_>>>()?;
    let meter = Meter::start(stage).await?;
    let start = Instant::now();
    let all =
        stream::iter(scripts.into_iter().map(Ok)).try_for_each_concurrent(CONCURRENCY, |script| play(stage, script));
    let (begun, ()) = tokio::try_join!(begun(stage, count, start), all)?;
    figures.insert("create_begun_seconds", begun);
    stage.watcher.all_run(count).await?;
    figures.insert("create_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;

    let asked = used.asked_by(&USER);
    ensure!(
        asked.writes == 4 * count && asked.reads == 0,
        "the bare client made {} writes and {} reads, and not 4 writes for each of {count}",
        asked.writes,
        asked.reads
    );
    figures.insert("create_requests_per_object", asked.per_object(count));
    figures.insert("create_patches_per_object", asked.per_object_by("patch", count));
    figures.insert("create_requests_max", asked.most());
    figures.insert("create_reads", as_number(asked.reads));
    figures.insert("create_watches", as_number(asked.watches));
    figures.insert("create_events", as_number(asked.events));
    figures.insert("create_cluster_ms", used.imposed(count));
    Ok(())
}

async fn begun(stage: &Stage<'_>, count: usize, start: Instant) -> Result<f64> {
    stage.watcher.all_begun(count).await?;
    Ok(seconds(start.elapsed()))
}

/// One object, in the order in which each write needs the one before.
async fn play(stage: &Stage<'_>, script: Script) -> Result<()> {
    let created = deployments(&stage.user)
        .create(&PostParams::default(), &script.create)
        .await?;
    let uid = created.uid().unwrap_or_default();
    let line = script.line;
    for mut write in script.writes {
        write.fill_in(&uid);
        send(stage, line, &created.name_any(), &write).await?;
    }
    Ok(())
}

async fn send(stage: &Stage<'_>, line: &Line, name: &str, write: &Write) -> Result<DynamicObject> {
    let params = PatchParams {
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply(&write.manager)
    };
    let body = Patch::Apply(&write.body);
    let answer = match write.target {
        Target::Status => deployments(&stage.bare).patch_status(name, &params, &body).await?,
        Target::Upstream => line.upstream(&stage.bare).patch(name, &params, &body).await?,
    };
    Ok(answer)
}

/// The fewest that deletion can do with: the upstream object, then the finalizer.
async fn delete(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    let meter = Meter::start(stage).await?;
    let start = Instant::now();
    delete_all(&stage.user, count).await?;
    let deployments = deployments(&stage.bare);
    stream::iter(names(count).enumerate().map(Ok::<_, kube::Error>))
        .try_for_each_concurrent(CONCURRENCY, async |(index, name)| {
            let upstream = mix::of(index).upstream(&stage.bare);
            upstream.delete(&name, &DeleteParams::background()).await?;
            let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            deployments.patch(&name, &PatchParams::default(), &released).await?;
            Ok(())
        })
        .await?;
    stage.watcher.all_gone().await?;
    figures.insert("delete_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;
    let asked = used.asked_by(&USER);
    figures.insert("delete_requests_per_object", asked.per_object(count));
    figures.insert("delete_deletes_per_object", asked.per_object_by("delete", count));
    figures.insert("delete_patches_per_object", asked.per_object_by("patch", count));
    figures.insert("delete_cluster_ms", used.imposed(count));
    Ok(())
}
