//! Health of a process: what it waits for, and what is wrong with it.
//!
//! Ready means that all initial lists are complete and all servers have started; the response names what is missing. Healthy
//! means that no permanent task has ended and no reconcile hangs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Name of the pending part of a process that has not registered another one yet.
const START: &str = "the start";
/// Age of a reconcile that ignored its own limit ([`crate::controller::LIMIT`]) and therefore blocks its thread.
const HANGS: Duration = Duration::from_mins(3);

/// Health of a process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Names of the parts that are not ready, with a count each.
    pending: Mutex<BTreeMap<String, usize>>,
    /// Permanent tasks that ended.
    ended: Mutex<BTreeSet<&'static str>>,
    /// Reconciles in progress.
    busy: Mutex<HashMap<u64, (Instant, String)>>,
    number: AtomicU64,
    checks: Mutex<Vec<Check>>,
}

/// Check that returns why something is not ready.
struct Check(Box<dyn Fn() -> Option<String> + Send + Sync>);

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Check")
    }
}

impl Health {
    /// Not ready until the first part of the start is registered with [`Self::waits_for`]: the admin server answers before that.
    pub fn starting() -> Self {
        let health = Self::default();
        health.0.pending.lock().insert(START.to_owned(), 1);
        health
    }

    /// Makes the process unready until [`Pending::done`].
    #[must_use = "dropped without `done`, it is waited for until the end"]
    pub fn waits_for(&self, what: impl Into<String>) -> Pending {
        let what = what.into();
        let mut pending = self.0.pending.lock();
        *pending.entry(what.clone()).or_default() += 1;
        pending.remove(START);
        drop(pending);
        Pending {
            health: self.clone(),
            what,
        }
    }

    /// Runs a permanent task until `shutdown`. If it ends earlier, the process is unhealthy.
    pub fn supervise(
        &self,
        what: &'static str,
        shutdown: CancellationToken,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let task = tokio::spawn(task);
        let health = self.clone();
        tokio::spawn(async move {
            let ended = task.await;
            if !shutdown.is_cancelled() {
                tracing::error!(?ended, "{what} ended");
                health.0.ended.lock().insert(what);
            }
        })
    }

    /// Registers a reconcile of `what` until the result is dropped.
    pub(crate) fn busy_with(&self, what: String) -> Busy {
        let number = self.0.number.fetch_add(1, Ordering::Relaxed);
        self.0.busy.lock().insert(number, (Instant::now(), what));
        Busy {
            health: self.clone(),
            number,
        }
    }

    /// Makes the process unready while `reason` returns a reason. Called at each probe.
    pub fn ready_unless(&self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.0.checks.lock().push(Check(Box::new(reason)));
    }

    /// Reasons why the process is not ready; empty if it is.
    pub fn missing(&self) -> Vec<String> {
        let pending = self.0.pending.lock();
        let waiting = pending.keys().map(|what| format!("waiting for {what}"));
        let checks = self.0.checks.lock();
        waiting.chain(checks.iter().filter_map(|check| check.0())).collect()
    }

    /// Reasons why the process is not healthy; empty if it is.
    pub fn problems(&self) -> Vec<String> {
        self.problems_after(HANGS)
    }

    fn problems_after(&self, limit: Duration) -> Vec<String> {
        let ended = self
            .0
            .ended
            .lock()
            .iter()
            .map(|what| format!("{what} ended"))
            .collect::<Vec<_>>();
        let hanging = self
            .0
            .busy
            .lock()
            .values()
            .filter(|(since, _)| since.elapsed() > limit)
            .map(|(since, what)| format!("the reconcile of {what} hangs since {} s", since.elapsed().as_secs()))
            .collect();
        [ended, hanging].concat()
    }
}

/// A pending part of the start.
#[derive(Debug)]
pub struct Pending {
    health: Health,
    what: String,
}

impl Pending {
    /// Marks it as completed.
    pub fn done(self) {
        let mut pending = self.health.0.pending.lock();
        if let Some(count) = pending.get_mut(&self.what) {
            *count -= 1;
            if *count == 0 {
                pending.remove(&self.what);
            }
        }
    }
}

/// A reconcile in progress.
#[derive(Debug)]
pub(crate) struct Busy {
    health: Health,
    number: u64,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.health.0.busy.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_starts_is_not_ready_before_its_first_part_is_registered() {
        let health = Health::starting();
        health.ready_unless(|| None);
        assert_eq!(health.missing(), ["waiting for the start"]);
        let (list, certificate) = (health.waits_for("the list of toys"), health.waits_for("a certificate"));
        list.done();
        assert_eq!(health.missing(), ["waiting for a certificate"]);
        certificate.done();
        assert!(health.missing().is_empty());
    }

    #[tokio::test]
    async fn a_task_may_end_at_shutdown_and_a_reconcile_may_end_at_any_time() {
        let (health, shutdown) = (Health::default(), CancellationToken::new());
        drop(health.busy_with("bear".to_owned()));
        shutdown.cancel();
        health.supervise("a task", shutdown, async {}).await.unwrap();
        assert_eq!(health.problems(), Vec::<String>::new());

        let _busy = health.busy_with("bear".to_owned());
        assert_eq!(health.problems_after(HANGS).first().map(String::as_str), None);
        assert_eq!(
            health.problems_after(Duration::ZERO),
            ["the reconcile of bear hangs since 0 s"]
        );
    }
}
