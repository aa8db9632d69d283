//! The life of a job: submitted, reported on, finished, kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use runway_asya_transport::queues::Queues;
use runway_asya_transport::settings::Tenants;
use runway_asya_transport::{Delivery, Headers, Message, PublishError, Transport};
use runway_callers::Caller;
use runway_http::watches::Watches;
use runway_operator::clock;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::job::{Id, Item, Job, Key, Progress};
use crate::memory::Memory;
use crate::metrics::{Metrics, Refusal};
use crate::store::{self, Accepted, Outcome, Store, Stored};
use crate::submission::{Reply, Submission};

/// Longest wait for the broker's confirm.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);
/// Pause after a result could not be stored.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// Interval of sweeps.
const SWEEP: Duration = Duration::from_secs(5);
/// Time after the deadline of a job in which its failure can arrive.
const GRACE: Duration = Duration::from_mins(1);

/// Sends messages to queues.
pub trait Sender: Send + Sync {
    /// Sends a message. On success the broker has stored it.
    fn send<'a>(&'a self, queue: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), PublishError>>;
    /// Whether the broker can be reached.
    fn is_connected(&self) -> bool;
}

impl<T: Transport> Sender for T {
    fn send<'a>(&'a self, queue: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), PublishError>> {
        async move {
            let message = Message {
                queue,
                body,
                headers: &Headers::new(),
                index: 0,
            };
            self.publish(None, &message).await
        }
        .boxed()
    }

    fn is_connected(&self) -> bool {
        Transport::is_connected(self)
    }
}

/// Reason for not accepting a job.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// The queue of the actor does not exist.
    #[error("actor '{actor}' in namespace '{namespace}' has no queue: {why}")]
    NoActor {
        /// Namespace.
        namespace: String,
        /// Name of the actor.
        actor: String,
        /// The broker's reason.
        why: String,
    },
    /// The message is too large for the broker.
    #[error("the broker does not accept the message: {0}")]
    TooLarge(String),
    /// The broker did not confirm the message.
    #[error("the broker did not confirm the message: {0}; try again")]
    NotConfirmed(String),
    /// A submission with the same idempotency key is in progress.
    #[error("a submission with this idempotency key is in progress; try again")]
    InProgress,
    /// The idempotency key is that of another request.
    #[error("the idempotency key belongs to another request; use a new key for each job")]
    OtherRequest,
    /// The job cannot be stored.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Names and limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the reply queue.
    pub reply_to: String,
    /// Its dead-letter queue.
    pub dead_letters: String,
    /// Users of namespaces. A result is accepted from the user of the namespace of its job only; without them, from each publisher.
    pub tenants: Option<Tenants>,
    /// Largest result in bytes. A larger one becomes an error.
    pub largest_result: usize,
    /// Memory for results that are sent to clients, in bytes.
    pub memory: usize,
}

/// All jobs.
pub struct Gateway {
    /// Jobs and results on disk.
    pub store: Store,
    /// Requests that wait.
    pub watches: Watches<Id>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Notified when a job with a URL ends.
    pub calls: Notify,
    /// Memory for results that are sent to clients.
    pub memory: Memory,
    settings: Settings,
    sender: Arc<dyn Sender>,
    /// Progress of pending jobs. It is lost at a restart.
    progress: Mutex<BTreeMap<Id, Progress>>,
    /// Idempotency keys of submissions in progress.
    keys: Mutex<BTreeSet<String>>,
}

/// An idempotency key whose submission is in progress.
struct Turn<'a> {
    keys: &'a Mutex<BTreeSet<String>>,
    key: &'a str,
}

impl<'a> Turn<'a> {
    fn begin(keys: &'a Mutex<BTreeSet<String>>, key: &'a str) -> Option<Self> {
        let is_first = keys.lock().insert(key.to_owned());
        is_first.then(|| Self { keys, key })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.keys.lock().remove(self.key);
    }
}

impl Gateway {
    /// A gateway with these parts.
    pub fn new(store: Store, sender: Arc<dyn Sender>, metrics: Arc<Metrics>, settings: Settings) -> Self {
        let memory = Memory::new(settings.memory);
        Self {
            store,
            sender,
            metrics,
            settings,
            watches: Watches::default(),
            calls: Notify::new(),
            memory,
            progress: Mutex::default(),
            keys: Mutex::default(),
        }
    }

