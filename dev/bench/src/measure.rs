//! Requests from the audit log, CPU and memory from `/proc`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runway_testbed::audit::{Audit, Class, Mark, Request};
use runway_testbed::{ControlPlane, eventually};

use super::mix::PREFIX;
use super::stage::{Stage, ours, providers};
use runway_dev_cluster as cluster;

/// Measured values of a contender, by the key of a row in [`super::report`].
pub(super) type Figures = BTreeMap<&'static str, f64>;

/// The API server and its store: what a contender makes them spend is its cost for the cluster.
const CLUSTER: [&str; 2] = ["kube-apiserver", "etcd"];
/// In a second, on every Linux that there is.
const TICKS: f64 = 100.0;
/// Time without requests after which a contender counts as done.
const SILENCE: Duration = Duration::from_secs(5);

/// Everything used since a moment.
pub(super) struct Meter {
    audit: Audit,
    mark: Mark,
    cpu: BTreeMap<&'static str, Cpu>,
}

/// CPU that a process has used.
#[derive(Clone, Copy)]
struct Cpu {
    pid: u32,
    seconds: f64,
}

/// Resources used.
pub(super) struct Used {
    /// All requests.
    requests: Vec<Request>,
    cpu: BTreeMap<&'static str, f64>,
}

/// The requests of a contender.
#[derive(Default)]
pub(super) struct RequestCounts {
    /// Reads and writes that name an object of the run, by its name.
    pub(super) about: BTreeMap<String, usize>,
    /// Gets and lists.
    pub(super) reads: usize,
    /// Writes to objects of the run.
    pub(super) writes: usize,
    /// Watches begun.
    pub(super) watches: usize,
    /// Events sent.
    pub(super) events: usize,
    /// Writes to anything else, such as heartbeats.
    pub(super) others: usize,
    /// Those in `about`, by verb.
    by_verb: BTreeMap<String, usize>,
}

impl Meter {
    /// Begins now.
    pub(super) async fn start(stage: &Stage<'_>) -> Result<Self> {
        let audit = stage.control_plane.audit().await?;
        let mark = audit.mark().await?;
        Ok(Self {
            audit,
            mark,
            cpu: cpu(stage)?,
        })
    }

    /// Ends now. A process that was started meanwhile counts from its start.
    pub(super) async fn stop(self, stage: &Stage<'_>) -> Result<Used> {
        let now = cpu(stage)?;
        let before = |name: &str, pid: u32| {
            self.cpu
                .get(name)
                .filter(|cpu| cpu.pid == pid)
                .map_or(0.0, |cpu| cpu.seconds)
        };
        let cpu = now
            .iter()
            .map(|(name, cpu)| (*name, cpu.seconds - before(name, cpu.pid)))
            .collect();
        Ok(Used {
            requests: self.audit.since(self.mark).await?,
            cpu,
        })
    }
}

impl Used {
    /// All of it.
    pub(super) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// CPU of a process, in seconds.
    pub(super) fn cpu(&self, name: &str) -> f64 {
        self.cpu.get(name).copied().unwrap_or_default()
    }

    /// CPU of several, in seconds.
    pub(super) fn cpu_of(&self, names: &[&str]) -> f64 {
        names.iter().map(|name| self.cpu(name)).sum()
    }

    /// CPU of the API server and its store, in milliseconds for each object.
    pub(super) fn imposed(&self, count: usize) -> f64 {
        CLUSTER.iter().map(|name| self.cpu(name)).sum::<f64>() * 1000.0 / as_number(count)
    }

    /// Requests of these users.
    pub(super) fn asked_by(&self, users: &[&str]) -> RequestCounts {
        RequestCounts::by(users, &self.requests)
    }
}

impl RequestCounts {
    /// Requests of these users.
    pub(super) fn by(users: &[&str], requests: &[Request]) -> Self {
        let mut asked = Self::default();
        for request in requests.iter().filter(|r| users.contains(&r.user.as_str())) {
            asked.add(request);
        }
        asked
    }

