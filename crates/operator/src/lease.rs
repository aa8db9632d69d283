//! Leader election by a Lease: one of several replicas is active, the others stand by.
//!
//! Clocks of different machines are never compared. A candidate measures with its own monotonic clock how long the Lease has
//! been unchanged. The leader counts from before its last renewal, and stops a sixth of the duration before another replica may
//! start. Every write names the version of the Lease that it replaces, so that the API server accepts one of two candidates.
//!
//! A leader renews three times per duration: 0.6 requests per second for a Lease of 5 seconds. Standby replicas only watch.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::{Api, Client};
use runway_api::labels;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::{named, rule};
use crate::breaker::Open;
use crate::clock;
use crate::watch::object;

/// Delay after a failed write or watch.
const RETRY: Duration = Duration::from_millis(500);
/// Time limit for releasing the Lease; after that it expires.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Arguments for leader election.
#[derive(Clone, Debug, clap::Args)]
pub struct LeaseArgs {
    /// Elect a leader among the replicas; the others stand by. With false, this process is always active
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    /// Duration of the Lease in seconds (2 to 3600). Another replica takes over when it expires; the leader renews it three
    /// times as often
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..=3600))]
    pub lease_duration: u16,
    /// Namespace of the Lease, which has the controller's name
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = labels::SYSTEM_NAMESPACE,
        env = "POD_NAMESPACE"
    )]
    pub lease_namespace: String,
    /// Identity of this process in the Lease; a unique suffix is added
    #[arg(long, value_name = "NAME", default_value = "local", env = "HOSTNAME")]
    pub lease_identity: String,
}

/// Rules for leader election in the namespace of the Lease.
pub fn access(name: &str) -> Vec<PolicyRule> {
    let group = "coordination.k8s.io";
    vec![
        // A create cannot be limited to a name.
        rule(group, &["leases"], &["create"]),
        named(rule(group, &["leases"], &["get", "list", "watch", "patch"]), &[name]),
    ]
}

/// Whether this process is the leader. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Time until which it is certainly the leader, unless it renews.
    until: watch::Receiver<Option<Instant>>,
    /// Cancelled to release the Lease.
    step_down: CancellationToken,
    /// Cancelled after the election has ended.
    ended: CancellationToken,
    elected: bool,
}

impl Leadership {
    /// Leadership of a process without leader election.
    pub fn always() -> Self {
        const AGES: Duration = Duration::from_hours(24 * 365 * 30);
        let ended = CancellationToken::new();
        ended.cancel();
        Self {
            until: watch::channel(Some(Instant::now() + AGES)).1,
            step_down: CancellationToken::new(),
            ended,
            elected: false,
        }
    }

    /// Whether another replica may take over when this one ends.
    pub fn is_elected(&self) -> bool {
        self.elected
    }

    /// Whether it is the leader at this moment.
    pub fn is_leading(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Emits an item whenever it becomes the leader.
    pub fn begins(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::unfold((self.clone(), false), |(leadership, led)| async move {
            if led {
                leadership.lost().await;
            }
            leadership.gained().await;
            Some(((), (leadership, true)))
        })
    }

    /// Waits until it is the leader.
    pub async fn gained(&self) {
        // The sender is gone: there will be no election.
        if self.until.clone().wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it is not certainly the leader.
    pub async fn lost(&self) {
        let mut until = self.until.clone();
        loop {
            let Some(moment) = *until.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(moment) => return,
                changed = until.changed() => if changed.is_err() {
                    return tokio::time::sleep_until(moment).await;
                },
            }
        }
    }

    /// Runs `work` while it is the leader; `None` if leadership was lost before the end.
    pub async fn while_leading<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.lost() => None,
            done = work => Some(done),
        }
    }

    /// Releases the Lease, so that another replica can take over at once. No work may be in progress.
    pub async fn step_down(&self) {
        self.step_down.cancel();
        self.ended.cancelled().await;
    }
}

/// Participant in an election.
#[derive(Debug)]
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    until: watch::Sender<Option<Instant>>,
    step_down: CancellationToken,
    ended: CancellationToken,
}