    /// Accepts a job: it is on disk, and the broker has confirmed its message. Returns the earlier job of the same idempotency
    /// key, if there is one.
    ///
    /// # Errors
    /// Why it is not accepted. If the connection to the broker was lost, its message may have been sent.
    pub async fn submit(self: &Arc<Self>, caller: &Caller, submission: &Submission<'_>) -> Result<Id, Rejected> {
        let accepted = self.accept(caller, submission).await;
        match &accepted {
            Ok(_) => {}
            Err(Rejected::Store(store::Error::Full(_))) => self.metrics.refused(Refusal::full),
            Err(Rejected::NoActor { .. } | Rejected::TooLarge(_) | Rejected::OtherRequest) => {
                self.metrics.refused(Refusal::invalid);
            }
            Err(_) => self.metrics.refused(Refusal::unavailable),
        }
        accepted
    }

    async fn accept(self: &Arc<Self>, caller: &Caller, submission: &Submission<'_>) -> Result<Id, Rejected> {
        self.store.room()?;
        let id = random_id().ok_or_else(|| Rejected::NotConfirmed("the system has no random numbers".to_owned()))?;
        let job = submission.job(&caller.user, &caller.uid, now());
        let message = submission.envelope(id, job.deadline, &self.settings.reply_to);
        let gateway = Arc::clone(self);
        // If the client disconnects, the submission continues: the job must not stay in an unknown state.
        let accepted = tokio::spawn(async move { gateway.store_and_send(id, job, message).await });
        let ended = |_| Rejected::NotConfirmed("the gateway is shutting down".to_owned());
        accepted.await.map_err(ended)?
    }

    async fn store_and_send(&self, id: Id, job: Job, message: Bytes) -> Result<Id, Rejected> {
        if let Some(key) = job.key.clone() {
            return self.store_then_send(id, job, &key, message).await;
        }
        let (namespace, actor) = (job.namespace.clone(), first(&job));
        // A result cannot overtake the job: requests to the store keep their order.
        let (stored, sent) = tokio::join!(self.store.accept(id, job), self.send(&namespace, &actor, message));
        stored?;
        if let Err(why) = sent {
            self.forget(id).await;
            return Err(why);
        }
        self.metrics.submitted();
        Ok(id)
    }

    async fn store_then_send(&self, id: Id, job: Job, key: &Key, message: Bytes) -> Result<Id, Rejected> {
        let _turn = Turn::begin(&self.keys, &key.name).ok_or(Rejected::InProgress)?;
        let (namespace, actor) = (job.namespace.clone(), first(&job));
        match self.store.accept(id, job).await? {
            Accepted::New => {}
            Accepted::Known(earlier, of) if of.request == key.request => return Ok(earlier),
            Accepted::Known(..) => return Err(Rejected::OtherRequest),
        }
        if let Err(why) = self.send(&namespace, &actor, message).await {
            self.forget(id).await;
            return Err(why);
        }
        self.store.sent(id).await?;
        self.metrics.submitted();
        Ok(id)
    }

    async fn send(&self, namespace: &str, actor: &str, message: Bytes) -> Result<(), Rejected> {
        let queue = Queues::new(Some(namespace), actor).of(actor);
        match timeout(CONFIRMED_WITHIN, self.sender.send(&queue, message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(PublishError::NoQueue(why))) => Err(Rejected::NoActor {
                namespace: namespace.to_owned(),
                actor: actor.to_owned(),
                why,
            }),
            Ok(Err(PublishError::TooLarge(why) | PublishError::HeadersTooLarge(why))) => Err(Rejected::TooLarge(why)),
            Ok(Err(error)) => Err(Rejected::NotConfirmed(error.to_string())),
            Err(_) => Err(Rejected::NotConfirmed(format!("no answer within {CONFIRMED_WITHIN:?}"))),
        }
    }

    /// Removes a job that was not accepted.
    async fn forget(&self, id: Id) {
        if let Err(error) = self.store.forget(id).await {
            tracing::error!(job = %id, "cannot remove a job that was not accepted: {error}");
        }
        self.progress.lock().remove(&id);
    }

