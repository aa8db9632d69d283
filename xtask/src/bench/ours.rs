//! Our controllers: a burst, silence, a restart, and the end of everything.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{TryStreamExt, stream};
use kube::api::PostParams;

use super::measure::{Figures, Meter, OURS, as_number, memory, seconds};
use super::pilot;
use super::stage::{CONCURRENCY, CORE, KAITO, SETTLE, Stage, delete_all, deployments, model, names};

/// The fewest writes that bring an object to Running.
const MINIMUM: usize = 4;
/// How long we listen to silence.
const QUIET: Duration = Duration::from_secs(20);

/// Everything that is measured of our controllers. They are started for it and ended after it.
pub(super) async fn measure(stage: &mut Stage<'_>, count: usize) -> Result<Figures> {
    let mut figures = Figures::new();
    stage.start_ours().await?;
    // The first model of a process pays for connections and discovery; it is not what is measured.
    pilot::fly(stage).await?;
    pilot::land(stage).await?;
    create(stage, count, &mut figures).await?;
    rest(stage, count, &mut figures).await?;
    restart(stage, &mut figures).await?;
    delete(stage, count, &mut figures).await?;
    stage.end_ours().await?;
    Ok(figures)
}

async fn create(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    figures.insert("core_idle_mib", memory(stage, CORE)?.0);
    figures.insert("kaito_idle_mib", memory(stage, KAITO)?.0);
    let models = names(count).map(|name| model(&name)).collect::<Result<Vec<_>>>()?;
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

    let asked = used.asked_by(&OURS);
    figures.insert("create_requests_per_object", asked.per_object(count));
    figures.insert("create_requests_max", asked.most());
    figures.insert("create_above_minimum", asked.above(MINIMUM));
    figures.insert("create_reads", as_number(asked.reads));
    figures.insert("create_watches", as_number(asked.watches));
    figures.insert("create_events", as_number(asked.events));
    figures.insert("create_cluster_ms", used.imposed(count));
    figures.insert("core_cpu_ms", used.cpu(CORE) * 1000.0 / as_number(count));
    figures.insert("kaito_cpu_ms", used.cpu(KAITO) * 1000.0 / as_number(count));
    figures.insert("core_peak_mib", memory(stage, CORE)?.1);
    figures.insert("kaito_peak_mib", memory(stage, KAITO)?.1);
    Ok(())
}

/// Nothing changes: nothing is to be asked.
async fn rest(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    let meter = Meter::start(stage).await?;
    tokio::time::sleep(QUIET).await;
    let used = meter.stop(stage).await?;
    let asked = used.asked_by(&OURS);
    figures.insert("rest_requests_per_object", asked.per_object(count));
    figures.insert(
        "rest_other_requests",
        as_number(asked.others + asked.events + asked.watches),
    );
    figures.insert("rest_cpu_ms", (used.cpu(CORE) + used.cpu(KAITO)) * 1000.0);

    figures.insert("one_more_ms", seconds(pilot::fly(stage).await?.time) * 1000.0);
    pilot::land(stage).await
}

/// Both controllers end in order and start again; all objects are as they should be.
async fn restart(stage: &mut Stage<'_>, figures: &mut Figures) -> Result<()> {
    let meter = Meter::start(stage).await?;
    stage.end_ours().await?;
    let start = Instant::now();
    stage.launch_ours()?;
    stage.admission_answers().await?;
    pilot::fly(stage).await?;
    figures.insert("restart_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;
    let asked = used.asked_by(&OURS);
    figures.insert("restart_writes", as_number(asked.writes));
    figures.insert("restart_reads", as_number(asked.reads));
    figures.insert("restart_watches", as_number(asked.watches));
    figures.insert("restart_cpu_ms", (used.cpu(CORE) + used.cpu(KAITO)) * 1000.0);
    figures.insert("core_restart_peak_mib", memory(stage, CORE)?.1);
    figures.insert("kaito_restart_peak_mib", memory(stage, KAITO)?.1);
    pilot::land(stage).await
}

async fn delete(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    let meter = Meter::start(stage).await?;
    let start = Instant::now();
    delete_all(&stage.user, count).await?;
    stage.watcher.all_gone().await?;
    figures.insert("delete_seconds", seconds(start.elapsed()));
    tokio::time::sleep(SETTLE).await;
    let used = meter.stop(stage).await?;
    figures.insert("delete_requests_per_object", used.asked_by(&OURS).per_object(count));
    figures.insert("delete_cluster_ms", used.imposed(count));
    Ok(())
}
