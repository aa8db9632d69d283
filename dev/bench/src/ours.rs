//! Our controllers: a burst, silence, a touch, steady flows, a restart, and the end of everything.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{TryStreamExt, stream};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::measure::{Figures, Meter, as_number, largest, memory, seconds, silent};
use super::mix::{self, LINES, deployments, names};
use super::pilot;
use super::stage::{CONCURRENCY, CORE, SETTLE, Stage, delete_all, ours, providers};
use super::{changes, flow};

/// The fewest writes that bring an object to Running.
const MINIMUM: usize = 4;
/// Duration of the measurement in steady state.
const QUIET: Duration = Duration::from_secs(20);
/// Longest time to send the Events of a burst, one after the other.
const PATIENCE: Duration = Duration::from_mins(10);

/// Everything that is measured of our controllers. They are started for it and ended after it.
pub(super) async fn measure(stage: &mut Stage<'_>, count: usize) -> Result<Figures> {
    let mut figures = Figures::new();
    stage.start_ours().await?;
    // The first model of a process pays for connections and discovery; it is not what is measured.
    for line in &LINES {
        pilot::fly(stage, line).await?;
        pilot::land(stage, line).await?;
    }
    create(stage, count, &mut figures).await?;
    rest(stage, count, &mut figures).await?;
    touch(stage, count, &mut figures).await?;
    changes::measure(stage, count, &mut figures).await?;
    flow::measure(stage, &mut figures).await?;
    restart(stage, &mut figures).await?;
    delete(stage, count, &mut figures).await?;
    stage.end_ours().await?;
    Ok(figures)
}

async fn create(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    figures.insert("core_idle_mib", memory(stage, CORE)?.0);
    figures.insert("provider_idle_mib", largest(stage)?.0);
    let models = names(count)
        .enumerate()
        .map(|(index, name)| mix::of(index).model(&name))
        .collect::<Result<Vec<_>>>()?;
    let api = deployments(&stage.user);
    let meter = Meter::start(stage).await?;
    let start = Instant::now();
    stream::iter(models.iter().map(Ok::<_, kube::Error>))
        .try_for_each_concurrent(CONCURRENCY, async |model| {
            api.create(&PostParams::default(), model).await?;
            Ok(())
        })
        .await?;
    figures.insert("create_answered_seconds", seconds(start.elapsed()));
    stage.watcher.all_begun(count).await?;
    figures.insert("create_begun_seconds", seconds(start.elapsed()));
    stage.watcher.all_run(count).await?;
    figures.insert("create_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;

    let asked = used.asked_by(&ours());
    figures.insert("create_requests_per_object", asked.per_object(count));
    figures.insert("create_patches_per_object", asked.per_object_by("patch", count));
    figures.insert("create_requests_max", asked.most());
    figures.insert("create_above_minimum", asked.above(MINIMUM));
    figures.insert("create_reads", as_number(asked.reads));
    figures.insert("create_watches", as_number(asked.watches));
    figures.insert("create_events", as_number(asked.events));
    figures.insert("create_cluster_ms", used.imposed(count));
    figures.insert("core_cpu_ms", used.cpu(CORE) * 1000.0 / as_number(count));
    figures.insert("provider_cpu_ms", used.cpu_of(&providers()) * 1000.0 / as_number(count));
    figures.insert("core_peak_mib", memory(stage, CORE)?.1);
    figures.insert("provider_peak_mib", largest(stage)?.1);
    Ok(())
}

/// Nothing changes, so no request is expected.
async fn rest(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    let busy = silent(&stage.control_plane, &ours(), PATIENCE).await?;
    figures.insert("rest_begun_seconds", seconds(SETTLE + busy));
    let meter = Meter::start(stage).await?;
    tokio::time::sleep(QUIET).await;
    let used = meter.stop(stage).await?;
    let asked = used.asked_by(&ours());
    let processes = as_number(ours().len());
    figures.insert("rest_requests_per_object", asked.per_object(count));
    figures.insert(
        "rest_requests_per_second",
        as_number(asked.of_its_own()) / QUIET.as_secs_f64() / processes,
    );
    figures.insert(
        "rest_cpu_percent",
        used.cpu_of(&ours()) * 100.0 / QUIET.as_secs_f64() / processes,
    );
    let (core, provider) = (memory(stage, CORE)?.0, largest(stage)?.0);
    let per_object = |now: f64, before: &str| {
        let before = figures.get(before).copied().unwrap_or_default();
        (now - before) * 1024.0 / as_number(count)
    };
    let slopes = [
        per_object(core, "core_idle_mib"),
        per_object(provider, "provider_idle_mib"),
    ];
    figures.extend([("core_kept_mib", core), ("provider_kept_mib", provider)]);
    figures.extend([("core_slope_kib", slopes[0]), ("provider_slope_kib", slopes[1])]);

    let [first, ..] = &LINES;
    figures.insert("one_more_ms", seconds(pilot::fly(stage, first).await?.time) * 1000.0);
    pilot::land(stage, first).await
}

/// Changes every object in a way that requires no write: each passes through all watches.
async fn touch(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    let api = deployments(&stage.user);
    let touched = Patch::Merge(json!({ "metadata": { "annotations": { "example.org/touched": "yes" } } }));
    let meter = Meter::start(stage).await?;
    let start = Instant::now();
    stream::iter(names(count).map(Ok::<_, kube::Error>))
        .try_for_each_concurrent(CONCURRENCY, async |name| {
            api.patch_metadata(&name, &PatchParams::default(), &touched).await?;
            Ok(())
        })
        .await?;
    figures.insert("touch_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;
    figures.insert("touch_writes", as_number(used.asked_by(&ours()).writes));
    figures.insert("touch_cpu_ms", used.cpu_of(&ours()) * 1000.0 / as_number(count));
    Ok(())
}

/// All controllers end in order and start again; all objects are as they should be.
async fn restart(stage: &mut Stage<'_>, figures: &mut Figures) -> Result<()> {
    let meter = Meter::start(stage).await?;
    stage.end_ours().await?;
    let start = Instant::now();
    stage.launch_ours()?;
    stage.admission_answers().await?;
    let [first, ..] = &LINES;
    pilot::fly(stage, first).await?;
    figures.insert("restart_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;
    let asked = used.asked_by(&ours());
    figures.insert("restart_writes", as_number(asked.writes));
    figures.insert("restart_reads", as_number(asked.reads));
    figures.insert("restart_watches", as_number(asked.watches));
    figures.insert("restart_cpu_ms", used.cpu_of(&ours()) * 1000.0);
    figures.insert("core_restart_peak_mib", memory(stage, CORE)?.1);
    figures.insert("provider_restart_peak_mib", largest(stage)?.1);
    pilot::land(stage, first).await
}

async fn delete(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    let meter = Meter::start(stage).await?;
    let start = Instant::now();
    delete_all(&stage.user, count).await?;
    stage.watcher.all_gone().await?;
    figures.insert("delete_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;
    let asked = used.asked_by(&ours());
    figures.insert("delete_requests_per_object", asked.per_object(count));
    figures.insert("delete_deletes_per_object", asked.per_object_by("delete", count));
    figures.insert("delete_patches_per_object", asked.per_object_by("patch", count));
    figures.insert("delete_cluster_ms", used.imposed(count));
    Ok(())
}