    /// Receives results until the transport is stopped. A result is acknowledged when it is on disk.
    pub async fn receive<T: Transport>(self: Arc<Self>, transport: Arc<T>) {
        while let Some(delivery) = transport.receive().await {
            let (gateway, transport) = (Arc::clone(&self), Arc::clone(&transport));
            // As many as the prefetch count.
            tokio::spawn(async move { gateway.keep(&*transport, delivery).await });
        }
    }

    async fn keep<T: Transport>(&self, transport: &T, delivery: Delivery<T::Receipt>) {
        let reply = serde_json::from_slice::<Reply<'_>>(&delivery.body).ok();
        let reply = reply.as_ref().and_then(|reply| Some((Item::parse(&reply.id)?, reply)));
        let is_foreign = match reply
            .as_ref()
            .map(|(item, _)| self.is_foreign(item.job, delivery.user.as_deref()))
        {
            Some(Err(error)) => {
                self.again(transport, delivery, &error.to_string()).await;
                return;
            }
            Some(Ok(is_foreign)) => is_foreign,
            None => false,
        };
        let kept = match reply {
            Some(_) if is_foreign => self
                .set_aside(transport, &delivery, "foreign")
                .await
                .map_err(|error| error.to_string()),
            Some((item, reply)) => {
                let outcome = Outcome {
                    failed: reply.failed,
                    payload: delivery.body.slice_ref(reply.payload.get().as_bytes()),
                };
                let items = reply.item_count.unwrap_or(1);
                self.finish(&item, items, outcome)
                    .await
                    .map_err(|error| error.to_string())
            }
            None => self
                .set_aside(transport, &delivery, "unreadable")
                .await
                .map_err(|error| error.to_string()),
        };
        match kept {
            Ok(()) => transport.acknowledge(delivery.receipt).await,
            Err(why) => self.again(transport, delivery, &why).await,
        }
    }

    /// Returns a result to the queue.
    async fn again<T: Transport>(&self, transport: &T, delivery: Delivery<T::Receipt>, why: &str) {
        tracing::error!(why, "cannot store a result; it returns to the queue");
        sleep(STORE_AGAIN).await;
        transport.give_back(delivery.receipt).await;
    }

    /// Whether a result for a job was not published by the user of the namespace of its actors. The broker has verified the user. A job
    /// that is not on disk yet has an id that no other namespace can know.
    fn is_foreign(&self, job: Id, user: Option<&str>) -> Result<bool, store::Error> {
        let Some(tenants) = &self.settings.tenants else {
            return Ok(false);
        };
        let job = self.store.job(job)?;
        Ok(job.is_some_and(|job| user != Some(tenants.user(&job.namespace).as_str())))
    }

    async fn finish(&self, item: &Item, items: u32, outcome: Outcome) -> Result<(), store::Error> {
        let mut outcome = for_callers(outcome);
        if outcome.payload.len() > self.settings.largest_result {
            outcome = too_large(outcome.payload.len(), self.settings.largest_result);
        }
        let failed = outcome.failed;
        match self.store.finish(item, items, outcome, now()).await? {
            Stored::New => self.metrics.finished(if failed { "failed" } else { "succeeded" }),
            Stored::NoRoom => {
                tracing::warn!(item = %item, "dropped the result of a child, which is only counted: the job has more than 1,000 children, or results of pending jobs fill the store (--largest-store)");
                self.metrics.finished("dropped");
            }
            Stored::Duplicate | Stored::Unknown => {
                self.metrics.finished("dropped");
                return Ok(());
            }
        }
        let job = self.store.job(item.job)?;
        if job.is_some_and(|job| job.finished.is_some()) {
            self.ended(item.job);
        } else {
            self.watches.wake(&item.job);
        }
        Ok(())
    }

