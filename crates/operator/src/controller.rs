//! Runs a reconcile function with a wait per object after failures, and executes its plans.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kube::Resource;
use kube::runtime::controller::{self, Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tracing::Instrument;

use crate::apply::{self, Executor, Owner};
use crate::packed::{self, Packed};
use crate::plan::Plan;
use crate::process::Process;
use crate::telemetry::chain;
use crate::trace;

/// Servers that a reconcile waits for. They decide how many reconciles run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Only the API server. More concurrent reconciles slow it down for all clients (measured, docs/project/performance.md).
    ForApiServer,
    /// Also servers that may hang, so more reconciles run concurrently.
    ForOthersToo,
}

impl Waits {
    fn at_once(self) -> u16 {
        match self {
            Self::ForApiServer => 8,
            Self::ForOthersToo => 32,
        }
    }
}

/// Requeues objects of kind `K`. Cheap to clone.
pub struct Wake<K: Resource<DynamicType = ()>>(mpsc::UnboundedSender<ObjectRef<K>>);

/// A [`Wake`], and the objects it is called with, for [`Controller::reconcile_on`].
pub fn wake<K: Resource<DynamicType = ()>>() -> (Wake<K>, mpsc::UnboundedReceiver<ObjectRef<K>>) {
    let (sender, woken) = mpsc::unbounded();
    (Wake(sender), woken)
}

impl<K: Resource<DynamicType = ()>> Wake<K> {
    /// Requeues an object.
    pub fn call(&self, namespace: &str, name: &str) {
        // Fails only while shutting down.
        let _ = self.0.unbounded_send(ObjectRef::new(name).within(namespace));
    }
}

impl<K: Resource<DynamicType = ()>> Clone for Wake<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Resource<DynamicType = ()>> Debug for Wake<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").finish_non_exhaustive()
    }
}

/// First wait after a failure; it doubles with every further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait after failures.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// A reconcile that takes longer is broken off and tried again.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// At shutdown, reconciles under way may take this long.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Failures in a row, by object.
struct Backoff<K: Resource<DynamicType = ()>> {
    failures: Mutex<HashMap<ObjectRef<K>, u32>>,
}

impl<K: Resource<DynamicType = ()>> Default for Backoff<K> {
    fn default() -> Self {
        Self {
            failures: Mutex::default(),
        }
    }
}

impl<K: Resource<DynamicType = ()>> Backoff<K> {
    /// Forgets the failures of an object: its reconcile succeeded, or it is gone.
    fn forget(&self, object: &ObjectRef<K>) {
        self.failures.lock().remove(object);
    }

    /// A failed object is always looked up again, and is not found any more once it is deleted.
    fn ended<E, Q>(&self, outcome: &Result<(ObjectRef<K>, Action), controller::Error<E, Q>>)
    where
        E: std::error::Error + 'static,
        Q: std::error::Error + 'static,
    {
        if let Err(controller::Error::ObjectNotFound(gone)) = outcome {
            let mut object = ObjectRef::new(&gone.name);
            object.namespace.clone_from(&gone.namespace);
            self.forget(&object);
        }
    }

    fn failed(&self, object: ObjectRef<K>) -> Duration {
        let mut failures = self.failures.lock();
        let count = failures.entry(object).or_default();
        *count += 1;
        wait(*count)
    }
}

/// The wait after this many failures in a row.
fn wait(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST_WAIT.saturating_mul(1 << doublings).min(LONGEST_WAIT)
}

/// Reason why a reconcile failed. It runs again after a back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It took longer than a minute.
    #[error("not done after {LIMIT:?}")]
    Timeout,
    /// The object could not be unpacked.
    #[error(transparent)]
    Unpack(#[from] packed::Error),
    /// An input of the plan could not be read.
    #[error("cannot read what the plan needs")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A write failed.
    #[error(transparent)]
    Apply(#[from] apply::Error),
}

impl Error {
    /// A failed read.
    pub fn read(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Read(Box::new(error))
    }

    /// Category of the error, for metrics.
    fn category(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unpack(_) => "packed",
            Self::Read(_) => "connection",
            Self::Apply(error) => error.category(),
        }
    }
}

