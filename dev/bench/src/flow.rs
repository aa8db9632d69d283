//! A steady flow of new models, and how long each answer takes: by the API server's own clock, from its audit log.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use runway_dev_cluster::SIMULATOR;
use runway_testbed::audit::Request;
use runway_testbed::eventually;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::measure::{Figures, Meter, quantile};
use super::mix;
use super::mix::deployments;
use super::stage::{Stage, USER, providers};
use super::watching::is_running;

/// Requests a second.
pub(super) const RATE: u32 = 20;
/// Ten seconds of them.
const COUNT: usize = 200;
const PREFIX: &str = "flow-";
const PATIENCE: Duration = Duration::from_mins(2);

/// Creates models one after the other, beside those that run, and deletes them again.
pub(super) async fn measure(stage: &Stage<'_>, figures: &mut Figures) -> Result<()> {
    let meter = Meter::start(stage).await?;
    create(stage).await?;
    let api = deployments(&stage.user);
    eventually(PATIENCE, async || {
        let all = api.list(&ListParams::default()).await?;
        let ours = all.iter().filter(|model| model.name_any().starts_with(PREFIX));
        let running = ours.filter(|model| is_running(model)).count();
        ensure!(running == COUNT, "{running} of {COUNT} run");
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(())
    })
    .await?;
    let used = meter.stop(stage).await?;

    let latencies = Latencies::of(used.requests());
    for (values, [half, most]) in [
        (&latencies.made, ["flow_made_p50_ms", "flow_made_p99_ms"]),
        (&latencies.reported, ["flow_told_p50_ms", "flow_told_p99_ms"]),
    ] {
        ensure!(
            values.len() >= COUNT / 2,
            "the audit log has {} times of {COUNT}",
            values.len()
        );
        figures.extend(quantile(values, 0.5).map(|value| (half, value)));
        figures.extend(quantile(values, 0.99).map(|value| (most, value)));
    }
    remove(stage).await
}

async fn create(stage: &Stage<'_>) -> Result<()> {
    let models = (0..COUNT)
        .map(|index| mix::of(index).model(&format!("{PREFIX}{index:05}")))
        .collect::<Result<Vec<_>>>()?;
    let creates = models.into_iter().map(|model| {
        let api = deployments(&stage.user);
        async move { api.create(&PostParams::default(), &model).await.map(drop) }
    });
    steadily(creates).await
}

/// Sends requests at [`RATE`], however long their answers take. Returns when all are answered.
pub(super) async fn steadily<R>(requests: impl Iterator<Item = R>) -> Result<()>
where
    R: Future<Output = kube::Result<()>> + Send + 'static,
{
    let mut pace = interval(Duration::from_secs(1) / RATE);
    // Late ones at once: a rate is a rate.
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = JoinSet::new();
    for request in requests {
        pace.tick().await;
        under_way.spawn(request);
    }
    while let Some(answer) = under_way.join_next().await {
        answer??;
    }
    Ok(())
}

async fn remove(stage: &Stage<'_>) -> Result<()> {
    let api = deployments(&stage.user);
    for index in 0..COUNT {
        api.delete(&format!("{PREFIX}{index:05}"), &DeleteParams::default())
            .await?;
    }
    eventually(PATIENCE, async || {
        let all = api.list_metadata(&ListParams::default()).await?;
        let left = all.iter().filter(|model| model.name_any().starts_with(PREFIX)).count();
        ensure!(left == 0, "{left} are left");
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(())
    })
    .await
}

/// In milliseconds.
#[derive(Debug, Default)]
struct Latencies {
    /// From the user's create, committed, to the upstream object, committed.
    made: Vec<f64>,
    /// From the upstream's last change to the status that reports it, both committed.
    reported: Vec<f64>,
}

impl Latencies {
    fn of(requests: &[Request]) -> Self {
        let mut by_name: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
        for request in requests.iter().filter(|request| request.name.starts_with(PREFIX)) {
            by_name.entry(&request.name).or_default().push(request);
        }
        let mut latencies = Self::default();
        for requests in by_name.values_mut() {
            requests.sort_by_key(|request| request.completed);
            let is_provider = |request: &Request| providers().contains(&request.user.as_str());
            let status = |request: &Request| request.subresource == "status";
            let created = requests.iter().find(|r| r.user == USER && r.verb == "create");
            let made = requests
                .iter()
                .find(|r| is_provider(r) && !status(r) && r.verb == "patch");
            latencies.made.extend(between(created, made));
            let reported = requests.iter().rfind(|r| is_provider(r) && status(r));
            let said = reported.and_then(|reported| {
                let upstream = |r: &&&Request| r.user == SIMULATOR && status(r);
                requests
                    .iter()
                    .filter(upstream)
                    .rfind(|r| r.completed < reported.completed)
            });
            latencies.reported.extend(between(said, reported));
        }
        latencies
    }
}

fn between(from: Option<&&Request>, to: Option<&&Request>) -> Option<f64> {
    Some(milliseconds(from?.completed, to?.completed))
}

/// From one moment to another, in milliseconds.
pub(super) fn milliseconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64() * 1000.0
}