    /// Moves a message that is not a result, or that of another namespace, to the dead-letter queue.
    async fn set_aside<T: Transport>(
        &self,
        transport: &T,
        delivery: &Delivery<T::Receipt>,
        status: &'static str,
    ) -> Result<(), PublishError> {
        let queue = &self.settings.dead_letters;
        let user = delivery.user.as_deref();
        tracing::warn!(
            queue,
            status,
            user,
            "received a message that is not a result of a job: it was moved to the dead-letter queue"
        );
        self.metrics.finished(status);
        let message = Message {
            queue,
            body: delivery.body.clone(),
            headers: &delivery.headers,
            index: 0,
        };
        transport.publish(Some(&delivery.receipt), &message).await
    }

    /// Cancels a job. Its result is dropped when it arrives; a message in a queue is processed.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn cancel(&self, id: Id) -> Result<(), store::Error> {
        self.store.cancel(id, now()).await?;
        self.ended(id);
        Ok(())
    }

    fn ended(&self, id: Id) {
        self.progress.lock().remove(&id);
        self.watches.wake(&id);
        self.calls.notify_one();
    }

    /// Progress of a job.
    pub fn progress(&self, id: Id) -> Option<Progress> {
        self.progress.lock().get(&id).copied()
    }

    /// Records the progress of a pending job, unless it is further already. Returns whether there is such a job.
    ///
    /// # Errors
    /// If the store fails.
    pub fn report(&self, item: &Item, progress: Progress) -> Result<bool, store::Error> {
        // The progress of a child is not that of its job.
        if !item.suffix.is_empty() {
            return Ok(true);
        }
        // The end of the job removes its progress, so what is stored is read under the same lock.
        let mut all = self.progress.lock();
        let is_pending = self.store.job(item.job)?.is_some_and(|job| job.finished.is_none());
        if !is_pending {
            return Ok(false);
        }
        let known = all.entry(item.job).or_insert(progress);
        if (known.current, known.step) < (progress.current, progress.step) {
            *known = progress;
        }
        drop(all);
        self.watches.wake(&item.job);
        Ok(true)
    }

    /// Ends and removes jobs in time, until shutdown.
    pub async fn sweep(self: Arc<Self>, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            match self.store.sweep(now(), GRACE).await {
                Ok(swept) => {
                    for id in swept.ended {
                        self.metrics.finished("failed");
                        self.ended(id);
                    }
                }
                Err(error) => tracing::error!("cannot remove old jobs: {error}"),
            }
            tokio::select! {
                () = sleep(SWEEP) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// Reason why the gateway cannot accept jobs now.
    pub fn obstacle(&self) -> Option<String> {
        if self.store.is_closed() {
            return Some("the store is closed after a failure".to_owned());
        }
        (!self.sender.is_connected()).then(|| "waiting for the broker".to_owned())
    }
}

/// The first actor of the route.
fn first(job: &Job) -> String {
    job.route.first().cloned().unwrap_or_default()
}

/// The result without the traceback of an error, whose paths and code are not the caller's: the log of asya-runtime has it.
fn for_callers(outcome: Outcome) -> Outcome {
    let Ok(mut error) = serde_json::from_slice::<serde_json::Value>(&outcome.payload) else {
        return outcome;
    };
    let details = error.get_mut("details").and_then(serde_json::Value::as_object_mut);
    if outcome.failed && details.is_some_and(|details| details.remove("traceback").is_some()) {
        return Outcome {
            failed: true,
            payload: error.to_string().into(),
        };
    }
    outcome
}

fn too_large(length: usize, largest: usize) -> Outcome {
    let message = format!("the result has {length} bytes, and the gateway keeps at most {largest} (--largest-result)");
    let error = serde_json::json!({"error": "result_too_large", "details": {"message": message}});
    Outcome {
        failed: true,
        payload: error.to_string().into(),
    }
}

fn random_id() -> Option<Id> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(Id(u128::from_be_bytes(bytes)))
}