/// The Lease as last observed.
#[derive(Debug)]
struct Seen {
    lease: Option<Lease>,
    /// Time since when it has been unchanged, by our own clock.
    since: Instant,
    /// After a failure: earliest time of the next write.
    not_before: Instant,
}

impl Election {
    /// A candidate for the Lease `name`. Nothing happens before [`run`](Self::run).
    pub fn new(client: Client, args: &LeaseArgs, name: &str) -> (Self, Leadership) {
        let (until, receiver) = watch::channel(None);
        let election = Self {
            leases: Api::namespaced(client, &args.lease_namespace),
            name: name.to_owned(),
            identity: format!("{}_{:08x}", args.lease_identity, random()),
            duration: Duration::from_secs(args.lease_duration.into()),
            until,
            step_down: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let leadership = Leadership {
            until: receiver,
            step_down: election.step_down.clone(),
            ended: election.ended.clone(),
            elected: true,
        };
        (election, leadership)
    }

    /// Takes part until the process steps down. After `shutdown` it no longer becomes the leader.
    pub async fn run(self, shutdown: CancellationToken) {
        let _ended = self.ended.clone().drop_guard();
        let mut seen = None;
        let end = async {
            shutdown.cancelled().await;
            if self.is_leading() {
                self.step_down.cancelled().await;
            }
        };
        tokio::select! {
            biased;
            () = self.step_down.cancelled() => {}
            () = end => {}
            () = self.take_part(&mut seen) => {}
        }
        let led = self.until.send_replace(None).is_some();
        if let (true, Some(Seen { lease: Some(lease), .. })) = (led, seen) {
            self.release(lease).await;
        }
    }

    async fn take_part(&self, last: &mut Option<Seen>) {
        let mut watched = pin!(object(self.leases.clone(), &self.name).backoff(Steady));
        loop {
            // No decision before the first event of the watch.
            let due = last.as_ref().map(|seen| self.due(seen));
            tokio::select! {
                event = watched.next() => match event {
                    Some(Ok(lease)) => self.take_in(last, lease),
                    Some(Err(error)) if Open::interrupted(&error) => {}
                    Some(Err(error)) => tracing::warn!(%error, lease = self.name, "cannot watch the Lease"),
                    None => return,
                },
                () = at(due) => if let Some(seen) = last {
                    self.hold(seen).await;
                },
            }
        }
    }

    /// Time of the next write, as a leader or as a candidate.
    fn due(&self, seen: &Seen) -> Instant {
        let spec = seen.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let due = match seen.lease.as_ref().and_then(holder) {
            // The holder is certain until the end of the duration.
            Some(holder) if holder != self.identity => seen.since + promised(spec).unwrap_or(self.duration),
            Some(_) if self.is_leading() => seen.since + self.duration / 3,
            // The Lease is free, or ours after a write without a response.
            _ => seen.since,
        };
        due.max(seen.not_before)
    }

    /// Acquires or renews the Lease.
    async fn hold(&self, seen: &mut Seen) {
        let sent = Instant::now();
        let sure = *self.until.borrow();
        // A later response is of no use.
        let written = tokio::time::timeout_at(sure.unwrap_or(sent + self.duration / 2), self.write(seen)).await;
        seen.not_before = Instant::now() + RETRY;
        match written {
            Ok(Ok(lease)) => {
                *seen = Seen {
                    since: sent,
                    ..Seen::now(Some(lease))
                };
                if self.until.send_replace(Some(sent + self.duration * 5 / 6)).is_none() {
                    tracing::info!(lease = self.name, identity = self.identity, "leading");
                }
            }
            Ok(Err(kube::Error::Api(status)))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                // The Lease has changed; the watch may be behind.
                match self.leases.get_opt(&self.name).await {
                    Ok(lease) => *seen = self.judge(lease),
                    Err(error) => tracing::warn!(%error, lease = self.name, "cannot read the Lease"),
                }
            }
            Ok(Err(error)) if Open::caused(&error) => {}
            Ok(Err(error)) => tracing::warn!(%error, lease = self.name, "cannot write the Lease"),
            Err(_) => tracing::warn!(lease = self.name, "a write of the Lease timed out"),
        }
        if sure.is_some() && self.until.borrow().is_some_and(|until| until <= Instant::now()) {
            self.lose("it could not be renewed in time");
        }
    }

