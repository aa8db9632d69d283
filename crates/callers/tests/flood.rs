//! Callers and attackers with a minimal fake API server, which counts its requests.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request, Response};
use kube::Client;
use kube::client::Body;
use runway_callers::{Action, Caller, Callers, Error, Options};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep};

const CALLER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Longer than an answer is used again.
const LATER: Duration = Duration::from_secs(11);

/// An API server that accepts the tokens `valid…`, as the user of that name, and grants nothing.
#[derive(Default)]
struct Cluster {
    token_reviews: AtomicUsize,
    access_reviews: AtomicUsize,
    /// Whether it does not answer about other tokens, and about rights.
    hangs: AtomicBool,
}

impl Cluster {
    fn callers(self: &Arc<Self>) -> Arc<Callers> {
        let cluster = Arc::clone(self);
        let server = tower::service_fn(move |request: Request<Body>| {
            let cluster = Arc::clone(&cluster);
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect_bytes().await.unwrap();
                let answer = cluster.answer(&path, serde_json::from_slice(&body).unwrap()).await;
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        Arc::new(Callers::new(Client::new(server, "default"), Options::default()))
    }

    async fn answer(&self, path: &str, mut review: Value) -> Value {
        let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
        let is_valid = token.starts_with("valid");
        if path.ends_with("tokenreviews") {
            self.token_reviews.fetch_add(1, Ordering::SeqCst);
            review["status"] = json!({ "authenticated": is_valid, "user": { "username": token } });
        } else {
            self.access_reviews.fetch_add(1, Ordering::SeqCst);
            review["status"] = json!({ "allowed": false });
        }
        if self.hangs.load(Ordering::SeqCst) && !is_valid {
            std::future::pending::<()>().await;
        }
        // As that of a server nearby.
        sleep(Duration::from_millis(2)).await;
        review
    }

    fn token_reviews(&self) -> usize {
        self.token_reviews.load(Ordering::SeqCst)
    }
}

async fn identify(callers: &Callers, token: &str, client: IpAddr) -> Result<Arc<Caller>, Error> {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    callers
        .identify(&HeaderMap::from_iter([(AUTHORIZATION, value)]), client)
        .await
}

/// Requests with invented tokens.
fn flood(callers: &Arc<Callers>, requests: usize) -> JoinSet<bool> {
    let mut flood = JoinSet::new();
    for number in 0..requests {
        let callers = Arc::clone(callers);
        flood.spawn(async move {
            identify(&callers, &format!("invented-{number}"), ATTACKER)
                .await
                .is_ok()
        });
    }
    flood
}

#[tokio::test(start_paused = true)]
async fn invented_tokens_do_not_stop_a_caller_whose_token_was_valid_before() {
    let cluster = Arc::new(Cluster::default());
    let callers = cluster.callers();
    identify(&callers, "valid", CALLER).await.unwrap();
    advance(LATER).await;
    cluster.hangs.store(true, Ordering::SeqCst);
    let flood = flood(&callers, 3000);
    sleep(Duration::from_millis(1)).await;
    let begun = Instant::now();
    assert_eq!(identify(&callers, "valid", CALLER).await.unwrap().user, "valid");
    assert!(begun.elapsed() < Duration::from_millis(250), "{:?}", begun.elapsed());
    drop(flood);
}

#[tokio::test(start_paused = true)]
async fn invented_tokens_ask_rarely_and_leave_turns_to_new_callers_of_other_addresses() {
    let cluster = Arc::new(Cluster::default());
    let callers = cluster.callers();
    let mut answers = flood(&callers, 3000);
    sleep(Duration::from_millis(900)).await;
    let in_a_second = cluster.token_reviews();
    assert!((1..=50).contains(&in_a_second), "{in_a_second}");
    let begun = Instant::now();
    identify(&callers, "valid-new", CALLER).await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(250), "{:?}", begun.elapsed());
    while let Some(accepted) = answers.join_next().await {
        assert!(!accepted.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn one_question_answers_for_all_requests_with_a_token() {
    let cluster = Arc::new(Cluster::default());
    let callers = cluster.callers();
    for round in 1..=2 {
        let mut all = JoinSet::new();
        for number in 0..500 {
            let callers = Arc::clone(&callers);
            let token = ["valid", "invented"][number % 2];
            all.spawn(async move { identify(&callers, token, CALLER).await.is_ok() });
        }
        let accepted = all.join_all().await;
        assert_eq!(accepted.iter().filter(|accepted| **accepted).count(), 250);
        assert_eq!(cluster.token_reviews(), 2 * round);
        advance(LATER).await;
    }
}

#[tokio::test(start_paused = true)]
async fn questions_of_one_tenant_leave_turns_to_others() {
    let cluster = Arc::new(Cluster::default());
    let callers = cluster.callers();
    let greedy = identify(&callers, "valid-greedy", ATTACKER).await.unwrap();
    let other = identify(&callers, "valid-other", CALLER).await.unwrap();
    cluster.hangs.store(true, Ordering::SeqCst);
    let mut questions = JoinSet::new();
    let ask = async |caller: &Caller, name: &str| {
        let action = Action {
            verb: "get",
            group: "kubeairunway.ai",
            resource: "modeldeployments",
            subresource: "",
            namespace: "team-a",
            name,
        };
        callers.may(caller, &action).await
    };
    for number in 0..100 {
        let (callers, greedy) = (Arc::clone(&callers), Arc::clone(&greedy));
        questions.spawn(async move {
            let name = format!("absent-{number}");
            let action = Action {
                verb: "get",
                group: "kubeairunway.ai",
                resource: "modeldeployments",
                subresource: "",
                namespace: "team-a",
                name: &name,
            };
            callers.may(&greedy, &action).await.is_ok()
        });
    }
    sleep(Duration::from_millis(1)).await;
    let hanging = cluster.access_reviews.load(Ordering::SeqCst);
    assert!(hanging < Options::default().asking, "{hanging}");
    cluster.hangs.store(false, Ordering::SeqCst);
    assert!(!ask(&other, "gemma").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn expired_and_malformed_tokens_are_refused_without_a_question() {
    let cluster = Arc::new(Cluster::default());
    let callers = cluster.callers();
    // {"alg":"RS256"}, {"exp":1}
    for token in [
        "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9.c2ln",
        "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9",
    ] {
        let refused = identify(&callers, token, CALLER).await;
        assert!(matches!(refused, Err(Error::Refused)), "{refused:?}");
    }
    assert_eq!(cluster.token_reviews(), 0);
    for _ in 0..2 {
        assert!(identify(&callers, "invented", CALLER).await.is_err());
        assert_eq!(cluster.token_reviews(), 1);
    }
}