    fn add(&mut self, request: &Request) {
        let is_about = request.name.starts_with(PREFIX);
        match request.class() {
            _ if request.resource == "events" => {
                self.events += 1;
                return;
            }
            Class::Watch => {
                self.watches += 1;
                return;
            }
            Class::Read => self.reads += 1,
            Class::Write if is_about => self.writes += 1,
            Class::Write => self.others += 1,
        }
        if is_about {
            *self.about.entry(request.name.clone()).or_default() += 1;
            *self.by_verb.entry(request.verb.clone()).or_default() += 1;
        }
    }

    /// Reads and writes about objects of the run, for each.
    pub(super) fn per_object(&self, count: usize) -> f64 {
        as_number(self.about.values().sum()) / as_number(count)
    }

    /// Those with this verb of the API, for each object.
    pub(super) fn per_object_by(&self, verb: &str, count: usize) -> f64 {
        as_number(self.by_verb.get(verb).copied().unwrap_or_default()) / as_number(count)
    }

    /// Everything but the reads and writes about objects of the run.
    pub(super) fn of_its_own(&self) -> usize {
        self.others + self.events + self.watches
    }

    /// Everything but watches.
    pub(super) fn besides_watches(&self) -> usize {
        self.reads + self.writes + self.others + self.events
    }

    /// Those of the object with the most.
    pub(super) fn most(&self) -> f64 {
        as_number(self.about.values().copied().max().unwrap_or_default())
    }

    /// Objects with more than this many.
    pub(super) fn above(&self, limit: usize) -> f64 {
        as_number(self.about.values().filter(|n| **n > limit).count())
    }
}

/// Memory of a process now, and the most it ever had, in MiB.
pub(super) fn memory(stage: &Stage<'_>, name: &str) -> Result<(f64, f64)> {
    memory_of(&stage.control_plane, name)
}

/// The same beside any control plane.
pub(super) fn memory_of(control_plane: &ControlPlane, name: &str) -> Result<(f64, f64)> {
    let pid = cluster::pid(control_plane, name).with_context(|| format!("{name} does not run"))?;
    let memory = runway_testbed::memory(pid).with_context(|| format!("cannot read the memory of {name}"))?;
    Ok((mebibytes(memory.now), mebibytes(memory.peak)))
}

/// KiB in MiB.
pub(super) fn mebibytes(kibibytes: usize) -> f64 {
    as_number(kibibytes) / 1024.0
}

/// The same of the provider with the most.
pub(super) fn largest(stage: &Stage<'_>) -> Result<(f64, f64)> {
    let mut most = (0.0_f64, 0.0_f64);
    for name in providers() {
        let (now, peak) = memory(stage, name)?;
        most = (most.0.max(now), most.1.max(peak));
    }
    Ok(most)
}

/// The value that this part of all values does not exceed; the median at 0.5.
pub(super) fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a count is one"
    )]
    let rank = (as_number(sorted.len()) * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn cpu(stage: &Stage<'_>) -> Result<BTreeMap<&'static str, Cpu>> {
    let running = CLUSTER
        .into_iter()
        .chain(ours())
        .filter_map(|name| Some((name, stage.pid(name)?)));
    running
        .map(|(name, pid)| {
            let seconds = cpu_of(pid).with_context(|| format!("cannot read the CPU time of {name}"))?;
            Ok((name, Cpu { pid, seconds }))
        })
        .collect()
}

/// Waits until these users send no requests for a while. Returns the time until the last request.
pub(super) async fn silent(control_plane: &ControlPlane, users: &[&str], patience: Duration) -> Result<Duration> {
    let audit = control_plane.audit().await?;
    let start = Instant::now();
    eventually(patience, async || {
        let begun = start.elapsed();
        let mark = audit.mark().await?;
        tokio::time::sleep(SILENCE).await;
        let asked = RequestCounts::by(users, &audit.since(mark).await?).besides_watches();
        ensure!(asked == 0, "{} still asks", users.join(" or "));
        Ok(begun)
    })
    .await
}

/// User and system time, fields 14 and 15; the second is the name in brackets, which may hold anything.
pub(super) fn cpu_of(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("no process name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
}

/// Seconds.
pub(super) fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// Counts are far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(super) fn as_number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(as_number).collect();
        assert_eq!(quantile(&values, 0.5), Some(100.0));
        assert_eq!(quantile(&values, 0.99), Some(198.0));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