/// Milliseconds since 1970.
pub fn now() -> i64 {
    clock::exact().as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Step;

    /// A broker that is away.
    struct Away;

    impl Sender for Away {
        fn send<'a>(&'a self, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), PublishError>> {
            async { Err(PublishError::Lost) }.boxed()
        }

        fn is_connected(&self) -> bool {
            false
        }
    }

    fn gateway(folder: &tempfile::TempDir) -> Gateway {
        let limits = store::Capacity {
            jobs: 9,
            bytes: 1000,
            retention: Duration::from_hours(1),
        };
        let settings = Settings {
            reply_to: "gateway".to_owned(),
            dead_letters: "dead".to_owned(),
            tenants: None,
            largest_result: 100,
            memory: 1000,
        };
        let store = Store::open(&folder.path().join("jobs.redb"), limits).unwrap();
        Gateway::new(store, Arc::new(Away), Arc::default(), settings)
    }

    #[test]
    fn traceback_is_kept_from_callers() {
        let details = r#"{"message":"no such word","type":"KeyError","traceback":"File \"/app/reviews.py\", line 7"}"#;
        let payload = format!(r#"{{"error":"processing_error","details":{details}}}"#);
        let of = |failed: bool| {
            let payload = payload.clone().into();
            for_callers(Outcome { failed, payload }).payload
        };
        let error: serde_json::Value = serde_json::from_slice(&of(true)).unwrap();
        assert_eq!(
            error,
            serde_json::json!({"error": "processing_error", "details": {"message": "no such word", "type": "KeyError"}})
        );
        assert_eq!(of(false), payload, "a result is passed on as it is");
    }

    fn job(key: Option<Key>) -> Job {
        Job {
            key,
            ..Job::example(i64::MAX)
        }
    }

    #[tokio::test]
    async fn result_is_foreign_unless_the_user_of_the_namespace_published_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut gateway = gateway(&folder);
        gateway.store.accept(Id(1), job(None)).await.unwrap();
        let users = [Some("asya_team"), Some("asya_other"), Some("asya"), None];
        let foreign = |gateway: &Gateway, id| users.map(|user| gateway.is_foreign(Id(id), user).unwrap());
        assert_eq!(foreign(&gateway, 1), [false; 4]);
        let tenants = serde_json::json!({"username": "admin", "passwordSecretRef": {"name": "s", "key": "p"},
            "keySecretRef": {"name": "s", "key": "k"}});
        gateway.settings.tenants = Some(serde_json::from_value(tenants).unwrap());
        assert_eq!(foreign(&gateway, 1), [false, true, true, true]);
        assert_eq!(foreign(&gateway, 2), [false; 4]);
    }

    #[tokio::test]
    async fn progress_ends_with_its_job_and_not_with_a_child() {
        let folder = tempfile::tempdir().unwrap();
        let gateway = gateway(&folder);
        gateway.store.accept(Id(1), job(None)).await.unwrap();
        let (own, child) = (
            Item::of(Id(1)),
            Item {
                job: Id(1),
                suffix: "1".to_owned(),
            },
        );
        let progress = Progress {
            current: 0,
            of: 1,
            step: Step::Processing,
        };
        assert!(gateway.report(&own, progress).unwrap());
        let outcome = || Outcome {
            failed: false,
            payload: "1".into(),
        };
        gateway.finish(&child, 1, outcome()).await.unwrap();
        assert_eq!(gateway.progress(Id(1)), Some(progress));
        gateway.finish(&own, 1, outcome()).await.unwrap();
        assert_eq!(gateway.progress(Id(1)), None);
        assert!(!gateway.report(&own, progress).unwrap());
        assert_eq!(gateway.progress.lock().len(), 0);
    }

    #[tokio::test]
    async fn job_that_was_not_sent_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let gateway = gateway(&folder);
        let key = Key {
            name: "k".to_owned(),
            request: String::new(),
            is_sent: false,
        };
        for key in [None, Some(key)] {
            let refused = gateway.store_and_send(Id(1), job(key), Bytes::new()).await;
            assert!(matches!(refused, Err(Rejected::NotConfirmed(_))), "{refused:?}");
            assert_eq!(gateway.store.job(Id(1)).unwrap(), None);
        }
        assert_eq!(gateway.keys.lock().len(), 0);
    }

    #[test]
    fn submissions_with_one_key_take_turns() {
        let keys = Mutex::default();
        let first = Turn::begin(&keys, "k");
        assert!(first.is_some() && Turn::begin(&keys, "k").is_none() && Turn::begin(&keys, "other").is_some());
        drop(first);
        assert!(Turn::begin(&keys, "k").is_some());
    }
}