/// Executes a plan: the last step of every reconcile. If a write fails, executes the plan that `after_failure` makes of the
/// error, such as a status that reports it, and returns the error.
///
/// A conflict needs no code in a controller. The executor has looked at the object in the way once, so that the next plan
/// observes it, and the reconcile runs again after the wait of [`run`], which grows up to five minutes.
///
/// # Errors
///
/// The first write that failed, of the plan or of the one after it.
pub async fn execute<K: Owner>(
    executor: &Executor<K>,
    owner: &K,
    plan: &Plan,
    after_failure: impl FnOnce(&apply::Error) -> Plan,
) -> Result<Action, Error> {
    match executor.execute(owner, plan).await {
        Ok(()) => {
            let times = [plan.look_again, executor.resend_after(plan)];
            let next = times.into_iter().flatten().min();
            Ok(next.map_or_else(Action::await_change, Action::requeue))
        }
        Err(error) => {
            // A guarded status refers to the object as the plan's own writes left it.
            executor
                .execute(&executor.latest(owner), &after_failure(&error))
                .await?;
            Err(error.into())
        }
    }
}

/// `reconcile` for a store of packed objects.
pub fn unpacked<K, Ctx, F>(
    reconcile: impl Fn(Arc<K>, Arc<Ctx>) -> F + Copy + Send + Sync + 'static,
) -> impl Fn(Arc<Packed<K>>, Arc<Ctx>) -> BoxFuture<'static, Result<Action, Error>> + Copy + Send + Sync + 'static
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
    Ctx: Send + Sync + 'static,
    F: Future<Output = Result<Action, Error>> + Send + 'static,
{
    move |packed, context| {
        async move {
            let object = packed.unpack()?;
            // A packed object has no more than its name beside its text.
            let (span, meta) = (tracing::Span::current(), object.meta());
            span.record("uid", meta.uid.as_deref());
            span.record("trace_id", trace::trace_id(meta));
            reconcile(Arc::new(object), context).await
        }
        .boxed()
    }
}

