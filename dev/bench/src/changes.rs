//! A steady flow of changes upstream, and how long until the status reports of each: by the API server's own clock, from its
//! audit log.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use runway_dev_cluster::SIMULATOR;
use runway_testbed::audit::Request;
use runway_upstream_simulator as simulator;
use serde_json::json;

use super::flow::{milliseconds, steadily};
use super::measure::{Figures, Meter, quantile, silent};
use super::mix;
use super::mix::{PREFIX, names};
use super::stage::{Stage, ours, providers};

/// Objects whose upstream changes: each stops to serve once, and serves again five seconds later.
const COUNT: usize = 100;
const PATIENCE: Duration = Duration::from_mins(5);

/// Changes the simulated upstream objects of running models.
pub(super) async fn measure(stage: &Stage<'_>, count: usize, figures: &mut Figures) -> Result<()> {
    let count = count.min(COUNT);
    let meter = Meter::start(stage).await?;
    for behavior in [Some(simulator::Behavior::Flap.to_string()), None] {
        let label = json!({ "metadata": { "labels": { simulator::LABEL: behavior } } });
        let changes = names(count).enumerate().map(|(index, name)| {
            let api = mix::of(index).upstream(&stage.user);
            let patch = Patch::Merge(label.clone());
            async move {
                let params = PatchParams::default();
                api.patch_metadata(&name, &params, &patch).await.map(drop)
            }
        });
        steadily(changes).await?;
    }
    silent(&stage.control_plane, &ours(), PATIENCE).await?;
    let used = meter.stop(stage).await?;

    let noted = noted(used.requests());
    ensure!(
        noted.len() >= count,
        "of {} changes upstream, the status reported {}",
        count * 2,
        noted.len()
    );
    figures.extend(quantile(&noted, 0.5).map(|value| ("change_told_p50_ms", value)));
    figures.extend(quantile(&noted, 0.99).map(|value| ("change_told_p99_ms", value)));
    Ok(())
}

/// From each upstream change to the first status that follows it, both committed, in milliseconds.
fn noted(requests: &[Request]) -> Vec<f64> {
    let of_the_run = |r: &&Request| r.name.starts_with(PREFIX) && r.subresource == "status";
    let mut statuses: Vec<&Request> = requests.iter().filter(of_the_run).collect();
    statuses.sort_by_key(|request| request.completed);
    let mut untold: BTreeMap<&str, Timestamp> = BTreeMap::new();
    let mut noted = Vec::new();
    for status in statuses {
        if status.user == SIMULATOR {
            untold.entry(&status.name).or_insert(status.completed);
        } else if providers().contains(&status.user.as_str()) {
            let since = untold.remove(status.name.as_str());
            noted.extend(since.map(|since| milliseconds(since, status.completed)));
        }
    }
    noted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(user: &str, name: &str, millisecond: i64) -> Request {
        Request {
            user: user.to_owned(),
            impersonated: String::new(),
            verb: "patch".to_owned(),
            group: String::new(),
            resource: String::new(),
            subresource: "status".to_owned(),
            namespace: String::new(),
            name: format!("{PREFIX}{name}"),
            code: 200,
            completed: Timestamp::from_millisecond(millisecond).unwrap(),
            user_agent: String::new(),
            dry_run: false,
        }
    }

    #[test]
    fn change_is_reported_by_the_first_status_after_it() {
        let [provider, ..] = providers()[..] else { panic!() };
        let requests = [
            status(provider, "a", 1),
            status(SIMULATOR, "a", 10),
            status(SIMULATOR, "b", 11),
            status(SIMULATOR, "a", 12),
            status("somebody", "b", 13),
            status(provider, "b", 15),
            status(provider, "a", 30),
            status(provider, "a", 5030),
            status(SIMULATOR, "a", 6000),
        ];
        assert_eq!(
            noted(&requests),
            [4.0, 20.0],
            "two unanswered changes count from the first"
        );
    }
}
