//! Signing in to the console at an issuer of OpenID Connect: a real Dex, a real API server that trusts it or does not, and an
//! issuer that lies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use runway_client::access::{self, Right};
use runway_manifests::Identity;
use runway_manifests::console;
use runway_operator::clock;
use runway_operator::scope::Namespaces;
use runway_product_testbed::served::{Answer, Served, User};
use runway_product_testbed::*;
use runway_testbed::dex::Dex;
use runway_testbed::eventually;
use runway_web::oidc::{ClaimNames, Impersonation, Settings};
use runway_web::server::LoginOptions;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

const SITE: &str = "https://console.test";
const CLIENT: &str = "console";
const SECRET: &str = "between-dex-and-the-console";
/// Jane may change what is in team-a by her group; Joe may nothing.
const USERS: [(&str, &[&str]); 2] = [
    ("jane@example.com", &["team-a", "staff"]),
    ("joe@example.com", &["staff"]),
];

async fn dex() -> Result<Dex> {
    Dex::start(CLIENT, SECRET, &format!("{SITE}/login/callback"), &USERS).await
}

/// A console that signs in at Dex.
fn at(dex: &Dex, folder: &tempfile::TempDir) -> Result<LoginOptions> {
    let secret = folder.path().join("secret");
    std::fs::write(&secret, SECRET)?;
    Ok(LoginOptions {
        sites: vec![SITE.parse()?],
        oidc: Some(Settings {
            issuer: dex.issuer.clone(),
            client_id: CLIENT.to_owned(),
            client_secret: Some(secret),
            scopes: ["profile", "email", "groups", "offline_access"]
                .map(str::to_owned)
                .into(),
            authorities: Some(dex.authority()),
            claims: by_email(),
        }),
        ..LoginOptions::default()
    })
}

fn by_email() -> ClaimNames {
    ClaimNames {
        username: "email".to_owned(),
        username_prefix: None,
        groups: Some("groups".to_owned()),
        groups_prefix: String::new(),
    }
}

/// Flags with which kube-apiserver trusts Dex.
fn trusting(dex: &Dex) -> Vec<String> {
    vec![
        format!("--oidc-issuer-url={}", dex.issuer),
        format!("--oidc-client-id={CLIENT}"),
        format!("--oidc-ca-file={}", dex.authority().display()),
        "--oidc-username-claim=email".to_owned(),
        "--oidc-groups-claim=groups".to_owned(),
    ]
}

/// The cookie of that name that an answer sets, as a browser sends it.
fn set_cookie(answer: &Answer, name: &str) -> Option<String> {
    let cookies = answer.header("set-cookie")?.split('\n');
    let mut pairs = cookies.filter_map(|cookie| cookie.split(';').next());
    pairs
        .find(|pair| {
            pair.split_once('=')
                .is_some_and(|(n, value)| n.ends_with(name) && !value.is_empty())
        })
        .map(str::to_owned)
}

/// State that the issuer has to return, from the URL to which the console redirects browsers.
fn state_of(url: &str) -> Result<&str> {
    let (_, state) = url.split_once("state=").context("no state")?;
    Ok(state.split('&').next().unwrap_or_default())
}

/// Begins a sign-in: the address at the issuer, and the cookie of the flow.
async fn begin(served: &Served) -> Result<(String, String)> {
    let begun = served.ask("GET", "/login/issuer", &[], "").await?;
    let cookie = begun.header("set-cookie").context("no cookie")?.to_owned();
    for part in [
        "HttpOnly",
        "SameSite=Lax",
        "Secure",
        "Path=/;",
        "Max-Age=600",
        "__Host-",
    ] {
        ensure!(cookie.contains(part), "{cookie}");
    }
    let url = begun.header("location").with_context(|| format!("{begun:?}"))?;
    Ok((url.to_owned(), set_cookie(&begun, "-login").context("no flow")?))
}

/// Passes the issuer's response to the console.
async fn return_to(served: &Served, location: &str, flow: &str) -> Result<Answer> {
    let path = location.strip_prefix(SITE).with_context(|| location.to_owned())?;
    served.ask("GET", path, &[("cookie", flow)], "").await
}

