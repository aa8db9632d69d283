//! Sessions with a minimal fake API server: requests, their tokens, and when data is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body as Answer;
use axum::http::header::AUTHORIZATION;
use axum::http::{Request, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::stream;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use runway_operator::audit::{Audit, AuditArgs};
use runway_operator::clock;
use runway_operator::lease::Leadership;
use runway_operator::metrics::Metrics;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceExt as _, service_fn};

use crate::app::App;
use crate::caches::Users;
use crate::guard::{Asker, cookie_name};
use crate::operations;
use crate::pages::overview;
use crate::seen::{Change, Trouble};
use crate::server;
use crate::sessions::{Door, LIFETIME, Login, Refused, Session, Sessions};
use crate::site::Sites;

const ROOM: usize = 32 * 1024 * 1024;

/// A user as the cluster knows them.
#[derive(Clone, Default)]
struct Known {
    name: String,
    groups: Vec<String>,
}

/// A cluster with ModelDeployments in the namespaces `a` and `b`.
#[derive(Default)]
struct Cluster {
    /// By token.
    users: Mutex<BTreeMap<String, Known>>,
    /// Namespaces where a user may list, `*` for all; everywhere if the user is not named.
    allowed: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Tokens without permissions.
    powerless: Mutex<BTreeSet<String>>,
    /// Each list and watch of ModelDeployments: the token, and the path.
    asked: Mutex<Vec<(String, String)>>,
    /// Bytes of each object.
    size: usize,
}

impl Cluster {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            ..Self::default()
        })
    }

    fn knows(&self, token: &str, name: &str, groups: &[&str]) {
        let known = Known {
            name: name.to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
        };
        self.users.lock().unwrap().insert(token.to_owned(), known);
    }

    fn revoke(&self, token: &str) {
        self.users.lock().unwrap().remove(token);
    }

    fn allow(&self, user: &str, namespaces: &[&str]) {
        let namespaces = namespaces.iter().map(ToString::to_string).collect();
        self.allowed.lock().unwrap().insert(user.to_owned(), namespaces);
    }

    fn lists(&self) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(_, path)| !path.contains("watch=")).count()
    }

    fn last_watch(&self) -> String {
        let asked = self.asked.lock().unwrap();
        let last = asked.iter().rfind(|(_, path)| path.contains("watch="));
        last.map(|(token, _)| token.clone()).unwrap_or_default()
    }

    fn client(self: &Arc<Self>) -> Client {
        let cluster = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move { cluster.answer(request).await }
        });
        Client::new(service, "a")
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Answer>, BoxError> {
        let bearer = request
            .headers()
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let token = bearer.unwrap_or_default().trim_start_matches("Bearer ").to_owned();
        let path = request.uri().to_string();
        let body = request.into_body().collect().await?.to_bytes();
        let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
        let Some(user) = self.users.lock().unwrap().get(&token).cloned() else {
            return status(StatusCode::UNAUTHORIZED);
        };
        if path.contains("selfsubjectreviews") {
            let extra = json!({"authentication.kubernetes.io/credential-id": [token]});
            let user = json!({"username": user.name, "groups": user.groups, "extra": extra});
            return Ok(said(&json!({"metadata": {}, "status": {"userInfo": user}})));
        }
        if path.contains("selfsubjectaccessreviews") {
            let namespace = sent["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or("*");
            let allowed = self.may(&token, &user.name, namespace);
            return Ok(said(
                &json!({"metadata": {}, "spec": {}, "status": {"allowed": allowed}}),
            ));
        }
        if path.contains("/namespaces?") || path.ends_with("/namespaces") {
            let items = ["a", "b"].map(|name| json!({"metadata": {"name": name}}));
            return Ok(said(&json!({"metadata": {}, "items": items})));
        }
        if !path.contains("modeldeployments") {
            return status(StatusCode::NOT_FOUND);
        }
        self.asked.lock().unwrap().push((token.clone(), path.clone()));
        let namespace = path
            .split("/namespaces/")
            .nth(1)
            .and_then(|rest| rest.split('/').next());
        if !self.may(&token, &user.name, namespace.unwrap_or("*")) {
            return status(StatusCode::FORBIDDEN);
        }
        if path.contains("watch=") {
            return Ok(Response::new(Answer::from_stream(stream::pending::<
                Result<Vec<u8>, BoxError>,
            >())));
        }
        let items: Vec<Value> = ["a", "b"]
            .into_iter()
            .filter(|place| namespace.is_none_or(|namespace| namespace == *place))
            .map(|place| self.object(place))
            .collect();
        Ok(said(&json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeploymentList",
            "metadata": {"resourceVersion": "1"}, "items": items,
        })))
    }

    fn may(&self, token: &str, user: &str, namespace: &str) -> bool {
        let allowed = self.allowed.lock().unwrap();
        let may = allowed
            .get(user)
            .is_none_or(|namespaces| namespaces.contains("*") || namespaces.contains(namespace));
        may && !self.powerless.lock().unwrap().contains(token)
    }

    fn object(&self, namespace: &str) -> Value {
        // Not much smaller when it is compressed.
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'!' + u8::try_from((seed >> 33) % 90).unwrap())
        };
        let noise: String = (0..self.size).map(|_| next()).collect();
        json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "one", "namespace": namespace, "uid": "1", "resourceVersion": "1"},
            "spec": {"model": {"id": "org/a"}, "engine": {"type": "vllm"}, "env": [{"name": "NOISE", "value": noise}]}})
    }
}

