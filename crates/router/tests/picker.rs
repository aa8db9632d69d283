//! The router as endpoint picker of a real Envoy, which sends requests to engines of pods in a real API server. And clients of the
//! picker that do not follow its protocol.

mod support;

use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use prost::Message as _;
use runway_api::labels;
use runway_router::picker::grpc::encoded;
use runway_router::picker::messages::{
    FULL_DUPLEX_STREAMED, HEALTH_CHECK, HeaderMap as Headers, HeaderValue, HealthCheckResponse, HttpBody, HttpHeaders,
    ImmediateResponse, Mutation, PROCESS, Part, ProcessingRequest, ProcessingResponse, ProtocolConfiguration, Reply,
    SERVING,
};
use runway_testbed::envoy::{Envoy, Picker};
use runway_testbed::traffic::client::{Answer, Begun, request};
use runway_testbed::traffic::pods::pod;
use runway_testbed::{PATIENCE, eventually, free_port, own_address, python};
use serde_json::{Value, json};
use support::{CHAT, Engine, Router, World};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

const WHAT: &str = "the router as endpoint picker of Envoy";
const NAMESPACE: &str = "a";
const NAME: &str = "one";
/// Name of the model at the engines.
const OWN_NAME: &str = "its-own-name";

/// A model with two pods, a router and an Envoy.
struct Gateway {
    world: World,
    engines: [Engine; 2],
    router: Router,
    envoy: Envoy,
    _certificate: tempfile::TempDir,
}

impl Gateway {
    async fn start(request_body_mode: &'static str, response_body_mode: &'static str) -> Result<Self> {
        let world = World::start().await?;
        let address = own_address()?;
        let engines = [
            Engine::start_at(address, OWN_NAME).await?,
            Engine::start_at(address, OWN_NAME).await?,
        ];
        world.model(NAMESPACE, NAME, "llama", 1).await?;
        let addresses = engines.each_ref().map(|engine| SocketAddr::new(address, engine.port));
        world.pods(NAMESPACE, NAME, labels::DEPLOYMENT, &addresses).await?;
        world.serves(NAMESPACE, NAME, 8000).await?;

        let folder = tempfile::tempdir()?;
        let made = rcgen::generate_simple_self_signed(["kubeairunway-gateway".to_owned()])?;
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
        fs::write(&certificate, made.cert.pem())?;
        fs::write(&key, made.signing_key.serialize_pem())?;
        let picker = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let args = [
            format!("--endpoint-picker-address={picker}"),
            format!("--tls-certificate={}", certificate.display()),
            format!("--tls-key={}", key.display()),
            "--largest-body=1048576".to_owned(),
        ];
        let router = world.router_of_pods(&args.each_ref().map(String::as_str)).await?;
        let envoy = Envoy::start(Picker {
            address: picker,
            tls: true,
            request_body_mode,
            response_body_mode,
        })
        .await?;
        let gateway = Self {
            world,
            engines,
            router,
            envoy,
            _certificate: folder,
        };
        eventually(PATIENCE, async || {
            let answer = gateway.chat(&json!({ "model": "llama" })).await?;
            ensure!(answer.status == 200, "{answer:?}");
            Ok(())
        })
        .await?;
        Ok(gateway)
    }

    async fn begin(&self, headers: &[(&'static str, &str)], path: &str, body: impl Into<Bytes>) -> Result<Begun> {
        let mut request = request(Method::POST, path, "", body)?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse()?);
        }
        Begun::send(self.envoy.address, request).await
    }

