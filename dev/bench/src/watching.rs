//! Sees when all run and when all are gone: by watches, the same for both contenders.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::mix::{LINES, PREFIX, deployments};

/// Longest time without a change before a watch counts as stuck.
const PATIENCE: Duration = Duration::from_mins(3);

/// Watches the objects of a run.
pub(super) struct Watcher {
    deployments: watch::Receiver<Seen>,
    upstream: Vec<watch::Receiver<Seen>>,
    _tasks: JoinSet<()>,
}

/// Names of one kind.
#[derive(Default)]
struct Seen {
    present: HashSet<String>,
    begun: HashSet<String>,
    ready: HashSet<String>,
}

impl Watcher {
    /// Starts watching.
    pub(super) fn start(client: &Client) -> Self {
        let mut tasks = JoinSet::new();
        Self {
            deployments: follow(&mut tasks, deployments(client), is_running),
            upstream: LINES
                .iter()
                .map(|line| follow(&mut tasks, line.upstream(client), line.is_ready))
                .collect(),
            _tasks: tasks,
        }
    }

    /// Waits until this many ModelDeployments are Deploying or further: from here on the upstream has its turn.
    pub(super) async fn all_begun(&self, count: usize) -> Result<()> {
        until(&self.deployments, "Deploying ModelDeployments", |seen| {
            seen.begun.len() == count
        })
        .await
    }

    /// Waits until this many ModelDeployments are Running and every upstream object is ready.
    pub(super) async fn all_run(&self, count: usize) -> Result<()> {
        until(&self.deployments, "Running ModelDeployments", |seen| {
            seen.ready.len() == count
        })
        .await?;
        for upstream in &self.upstream {
            until(upstream, "ready upstream objects", |seen| {
                seen.ready.len() == seen.present.len()
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until no ModelDeployment and no upstream object is left.
    pub(super) async fn all_gone(&self) -> Result<()> {
        until(&self.deployments, "no ModelDeployments", |seen| seen.present.is_empty()).await?;
        for upstream in &self.upstream {
            until(upstream, "no upstream objects", |seen| seen.present.is_empty()).await?;
        }
        Ok(())
    }
}

async fn until(seen: &watch::Receiver<Seen>, what: &str, done: impl Fn(&Seen) -> bool) -> Result<()> {
    let mut seen = seen.clone();
    while !done(&seen.borrow_and_update()) {
        let changed = tokio::time::timeout(PATIENCE, seen.changed()).await;
        if !changed.is_ok_and(|changed| changed.is_ok()) {
            let last = seen.borrow();
            bail!(
                "waiting for {what}, nothing has changed for {} minutes: {} are there, {} are ready",
                PATIENCE.as_secs() / 60,
                last.present.len(),
                last.ready.len()
            );
        }
    }
    Ok(())
}

fn follow(
    tasks: &mut JoinSet<()>,
    api: Api<DynamicObject>,
    ready: fn(&DynamicObject) -> bool,
) -> watch::Receiver<Seen> {
    let (sender, receiver) = watch::channel(Seen::default());
    tasks.spawn(async move {
        let mut events = watcher(api, Config::default()).default_backoff().boxed();
        while let Some(event) = events.next().await {
            // An interrupted watch lists again.
            let Ok(event) = event else { continue };
            sender.send_modify(|seen| seen.take_in(&event, ready));
        }
    });
    receiver
}

impl Seen {
    fn take_in(&mut self, event: &Event<DynamicObject>, ready: fn(&DynamicObject) -> bool) {
        match event {
            Event::Init => *self = Self::default(),
            Event::InitDone => {}
            Event::Apply(object) | Event::InitApply(object) => {
                let name = object.name_any();
                if name.starts_with(PREFIX) {
                    if has_begun(object) {
                        self.begun.insert(name.clone());
                    }
                    if ready(object) {
                        self.ready.insert(name.clone());
                    }
                    self.present.insert(name);
                }
            }
            Event::Delete(object) => {
                let name = object.name_any();
                self.present.remove(&name);
                self.begun.remove(&name);
                self.ready.remove(&name);
            }
        }
    }
}

/// Whether a ModelDeployment serves.
pub(super) fn is_running(deployment: &DynamicObject) -> bool {
    deployment.data["status"]["phase"] == "Running"
}

fn has_begun(object: &DynamicObject) -> bool {
    matches!(object.data["status"]["phase"].as_str(), Some("Deploying" | "Running"))
}
