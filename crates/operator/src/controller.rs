//! Runs a reconcile function with per-object backoff.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::telemetry::chain;

/// Reconciles that may run at once.
const CONCURRENCY: u16 = 32;
/// First wait after a failure; it doubles with every further one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait after failures.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

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
    fn succeeded(&self, object: &ObjectRef<K>) {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(object);
    }

    fn failed(&self, object: ObjectRef<K>) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Runs `controller` until `shutdown`: reconciles that are under way are finished.
pub async fn run<K, Ctx, F, E>(
    controller: Controller<K>,
    shutdown: CancellationToken,
    context: Arc<Ctx>,
    reconcile: impl Fn(Arc<K>, Arc<Ctx>) -> F + Copy + Send + Sync + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    Ctx: Send + Sync + 'static,
    F: Future<Output = Result<Action, E>> + Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let backoff = Arc::new(Backoff::<K>::default());
    let on_error = backoff.clone();
    controller
        .with_config(Config::default().concurrency(CONCURRENCY))
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(
            move |object, context| {
                let backoff = backoff.clone();
                async move {
                    let reference = ObjectRef::from_obj(object.as_ref());
                    let action = reconcile(object, context).await?;
                    backoff.succeeded(&reference);
                    Ok(action)
                }
            },
            move |object, error: &E, _| {
                let wait = on_error.failed(ObjectRef::from_obj(object.as_ref()));
                tracing::warn!(object = %ObjectRef::from_obj(object.as_ref()), error = chain(error), retry_in = ?wait, "reconcile failed");
                Action::requeue(wait)
            },
            context,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_five_minutes() {
        assert_eq!(wait(1), FIRST_WAIT);
        assert_eq!(wait(3), FIRST_WAIT * 4);
        assert_eq!(wait(u32::MAX), LONGEST_WAIT);
    }
}
