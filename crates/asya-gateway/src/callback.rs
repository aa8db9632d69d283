//! Calls the URL of a job with its result. Users name the URLs, so the administrator names the hosts, and no name may be resolved
//! to an address of the node, of the cloud's credentials or of the gateway itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, TryFutureExt as _};
use http::{Request, Uri, header};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioExecutor;
use runway_operator::address::{check_resolved, check_url, is_loopback};
use runway_operator::telemetry::chain;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::gateway::{Gateway, now};
use crate::job::{Id, Item};
use crate::shown::Shown;

/// Timeout of a call.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of looks at the jobs to call.
const LOOK: Duration = Duration::from_secs(5);
/// Most calls at once.
const AT_ONCE: usize = 16;
/// Pause before the second attempt; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// Attempts.
const ATTEMPTS: u32 = 12;

/// Hosts that may be called.
#[derive(Clone, Debug, Default)]
pub struct Hosts(pub Vec<String>);

impl Hosts {
    /// Checks the URL of a submission.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn check(&self, url: &str) -> Result<(), String> {
        if self.0.is_empty() {
            return Err(
                "asya-callback: this gateway calls no URLs; its administrator can allow hosts with --callback-host"
                    .to_owned(),
            );
        }
        // URLs can hold tokens, and reasons are logged: they name the host only.
        check_url(url).map_err(|_| "asya-callback: it is not an HTTP URL that may be called".to_owned())?;
        let host = url
            .parse::<Uri>()
            .ok()
            .and_then(|uri| Some(uri.host()?.to_ascii_lowercase()));
        let is_allowed = |host: &str| {
            self.0.iter().any(|allowed| match allowed.strip_prefix("*.") {
                Some(domain) => host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
                None => host == allowed,
            })
        };
        match host {
            Some(host) if is_allowed(&host) && !is_loopback(url) => Ok(()),
            host => Err(format!(
                "asya-callback: the host '{}' is not one of those that the administrator allows: {}",
                host.unwrap_or_default(),
                self.0.join(", ")
            )),
        }
    }
}

/// Resolves names, and leaves out addresses that may not be called.
#[derive(Clone)]
struct Guarded;

impl tower::Service<Name> for Guarded {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let good: Vec<SocketAddr> = found.filter(|address| check_resolved(address.ip()).is_ok()).collect();
            if good.is_empty() {
                return Err(std::io::Error::other(format!(
                    "{} has no address that may be called",
                    name.as_str()
                )));
            }
            Ok(good.into_iter())
        }
        .boxed()
    }
}

/// Calls URLs.
pub struct Caller {
    client: Client<HttpsConnector<HttpConnector<Guarded>>, Full<Bytes>>,
    hosts: Hosts,
}

impl Caller {
    /// Calls these hosts only.
    ///
    /// # Errors
    /// The cryptography lacks the versions of TLS: never with ours.
    pub fn new(hosts: Hosts) -> Result<Self, rustls::Error> {
        let mut connector = HttpConnector::new_with_resolver(Guarded);
        connector.set_connect_timeout(Some(PATIENCE));
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        // Calls are rare: no connection is kept.
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Ok(Self { client, hosts })
    }

    /// Calls the URLs of finished jobs until shutdown.
    pub async fn run(self, gateway: Arc<Gateway>, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            let due = gateway.store.calls(now(), AT_ONCE).unwrap_or_else(|error| {
                tracing::error!("cannot read the URLs to call: {error}");
                Vec::new()
            });
            let is_all = due.len() < AT_ONCE;
            join_all(due.into_iter().map(|(since, id)| self.attend(&gateway, since, id))).await;
            if is_all {
                tokio::select! {
                    () = sleep(LOOK) => {}
                    () = gateway.calls.notified() => {}
                    () = shutdown.cancelled() => {}
                }
            }
        }
    }

    /// Calls the URL of a job, or decides when to call it again.
    async fn attend(&self, gateway: &Gateway, since: i64, id: Id) {
        let Ok(Some(job)) = gateway.store.job(id) else {
            return gateway.store.called(id, since, None).await;
        };
        let Some(url) = job.callback.clone() else {
            return gateway.store.called(id, since, None).await;
        };
        let called = match self.hosts.check(&url) {
            Ok(()) => self.call(gateway, id, &url).await,
            Err(why) => Err(why),
        };
        let attempt = job.attempts + 1;
        let again = match called {
            Ok(()) => {
                gateway.metrics.called("succeeded");
                None
            }
            Err(why) if attempt >= ATTEMPTS => {
                tracing::warn!(job = %id, why, "cannot call the URL of a job; giving up");
                gateway.metrics.called("given_up");
                None
            }
            Err(why) => {
                tracing::info!(job = %id, why, attempt, "cannot call the URL of a job; retrying");
                gateway.metrics.called("failed");
                Some(now() + pause(attempt))
            }
        };
        gateway.store.called(id, since, again).await;
    }

    async fn call(&self, gateway: &Gateway, id: Id, url: &str) -> Result<(), String> {
        let shown = Shown::of(gateway, &Item::of(id))
            .await
            .map_err(|error| error.to_string())?;
        // It was removed in the meantime.
        let Some(shown) = shown else { return Ok(()) };
        let request = Request::post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "asya-gateway")
            .body(Full::new(shown.json.clone()))
            .map_err(|error| error.to_string())?;
        let answered = self.client.request(request).map_err(|error| chain(&error));
        match timeout(PATIENCE, answered).await {
            Ok(Ok(response)) if response.status().is_success() => Ok(()),
            Ok(Ok(response)) => Err(format!("the response is {}", response.status())),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("no response within {PATIENCE:?}")),
        }
    }
}

/// Milliseconds until the next attempt.
fn pause(attempt: u32) -> i64 {
    let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
    let pause = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
    i64::try_from(pause.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_of_the_administrator_are_called() {
        let hosts = Hosts(vec!["hooks.example.com".to_owned(), "*.team.svc".to_owned()]);
        for good in [
            "https://hooks.example.com/x?y=1",
            "http://HOOKS.example.com:8080",
            "http://shop.team.svc/done",
        ] {
            assert_eq!(hosts.check(good), Ok(()), "{good}");
        }
        for bad in [
            "http://other.example.com",
            "http://hooks.example.com.evil.test/",
            "http://evilteam.svc",
            "http://team.svc",
            "http://169.254.169.254/",
            "http://127.0.0.1/",
            "http://user@hooks.example.com/",
            "http://evil.test/#hooks.example.com",
            "ftp://hooks.example.com",
            "hooks.example.com",
        ] {
            assert!(hosts.check(bad).is_err(), "{bad}");
        }
        let own = Hosts(vec![
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "169.254.169.254".to_owned(),
        ]);
        for bad in ["http://localhost/", "http://127.0.0.1/", "http://169.254.169.254/"] {
            assert!(own.check(bad).is_err(), "{bad}");
        }
        assert!(Hosts::default().check("https://hooks.example.com").is_err());
        for secret in ["https://evil.test/?token=s3cret", "ftp://hooks.example.com/s3cret"] {
            let why = hosts.check(secret).unwrap_err();
            assert!(!why.contains("s3cret"), "{why}");
        }
    }

    #[tokio::test]
    async fn name_of_the_gateway_itself_is_not_resolved() {
        let name = "localhost".parse().unwrap();
        let resolved = tower::Service::call(&mut Guarded, name).await;
        assert!(resolved.is_err());
    }

    #[test]
    fn pauses_grow_to_an_hour() {
        assert_eq!((pause(1), pause(2), pause(40)), (10_000, 20_000, 3_600_000));
    }
}
