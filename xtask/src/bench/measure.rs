//! Requests from the audit log, CPU and memory from `/proc`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use runway_testbed::audit::{Audit, Class, Mark, Request};

use super::stage::{CORE, KAITO, PREFIX, Stage};

/// What a contender was seen to do, by the key of a row in [`super::report`].
pub(super) type Figures = BTreeMap<&'static str, f64>;

/// The API server and its store: what a contender makes them spend is its cost for the cluster.
const CLUSTER: [&str; 2] = ["kube-apiserver", "etcd"];
/// In a second, on every Linux that there is.
const TICKS: f64 = 100.0;

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

/// What was used.
pub(super) struct Used {
    /// All requests.
    requests: Vec<Request>,
    cpu: BTreeMap<&'static str, f64>,
}

/// The requests of a contender.
#[derive(Default)]
pub(super) struct Asked {
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
    /// CPU of a process, in seconds.
    pub(super) fn cpu(&self, name: &str) -> f64 {
        self.cpu.get(name).copied().unwrap_or_default()
    }

    /// CPU of the API server and its store, in milliseconds for each object.
    pub(super) fn imposed(&self, count: usize) -> f64 {
        CLUSTER.iter().map(|name| self.cpu(name)).sum::<f64>() * 1000.0 / as_number(count)
    }

    /// What these users asked for.
    pub(super) fn asked_by(&self, users: &[&str]) -> Asked {
        let mut asked = Asked::default();
        for request in self.requests.iter().filter(|r| users.contains(&r.user.as_str())) {
            asked.add(request);
        }
        asked
    }
}

impl Asked {
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
        }
    }

    /// Reads and writes about objects of the run, for each.
    pub(super) fn per_object(&self, count: usize) -> f64 {
        as_number(self.about.values().sum()) / as_number(count)
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
    let pid = stage.pid(name).with_context(|| format!("{name} does not run"))?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("{name} has ended"))?;
    let field = |key: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: f64 = line.trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
        Some(kib / 1024.0)
    };
    field("VmRSS")
        .zip(field("VmHWM"))
        .with_context(|| format!("no memory of {name} in /proc"))
}

fn cpu(stage: &Stage<'_>) -> Result<BTreeMap<&'static str, Cpu>> {
    let running = CLUSTER
        .into_iter()
        .chain([CORE, KAITO])
        .filter_map(|name| Some((name, stage.pid(name)?)));
    running
        .map(|(name, pid)| {
            let seconds = cpu_of(pid).with_context(|| format!("cannot read the CPU time of {name}"))?;
            Ok((name, Cpu { pid, seconds }))
        })
        .collect()
}

/// User and system time, fields 14 and 15; the second is the name in brackets, which may hold anything.
fn cpu_of(pid: u32) -> Result<f64> {
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

/// The contender's users, for [`Used::asked_by`].
pub(super) const OURS: [&str; 2] = [CORE, KAITO];
