//! The router with a real API server: identity, rights, names, limits, held requests.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use axum::http::{Method, header};
use futures::future::try_join_all;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Config};
use runway_api::labels::{STAND_IN, STAND_IN_FOR};
use runway_operator::listen;
use runway_operator::trace::{TraceArgs, Traces};
use runway_testbed::collector::{Collector, Received};
use runway_testbed::engine::{Endpoint, chat_request};
use runway_testbed::tokens::token;
use runway_testbed::traffic::client::{self, Answer, request};
use runway_testbed::{PATIENCE, audit, eventually};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use support::{Begun, CHAT, Engine, KEY, ROUTER, World, closing_engine, unreading_engine};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

#[allow(clippy::too_many_lines, reason = "one life, in order")]
#[tokio::test(flavor = "multi_thread")]
async fn callers_use_the_models_that_they_may_get() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("its-own-name").await?;
    for (namespace, name, served) in [("a", "one", "llama"), ("b", "one", "llama"), ("b", "two", "gemma")] {
        world.model(namespace, name, served, 1).await?;
        world.serves(namespace, name, engine.port).await?;
        // Times of creation have seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let (all, two, none) = tokio::try_join!(
        world.token("all", Some(&[])),
        world.token("two", Some(&["two"])),
        world.token("none", None)
    )?;
    let router = world.router(&[]).await?.ready().await?;

    let ids = async |token: &str| {
        let answer = router.get(token, "/v1/models").await?.json();
        let models = answer["data"].as_array().cloned().unwrap_or_default();
        anyhow::Ok(models.iter().map(|model| model["id"].clone()).collect::<Vec<_>>())
    };
    ensure!(ids(&all).await? == ["llama", "b/one", "gemma"]);
    ensure!(ids(&two).await? == ["gemma"]);
    ensure!(ids(&none).await?.is_empty());
    ensure!(
        ids(KEY).await? == ["llama"],
        "a key for one namespace knows one model of the name"
    );

    router
        .get("", "/v1/models")
        .await?
        .refused(401, "unauthenticated", "Bearer TOKEN")?;
    router
        .get("wrong", "/v1/models")
        .await?
        .refused(401, "unauthenticated", "does not accept")?;
    // A token for the API server is for the router only if it has no audience of its own.
    let of_api_server = token(&world.admin, "default", "all", &[]).await?;
    router
        .get(&of_api_server, "/v1/models")
        .await?
        .refused(401, "unauthenticated", "another audience")?;
    let any = world.router(&["--token-audience="]).await?.ready().await?;
    ensure!(any.get(&of_api_server, "/v1/models").await?.status == 200);
    let named = router.get(&all, "/v1/models/b/two").await?.json();
    ensure!(named["id"] == "b/two" && named["owned_by"] == "b", "{named}");
    router
        .get(&none, "/v1/models/gemma")
        .await?
        .refused(404, "model_not_found", "gemma")?;

    // The engine gets its own name, and no credentials.
    for (token, model) in [
        (&all, "gemma"),
        (&all, "llama"),
        (&all, "b/one"),
        (&two, "b/two"),
        (&KEY.to_owned(), "llama"),
    ] {
        let answer = router.chat(token, model).await?;
        ensure!(
            answer.status == 200 && answer.json()["model"] == "its-own-name",
            "{model}: {answer:?}"
        );
    }
    for headers in engine.seen.headers.lock().iter() {
        ensure!(!headers.contains_key(header::AUTHORIZATION), "{headers:?}");
    }
    ensure!(
        engine.seen.listed.load(Ordering::SeqCst) == 3,
        "each model asks its engine for the name once"
    );
    for (token, model) in [
        (&all, "absent"),
        (&two, "llama"),
        (&none, "gemma"),
        (&KEY.to_owned(), "b/two"),
    ] {
        router
            .chat(token, model)
            .await?
            .refused(404, "model_not_found", model)?;
    }

    // A right that is withdrawn ends with the cached answer, and a new model is there at once.
    world.model("b", "three", "phi", 1).await?;
    world.serves("b", "three", engine.port).await?;
    eventually(PATIENCE, async || {
        ensure!(router.chat(&all, "phi").await?.status == 200);
        Ok(())
    })
    .await?;
    let metrics = router.metrics.text();
    for series in [
        r#"kubeairunway_gateway_responses_total{namespace="b",name="two",caller="token",code="2xx"}"#,
        r#"kubeairunway_gateway_responses_total{namespace="a",name="one",caller="key",code="2xx"}"#,
    ] {
        ensure!(metrics.contains(series), "{series}: {metrics}");
    }

    // The name of a deleted model does not pass to another team.
    world.models("a").delete("one", &DeleteParams::default()).await?;
    eventually(PATIENCE, async || {
        let gone = router.chat(&all, "llama").await?;
        gone.refused(400, "model_ambiguous", "it was 'a/one'")
    })
    .await?;
    let metrics = router.metrics.text();
    let ambiguous = r#"kubeairunway_gateway_requests_refused_total{reason="ambiguous"} 1"#;
    ensure!(metrics.contains(ambiguous), "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_ends_when_its_caller_loses_the_right() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let token = world.token("shop", Some(&["one"])).await?;
    let router = world.router(&["--check-rights-every=1s"]).await?.ready().await?;
    let stream = json!({ "model": "llama", "prompt": "drip" });
    let (of_token, of_key) = (
        router.begin(&token, stream.clone()).await?,
        router.begin(KEY, stream).await?,
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(
        engine.seen.open.load(Ordering::SeqCst) == 2,
        "who has the right keeps the stream"
    );
    let bindings: Api<ClusterRoleBinding> = Api::all(world.admin.clone());
    bindings.delete("shop", &DeleteParams::default()).await?;
    std::fs::remove_file(world.keys.path().join("shop"))?;
    for ended in [of_token, of_key] {
        let whole = tokio::time::timeout(PATIENCE, ended.whole()).await??;
        ensure!(whole.text.ends_with("\"code\":\"access_revoked\"}}\n\n"), "{whole:?}");
    }
    eventually(PATIENCE, async || {
        ensure!(engine.seen.open.load(Ordering::SeqCst) == 0);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn router_sends_no_requests_at_rest() -> Result<()> {
    let world = World::start().await?;
    world.model("a", "one", "llama", 1).await?;
    let _router = world.router(&[]).await?.ready().await?;
    let mark = world.cluster.audit().await?.mark().await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let requests = world.cluster.audit().await?.since(mark).await?;
    let of_router = audit::of_user(&requests, ROUTER);
    ensure!(of_router.is_empty(), "{of_router:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_requests_are_refused_in_openais_form() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let router = world.router(&[]).await?.ready().await?;
    let post = async |path: &str, body: &'static [u8]| {
        let begun = router.send(KEY, http::Method::POST, path, body.into()).await?;
        begun.whole().await
    };
    post(CHAT, b"{")
        .await?
        .refused(400, "invalid_request", "not a JSON object")?;
    post(CHAT, b"{}")
        .await?
        .refused(400, "invalid_request", "missing field `model`")?;
    post(CHAT, br#"{"model": 1}"#)
        .await?
        .refused(400, "invalid_request", "`model` is not the name")?;
    post("/v1/nothing", b"{}")
        .await?
        .refused(404, "not_found", "GET /v1/models")?;
    router.get(KEY, CHAT).await?.refused(404, "not_found", "POST")?;

    // 100 MB, with and without a declared length.
    let large = "x".repeat(100_000_000);
    let body = json!({ "model": "llama", "prompt": large }).to_string();
    for declared in [true, false] {
        let answer = send_large(&router, &body, declared).await?;
        ensure!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        ensure!(answer.contains(r#""code":"too_large""#), "{answer}");
    }
    // One that is allowed, whole.
    let body = json!({ "model": "llama", "prompt": "x".repeat(10_000_000) });
    let answer = router.post(KEY, body.clone()).await?;
    ensure!(answer.json()["bytes"] == body.to_string().len(), "{answer:?}");
    let begun = router
        .begin(KEY, json!({ "model": "llama", "prompt": "breaks" }))
        .await?;
    ensure!(begun.response.status() == 200);
    let broken = begun.whole().await;
    ensure!(
        broken.is_err(),
        "a response that breaks off does not look whole: {broken:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_was_sent_is_not_sent_again() -> Result<()> {
    let world = World::start().await?;
    let (port, closed) = closing_engine().await?;
    world.model("a", "one", "closing", 1).await?;
    world.serves("a", "one", port).await?;
    let router = world.router(&[]).await?.ready().await?;
    let answer = router.chat(KEY, "closing").await?;
    answer.refused(502, "model_broke_off", "may have been processed")?;
    ensure!(closed.load(Ordering::SeqCst) == 1, "it was sent once");
    Ok(())
}

/// Sends a body to the router until that closes the connection, and returns what it said.
async fn send_large(router: &support::Router, body: &str, declared: bool) -> Result<String> {
    let stream = TcpStream::connect(router.address).await?;
    let (mut read, mut write) = stream.into_split();
    let length = if declared {
        format!("content-length: {}", body.len())
    } else {
        "transfer-encoding: chunked".to_owned()
    };
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {KEY}\r\n{length}\r\n\r\n");
    let body = body.to_owned();
    let sending = tokio::spawn(async move {
        write.write_all(head.as_bytes()).await?;
        if declared {
            write.write_all(body.as_bytes()).await?;
        } else {
            write
                .write_all(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes())
                .await?;
        }
        Ok::<_, std::io::Error>(write)
    });
    let mut answer = vec![0; 4096];
    let length = read.read(&mut answer).await?;
    sending.abort();
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_reads_nothing_or_leaves_stops_the_engine() -> Result<()> {
    const MOST: usize = 16 * 1024 * 1024;
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let router = world.router(&[]).await?.ready().await?;
    let begun = router
        .begin(KEY, json!({ "model": "llama", "prompt": "endless" }))
        .await?;
    ensure!(begun.response.status() == 200);
    // The stream stops when the buffers of the connections are full.
    let sent = || engine.seen.sent.load(Ordering::SeqCst);
    eventually(PATIENCE, async || {
        let before = sent();
        tokio::time::sleep(Duration::from_millis(300)).await;
        ensure!(before > 0 && sent() == before, "{before} bytes, and more");
        Ok(())
    })
    .await?;
    ensure!(
        sent() < MOST,
        "{} bytes are on the way to a client that reads nothing",
        sent()
    );
    ensure!(engine.seen.open.load(Ordering::SeqCst) == 1);
    drop(begun);
    eventually(PATIENCE, async || {
        ensure!(engine.seen.open.load(Ordering::SeqCst) == 0, "the engine still streams");
        Ok(())
    })
    .await?;
    ensure!(
        router
            .metrics
            .text()
            .contains("kubeairunway_gateway_requests_in_flight 0")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_sleeping_model_wake_it_once_and_are_answered() -> Result<()> {
    const REQUESTS: usize = 50;
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 0).await?;
    let router = Arc::new(world.router(&[]).await?.ready().await?);
    let mark = world.cluster.audit().await?.mark().await?;
    let requests: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let router = Arc::clone(&router);
            tokio::spawn(async move { router.chat(KEY, "llama").await })
        })
        .collect();
    eventually(PATIENCE, async || {
        let md = world.models("a").get("one").await?;
        let replicas = md.spec.scaling.and_then(|scaling| scaling.replicas);
        ensure!(replicas == Some(1), "{replicas:?}");
        let held = format!("kubeairunway_gateway_held_requests {REQUESTS}");
        ensure!(router.metrics.text().contains(&held));
        Ok(())
    })
    .await?;
    // The Service is known before a pod accepts connections: nothing is sent, so the request continues to wait.
    world.serves("a", "one", runway_testbed::free_port()?).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.serves("a", "one", engine.port).await?;
    for request in try_join_all(requests).await? {
        let answer = request?;
        ensure!(answer.status == 200, "{answer:?}");
    }
    ensure!(
        engine.seen.asked.load(Ordering::SeqCst) == REQUESTS,
        "each request is sent once"
    );
    let requests = world.cluster.audit().await?.since(mark).await?;
    let writes: Vec<_> = audit::of_user(&requests, ROUTER)
        .into_iter()
        .filter(|request| request.verb == "update")
        .collect();
    ensure!(writes.len() == 1 && writes[0].subresource == "scale", "{writes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stand_in_gets_the_requests_of_its_model_while_it_serves() -> Result<()> {
    let world = World::start().await?;
    let (own, other) = (Engine::start("llama").await?, Engine::start("llama-elsewhere").await?);
    world.model("a", "one", "llama", 1).await?;
    let router = Arc::new(world.router(&[]).await?.ready().await?);
    // The model does not serve yet: the request is held.
    let held = {
        let router = Arc::clone(&router);
        tokio::spawn(async move { router.chat(KEY, "a/one").await })
    };
    world.model("a", "one-surge", "llama", 1).await?;
    let models = world.models("a");
    let annotate = async |name: &str, annotation: &str, other: Option<&str>| {
        let patch = json!({ "metadata": { "annotations": { annotation: other } } });
        models.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
    };
    annotate("one-surge", STAND_IN_FOR, Some("one")).await?;
    annotate("one", STAND_IN, Some("one-surge")).await?;
    world.serves("a", "one-surge", other.port).await?;
    ensure!(held.await??.status == 200);
    let asked = || [&own, &other].map(|engine| engine.seen.asked.load(Ordering::SeqCst));
    ensure!(asked() == [0, 1], "{:?}", asked());

    // It is first, and is not listed. If it accepts no connections, its model is next.
    world.serves("a", "one", own.port).await?;
    let listed = router.get(KEY, "/v1/models").await?.json();
    ensure!(listed["data"].as_array().is_some_and(|all| all.len() == 1), "{listed}");
    ensure!(router.chat(KEY, "llama").await?.status == 200);
    ensure!(asked() == [0, 2], "{:?}", asked());
    world.serves("a", "one-surge", runway_testbed::free_port()?).await?;
    eventually(PATIENCE, async || {
        ensure!(router.chat(KEY, "llama").await?.status == 200);
        ensure!(asked()[0] > 0, "{:?}", asked());
        Ok(())
    })
    .await?;

    // The model gets its requests back. Without its annotation, the other one is a model like others.
    world.serves("a", "one-surge", other.port).await?;
    annotate("one", STAND_IN, None).await?;
    eventually(PATIENCE, async || {
        let before = asked();
        ensure!(router.chat(KEY, "llama").await?.status == 200);
        ensure!(asked()[0] > before[0], "{:?}", asked());
        Ok(())
    })
    .await?;
    annotate("one-surge", STAND_IN_FOR, None).await?;
    eventually(PATIENCE, async || {
        let answer = router.chat(KEY, "llama").await?;
        ensure!(answer.status == 200, "{answer:?}");
        let listed = router.get(KEY, "/v1/models").await?.json();
        ensure!(listed["data"].as_array().is_some_and(|all| all.len() == 2), "{listed}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_a_client_continues_at_the_engine() -> Result<()> {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const CLIENT: &str = "b7ad6b7169203331";
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let collector = Collector::start().await?;
    let to = TraceArgs {
        otlp_endpoint: Some(collector.url.clone()),
    };
    let router = world
        .router_traced(Traces::start("router", &to)?)
        .await?
        .ready()
        .await?;
    for model in ["llama", "unknown"] {
        let body = json!({ "model": model, "messages": [] });
        let mut request = client::chat(KEY, &body)?;
        let of_client = format!("00-{TRACE}-{CLIENT}-01").parse()?;
        request.headers_mut().insert("traceparent", of_client);
        Begun::send(router.address, request).await?.whole().await?;
    }

    // Spans are sent every five seconds.
    let spans = eventually(PATIENCE, async || {
        let spans = collector.of_trace(TRACE);
        ensure!(spans.len() == 4, "{spans:#?}");
        Ok(spans)
    })
    .await?;
    let named = |name: &'static str| spans.iter().filter(move |span| span.name == name);
    let [refused, passed_on] = [true, false].map(|failed| {
        named("POST /v1/chat/completions").find(|span| span.parent == CLIENT && span.failure.is_some() == failed)
    });
    let (refused, passed_on) = refused.zip(passed_on).context("no span of a request")?;
    let attribute = |span: &Received, key: &str| span.attributes.get(key).cloned().unwrap_or_default();
    ensure!(attribute(refused, "http.response.status_code") == "404", "{refused:#?}");
    ensure!(
        attribute(passed_on, "http.response.status_code") == "200"
            && attribute(passed_on, "k8s.namespace.name") == "a"
            && attribute(passed_on, "k8s.object.name") == "one",
        "{passed_on:#?}"
    );
    let connect = named("connect").find(|span| span.parent == passed_on.id);
    let at_engine = named("engine").find(|span| span.parent == passed_on.id);
    let (_, at_engine) = connect.zip(at_engine).context("no span within that of the request")?;
    let received = engine.seen.headers.lock().pop().context("the engine got no request")?;
    let traceparent = format!("00-{TRACE}-{}-01", at_engine.id);
    ensure!(
        received.get("traceparent").is_some_and(|value| *value == *traceparent),
        "{received:?}, not {traceparent}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn router_serves_https_with_its_certificate_and_nothing_else() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let folder = tempfile::tempdir()?;
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let args =
        [("certificate", &certificate), ("key", &key)].map(|(name, file)| format!("--tls-{name}={}", file.display()));
    let router = world.router(&args.each_ref().map(String::as_str)).await?;

    let mut config = Config::new(format!("https://{}", router.address).parse()?);
    config.root_cert = Some(vec![made.cert.der().to_vec()]);
    config.auth_info.token = Some(KEY.to_owned().into());
    let client = Endpoint::machine(Client::try_from(config)?);
    let answer = eventually(PATIENCE, async || {
        client.answer(CHAT, &chat_request("llama", "Hello")).await
    })
    .await?;
    ensure!(answer["model"] == "llama", "{answer}");
    let plain = router.get(KEY, "/v1/models").await?;
    plain.refused(400, "https_required", "https://")
}

#[tokio::test(flavor = "multi_thread")]
async fn model_that_does_not_wake_is_reported_at_the_deadline() -> Result<()> {
    let world = World::start().await?;
    for name in ["asleep", "broken", "many"] {
        world.model("a", name, name, 0).await?;
    }
    let router = world.router(&["--longest-hold=1s"]).await?.ready().await?;
    let late = router.chat(KEY, "asleep").await?;
    late.refused(
        503,
        "model_not_serving",
        "did not serve within 1 seconds: no status yet; try again",
    )?;
    ensure!(late.headers.contains_key(header::RETRY_AFTER), "{late:?}");

    let full = world.router(&["--largest-held=1"]).await?.ready().await?;
    let full = Arc::new(full);
    let held = tokio::spawn({
        let full = Arc::clone(&full);
        async move { full.chat(KEY, "asleep").await }
    });
    eventually(PATIENCE, async || {
        ensure!(full.metrics.text().contains("kubeairunway_gateway_held_requests 1"));
        Ok(())
    })
    .await?;
    full.chat(KEY, "many")
        .await?
        .refused(429, "too_many_requests", "too many requests wait")?;
    held.abort();

    world.model("a", "broken", "broken", 1).await?;
    let generation = world.models("a").get("broken").await?.metadata.generation;
    let failed = json!({ "phase": "Failed", "message": "no GPU", "observedGeneration": generation });
    world.status("a", "broken", failed).await?;
    eventually(PATIENCE, async || {
        let answer = router.chat(KEY, "broken").await?;
        answer.refused(
            503,
            "model_not_serving",
            "has failed: no GPU; see: kubeairunway why broken -n a",
        )
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_lookups_are_errors() -> Result<()> {
    let mut world = World::start().await?;
    world.model("a", "asleep", "llama", 0).await?;
    let all = world.token("all", Some(&[])).await?;
    // Without the right to ask about callers.
    let router = world.router_as("without-rights", &[]).await?;
    router
        .get(&all, "/v1/models")
        .await?
        .refused(503, "unavailable", "cannot check the caller")?;

    let router = world.router(&[]).await?.ready().await?;
    world.cluster.stop_apiserver().await;
    router
        .get(&all, "/v1/models")
        .await?
        .refused(503, "unavailable", "cannot check the caller")?;
    // A key needs no API server; the model does.
    router
        .chat(KEY, "llama")
        .await?
        .refused(503, "model_not_serving", "cannot be woken")?;
    ensure!(
        router
            .metrics
            .text()
            .contains(r#"kubeairunway_gateway_wakes_total{result="failed"} 1"#)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_caller_and_the_end_of_the_router() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let all = world.token("all", Some(&[])).await?;
    let router = world.router(&["--largest-requests-of-caller=1"]).await?.ready().await?;
    let mut begun = router.begin(KEY, json!({ "model": "llama", "prompt": "slow" })).await?;
    let first = begun.response.body_mut().frame().await;
    ensure!(matches!(first, Some(Ok(_))), "parts arrive as the engine sends them");
    router
        .chat(KEY, "llama")
        .await?
        .refused(429, "too_many_requests", "requests in flight")?;
    ensure!(
        router.chat(&all, "llama").await?.status == 200,
        "another caller has its own limit"
    );

    // A stream in flight ends in order.
    router.shutdown.cancel();
    let rest = begun.whole().await?;
    ensure!(rest.text.len() == 9 * 8, "{rest:?}");
    router.ended().await
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_names_callers_models_and_results() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("its-own-name").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let (all, none) = tokio::try_join!(world.token("all", Some(&[])), world.token("none", None))?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("audit.log");
    let argument = format!("--audit-log={}", path.display());
    let router = world.router(&[&argument]).await?.ready().await?;
    for token in [&all, &none, "wrong", KEY] {
        router.chat(token, "llama").await?;
        router.get(token, "/v1/models").await?;
    }
    let metrics = router.metrics.text();
    ensure!(
        metrics.contains(r#"kubeairunway_audit_lines_dropped_total{reason="queue_full"} 0"#),
        "{metrics}"
    );
    router.shutdown.cancel();
    router.ended().await?;

    let text = std::fs::read_to_string(&path)?;
    for secret in [&all, &none, "wrong", KEY, "messages"] {
        ensure!(!text.contains(secret), "{secret}: {text}");
    }
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line)?;
        for name in ["time", "durationMs"] {
            let removed = line.as_object_mut().and_then(|fields| fields.remove(name));
            ensure!(removed.is_some(), "{name}: {text}");
        }
        lines.push(line);
    }
    let account = |name: &str| format!("system:serviceaccount:default:{name}");
    let program = "kubeairunway-gateway";
    let expected = [
        json!({"program": program, "user": account("all"), "credential": "token", "tenant": "default", "action": "infer",
            "kind": "ModelDeployment", "namespace": "a", "name": "one", "result": "allowed", "status": 200,
            "end": "complete", "inputTokens": 1, "outputTokens": 0, "estimated": true}),
        json!({"program": program, "user": account("none"), "credential": "token", "tenant": "default", "action": "infer",
            "kind": "ModelDeployment", "name": "llama", "result": "refused", "status": 404, "reason": "model_not_found"}),
        json!({"program": program, "action": "infer", "kind": "ModelDeployment", "result": "refused", "status": 401,
            "reason": "unauthenticated"}),
        json!({"program": program, "action": "read", "result": "refused", "status": 401, "reason": "unauthenticated"}),
        json!({"program": program, "user": "shop", "credential": "key", "action": "infer", "kind": "ModelDeployment",
            "namespace": "a", "name": "one", "result": "allowed", "status": 200,
            "end": "complete", "inputTokens": 1, "outputTokens": 0, "estimated": true}),
    ];
    ensure!(lines == expected, "{lines:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_serve_https_with_one_authority_that_callers_can_read() -> Result<()> {
    const AUTHORITY: &str = "router-ca";
    let world = World::start().await?;
    let rules = serde_json::to_value(listen::access_in_namespace(AUTHORITY))?;
    let subject = json!({ "kind": "User", "name": ROUTER });
    world.role("certificates", &rules, &subject).await?;
    let published =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": AUTHORITY, "namespace": "default" } });
    world.apply(published).await?;
    let all = world.token("all", Some(&[])).await?;
    let args = ["--tls-authority=router-ca", "--tls-namespace=default"];
    let routers = [world.router(&args).await?, world.router(&args).await?];

    let config_maps: Api<ConfigMap> = Api::default_namespaced(world.admin.clone());
    let secrets: Api<Secret> = Api::default_namespaced(world.admin.clone());
    let mut trusted = String::new();
    for _ in 0..2 {
        // Without the Secret there is another authority.
        let before = trusted;
        trusted = eventually(PATIENCE, async || {
            let data = config_maps.get(AUTHORITY).await?.data.unwrap_or_default();
            let trusted = data.get("ca.crt").cloned().unwrap_or_default();
            ensure!(!trusted.is_empty() && trusted != before);
            for router in &routers {
                let mut config = Config::new(format!("https://localhost:{}", router.address.port()).parse()?);
                let certificates = CertificateDer::pem_slice_iter(trusted.as_bytes());
                let certificates: Result<Vec<_>, _> = certificates.map(|found| found.map(|der| der.to_vec())).collect();
                config.root_cert = Some(certificates?);
                config.auth_info.token = Some(all.clone().into());
                let request = http::Request::get("/v1/models").body(kube::client::Body::empty())?;
                let response = Client::try_from(config)?.send(request).await?;
                ensure!(response.status() == 200, "{}", response.status());
            }
            Ok(trusted)
        })
        .await?;
        secrets.delete(AUTHORITY, &DeleteParams::default()).await?;
    }
    let plain = routers[0].get(&all, "/v1/models").await?;
    plain.refused(400, "https_required", "https://")?;
    let proxied = world
        .router(&[&args[..], &["--plain-http"]].concat())
        .await?
        .ready()
        .await?;
    ensure!(proxied.get(&all, "/v1/models").await?.status == 200);
    Ok(())
}

const MIB: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn large_requests_to_a_model_that_never_starts_leave_room_for_other_tenants() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    world.model("a", "two", "never", 1).await?;
    let all = world.token("all", Some(&[])).await?;
    let router = world.router(&[]).await?.ready().await?;
    let large = json!({ "model": "never", "prompt": "x".repeat(16 * MIB - 1024) }).to_string();
    let mut requests: JoinSet<Result<Answer>> = JoinSet::new();
    for _ in 0..4 {
        let sent = Begun::send(router.address, request(Method::POST, CHAT, KEY, large.clone())?);
        requests.spawn(async move { sent.await?.whole().await });
    }
    // All have arrived.
    timeout(PATIENCE, async {
        loop {
            while requests.try_join_next().is_some() {}
            let held = format!("kubeairunway_gateway_held_requests {}", requests.len());
            if router.metrics.text().contains(&held) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await?;
    let small = router.chat(&all, "llama").await?;
    ensure!(small.status == 200, "{small:?}");
    let large = json!({ "model": "llama", "prompt": "x".repeat(10 * MIB) });
    let large = router.post(&all, large).await?;
    ensure!(large.status == 200, "{:?}", large.status);
    ensure!(
        requests.len() == 2,
        "one tenant has at most half of the 64 MiB: {}",
        requests.len()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_an_engine_does_not_read_count_while_it_responds() -> Result<()> {
    let world = World::start().await?;
    let port = unreading_engine().await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", port).await?;
    let router = world.router(&["--memory=64"]).await?.ready().await?;
    let large = json!({ "model": "llama", "prompt": "x".repeat(16 * MIB - 1024) }).to_string();
    let mut responding = Vec::new();
    for _ in 0..2 {
        let begun = Begun::send(router.address, request(Method::POST, CHAT, KEY, large.clone())?).await?;
        ensure!(begun.response.status() == 200, "{:?}", begun.response);
        responding.push(begun);
    }
    let third = Begun::send(router.address, request(Method::POST, CHAT, KEY, large.clone())?).await;
    // Refused while it is sent, which its client may see as a closed connection.
    ensure!(third.is_err() || third.is_ok_and(|begun| begun.response.status() == 503));
    responding.clear();
    eventually(PATIENCE, async || {
        let begun = Begun::send(router.address, request(Method::POST, CHAT, KEY, large.clone())?).await?;
        ensure!(begun.response.status() == 200, "{:?}", begun.response);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn invented_tokens_do_not_stop_callers_and_ask_rarely() -> Result<()> {
    const CLIENTS: usize = 1000;
    /// Longer than an answer about a token is used again.
    const ATTACK: Duration = Duration::from_secs(15);
    let world = World::start().await?;
    let engine = Engine::start("llama").await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.port).await?;
    let all = world.token("all", Some(&[])).await?;
    let router = Arc::new(world.router(&[]).await?.ready().await?);
    ensure!(router.chat(&all, "llama").await?.status == 200);

    let audit = world.cluster.audit().await?;
    let (mark, begun) = (audit.mark().await?, Instant::now());
    let mut attack = JoinSet::new();
    for client in 0..CLIENTS {
        let router = Arc::clone(&router);
        attack.spawn(async move {
            for number in 0.. {
                let accepted = router.get(&format!("invented-{client}-{number}"), "/v1/models").await;
                assert!(accepted.is_ok_and(|answer| !answer.status.is_success()));
            }
        });
    }
    while begun.elapsed() < ATTACK {
        let answer = router.chat(&all, "llama").await?;
        ensure!(answer.status == 200, "{answer:?}");
    }
    attack.abort_all();
    let requests = audit.since(mark).await?;
    let seconds = usize::try_from(begun.elapsed().as_secs() + 1)?;
    let reviews = audit::of_user(&requests, ROUTER)
        .iter()
        .filter(|request| request.resource == "tokenreviews")
        .count();
    // About invented tokens, and a few times about that of the caller.
    ensure!((2..=51 * seconds).contains(&reviews), "{reviews} in {seconds} seconds");
    Ok(())
}