fn said(value: &Value) -> Response<Answer> {
    Response::new(Answer::from(value.to_string()))
}

fn status(code: StatusCode) -> Result<Response<Answer>, BoxError> {
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": code.to_string(), "reason": "", "code": code.as_u16()});
    Ok(Response::builder()
        .status(code)
        .body(Answer::from(status.to_string()))?)
}

struct Console {
    cluster: Arc<Cluster>,
    users: Arc<Users>,
    sessions: Sessions,
}

impl Console {
    fn new(cluster: &Arc<Cluster>) -> Self {
        Self::with(cluster, ROOM, LIFETIME)
    }

    fn with(cluster: &Arc<Cluster>, room: usize, lifetime: Duration) -> Self {
        let users = Users::with_room("a", room);
        let login = Login {
            cluster: cluster.client(),
            namespace: "a".parse().unwrap(),
            url: "https://cluster".to_owned(),
            users: users.clone(),
            issuer: None,
            impersonate: None,
        };
        Self {
            cluster: cluster.clone(),
            users,
            sessions: Sessions::new(Door::Login(Box::new(login)), lifetime, CancellationToken::new()),
        }
    }

    async fn enter(&self, token: &str) -> (String, Arc<Session>) {
        let id = self.sessions.enter_with_token(token).await.unwrap();
        let session = self.sessions.find(&id).unwrap();
        (id, session)
    }

    fn used(&self) -> usize {
        self.users.used.load(Ordering::Relaxed)
    }
}

/// Until the cluster's last answer no longer counts.
async fn later() {
    tokio::time::sleep(Duration::from_millis(1100)).await;
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..100 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}");
}

async fn names(session: &Session) -> Vec<String> {
    let seen = session.view.deployments().await;
    seen.items
        .iter()
        .filter_map(|md| md.metadata.namespace.clone())
        .collect()
}

#[tokio::test]
async fn a_revoked_credential_ends_its_session_and_what_that_held_is_dropped() {
    let cluster = Cluster::new(100);
    cluster.knows("t", "jane", &[]);
    let console = Console::new(&cluster);
    let (id, session) = console.enter("t").await;
    assert_eq!(names(&session).await, ["a", "b"]);
    assert!(console.used() > 0);

    cluster.revoke("t");
    later().await;
    assert!(!session.is_accepted().await);
    tokio::time::timeout(Duration::from_secs(1), session.over())
        .await
        .unwrap();
    assert!(console.sessions.find(&id).is_none());
    drop(session);
    eventually("the caches stay", || console.used() == 0).await;
}

#[tokio::test]
async fn any_answer_that_refuses_a_credential_ends_its_session() {
    let cluster = Cluster::new(100);
    cluster.knows("t", "jane", &[]);
    let console = Console::new(&cluster);
    let (_, session) = console.enter("t").await;
    cluster.revoke("t");
    let seen = session.view.deployments().await;
    assert!(
        matches!(seen.trouble, Some(Trouble::SignedOut(_))),
        "{:?}",
        seen.trouble
    );
    assert!(session.is_over());
}

#[tokio::test]
async fn a_session_ends_if_its_credential_changes_its_user() {
    let cluster = Cluster::new(100);
    cluster.knows("t", "jane", &["a"]);
    let console = Console::new(&cluster);
    let (_, session) = console.enter("t").await;
    cluster.knows("t", "jane", &["b"]);
    later().await;
    assert!(!session.is_accepted().await);
}