async fn sign_in<'a>(served: &'a Served, dex: &Dex, user: &str) -> Result<User<'a>> {
    let (url, flow) = begin(served).await?;
    for part in ["code_challenge_method=S256", "code_challenge=", "nonce=", "state="] {
        ensure!(url.contains(part), "{url}");
    }
    let location = dex.sign_in(&url, user).await?;
    let entered = return_to(served, &location, &flow).await?;
    ensure!(
        entered.code == 200,
        "a redirect would lose the Strict cookie: {entered:?}"
    );
    let all = entered.header("set-cookie").unwrap_or_default();
    ensure!(
        all.contains("SameSite=Strict") && all.contains("HttpOnly") && all.contains("Secure"),
        "{all}"
    );
    let again = return_to(served, &location, &flow).await?;
    ensure!(again.code == 401 && again.body.contains("already used"), "{again:?}");
    served.with_cookie(&session_of(&entered)?).await
}

/// The session that an answer opens.
fn session_of(answer: &Answer) -> Result<String> {
    let cookies = answer.header("set-cookie").unwrap_or_default().split('\n');
    let mut pairs = cookies.filter_map(|cookie| cookie.split(';').next());
    let session = pairs.find(|pair| !pair.contains("-login="));
    Ok(session.with_context(|| format!("no session: {answer:?}"))?.to_owned())
}