    /// Processes a watch event, unless our own write is newer.
    fn take_in(&self, last: &mut Option<Seen>, lease: Option<Lease>) {
        let known = last.as_ref().and_then(|seen| seen.lease.as_ref());
        let is_news = match (known, &lease) {
            (Some(known), Some(lease)) if known.metadata.uid == lease.metadata.uid => revision(lease) > revision(known),
            (None, None) => last.is_none(),
            _ => true,
        };
        if is_news {
            *last = Some(self.judge(lease));
        }
    }

    /// A Lease of another writer, observed now.
    fn judge(&self, lease: Option<Lease>) -> Seen {
        let holder = lease.as_ref().and_then(holder);
        if self.is_leading() && holder != Some(self.identity.as_str()) {
            self.lose(&format!("it is held by {}", holder.unwrap_or("nobody")));
        }
        Seen::now(lease)
    }

    fn lose(&self, why: &str) {
        self.until.send_replace(None);
        tracing::warn!(lease = self.name, "lost the Lease: {why}; standing by");
    }

    fn is_leading(&self) -> bool {
        self.until.borrow().is_some()
    }

    async fn write(&self, seen: &Seen) -> kube::Result<Lease> {
        // To the microsecond: otherwise a renewal might change nothing and not be observed.
        let now = MicroTime(clock::exact());
        let renewal = self.is_leading();
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            renew_time: Some(now.clone()),
            ..LeaseSpec::default()
        };
        let Some(lease) = &seen.lease else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    acquire_time: Some(now),
                    lease_transitions: Some(0),
                    ..spec
                }),
            };
            let params = PostParams {
                field_manager: Some(self.name.clone()),
                ..PostParams::default()
            };
            return self.leases.create(&params, &lease).await;
        };
        let spec = if renewal {
            spec
        } else {
            let before = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.lease_transitions)
                .unwrap_or_default();
            LeaseSpec {
                acquire_time: Some(now),
                lease_transitions: Some(before.saturating_add(1)),
                ..spec
            }
        };
        self.patch(lease, json!(spec)).await
    }

    async fn release(&self, lease: Lease) {
        match tokio::time::timeout(SHUTDOWN_GRACE, self.try_release(lease)).await {
            Ok(Ok(())) => tracing::info!(lease = self.name, "released the Lease"),
            Ok(Err(error)) => tracing::warn!(%error, lease = self.name, "cannot release the Lease; it will expire"),
            Err(_) => tracing::warn!(
                lease = self.name,
                "no response to the release of the Lease; it will expire"
            ),
        }
    }

    async fn try_release(&self, mut lease: Lease) -> kube::Result<()> {
        let free = json!({ "holderIdentity": null });
        while holder(&lease) == Some(self.identity.as_str()) {
            match self.patch(&lease, free.clone()).await {
                // A renewal timed out, but was written.
                Err(kube::Error::Api(status)) if status.is_conflict() => lease = self.leases.get(&self.name).await?,
                other => return other.map(|_| ()),
            }
        }
        Ok(())
    }

    /// Only if the Lease is still as observed.
    async fn patch(&self, seen: &Lease, spec: serde_json::Value) -> kube::Result<Lease> {
        let patch = json!({ "metadata": { "resourceVersion": seen.metadata.resource_version }, "spec": spec });
        let params = PatchParams {
            field_manager: Some(self.name.clone()),
            ..PatchParams::default()
        };
        self.leases.patch(&self.name, &params, &Patch::Merge(patch)).await
    }
}

impl Seen {
    fn now(lease: Option<Lease>) -> Self {
        let now = Instant::now();
        Self {
            lease,
            since: now,
            not_before: now,
        }
    }
}

/// Constant delay of the watch: a standby replica must notice soon when the API server is back.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(RETRY * 2)
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}

/// Time for which the holder is certain of the Lease.
fn promised(spec: Option<&LeaseSpec>) -> Option<Duration> {
    let seconds = spec?.lease_duration_seconds?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

/// Two processes with the same name must have different identities.
fn random() -> u32 {
    let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn revision(lease: &Lease) -> u64 {
    let version = lease.metadata.resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}