#[tokio::test]
async fn forty_tokens_of_one_user_share_one_watch() {
    let cluster = Cluster::new(25_000);
    let console = Console::new(&cluster);
    let mut sessions = Vec::new();
    for token in 0..40 {
        let token = token.to_string();
        cluster.knows(&token, "viewer", &["g", "h"]);
        let (_, session) = console.enter(&token).await;
        assert_eq!(names(&session).await, ["a", "b"]);
        sessions.push(session);
    }
    assert_eq!(cluster.lists(), 1);
    assert!(console.used() < 64 * 1024 + 3 * 25_000 * 2, "{}", console.used());
}

#[tokio::test]
async fn users_with_other_groups_share_nothing() {
    let cluster = Cluster::new(100);
    cluster.knows("1", "jane", &["a"]);
    cluster.knows("2", "jane", &["a", "b"]);
    let console = Console::new(&cluster);
    let (one, two) = (console.enter("1").await.1, console.enter("2").await.1);
    assert_eq!(names(&one).await.len() + names(&two).await.len(), 4);
    assert_eq!(cluster.lists(), 2);
}

#[tokio::test]
async fn a_session_sees_only_what_its_own_credential_may() {
    let cluster = Cluster::new(100);
    cluster.knows("1", "jane", &[]);
    cluster.knows("2", "jane", &[]);
    let console = Console::new(&cluster);
    let (one, two) = (console.enter("1").await.1, console.enter("2").await.1);
    assert_eq!(names(&one).await.len(), 2);
    cluster.powerless.lock().unwrap().insert("2".to_owned());
    let seen = two.view.deployments().await;
    assert!(seen.items.is_empty() && matches!(seen.trouble, Some(Trouble::Forbidden(_))));
    assert!(two.view.deployment("a", "one").await.is_none());
    let change = Change {
        kind: "modeldeployments".to_owned(),
        namespace: "a".to_owned(),
        name: "one".to_owned(),
    };
    assert!(!two.view.may_hear(&change).await && one.view.may_hear(&change).await);
}

#[tokio::test]
async fn a_right_that_is_taken_away_in_one_namespace_drops_what_is_there_and_nothing_else() {
    let cluster = Cluster::new(100);
    cluster.knows("t", "jane", &[]);
    cluster.allow("jane", &["a", "b"]);
    let console = Console::new(&cluster);
    let (_, session) = console.enter("t").await;
    assert_eq!(names(&session).await, ["a", "b"]);
    let (lists, used) = (cluster.lists(), console.used());
    cluster.allow("jane", &["b"]);
    later().await;
    assert_eq!(names(&session).await, ["b"]);
    assert!(session.is_accepted().await);
    assert!(session.view.deployment("a", "one").await.is_none());
    eventually("what was in a stays", || console.used() < used).await;
    assert_eq!(cluster.lists(), lists, "what is in b was read again");
}