/// An API server with what Jane may see, and what she may not.
async fn bed(apiserver_args: Vec<String>) -> Result<Bed> {
    let bed = Bed::start_trusting(Upstream::Kaito, false, apiserver_args).await?;
    for namespace in ["team-a", "team-b"] {
        bed.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .await?;
        let mut model = gemma("one");
        model["metadata"]["namespace"] = json!(namespace);
        bed.apply(&model).await?;
    }
    let rules = json!([
        {"apiGroups": ["kubeairunway.ai"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
    ]);
    let group = "rbac.authorization.k8s.io";
    let (kind, version) = ("ClusterRole", format!("{group}/v1"));
    bed.apply(&json!({"apiVersion": version, "kind": kind, "metadata": {"name": "models"}, "rules": rules}))
        .await?;
    bed.apply(&json!({"apiVersion": version, "kind": "RoleBinding",
        "metadata": {"name": "team-a", "namespace": "team-a"},
        "roleRef": {"apiGroup": group, "kind": kind, "name": "models"},
        "subjects": [{"kind": "Group", "apiGroup": group, "name": "team-a"}]}))
        .await?;
    Ok(bed)
}

/// A user as the API server knows them, without the console.
async fn directly(bed: &Bed, user: &str, groups: &[&str]) -> Result<Client> {
    let file = Kubeconfig::read_from(bed.cluster.admin()?)?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(groups.iter().map(ToString::to_string).collect());
    Ok(Client::try_from(config)?)
}

/// Everybody may what the API server lets them, and nothing else. `caller` has the credentials, if they have not themselves.
async fn everybody_is_themselves(bed: &Bed, served: &Served, dex: &Dex, caller: Option<&str>) -> Result<()> {
    let log = bed.cluster.audit().await?;
    for (user, groups) in USERS {
        let mark = log.mark().await?;
        let person = sign_in(served, dex, user).await?;
        let overview = person.get("/").await?;
        ensure!(overview.code == 200 && overview.body.contains(user), "{overview:?}");
        let client = directly(bed, user, groups).await?;
        for namespace in ["team-a", "team-b"] {
            let may = async |verb: &str| {
                let right = Right {
                    group: "kubeairunway.ai".to_owned(),
                    plural: "modeldeployments".to_owned(),
                    verb: verb.to_owned(),
                    namespace: Some(namespace.to_owned()),
                };
                access::may(&client, &right).await
            };
            let page = person.get(&format!("/deployments/{namespace}/one/yaml")).await?;
            ensure!((page.code == 200) == may("get").await?, "{user} {namespace}: {page:?}");
            let paused = person.post(&format!("/deployments/{namespace}/one/pause"), &[]).await?;
            ensure!(
                (paused.code == 303) == may("patch").await?,
                "{user} {namespace}: {paused:?}"
            );
        }
        let requests = log.since(mark).await?;
        let caller = caller.unwrap_or(user);
        ensure!(
            requests.iter().any(|request| request.user == caller),
            "nothing was asked as {caller}"
        );

        // Forms of other sites are as useless as ever.
        let forged = person
            .post_from("http://evil.example", "/deployments/team-a/one/resume", &[])
            .await?;
        ensure!(forged.code == 403 && forged.body.contains("another site"), "{forged:?}");
        let out = person.post("/logout", &[]).await?;
        ensure!(matches!(out.code, 200 | 303), "{out:?}");
        ensure!(person.get("/").await?.code == 303, "the session stays");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_an_issuer_that_the_cluster_trusts_are_themselves() -> Result<()> {
    let (dex, folder) = (dex().await?, tempfile::tempdir()?);
    let bed = bed(trusting(&dex)).await?;
    let served = Served::start(&bed.cluster, Some(at(&dex, &folder)?)).await?;
    let page = served.ask("GET", "/login", &[], "").await?;
    ensure!(page.body.contains("Sign in at 127.0.0.1"), "{page:?}");
    everybody_is_themselves(&bed, &served, &dex, None).await?;

    // A code is worth nothing without the verifier that only the console has.
    let (url, _) = begin(&served).await?;
    let location = dex.sign_in(&url, USERS[0].0).await?;
    let code = location.split_once("code=").context("no code")?.1;
    let code = code.split('&').next().unwrap_or_default();
    let back = format!("{SITE}/login/callback");
    let form = |more: &str| {
        format!(
            "grant_type=authorization_code&client_id={CLIENT}&client_secret={SECRET}&code={code}&redirect_uri={back}{more}"
        )
    };
    for verifier in ["", "&code_verifier=0000000000000000000000000000000000000000000"] {
        let (status, said) = dex.token(form(verifier)).await?;
        ensure!(status.is_client_error(), "{status}: {said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_does_not_know_the_issuer_says_so_and_takes_the_consoles_word_where_it_may() -> Result<()> {
    let (dex, folder) = (dex().await?, tempfile::tempdir()?);
    let bed = bed(Vec::new()).await?;
    let served = Served::start(&bed.cluster, Some(at(&dex, &folder)?)).await?;
    let (url, flow) = begin(&served).await?;
    let refused = return_to(&served, &dex.sign_in(&url, USERS[0].0).await?, &flow).await?;
    ensure!(
        refused.code == 401 && refused.body.contains("rejects the ID token"),
        "{refused:?}"
    );
    drop(served);

    let settings = ["--impersonate", "--impersonate-groups=team-a"].map(str::to_owned);
    let impersonating = LoginOptions {
        impersonate: Some(Impersonation {
            groups: vec!["team-a".to_owned()],
            ..Impersonation::default()
        }),
        ..at(&dex, &folder)?
    };
    let start = async || Served::start_as(&bed.cluster, Some(impersonating.clone()), console::NAME, &[]).await;
    let served = start().await?;
    let (url, flow) = begin(&served).await?;
    let refused = return_to(&served, &dex.sign_in(&url, USERS[0].0).await?, &flow).await?;
    ensure!(
        refused.code == 401 && refused.body.contains("may not impersonate"),
        "without its role: {refused:?}"
    );
    // With the role that comes with it, and no other right.
    for object in console::console(&settings).roles(Identity::User, &Namespaces::default()) {
        bed.apply(&serde_json::to_value(&object)?).await?;
    }
    let served = start().await?;
    everybody_is_themselves(&bed, &served, &dex, Some(console::NAME)).await
}

/// An issuer that signs whatever the code says, with its own key or with another one.
struct Liar {
    issuer: String,
    key: EcdsaKeyPair,
    other: EcdsaKeyPair,
    /// Number of requests for a new token.
    refreshed: AtomicUsize,
}

/// Number of times that it issues a new one.
const REFRESHES: usize = 2;

fn key() -> Result<EcdsaKeyPair> {
    let (by, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(by, &random).ok().context("no key")?;
    EcdsaKeyPair::from_pkcs8(by, pkcs8.as_ref(), &random)
        .ok()
        .context("no key")
}

impl Liar {
    async fn start() -> Result<(Arc<Self>, AbortOnDropHandle<()>)> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let liar = Arc::new(Self {
            issuer: format!("http://{}", listener.local_addr()?),
            key: key()?,
            other: key()?,
            refreshed: AtomicUsize::new(0),
        });
        let (discovery, keys) = (liar.discovery(), liar.keys());
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(async move || discovery))
            .route("/keys", get(async move || keys))
            .route(
                "/token",
                post(async |State(liar): State<Arc<Self>>, form: String| {
                    liar.token(&form).ok_or(StatusCode::BAD_REQUEST)
                }),
            )
            .with_state(liar.clone());
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok((liar, AbortOnDropHandle::new(task)))
    }

    fn discovery(&self) -> String {
        let at = |path: &str| format!("{}/{path}", self.issuer);
        json!({"issuer": self.issuer, "authorization_endpoint": at("authorize"), "token_endpoint": at("token"),
            "jwks_uri": at("keys"), "end_session_endpoint": at("logout")})
        .to_string()
    }

    fn keys(&self) -> String {
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "x": part(x), "y": part(y), "use": "sig"}]})
            .to_string()
    }

    fn token(&self, form: &str) -> Option<String> {
        let fields: BTreeMap<_, _> = form_urlencoded::parse(form.as_bytes()).into_owned().collect();
        let refreshes = fields.get("refresh_token");
        if refreshes.is_some() && self.refreshed.fetch_add(1, Ordering::SeqCst) >= REFRESHES {
            return None;
        }
        let mut claims: Value = serde_json::from_str(refreshes.or_else(|| fields.get("code"))?).ok()?;
        // Who says for how many seconds gets new ones later.
        let lives = claims["lives"].as_i64();
        if let Some(lives) = lives {
            claims["exp"] = json!(clock::now().as_second() + lives);
        }
        let refresh_token = lives.map(|_| claims.to_string());
        let id_token = self.signed(claims)?;
        Some(json!({ "id_token": id_token, "refresh_token": refresh_token }).to_string())
    }

    /// A console that signs in here, and calls the cluster in the users' name.
    fn login(&self) -> Result<LoginOptions> {
        Ok(LoginOptions {
            sites: vec![SITE.parse()?],
            oidc: Some(Settings {
                issuer: self.issuer.clone(),
                client_id: CLIENT.to_owned(),
                client_secret: None,
                scopes: Vec::new(),
                authorities: None,
                claims: by_email(),
            }),
            impersonate: Some(Impersonation::default()),
            ..LoginOptions::default()
        })
    }

    /// Response of the console to a callback with valid claims of Jane, with some changes.
    async fn bring(&self, served: &Served, changes: Value) -> Result<Answer> {
        let (url, flow) = begin(served).await?;
        let query = url.split_once('?').context("no query")?.1;
        let query: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let now = clock::now().as_second();
        let mut claims = json!({"iss": self.issuer, "aud": CLIENT, "sub": "1", "email": "jane@example.com",
            "iat": now, "exp": now + 600, "groups": ["team-a"], "nonce": query["nonce"]});
        json_patch::merge(&mut claims, &changes);
        let mut back = form_urlencoded::Serializer::new(String::new());
        back.append_pair("code", &claims.to_string())
            .append_pair("state", &query["state"]);
        let path = format!("/login/callback?{}", back.finish());
        served.ask("GET", &path, &[("cookie", &flow)], "").await
    }

    /// One of the claims says how it is signed.
    fn signed(&self, mut claims: Value) -> Option<String> {
        let how = claims.as_object_mut()?.remove("how").unwrap_or_default();
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = part(&json!({"alg": if how == "none" { "none" } else { "ES256" }, "kid": "1"}));
        let key = if how == "another key" { &self.other } else { &self.key };
        let message = format!("{head}.{}", part(&claims));
        let signature = key.sign(&SystemRandom::new(), message.as_bytes()).ok()?;
        let signature = URL_SAFE_NO_PAD.encode(signature);
        if how == "tampered" {
            claims["email"] = json!("boss@example.com");
        }
        let signature = if how == "none" { "" } else { &signature };
        Some(format!("{head}.{}.{signature}", part(&claims)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_expired_and_kubernetes_tokens_are_refused_with_a_reason() -> Result<()> {
    let bed = bed(Vec::new()).await?;
    let (liar, _task) = Liar::start().await?;
    let served = Served::start(&bed.cluster, Some(liar.login()?)).await?;
    let now = clock::now().as_second();
    let bring = async |changes: Value| liar.bring(&served, changes).await;
    let entered = bring(json!({})).await?;
    ensure!(entered.code == 200, "what is honest is let in: {entered:?}");
    for (changes, why) in [
        (json!({"how": "tampered"}), "invalid signature"),
        (json!({"how": "another key"}), "invalid signature"),
        (
            json!({"how": "none"}),
            "its header or claims cannot be read: unknown variant `none`",
        ),
        (json!({"exp": now - 3600}), "has expired"),
        (json!({"exp": null}), "claim &#39;exp&#39; is missing"),
        (json!({"iat": now + 3600}), "not valid yet"),
        (json!({"nbf": now + 3600}), "not valid yet"),
        (json!({"aud": "another"}), "its audience is not"),
        (
            json!({"aud": [CLIENT, "another"], "azp": "another"}),
            "its audience is not",
        ),
        (json!({"iss": "https://elsewhere.example"}), "its issuer is not"),
        (json!({"nonce": "0"}), "belongs to another sign-in"),
        (json!({"groups": ["system:masters"]}), "system:masters"),
        (json!({"email": "system:admin"}), "is reserved"),
        (json!({"email": null}), "no string claim &#39;email&#39;"),
        (json!({"email_verified": false}), "has not verified your email"),
    ] {
        let answer = bring(changes.clone()).await?;
        ensure!(answer.code == 401 && answer.body.contains(why), "{changes}: {answer:?}");
        let cookie = answer.header("set-cookie").unwrap_or_default();
        ensure!(
            !cookie.contains("SameSite=Strict"),
            "{changes} opened a session: {cookie}"
        );
        println!("{changes}: {why}");
    }

    let (url, flow) = begin(&served).await?;
    let state = state_of(&url)?;
    let zero = "0".repeat(state.len());
    for (state, cookie) in [
        (zero.as_str(), flow.as_str()),
        (state, ""),
        (state, "kubeairunway-1-login=0"),
    ] {
        let path = format!("/login/callback?code=x&state={state}");
        let answer = served.ask("GET", &path, &[("cookie", cookie)], "").await?;
        ensure!(
            answer.code == 401 && answer.body.contains("not started in this browser"),
            "{answer:?}"
        );
    }
    let (url, flow) = begin(&served).await?;
    let state = state_of(&url)?;
    let path = format!("/login/callback?error=access_denied&error_description=not+today&state={state}");
    let answer = served.ask("GET", &path, &[("cookie", &flow)], "").await?;
    ensure!(answer.code == 401 && answer.body.contains("not today"), "{answer:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_ins_that_strangers_begin_end_no_sign_in_under_way() -> Result<()> {
    let bed = bed(Vec::new()).await?;
    let (liar, _task) = Liar::start().await?;
    let served = Served::start(&bed.cluster, Some(liar.login()?)).await?;
    let (url, flow) = begin(&served).await?;
    for _ in 0..1000 {
        served.ask("GET", "/login/issuer", &[], "").await?;
    }
    let path = format!(
        "/login/callback?error=access_denied&error_description=known&state={}",
        state_of(&url)?
    );
    let known = served.ask("GET", &path, &[("cookie", &flow)], "").await?;
    ensure!(known.body.contains("known (access_denied)"), "{known:?}");
    let again = served.ask("GET", &path, &[("cookie", &flow)], "").await?;
    ensure!(again.body.contains("already used"), "{again:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lasts_as_long_as_the_issuer_gives_tokens_and_ends_at_the_issuer_too() -> Result<()> {
    let bed = bed(Vec::new()).await?;
    let (liar, _task) = Liar::start().await?;
    let served = Served::start(&bed.cluster, Some(liar.login()?)).await?;
    let entered = liar.bring(&served, json!({"lives": 10})).await?;
    let first_token_ends = Instant::now() + Duration::from_secs(10);
    let person = served.with_cookie(&session_of(&entered)?).await?;
    eventually(PATIENCE, async || {
        let refreshed = liar.refreshed.load(Ordering::SeqCst);
        ensure!(refreshed > REFRESHES, "asked {refreshed} times");
        Ok(())
    })
    .await?;
    ensure!(Instant::now() > first_token_ends);
    let page = person.get("/deployments/team-a/one").await?;
    ensure!(page.code == 200, "the last token lives still: {page:?}");
    eventually(PATIENCE, async || {
        let page = person.get("/").await?;
        ensure!(page.code == 303, "the session stays without a token");
        Ok(())
    })
    .await?;

    let entered = liar.bring(&served, json!({})).await?;
    let person = served.with_cookie(&session_of(&entered)?).await?;
    let out = person.post("/logout", &[]).await?;
    let onward = format!("{}/logout?id_token_hint=", liar.issuer);
    ensure!(out.code == 200 && out.body.contains(&onward), "{out:?}");
    ensure!(person.get("/").await?.code == 303, "the session stays");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_issuer_is_reported_on_the_page() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, false).await?;
    let login = LoginOptions {
        sites: vec![SITE.parse()?],
        oidc: Some(Settings {
            issuer: "https://127.0.0.1:9".to_owned(),
            client_id: CLIENT.to_owned(),
            client_secret: None,
            scopes: Vec::new(),
            authorities: None,
            claims: by_email(),
        }),
        ..LoginOptions::default()
    };
    let served = Served::start(&bed.cluster, Some(login)).await?;
    let answer = served.ask("GET", "/login/issuer", &[], "").await?;
    ensure!(
        answer.code == 401
            && answer
                .body
                .contains("the issuer does not respond at https://127.0.0.1:9"),
        "{answer:?}"
    );
    Ok(())
}