    async fn post(&self, headers: &[(&'static str, &str)], body: &Value) -> Result<Answer> {
        self.begin(headers, CHAT, body.to_string()).await?.whole().await
    }

    async fn chat(&self, body: &Value) -> Result<Answer> {
        self.post(&[], body).await
    }

    /// Requests that each engine has received.
    fn asked(&self) -> [usize; 2] {
        self.engines
            .each_ref()
            .map(|engine| engine.seen.asked.load(Ordering::SeqCst))
    }

    /// Streams of each engine that have not ended.
    fn open(&self) -> [usize; 2] {
        self.engines
            .each_ref()
            .map(|engine| engine.seen.open.load(Ordering::SeqCst))
    }

    async fn has_no_request(&self) -> Result<()> {
        eventually(PATIENCE, async || {
            let text = self.router.metrics.text();
            for series in [
                "kubeairunway_gateway_requests_in_flight 0".to_owned(),
                format!(r#"kubeairunway_gateway_model_requests{{namespace="{NAMESPACE}",name="{NAME}"}} 0"#),
            ] {
                ensure!(text.contains(&series), "{series}: {text}");
            }
            Ok(())
        })
        .await
    }
}

async fn cannot_run() -> Result<bool> {
    Ok(!tokio::task::spawn_blocking(|| python::has_venv(WHAT)).await?)
}

#[allow(clippy::too_many_lines, reason = "one life, in order")]
#[tokio::test(flavor = "multi_thread")]
async fn envoy_sends_requests_to_the_replica_that_the_picker_chooses() -> Result<()> {
    if cannot_run().await? {
        return Ok(());
    }
    let gateway = Gateway::start("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED").await?;

    // Whole and streamed, with the name of the model at the engine, and to no endpoint that a client names.
    let answer = gateway
        .chat(&json!({ "model": "llama", "text": "x".repeat(900_000) }))
        .await?;
    let sent = json!({ "model": OWN_NAME, "text": "x".repeat(900_000) })
        .to_string()
        .len();
    ensure!(
        answer.status == 200 && answer.json()["model"] == OWN_NAME && answer.json()["bytes"] == sent,
        "{answer:?}"
    );
    let streamed = gateway.chat(&json!({ "model": "llama", "prompt": "slow" })).await?;
    ensure!(streamed.text == "x".repeat(80), "{streamed:?}");
    let own = [("x-gateway-destination-endpoint", "127.0.0.1:1")];
    let answer = gateway.post(&own, &json!({ "model": "llama" })).await?;
    ensure!(answer.status == 200, "{answer:?}");

    // Prompts with the same beginning reach the same engine.
    for letter in ["a", "b", "c"] {
        let before = gateway.asked();
        for number in 0..4 {
            let messages = [format!("{}{number}", letter.repeat(1000))];
            let answer = gateway.chat(&json!({ "model": "llama", "messages": messages })).await?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        let now = gateway.asked();
        let more = [now[0] - before[0], now[1] - before[1]];
        ensure!(more == [4, 0] || more == [0, 4], "{more:?}");
    }
    let choices = gateway.router.metrics.text();
    let by_prefix = format!(r#"replica_choices_total{{namespace="{NAMESPACE}",name="{NAME}",reason="prefix"}} 9"#);
    ensure!(choices.contains(&by_prefix), "{choices}");

    // Load spreads, and clients that leave free it.
    gateway.has_no_request().await?;
    let drip = json!({ "model": "llama", "prompt": "drip" }).to_string();
    let streams = try_join_all((0..8).map(|_| gateway.begin(&[], CHAT, drip.clone()))).await?;
    ensure!(gateway.open() == [4, 4], "{:?}", gateway.open());
    drop(streams);
    gateway.has_no_request().await?;
    eventually(PATIENCE, async || {
        ensure!(gateway.open() == [0, 0], "{:?}", gateway.open());
        Ok(())
    })
    .await?;

    // Refusals of the picker, in the form of the API.
    let absent = json!({ "model": "absent" });
    gateway
        .chat(&absent)
        .await?
        .refused(404, "model_not_found", "'absent'")?;
    let anthropic = gateway
        .begin(&[], "/v1/messages", absent.to_string())
        .await?
        .whole()
        .await?;
    ensure!(
        anthropic.status == 404 && anthropic.json()["error"]["type"] == "not_found_error",
        "{anthropic:?}"
    );
    let administers = gateway.begin(&[], "/v1/load_lora_adapter", "{}").await?.whole().await?;
    administers.refused(404, "not_found", "POST /v1/chat/completions")?;
    gateway
        .begin(&[], CHAT, "{")
        .await?
        .whole()
        .await?
        .refused(400, "invalid_request", "not a JSON object")?;
    let large = json!({ "model": "llama", "text": "x".repeat(1_100_000) });
    gateway.chat(&large).await?.refused(413, "too_large", "1 MiB")?;
    let answer = gateway.chat(&json!({ "model": "llama" })).await?;
    ensure!(answer.status == 200, "{answer:?}");

    // A pod that is gone gets no requests, though its engine would answer.
    let pods: Api<Pod> = Api::namespaced(gateway.world.admin.clone(), NAMESPACE);
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&pod(NAME, 1), &now).await?;
    let (plain, slow) = (
        json!({ "model": "llama" }),
        json!({ "model": "llama", "prompt": "slow" }),
    );
    let before = eventually(PATIENCE, async || {
        let before = gateway.asked()[1];
        try_join_all((0..4).map(|_| gateway.chat(&plain))).await?;
        ensure!(gateway.asked()[1] == before);
        Ok(before)
    })
    .await?;
    let requests = (0..16).map(|_| gateway.chat(&slow));
    for answer in try_join_all(requests).await? {
        ensure!(answer.status == 200, "{answer:?}");
    }
    ensure!(gateway.asked()[1] == before, "{:?}", gateway.asked());
    pods.delete(&pod(NAME, 0), &now).await?;
    eventually(PATIENCE, async || {
        let refused = gateway.chat(&plain).await?;
        refused.refused(503, "model_not_serving", "no ready pod")
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn header_names_the_model_and_buffered_bodies_are_replaced() -> Result<()> {
    if cannot_run().await? {
        return Ok(());
    }
    let gateway = Gateway::start("BUFFERED", "NONE").await?;
    let status = json!({ "gateway": { "modelName": "chat-small" } });
    gateway.world.status(NAMESPACE, NAME, status).await?;
    let body = json!({ "model": "any name", "messages": [] });
    eventually(PATIENCE, async || {
        let answer = gateway.post(&[("x-gateway-model-name", "chat-small")], &body).await?;
        ensure!(answer.status == 200, "{answer:?}");
        let sent = json!({ "model": OWN_NAME, "messages": [] }).to_string().len();
        ensure!(
            answer.json() == json!({ "model": OWN_NAME, "bytes": sent }),
            "{answer:?}"
        );
        Ok(())
    })
    .await?;
    let unchanged = gateway.chat(&json!({ "model": OWN_NAME })).await?;
    unchanged.refused(404, "model_not_found", OWN_NAME)?;
    let streamed = gateway.chat(&json!({ "model": "llama", "prompt": "slow" })).await?;
    ensure!(streamed.text == "x".repeat(80), "{streamed:?}");
    // A name of two models.
    gateway.world.model("b", "two", "llama", 1).await?;
    eventually(PATIENCE, async || {
        let answer = gateway.chat(&json!({ "model": "llama" })).await?;
        answer.refused(400, "model_ambiguous", "use the full name")
    })
    .await?;
    let full = gateway.chat(&json!({ "model": format!("{NAMESPACE}/{NAME}") })).await?;
    ensure!(full.status == 200, "{full:?}");
    gateway.has_no_request().await
}

/// A client of the picker.
struct Client {
    sender: http2::SendRequest<Body>,
}

/// A call with messages in both directions.
struct Call {
    messages: mpsc::Sender<Bytes>,
    replies: hyper::body::Incoming,
    received: BytesMut,
    trailers: Option<HeaderMap>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    async fn call(&self, path: &str) -> Result<Call> {
        let (messages, received) = mpsc::channel::<Bytes>(1);
        let parts = futures::stream::unfold(received, |mut received| async {
            Some((Ok::<_, Infallible>(received.recv().await?), received))
        });
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://picker{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::from_stream(parts))?;
        let response = self.sender.clone().send_request(request).await?;
        ensure!(response.status() == 200 && response.headers()["content-type"] == "application/grpc");
        let trailers = response
            .headers()
            .contains_key("grpc-status")
            .then(|| response.headers().clone());
        Ok(Call {
            messages,
            replies: response.into_body(),
            received: BytesMut::new(),
            trailers,
        })
    }

    /// A call about a request whose body follows.
    async fn begun(&self) -> Result<Call> {
        let mut call = self.call(PROCESS).await?;
        // The picker may have ended it already.
        let _ = call.send(&headers()).await;
        Ok(call)
    }
}

impl Client {
    /// The endpoint that is chosen for a request, and the call.
    async fn choice(&self) -> Result<(String, Call)> {
        let mut call = self.begun().await?;
        let body = json!({ "model": "llama", "messages": [] }).to_string().into();
        let end_of_stream = true;
        call.send(&message(Part::RequestBody(HttpBody { body, end_of_stream })))
            .await?;
        let reply = ProcessingResponse::decode(call.reply().await?.context("no reply")?)?;
        let Some(Reply::RequestHeaders(common)) = reply.reply else {
            bail!("unexpected reply {reply:?}");
        };
        ensure!(reply.dynamic_metadata.is_some());
        let mutation = common.response.and_then(|response| response.header_mutation);
        let header = mutation.and_then(|mutation| mutation.set_headers.into_iter().next());
        let header = header.and_then(|option| option.header).context("no header")?;
        ensure!(header.key == "x-gateway-destination-endpoint");
        // The body, in parts.
        loop {
            let reply = ProcessingResponse::decode(call.reply().await?.context("no reply to the body")?)?;
            let Some(Reply::RequestBody(common)) = reply.reply else {
                bail!("unexpected reply {reply:?}");
            };
            let mutation = common.response.and_then(|response| response.body_mutation?.mutation);
            if matches!(mutation, Some(Mutation::Streamed(part)) if part.end_of_stream) {
                break;
            }
        }
        Ok((String::from_utf8(header.raw_value.into())?, call))
    }
}

impl Call {
    /// The response of the replica, without a body.
    async fn respond(&mut self, status: &'static str) -> Result<()> {
        let headers = HttpHeaders {
            headers: Some(Headers {
                headers: vec![header(":status", status)],
            }),
            end_of_stream: true,
        };
        self.send(&message(Part::ResponseHeaders(headers))).await?;
        self.reply().await?.context("no reply to the response")?;
        Ok(())
    }

    async fn send(&mut self, message: &ProcessingRequest) -> Result<()> {
        Ok(self.messages.send(encoded(message)).await?)
    }

    /// The next reply; `None` at the end.
    async fn reply(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(length) = self.received.get(1..5) {
                let length = usize::try_from(u32::from_be_bytes(length.try_into()?))?;
                if self.received.len() >= 5 + length {
                    let message = self.received.split_to(5 + length).freeze();
                    return Ok(Some(message.slice(5..)));
                }
            }
            match self.replies.frame().await.transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => self.received.extend_from_slice(&data),
                Some(Err(frame)) => self.trailers = frame.into_trailers().ok(),
                None => return Ok(None),
            }
        }
    }

    /// The response to the client of the Gateway.
    async fn immediate(&mut self) -> Result<ImmediateResponse> {
        let reply = self.reply().await?.context("no reply")?;
        match ProcessingResponse::decode(reply)?.reply {
            Some(Reply::Immediate(response)) => Ok(response),
            other => bail!("unexpected reply {other:?}"),
        }
    }

    /// The status at the end.
    async fn status(&mut self) -> Result<(String, String)> {
        while self.reply().await?.is_some() {}
        let trailers = self.trailers.as_ref().context("no trailers")?;
        let text = |name: &str| -> Result<String> {
            let value = trailers.get(name).map(|value| value.to_str().map(str::to_owned));
            Ok(value.transpose()?.unwrap_or_default())
        };
        Ok((text("grpc-status")?, text("grpc-message")?))
    }
}

fn message(part: Part) -> ProcessingRequest {
    ProcessingRequest {
        part: Some(part),
        metadata_context: None,
        protocol_config: None,
    }
}

fn header(key: &str, value: &'static str) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value: String::new(),
        raw_value: Bytes::from_static(value.as_bytes()),
    }
}

fn headers() -> ProcessingRequest {
    let headers = vec![header(":method", "POST"), header(":path", CHAT)];
    let modes = ProtocolConfiguration {
        request_body_mode: FULL_DUPLEX_STREAMED,
        response_body_mode: FULL_DUPLEX_STREAMED,
    };
    ProcessingRequest {
        protocol_config: Some(modes),
        ..message(Part::RequestHeaders(HttpHeaders {
            headers: Some(Headers { headers }),
            end_of_stream: false,
        }))
    }
}

fn body(bytes: usize, end_of_stream: bool) -> ProcessingRequest {
    let body = vec![b'x'; bytes].into();
    message(Part::RequestBody(HttpBody { body, end_of_stream }))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_break_the_protocol_are_refused_within_limits() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start(OWN_NAME).await?;
    world.model(NAMESPACE, NAME, "llama", 1).await?;
    world.serves(NAMESPACE, NAME, engine.port).await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let args = [
        format!("--endpoint-picker-address={address}"),
        "--largest-body=1048576".to_owned(),
        // One address has half of it.
        "--memory=4".to_owned(),
        "--largest-requests=12".to_owned(),
    ];
    let args = args.each_ref().map(String::as_str);
    let router = world.router(&args).await?.ready().await?;
    let client = Client::connect(address).await?;

    let mut health = client.call(HEALTH_CHECK).await?;
    let reply = HealthCheckResponse::decode(health.reply().await?.context("no reply")?)?;
    ensure!(reply.status == SERVING && health.status().await?.0 == "0");
    ensure!(client.call("/grpc.health.v1.Health/Watch").await?.status().await?.0 == "12");

    // Out of order, compressed, endless or undecodable.
    let mut call = client.call(PROCESS).await?;
    call.send(&body(1, true)).await?;
    ensure!(call.status().await? == ("3".to_owned(), "messages are out of order".to_owned()));
    let mut call = client.begun().await?;
    call.send(&headers()).await?;
    ensure!(call.status().await?.0 == "3");
    for (bytes, status) in [
        (&[1, 0, 0, 0, 0][..], "12"),
        (&[0, 127, 0, 0, 0], "8"),
        (&[0, 0, 0, 0, 1, 255], "3"),
    ] {
        let mut call = client.call(PROCESS).await?;
        call.messages.send(Bytes::from_static(bytes)).await?;
        let (code, message) = call.status().await?;
        ensure!(code == status, "{code} {message}");
    }

    // A huge body in parts.
    let mut call = client.begun().await?;
    for _ in 0..20 {
        // The picker ends the call in between.
        let _ = call.send(&body(60_000, false)).await;
    }
    let refused = call.immediate().await?;
    ensure!(refused.status.is_some_and(|status| status.code == 413), "{refused:?}");
    ensure!(call.status().await?.0 == "0");

    // Bodies that do not end take the memory of one address, and then the places.
    let mut held = Vec::new();
    let full = loop {
        let mut call = client.begun().await?;
        for _ in 0..10 {
            let _ = call.send(&body(60_000, false)).await;
        }
        let next = timeout(Duration::from_millis(300), call.immediate()).await;
        match next {
            Ok(refused) => break refused?,
            Err(_) => held.push(call),
        }
        ensure!(held.len() < 12, "nothing is refused");
    };
    let text = String::from_utf8_lossy(&full.body).into_owned();
    ensure!(text.contains("2 MiB") || text.contains("4 MiB of memory"), "{text}");
    ensure!(held.len() == 3, "{} bodies of 600 KB have 2 MiB", held.len());
    for _ in held.len()..6 {
        held.push(client.begun().await?);
    }
    let mut one_more = client.begun().await?;
    let refused = one_more.immediate().await?;
    ensure!(refused.status.is_some_and(|status| status.code == 429), "{refused:?}");

    // The router is not affected, and clients that leave free everything.
    ensure!(router.chat(support::KEY, "llama").await?.status == 200);
    drop((held, one_more, client));
    eventually(PATIENCE, async || {
        let metrics = router.metrics.text();
        ensure!(
            metrics.contains("kubeairunway_gateway_requests_in_flight 0"),
            "{metrics}"
        );
        Ok(())
    })
    .await?;
    let client = Client::connect(address).await?;
    ensure!(client.choice().await?.0 == format!("127.0.0.1:{}", engine.port));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn canary_gets_its_part_of_the_choices_until_it_fails() -> Result<()> {
    let world = World::start().await?;
    let (stable, next) = (Engine::start(OWN_NAME).await?, Engine::start(OWN_NAME).await?);
    for (name, engine) in [(NAME, &stable), ("one-next", &next)] {
        world.model(NAMESPACE, name, "llama", 1).await?;
        world.serves(NAMESPACE, name, engine.port).await?;
    }
    let annotations = json!({ labels::CANARY_FOR: NAME, labels::CANARY_WEIGHT: "25" });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let models = world.models(NAMESPACE);
    models.patch("one-next", &PatchParams::default(), &patch).await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let picker = format!("--endpoint-picker-address={address}");
    let router = world.router(&[&picker]).await?.ready().await?;
    let client = Client::connect(address).await?;
    let of_next = format!("127.0.0.1:{}", next.port);

    // Of 100 requests in a row, each number below 100 is one.
    let mut by_canary = 0;
    for _ in 0..100 {
        let (destination, mut call) = client.choice().await?;
        let is_canary = destination == of_next;
        by_canary += usize::from(is_canary);
        call.respond(if is_canary { "503" } else { "200" }).await?;
    }
    // After 20 failed responses, it is stopped.
    ensure!(by_canary == 20, "{by_canary}");
    let stopped = format!(r#"kubeairunway_gateway_canary_stopped{{namespace="{NAMESPACE}",name="one-next"}} 1"#);
    let metrics = router.metrics.text();
    ensure!(metrics.contains(&stopped), "{metrics}");
    Ok(())
}