/// Runs `controller` until the process shuts down; reconciles in progress are finished. A standby replica does not reconcile. All
/// objects are reconciled when the replica becomes the leader, and after an outage of the API server. When it loses the leadership,
/// reconciles in progress are cancelled.
pub async fn run<K, Ctx, F>(
    controller: Controller<K>,
    process: &Process,
    waits: Waits,
    context: Arc<Ctx>,
    reconcile: impl Fn(Arc<K>, Arc<Ctx>) -> F + Copy + Send + Sync + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    Ctx: Send + Sync + 'static,
    F: Future<Output = Result<Action, Error>> + Send + 'static,
{
    let backoff = Arc::new(Backoff::<K>::default());
    let at_end = backoff.clone();
    let shared = process.clone();
    let work = controller
        .with_config(Config::default().concurrency(waits.at_once()))
        .reconcile_all_on(stream::select(process.leadership.begins(), process.breaker.closes()))
        .graceful_shutdown_on(process.shutdown.clone().cancelled_owned())
        .run(
            move |object, context| {
                let (backoff, process, span) = (backoff.clone(), shared.clone(), span(object.as_ref()));
                let attempt = async move {
                    if !process.leadership.is_leading() {
                        return Ok(Action::await_change());
                    }
                    let reference = ObjectRef::from_obj(object.as_ref());
                    let _busy = process.health.busy_with(reference.to_string());
                    let started = Instant::now();
                    let attempt = tokio::time::timeout(LIMIT, reconcile(object, context));
                    let Some(outcome) = process.leadership.while_leading(attempt).await else {
                        // The new leader reconciles every object again.
                        return Ok(Action::await_change());
                    };
                    process.metrics.reconciled(started.elapsed());
                    let failed = match outcome.unwrap_or(Err(Error::Timeout)) {
                        Ok(action) => {
                            backoff.forget(&reference);
                            return Ok(action);
                        }
                        Err(error) => error,
                    };
                    let wait = backoff.failed(reference);
                    process.metrics.failed(failed.category());
                    tracing::warn!(error = chain(&failed), retry_in = ?wait, "reconcile failed");
                    Ok(Action::requeue(wait))
                };
                attempt.instrument(span)
            },
            |_, never: &Infallible, _| match *never {},
            context,
        )
        .for_each(|outcome| {
            at_end.ended(&outcome);
            std::future::ready(())
        });
    tokio::select! {
        () = work => {}
        () = async {
            process.shutdown.cancelled().await;
            tokio::time::sleep(SHUTDOWN_GRACE).await;
        } => tracing::warn!("reconciles that do not end are broken off"),
    }
}

/// Everything that is logged during a reconcile says what it is about.
fn span<K: Resource<DynamicType = ()>>(object: &K) -> tracing::Span {
    let meta = object.meta();
    tracing::info_span!(
        "reconcile",
        kind = %K::kind(&()),
        namespace = meta.namespace,
        name = meta.name,
        uid = meta.uid,
        trace_id = trace::trace_id(meta),
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::events::Events;
    use crate::plan::Finalizer;

    /// Found by `storm --scenario actor-change-image --seed 71`: after the failure, the controller acted on the spec before the last
    /// one.
    #[tokio::test]
    async fn a_failed_write_does_not_end_the_answer_to_the_one_before_it() {
        let object =
            |version: &str| json!({ "metadata": { "name": "a", "namespace": "ns", "resourceVersion": version } });
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let is_status = request.uri().path().ends_with("/status");
            let (code, body) = if is_status {
                (200, object("10"))
            } else {
                (409, json!({ "code": 409 }))
            };
            let mut response = http::Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
            std::future::ready(Ok::<_, kube::Error>(response))
        });
        let client = Client::new(service, "ns");
        let events = Events::start(client.clone(), "toys");
        let executor = Executor::<ConfigMap>::new(client, "toys", "toys/finalizer", events);
        let read = || {
            let watched: ConfigMap = serde_json::from_value(object("9")).unwrap();
            executor.newest(Arc::new(watched))
        };
        let version = || read().metadata.resource_version.clone();
        let carry_out = async |plan: Plan| execute(&executor, &read(), &plan, |_| Plan::default()).await;

        let written = Plan {
            status: Some(Value::Null),
            ..Plan::default()
        };
        carry_out(written).await.unwrap();
        assert_eq!(version().as_deref(), Some("10"));
        let refused = Plan {
            finalizer: Finalizer::Add,
            ..Plan::default()
        };
        assert!(carry_out(refused).await.is_err());
        assert_eq!(version().as_deref(), Some("10"));
    }

    #[test]
    fn a_deleted_object_leaves_no_entry_behind() {
        type Outcome = Result<(ObjectRef<ConfigMap>, Action), controller::Error<std::io::Error, std::io::Error>>;

        let backoff = Backoff::<ConfigMap>::default();
        let entries = || backoff.failures.lock().len();
        let objects: Vec<_> = (0..100)
            .map(|number| ObjectRef::new(&format!("object-{number}")).within("team-a"))
            .collect();
        for object in &objects {
            backoff.failed(object.clone());
            assert_eq!(backoff.failed(object.clone()), FIRST_WAIT * 2);
        }
        assert_eq!(entries(), 100);

        let gone = |object: &ObjectRef<ConfigMap>| -> Outcome {
            Err(controller::Error::ObjectNotFound(Box::new(object.clone().erase())))
        };
        objects[1..].iter().for_each(|object| backoff.ended(&gone(object)));
        assert_eq!(entries(), 1);
        // One that is made anew under the same name begins with the first wait.
        assert_eq!(backoff.failed(objects[1].clone()), FIRST_WAIT);
        let failed: Outcome = Err(controller::Error::ReconcilerFailed(
            std::io::Error::other("refused"),
            Box::new(objects[0].clone().erase()),
        ));
        backoff.ended(&failed);
        assert_eq!(backoff.failed(objects[0].clone()), FIRST_WAIT * 4);
    }

    #[test]
    fn the_wait_doubles_up_to_five_minutes() {
        assert_eq!(wait(1), FIRST_WAIT);
        assert_eq!(wait(3), FIRST_WAIT * 4);
        assert_eq!(wait(u32::MAX), LONGEST_WAIT);
    }
}