#[tokio::test]
async fn watch_continues_with_another_session_of_the_user() {
    let cluster = Cluster::new(100);
    cluster.knows("1", "jane", &[]);
    cluster.knows("2", "jane", &[]);
    let console = Console::new(&cluster);
    let ((first, one), (_, two)) = (console.enter("1").await, console.enter("2").await);
    assert_eq!(names(&one).await.len(), 2);
    eventually("there is no watch", || cluster.last_watch() == "1").await;
    console.sessions.end(&first);
    drop(one);
    eventually("the watch has ended", || cluster.last_watch() == "2").await;
    assert_eq!(names(&two).await.len(), 2);
    assert_eq!(cluster.lists(), 1, "it is read anew");
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_after_its_lifetime() {
    let cluster = Cluster::new(100);
    let expiring = |seconds: i64| {
        let claims = json!({"exp": clock::now().as_second() + seconds}).to_string();
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    };
    let (short, long) = (expiring(2), expiring(3600));
    cluster.knows(&short, "jane", &[]);
    cluster.knows(&long, "jane", &[]);
    let console = Console::new(&cluster);
    let ((_, ending), (_, staying)) = (console.enter(&short).await, console.enter(&long).await);
    tokio::time::timeout(Duration::from_secs(5), ending.over())
        .await
        .unwrap();
    assert!(ending.is_over() && !staying.is_over());

    let brief = Console::with(&cluster, ROOM, Duration::from_secs(2));
    let (id, session) = brief.enter(&long).await;
    tokio::time::timeout(Duration::from_secs(5), session.over())
        .await
        .unwrap();
    assert!(brief.sessions.find(&id).is_none());
}

#[tokio::test]
async fn signing_out_ends_streams_and_drops_watches_without_a_session() {
    let cluster = Cluster::new(100);
    cluster.knows("1", "jane", &[]);
    cluster.knows("2", "jane", &[]);
    let console = Console::new(&cluster);
    let ((first, one), (second, two)) = (console.enter("1").await, console.enter("2").await);
    assert_eq!(names(&one).await.len(), 2);
    let over = one.over();
    console.sessions.end(&first);
    tokio::time::timeout(Duration::from_millis(200), over).await.unwrap();
    drop(one);
    assert!(console.used() > 0 && !two.is_over());
    console.sessions.end(&second);
    drop(two);
    eventually("the caches stay", || console.used() == 0).await;
}

#[tokio::test]
async fn a_user_with_too_many_sessions_loses_the_idlest_of_their_own() {
    let cluster = Cluster::new(100);
    cluster.knows("jane", "jane", &[]);
    cluster.knows("joe", "joe", &[]);
    let console = Console::new(&cluster);
    let (joe, _) = console.enter("joe").await;
    let mut janes = Vec::new();
    for _ in 0..65 {
        janes.push(console.enter("jane").await.0);
    }
    assert!(console.sessions.find(&joe).is_some());
    let open = janes.iter().filter(|id| console.sessions.find(id).is_some()).count();
    assert_eq!(open, 64);
    assert!(console.sessions.find(&janes[0]).is_none());
}

#[tokio::test]
async fn service_accounts_of_one_namespace_share_the_sessions_of_a_tenant() {
    let cluster = Cluster::new(100);
    let console = Console::new(&cluster);
    let mut all = Vec::new();
    for number in 0..65 {
        let token = format!("token-{number}");
        cluster.knows(&token, &format!("system:serviceaccount:team-a:{number}"), &[]);
        all.push(console.enter(&token).await.0);
    }
    let open = all.iter().filter(|id| console.sessions.find(id).is_some()).count();
    assert_eq!(open, 64);
}

#[tokio::test]
async fn a_stranger_ends_no_session_of_others_when_all_are_taken() {
    let cluster = Cluster::new(100);
    let console = Console::new(&cluster);
    let mut all = Vec::new();
    for user in 0..1000 {
        let user = format!("user-{user}");
        cluster.knows(&user, &user, &[]);
        all.push(console.enter(&user).await.0);
    }
    cluster.knows("stranger", "stranger", &[]);
    let refused = console.sessions.enter_with_token("stranger").await;
    assert!(matches!(refused, Err(Refused::Full)), "{refused:?}");
    assert!(all.iter().all(|id| console.sessions.find(id).is_some()));
    // A signed-in user may sign in again, in place of an earlier session.
    let again = console.sessions.enter_with_token("user-1").await.unwrap();
    assert!(console.sessions.find(&again).is_some() && console.sessions.find(&all[1]).is_none());
}

#[tokio::test]
async fn the_least_recently_used_caches_are_dropped_without_room() {
    let cluster = Cluster::new(25_000);
    cluster.knows("jane", "jane", &[]);
    cluster.knows("joe", "joe", &[]);
    // For one of them: a watch, and two objects.
    let console = Console::with(&cluster, 64 * 1024 + 120_000, LIFETIME);
    let (jane, joe) = (console.enter("jane").await.1, console.enter("joe").await.1);
    assert_eq!(names(&jane).await.len(), 2);
    let one = console.used();
    assert_eq!(names(&joe).await.len(), 2);
    assert!(console.used() < one + 1000, "{} after {one}", console.used());
    assert_eq!(names(&jane).await.len(), 2);
    assert_eq!(cluster.lists(), 3);

    let tiny = Console::with(&cluster, 64 * 1024 + 1000, LIFETIME);
    let jane = tiny.enter("jane").await.1;
    let seen = jane.view.deployments().await;
    assert!(
        seen.items.is_empty() && seen.trouble == Some(Trouble::TooMuch),
        "{:?}",
        seen.trouble
    );
    let page = Box::pin(overview::show(Asker(jane))).await.into_body().collect().await;
    let page = String::from_utf8(page.unwrap().to_bytes().to_vec()).unwrap();
    assert!(page.contains("not read") && !page.contains("No problems"), "{page}");
    assert!(console.cluster.lists() > 0);
}

/// Sets headers of the response to a sign-in at an address of the console, and of a page that the session then gets.
async fn signed_in_at(site: &str) -> (String, Option<String>) {
    let cluster = Cluster::new(0);
    cluster.knows("a", "ada", &[]);
    let sites = Sites::given(vec![site.parse().unwrap()]);
    let app = App {
        cookie: cookie_name(&sites, 8443),
        sessions: Console::new(&cluster).sessions,
        sites,
        end: CancellationToken::new(),
    };
    let router = server::router(Arc::new(app));
    let (_, host) = site.split_once("://").unwrap();
    let sign_in = Request::post("/login")
        .header("host", host)
        .header("origin", site)
        .body(Answer::from("token=a"))
        .unwrap();
    let entered = router.clone().oneshot(sign_in).await.unwrap();
    let cookie = entered.headers()["set-cookie"].to_str().unwrap().to_owned();
    let page = Request::get("/deployments")
        .header("host", host)
        .header("cookie", cookie.split(';').next().unwrap())
        .body(Answer::empty())
        .unwrap();
    let page = router.oneshot(page).await.unwrap();
    assert_eq!(page.status(), StatusCode::OK);
    let tls_only = page.headers().get("strict-transport-security");
    (cookie, tls_only.map(|value| value.to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn over_tls_the_cookie_is_bound_to_its_host_and_the_host_to_tls() {
    let (cookie, tls_only) = signed_in_at("https://console.example.com").await;
    assert!(cookie.starts_with("__Host-kubeairunway-8443="), "{cookie}");
    for part in ["; Path=/;", "; Secure", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Domain"), "{cookie}");
    assert_eq!(tls_only.as_deref(), Some("max-age=31536000"));
}

#[tokio::test]
async fn on_localhost_other_ports_keep_clear_http() {
    let (cookie, tls_only) = signed_in_at("http://localhost:8443").await;
    assert!(
        cookie.starts_with("kubeairunway-8443=") && !cookie.contains("Secure"),
        "{cookie}"
    );
    assert_eq!(tls_only, None);
    let (cookie, tls_only) = signed_in_at("https://localhost:8443").await;
    assert!(cookie.starts_with("__Host-"), "{cookie}");
    assert_eq!(tls_only, None);
}

#[tokio::test]
async fn sign_ins_and_forms_are_in_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let args = AuditArgs {
        audit_log: Some(path.clone()),
    };
    let metrics = Metrics::new("", Leadership::always());
    let audit = Audit::open(&args, "kubeairunway-console", operations::describe, &metrics).unwrap();
    let cluster = Cluster::new(0);
    cluster.knows("token-of-ada", "ada", &[]);
    let site = "http://localhost:8443";
    let sites = Sites::given(vec![site.parse().unwrap()]);
    let app = App {
        cookie: cookie_name(&sites, 8443),
        sessions: Console::new(&cluster).sessions,
        sites,
        end: CancellationToken::new(),
    };
    let router = Audit::layer(audit, server::router(Arc::new(app)));
    let ask = async |request: axum::http::request::Builder, body: &str| {
        let request = request.header("host", "localhost:8443").header("origin", site);
        let request = request.body(Answer::from(body.to_owned())).unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    ask(Request::post("/login"), "token=wrong").await;
    let entered = ask(Request::post("/login"), "token=token-of-ada").await;
    let cookie = entered.headers()["set-cookie"]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    ask(Request::get("/deployments").header("cookie", &cookie), "").await;
    ask(
        Request::post("/deployments/a/one/pause").header("cookie", &cookie),
        "csrf=wrong",
    )
    .await;
    ask(Request::post("/logout"), "").await;
    drop(router);

    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains("token-of-ada") && !text.contains(cookie.split('=').nth(1).unwrap()),
        "{text}"
    );
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines
        .map(|line| {
            json!([
                line["action"],
                line["user"],
                line["kind"],
                line["name"],
                line["result"],
                line["status"]
            ])
        })
        .collect();
    assert_eq!(
        lines,
        [
            json!(["sign-in", null, null, null, "refused", 401]),
            json!(["sign-in", "ada", null, null, "allowed", 303]),
            json!(["pause", "ada", "ModelDeployment", "one", "refused", 403]),
            json!(["sign-out", null, null, null, "refused", 401]),
        ]
    );
}
