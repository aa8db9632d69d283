//! Circuit breaker for requests to the API server: during an outage, a process sends one request a second instead of those of all
//! its watches, reconciles and elections, and continues as soon as one is answered.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{Stream, stream};
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// Time between two attempts while the breaker is open.
const PACE: Duration = Duration::from_secs(1);

/// State that the clients of a process share; as a layer, it goes around a client's service. Closed at first. Cheap to clone.
///
/// It opens when a request fails without a response, and closes with the next response, whatever its status. While it is
/// open, requests fail with [`Open`], except for one a second.
#[derive(Clone, Debug)]
pub struct Breaker(Arc<watch::Sender<Option<Outage>>>);

/// The API server is not reached.
#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Instant,
    next_attempt: Instant,
}

/// A request was not sent, because the breaker is open.
#[derive(Debug, thiserror::Error)]
#[error("the API server cannot be reached; another attempt follows within a second")]
pub struct Open;

impl Open {
    /// Whether it is the cause of an error.
    pub fn caused(error: &kube::Error) -> bool {
        matches!(error, kube::Error::Service(cause) if cause.is::<Self>())
    }

    /// Whether it is the cause of a watch's error.
    pub fn interrupted(error: &watcher::Error) -> bool {
        use watcher::Error::{InitialListFailed, WatchStartFailed};
        matches!(error, InitialListFailed(cause) | WatchStartFailed(cause) if Self::caused(cause))
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Breaker {
    /// Emits an item whenever it closes.
    pub fn closes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::unfold(self.0.subscribe(), async |mut outage| {
            outage.wait_for(Option::is_some).await.ok()?;
            outage.wait_for(Option::is_none).await.ok()?;
            Some(((), outage))
        })
    }

    /// Whether a request may be sent now.
    fn admits(&self) -> bool {
        let mut admits = true;
        self.0.send_if_modified(|outage| {
            if let Some(outage) = outage {
                let now = Instant::now();
                admits = outage.next_attempt <= now;
                if admits {
                    outage.next_attempt = now + PACE;
                }
            }
            false
        });
        admits
    }

    fn opens(&self, error: &BoxError) {
        self.0.send_if_modified(|outage| {
            let is_news = outage.is_none();
            if is_news {
                tracing::warn!(error, "cannot reach the API server; one request a second is tried");
                let now = Instant::now();
                // A single broken connection delays nothing.
                *outage = Some(Outage {
                    since: now,
                    next_attempt: now,
                });
            }
            is_news
        });
    }

    fn answered(&self) {
        self.0.send_if_modified(|outage| {
            let Some(Outage { since, .. }) = outage.take() else {
                return false;
            };
            tracing::info!(after = ?since.elapsed(), "the API server is reached again");
            true
        });
    }
}

impl<S> Layer<S> for Breaker {
    type Service = Broken<S>;

    fn layer(&self, inner: S) -> Broken<S> {
        Broken {
            inner,
            breaker: self.clone(),
        }
    }
}

/// A service behind a breaker.
#[derive(Debug)]
pub struct Broken<S> {
    inner: S,
    breaker: Breaker,
}

impl<S, R> Service<R> for Broken<S>
where
    S: Service<R, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        if !self.breaker.admits() {
            return Box::pin(async { Err(Open.into()) });
        }
        let breaker = self.breaker.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            match &response {
                Ok(_) => breaker.answered(),
                Err(error) => breaker.opens(error),
            }
            response
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures::{FutureExt, StreamExt};
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn during_an_outage_one_request_a_second_is_sent_and_the_first_response_ends_it() {
        let (is_away, sent) = (AtomicBool::new(true), AtomicUsize::new(0));
        let (is_away, sent) = (Arc::new(is_away), Arc::new(sent));
        let breaker = Breaker::default();
        let mut closes = std::pin::pin!(breaker.closes());
        let server = service_fn({
            let (is_away, sent) = (is_away.clone(), sent.clone());
            move |()| {
                sent.fetch_add(1, Ordering::Relaxed);
                let response = if is_away.load(Ordering::Relaxed) {
                    Err(BoxError::from("refused"))
                } else {
                    Ok(())
                };
                std::future::ready(response)
            }
        });
        let (mut one, mut other) = (breaker.layer(server.clone()), breaker.layer(server));
        let mut ask = async || {
            let one = one.ready().await.unwrap().call(()).await;
            let other = other.ready().await.unwrap().call(()).await;
            [one, other]
        };

        // The first opens it, and one attempt follows at once.
        let errors = ask().await.map(|response| response.unwrap_err().to_string());
        assert_eq!(errors, ["refused", "refused"]);
        assert!(closes.next().now_or_never().is_none());
        for _ in 0..100 {
            for response in ask().await {
                assert!(response.unwrap_err().is::<Open>() || sent.load(Ordering::Relaxed) > 2);
            }
            tokio::time::advance(PACE / 10).await;
        }
        assert_eq!(sent.swap(0, Ordering::Relaxed), 2 + 9);

        is_away.store(false, Ordering::Relaxed);
        tokio::time::advance(PACE).await;
        assert!(ask().await.into_iter().all(|response| response.is_ok()));
        assert_eq!(closes.next().now_or_never(), Some(Some(())));
        assert!(ask().await.into_iter().all(|response| response.is_ok()));
        assert_eq!(sent.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn error_of_a_client_names_its_cause() {
        assert!(Open::caused(&kube::Error::Service(Open.into())));
        assert!(!Open::caused(&kube::Error::Service("refused".into())));
    }
}
