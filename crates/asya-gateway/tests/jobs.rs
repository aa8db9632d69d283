//! Jobs of real callers: a real RabbitMQ, a real API server, the real sidecar and the real Python runtime.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::{Method, StatusCode};
use runway_testbed::{PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

mod support;
use support::{Gateway, TEAM, World, is_accepted, may};

const ACTORS: [&str; 8] = ["upper", "slow", "fail", "fan", "picky", "silent", "large", "nowhere"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_real_callers() -> Result<()> {
    let world = World::start().await?;
    let mut actors = Vec::new();
    for name in ["upper", "slow", "fail", "fan", "picky", "silent", "large"] {
        actors.push(world.actor(name, name, &[]).await?);
    }
    let shop = world.user("shop", &ACTORS).await?;
    let guest = world.user("guest", &[]).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &["--longest-wait=20s", "--largest-body=65536"]).await?;
    let all = All {
        world: &world,
        gateway: &gateway,
        shop: &shop,
        guest: &guest,
    };
    tokio::try_join!(
        all.submit_and_ask(),
        all.submit_and_wait(),
        all.openai_form(),
        all.failures(),
        all.fan_out(),
        all.nothing(),
        all.stream(),
        all.refusals(),
        all.others_see_nothing(),
        all.cancel(),
        all.large_results(),
        all.unreadable_replies(),
        all.routes(),
        all.repeated_submissions(),
    )?;
    all.progress().await?;
    // It has no right on Leases, and needs none.
    let log = gateway.log();
    ensure!(!log.contains("lease"), "{log}");
    Ok(())
}

struct All<'a> {
    world: &'a World,
    gateway: &'a Gateway,
    shop: &'a str,
    guest: &'a str,
}

impl All<'_> {
    async fn submit_and_ask(&self) -> Result<()> {
        let path = format!("/v1/{TEAM}/upper");
        let body = json!({"text": "hello"}).to_string();
        let (status, headers, job) = self.gateway.ask(Method::POST, &path, self.shop, &[], body).await?;
        is_accepted(status, &job)?;
        let id = job["id"].as_str().context("an id")?;
        assert_eq!(headers["location"], format!("/jobs/{id}"));
        let ended = self.gateway.ended(id, self.shop).await?;
        assert_eq!(
            (&ended["status"], &ended["result"]),
            (&json!("succeeded"), &json!({"text": "HELLO"}))
        );
        let (status, result) = self.gateway.get(&format!("/jobs/{id}/result"), self.shop, &[]).await?;
        assert_eq!((status, result), (StatusCode::OK, json!({"text": "HELLO"})));
        Ok(())
    }

    async fn submit_and_wait(&self) -> Result<()> {
        let wait = [("prefer", "wait=20")];
        let path = format!("/v1/{TEAM}/upper");
        let (status, job) = self
            .gateway
            .post(&path, self.shop, &wait, &json!({"text": "a"}))
            .await?;
        assert_eq!((status, &job["result"]["text"]), (StatusCode::OK, &json!("A")));
        // Too short: the job is accepted all the same.
        let path = format!("/v1/{TEAM}/nowhere");
        self.world.broker.declare(&format!("asya-{TEAM}_nowhere")).await?;
        let (status, job) = self
            .gateway
            .post(&path, self.shop, &[("prefer", "wait=1")], &json!(1))
            .await?;
        assert_eq!((status, &job["status"]), (StatusCode::ACCEPTED, &json!("pending")));
        Ok(())
    }

    async fn openai_form(&self) -> Result<()> {
        let path = format!("/v1/{TEAM}/upper/chat/completions");
        let (status, answer) = self
            .gateway
            .post(&path, self.shop, &[], &json!({"text": "chat"}))
            .await?;
        assert_eq!((status, answer), (StatusCode::OK, json!({"text": "CHAT"})));
        let (status, error) = self
            .gateway
            .post(&path, self.shop, &[], &json!({"text": "x", "stream": true}))
            .await?;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{error}");
        assert_eq!(error["error"]["code"], "stream_not_supported");
        let path = format!("/v1/{TEAM}/fail/chat/completions");
        let (status, error) = self.gateway.post(&path, self.shop, &[], &json!({})).await?;
        assert_eq!(status, StatusCode::BAD_GATEWAY);
        let text = error["error"]["message"].to_string();
        assert!(text.contains("no such order"), "{text}");
        Ok(())
    }

    async fn failures(&self) -> Result<()> {
        let id = self.gateway.submit("fail", self.shop, &json!({})).await?;
        let job = self.gateway.ended(&id, self.shop).await?;
        assert_eq!((&job["status"], job.get("result")), (&json!("failed"), None));
        assert_eq!(job["error"]["error"], "processing_error");
        // A message that is late ends with its reason, too.
        let path = format!("/v1/{TEAM}/slow");
        let late = [("asya-timeout", "1s"), ("prefer", "wait=20")];
        let (_, job) = self
            .gateway
            .post(&path, self.shop, &late, &json!({"seconds": 3}))
            .await?;
        assert_eq!(job["status"], "failed", "{job}");
        Ok(())
    }

    async fn fan_out(&self) -> Result<()> {
        let id = self.gateway.submit("fan", self.shop, &json!({"n": 3})).await?;
        let job = self.gateway.ended(&id, self.shop).await?;
        assert_eq!(
            (&job["status"], &job["result"]),
            (&json!("succeeded"), &json!({"n": 0}))
        );
        assert_eq!(job["children"], json!([format!("{id}-1"), format!("{id}-2")]));
        assert_eq!(job["items"], json!({"count": 3, "succeeded": 3, "failed": 0}));
        let (_, child) = self.gateway.get(&format!("/jobs/{id}-2"), self.shop, &[]).await?;
        assert_eq!(
            (&child["status"], &child["result"]),
            (&json!("succeeded"), &json!({"n": 2}))
        );
        let (status, _) = self.gateway.get(&format!("/jobs/{id}-2"), self.guest, &[]).await?;
        assert_eq!(status, StatusCode::NOT_FOUND);

        // A later actor fails for one of the items.
        let path = format!("/v1/{TEAM}/fan");
        let further = [("asya-route", "picky"), ("prefer", "wait=20")];
        let (_, job) = self.gateway.post(&path, self.shop, &further, &json!({"n": 3})).await?;
        assert_eq!(
            (&job["status"], &job["result"]),
            (&json!("failed"), &json!({"n": 0})),
            "{job}"
        );
        assert_eq!(job["items"], json!({"count": 3, "succeeded": 2, "failed": 1}));
        assert_eq!(job["error"]["details"]["message"], "1 of 3 items failed");
        let id = job["id"].as_str().context("an id")?;
        let (status, error) = self.gateway.get(&format!("/jobs/{id}/result"), self.shop, &[]).await?;
        assert_eq!(status, StatusCode::BAD_GATEWAY, "{error}");
        let (_, child) = self.gateway.get(&format!("/jobs/{id}-1"), self.shop, &[]).await?;
        assert_eq!(child["status"], "failed", "{child}");
        Ok(())
    }

    /// null is a result, and not the payload of the request.
    async fn nothing(&self) -> Result<()> {
        let path = format!("/v1/{TEAM}/silent");
        let (_, job) = self
            .gateway
            .post(&path, self.shop, &[("prefer", "wait=20")], &json!({"n": 1}))
            .await?;
        assert_eq!(job["status"], "succeeded", "{job}");
        assert_eq!(job.get("result"), Some(&Value::Null));
        Ok(())
    }

    async fn stream(&self) -> Result<()> {
        let path = format!("/v1/{TEAM}/upper");
        let accept = [("accept", "text/event-stream")];
        let (status, _, text) = self
            .gateway
            .ask(
                Method::POST,
                &path,
                self.shop,
                &accept,
                json!({"text": "s"}).to_string(),
            )
            .await?;
        assert_eq!(status, StatusCode::OK);
        let text = text.as_str().context("a stream is text")?;
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        assert!(text.starts_with("event: update\n"), "{text}");
        let last = events.last().context("an event")?;
        assert_eq!(
            (&last["status"], &last["result"]["text"]),
            (&json!("succeeded"), &json!("S"))
        );
        Ok(())
    }

    async fn refusals(&self) -> Result<()> {
        let submit = async |path: &str, token: &str, headers: &[(&str, &str)], body: &str| {
            let (status, headers, error) = self
                .gateway
                .ask(Method::POST, path, token, headers, body.to_owned())
                .await?;
            Ok::<_, anyhow::Error>((
                status,
                headers,
                error["error"]["code"].as_str().unwrap_or_default().to_owned(),
            ))
        };
        let upper = format!("/v1/{TEAM}/upper");
        let (status, headers, _) = submit(&upper, "", &[], "{}").await?;
        assert_eq!(
            (status, headers["www-authenticate"].as_bytes()),
            (StatusCode::UNAUTHORIZED, &b"Bearer"[..])
        );
        for (path, token, headers, body, status, code) in [
            (&*upper, "not-a-token", &[][..], "{}", 401, "unauthenticated"),
            (&upper, self.guest, &[], "{}", 403, "forbidden"),
            ("/v1/other/upper", self.shop, &[], "{}", 403, "forbidden"),
            (&upper, self.shop, &[("asya-route", "secret")], "{}", 403, "forbidden"),
            (&upper, self.shop, &[], "{", 400, "invalid"),
            (&upper, self.shop, &[], "", 400, "invalid"),
            (&upper, self.shop, &[("asya-timeout", "never")], "{}", 400, "invalid"),
            (
                &upper,
                self.shop,
                &[("asya-callback", "http://example.com")],
                "{}",
                400,
                "invalid",
            ),
            (
                "/v1/team/large",
                self.shop,
                &[("asya-route", "a/b")],
                "{}",
                400,
                "invalid",
            ),
        ] {
            let (got, _, reported) = submit(path, token, headers, body).await?;
            assert_eq!((got.as_u16(), &*reported), (status, code), "{path} {headers:?} {body}");
        }
        let at = |size: usize| format!("\"{}\"", "x".repeat(size - 2));
        assert!(submit(&upper, self.shop, &[], &at(65536)).await?.0.is_success());
        assert_eq!(
            submit(&upper, self.shop, &[], &at(65537)).await?.0,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        // May be sent to, and has no queue.
        let missing = self.world.user("missing", &["gone"]).await?;
        let (status, _, code) = submit(&format!("/v1/{TEAM}/gone"), &missing, &[], "{}").await?;
        assert_eq!((status, &*code), (StatusCode::NOT_FOUND, "no_actor"));
        Ok(())
    }

    async fn others_see_nothing(&self) -> Result<()> {
        let id = self
            .gateway
            .submit("upper", self.shop, &json!({"text": "secret"}))
            .await?;
        self.gateway.ended(&id, self.shop).await?;
        for (method, path) in [
            (Method::GET, format!("/jobs/{id}")),
            (Method::GET, format!("/jobs/{id}/result")),
            (Method::DELETE, format!("/jobs/{id}")),
        ] {
            let (status, _, body) = self.gateway.ask(method, &path, self.guest, &[], "").await?;
            assert_eq!(status, StatusCode::NOT_FOUND, "{path} {body}");
        }
        let unknown = format!("/jobs/{}", "0".repeat(32));
        let (_, of_others) = self.gateway.get(&format!("/jobs/{id}"), self.guest, &[]).await?;
        let (_, of_nobody) = self.gateway.get(&unknown, self.guest, &[]).await?;
        assert_eq!(of_others, of_nobody, "a job of others looks as if there were none");
        Ok(())
    }

    async fn cancel(&self) -> Result<()> {
        let id = self.gateway.submit("slow", self.shop, &json!({"seconds": 2})).await?;
        let path = format!("/jobs/{id}");
        let (status, _, job) = self.gateway.ask(Method::DELETE, &path, self.shop, &[], "").await?;
        assert_eq!((status, &job["status"]), (StatusCode::OK, &json!("cancelled")));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (_, job) = self.gateway.get(&path, self.shop, &[]).await?;
        assert_eq!((&job["status"], job.get("result")), (&json!("cancelled"), None));
        Ok(())
    }

    async fn large_results(&self) -> Result<()> {
        let id = self
            .gateway
            .submit("large", self.shop, &json!({"bytes": 3_000_000}))
            .await?;
        self.gateway.ended(&id, self.shop).await?;
        let (status, result) = self.gateway.get(&format!("/jobs/{id}/result"), self.shop, &[]).await?;
        assert_eq!(
            (status, result.as_str().map(str::len)),
            (StatusCode::OK, Some(3_000_000))
        );
        let id = self
            .gateway
            .submit("large", self.shop, &json!({"bytes": 5_000_000}))
            .await?;
        let job = self.gateway.ended(&id, self.shop).await?;
        assert_eq!(
            (&job["status"], &job["error"]["error"]),
            (&json!("failed"), &json!("result_too_large"))
        );
        Ok(())
    }

    async fn unreadable_replies(&self) -> Result<()> {
        let dead = "asya_reply_gateway_dlq";
        self.world.broker.publish("asya_reply_gateway", b"not JSON").await?;
        self.world
            .broker
            .publish("asya_reply_gateway", br#"{"id": "x", "payload": 1}"#)
            .await?;
        eventually(PATIENCE, async || {
            ensure!(self.world.broker.ready(dead).await? == 2, "they are not set aside");
            Ok(())
        })
        .await?;
        // Too large for memory: it is not received at all.
        let huge = format!(
            r#"{{"id": "{}", "payload": "{}"}}"#,
            "0".repeat(32),
            "x".repeat(9_000_000)
        );
        self.world.broker.publish("asya_reply_gateway", huge.as_bytes()).await?;
        eventually(PATIENCE, async || {
            ensure!(self.world.broker.ready(dead).await? == 3, "it is not set aside");
            Ok(())
        })
        .await?;
        // A result of a job that is not known.
        let unknown = json!({"id": "0".repeat(32), "payload": 1}).to_string();
        self.world
            .broker
            .publish("asya_reply_gateway", unknown.as_bytes())
            .await
    }

    /// A sidecar of its own reports to the gateway.
    async fn progress(&self) -> Result<()> {
        let url = format!("--gateway-url={}", self.gateway.progress_url());
        let _actor = self.world.actor("nowhere", "slow", &[&url]).await?;
        let id = self
            .gateway
            .submit("nowhere", self.shop, &json!({"seconds": 4}))
            .await?;
        let running = eventually(PATIENCE, async || {
            let (_, job) = self.gateway.get(&format!("/jobs/{id}"), self.shop, &[]).await?;
            ensure!(job["status"] == "running", "{job}");
            Ok(job)
        })
        .await?;
        assert_eq!(
            running["progress"],
            json!({"actor": "nowhere", "step": "processing", "percent": 50})
        );
        let job = self.gateway.ended(&id, self.shop).await?;
        assert_eq!((&job["status"], job.get("progress")), (&json!("succeeded"), None));
        Ok(())
    }

    /// A submission that is repeated with its key has one job and one message; the key is that of its user and its request.
    async fn repeated_submissions(&self) -> Result<()> {
        let queue = format!("asya-{TEAM}_nobody");
        self.world.broker.declare(&queue).await?;
        let other = self.world.user("other-shop", &["nobody"]).await?;
        let buyer = self.world.user("buyer", &["nobody"]).await?;
        let path = format!("/v1/{TEAM}/nobody");
        let key = [("idempotency-key", "order-17")];
        let (status, first) = self.gateway.post(&path, &buyer, &key, &json!({"n": 17})).await?;
        assert_eq!(status, StatusCode::ACCEPTED, "{first}");
        let (status, again) = self.gateway.post(&path, &buyer, &key, &json!({"n": 17})).await?;
        assert_eq!((status, &again["id"]), (StatusCode::ACCEPTED, &first["id"]));
        let (status, error) = self.gateway.post(&path, &buyer, &key, &json!({"n": 18})).await?;
        assert_eq!(
            (status, &error["error"]["code"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("key_of_another_request"))
        );
        let (status, of_other) = self.gateway.post(&path, &other, &key, &json!({"n": 17})).await?;
        assert_eq!(status, StatusCode::ACCEPTED);
        assert_ne!(of_other["id"], first["id"]);
        assert_eq!(self.world.broker.ready(&queue).await?, 2);
        Ok(())
    }

    async fn routes(&self) -> Result<()> {
        let path = format!("/v1/{TEAM}/upper");
        let headers = [("asya-route", "upper"), ("prefer", "wait=20")];
        let (status, job) = self
            .gateway
            .post(&path, self.shop, &headers, &json!({"text": "r"}))
            .await?;
        assert_eq!((status, &job["route"]), (StatusCode::OK, &json!(["upper", "upper"])));
        assert_eq!(job["result"]["text"], "R");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_audiences_and_a_drain() -> Result<()> {
    let world = World::start().await?;
    let _actor = world.actor("upper", "upper", &[]).await?;
    let _slow = world.actor("slow", "slow", &[]).await?;
    let shop = world.user("shop", &["upper", "slow"]).await?;
    let person = world
        .user_with("person", vec![may(&["create"], "messages")], &[])
        .await?;
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    let own = runway_testbed::own_address()?;
    let url = format!("http://{own}:{}/done", listener.local_addr()?.port());
    let host = format!("--callback-host={own}");
    let store = world.folder.path().join("jobs.redb");
    let settings = [&*host, "--callback-host=localhost"];
    let mut gateway = Gateway::start(&world, &store, &settings).await?;

    // A token for the API server is valid only through its proxy, which removes `Authorization`.
    let path = format!("/v1/{TEAM}/upper");
    let (status, _) = gateway.post(&path, &person, &[], &json!({"text": "x"})).await?;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    for (token, is_valid) in [(&*person, true), (&shop, true), ("invented", false)] {
        let forwarded = [("x-forwarded-authorization", &*format!("Bearer {token}"))];
        let (status, body) = gateway.post(&path, "", &forwarded, &json!({"text": "x"})).await?;
        if is_valid {
            is_accepted(status, &body)?;
        } else {
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{body}");
        }
    }

    // The first call fails, so the second one gets the result, after a kill of the gateway in between.
    let (status, body) = gateway
        .post(&path, &shop, &[("asya-callback", &url)], &json!({"text": "call"}))
        .await?;
    is_accepted(status, &body)?;
    let first = called(&listener, "503 Service Unavailable").await?;
    assert_eq!(first["result"]["text"], "CALL");
    gateway.kill().await?;
    let second = called(&listener, "200 OK").await?;
    assert_eq!(
        (&second["id"], &second["result"]["text"]),
        (&body["id"], &json!("CALL"))
    );
    let local = format!("http://localhost:{}/", listener.local_addr()?.port());
    let (status, _) = gateway
        .post(&path, &shop, &[("asya-callback", &local)], &json!({"text": "x"}))
        .await?;
    assert_eq!(
        status,
        StatusCode::BAD_REQUEST,
        "callbacks to the gateway itself are rejected"
    );

    // At the shutdown a request that waits gets the state of its job, and the gateway ends.
    let waiting = async {
        let path = format!("/v1/{TEAM}/slow");
        gateway
            .post(&path, &shop, &[("prefer", "wait=60")], &json!({"seconds": 30}))
            .await
    };
    let pid = gateway.pid();
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        std::process::Command::new("kill").arg(pid.to_string()).status()
    };
    let (waited, stopped) = tokio::join!(waiting, stopping);
    ensure!(stopped?.success(), "kill failed");
    assert_eq!(waited?.0, StatusCode::ACCEPTED);
    assert_eq!(gateway.exit_code().await?, Some(0), "{}", gateway.log());
    Ok(())
}

/// The body of the next call of the URL, which gets this response.
async fn called(listener: &TcpListener, status: &str) -> Result<Value> {
    let (mut stream, _) = tokio::time::timeout(PATIENCE, listener.accept()).await??;
    let mut text = String::new();
    let body = loop {
        let mut part = vec![0; 4096];
        let read = stream.read(&mut part).await?;
        ensure!(read > 0, "the request ends early: {text}");
        text.push_str(std::str::from_utf8(&part[..read])?);
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(json) = serde_json::from_str(body)
        {
            break json;
        }
    };
    let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(response.as_bytes()).await?;
    Ok(body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_job_is_lost_by_kills_of_the_gateway() -> Result<()> {
    const KILLS: u32 = 8;
    let world = World::start().await?;
    let _actor = world.actor("same", "same", &["--rabbitmq-prefetch=20"]).await?;
    let shop = world.user("shop", &["same"]).await?;
    let store = world.folder.path().join("jobs.redb");
    let mut gateway = Gateway::start(&world, &store, &[]).await?;
    let mut accepted: Vec<(String, u32)> = Vec::new();
    let mut number = 0;
    for kill in 0..KILLS {
        // Submissions of several clients at once, cut off at some point. What got no answer is submitted again with its key.
        let cut = Duration::from_millis(150 + 97 * u64::from(kill));
        let clients = (0..4).map(|client| {
            let (gateway, shop, first) = (&gateway, &shop, number + client * 10_000);
            async move {
                let mut mine = Vec::new();
                let mut number = first;
                while let Ok(id) = gateway.submit_once("same", shop, &json!({"n": number})).await {
                    mine.push((id, number));
                    number += 1;
                }
                (mine, number)
            }
        });
        let pid = gateway.pid();
        let killing = async {
            tokio::time::sleep(cut).await;
            std::process::Command::new("kill")
                .args(["-9", &pid.to_string()])
                .status()
        };
        let (submitted, killed) = tokio::join!(futures::future::join_all(clients), killing);
        ensure!(killed?.success(), "kill failed");
        number += 100_000;
        gateway.kill().await?;
        for (mine, unanswered) in submitted {
            let last = mine.last().cloned();
            accepted.extend(mine);
            let payload = json!({"n": unanswered});
            let id = gateway.submit_once("same", &shop, &payload).await?;
            let again = gateway.submit_once("same", &shop, &payload).await?;
            ensure!(id == again, "one key has two jobs");
            accepted.push((id, unanswered));
            if let Some((id, number)) = last {
                let again = gateway.submit_once("same", &shop, &json!({"n": number})).await?;
                ensure!(id == again, "the job of a key is another one after a kill");
            }
        }
    }
    ensure!(accepted.len() > 50, "only {} jobs were accepted", accepted.len());
    have_results(&gateway, &shop, &accepted).await?;
    println!("{} accepted jobs, {KILLS} kills, 0 lost", accepted.len());
    Ok(())
}

/// Every job has its own result.
async fn have_results(gateway: &Gateway, token: &str, accepted: &[(String, u32)]) -> Result<()> {
    for (id, number) in accepted {
        let job = gateway
            .ended(id, token)
            .await
            .with_context(|| format!("job {number}"))?;
        assert_eq!(
            (&job["status"], &job["result"]["n"]),
            (&json!("succeeded"), &json!(number))
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_job_is_lost_by_restarts_of_the_broker() -> Result<()> {
    const RESTARTS: u32 = 3;
    const CLIENTS: u32 = 4;
    const EACH: u32 = 50;
    let mut world = World::start().await?;
    let _actor = world.actor("same", "same", &["--rabbitmq-prefetch=20"]).await?;
    let shop = world.user("shop", &["same"]).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &[]).await?;
    let mut accepted = Vec::new();
    for restart in 0..RESTARTS {
        let done = AtomicU32::new(0);
        let clients = (0..CLIENTS).map(|client| {
            let (gateway, shop, done) = (&gateway, &shop, &done);
            async move {
                let mut mine = Vec::new();
                let first = (restart * CLIENTS + client) * EACH;
                for number in first..first + EACH {
                    // Refused while the broker is away: submitted again with its key.
                    let payload = json!({"n": number});
                    let submit = async || gateway.submit_once("same", shop, &payload).await;
                    mine.push((eventually(PATIENCE, submit).await?, number));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, anyhow::Error>(mine)
            }
        });
        let restarting = async {
            while done.load(Ordering::Relaxed) < CLIENTS * EACH / 4 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            world.rabbit.restart().await
        };
        let (submitted, ()) = tokio::try_join!(futures::future::try_join_all(clients), restarting)?;
        accepted.extend(submitted.into_iter().flatten());
    }
    have_results(&gateway, &shop, &accepted).await?;
    println!(
        "{} accepted jobs, {RESTARTS} restarts of the broker, 0 lost",
        accepted.len()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_hold_nothing_for_long() -> Result<()> {
    let world = World::start().await?;
    let _large = world.actor("large", "large", &[]).await?;
    let _upper = world.actor("upper", "upper", &[]).await?;
    let shop = world.user("shop", &["large", "upper"]).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &["--memory=16"]).await?;
    let id = gateway.submit("large", &shop, &json!({"bytes": 4_000_000})).await?;
    gateway.ended(&id, &shop).await?;
    // More than all memory for results: 2 × 4 MB each, of 16 MiB.
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(("127.0.0.1", gateway.port())).await?;
        let request = format!("GET /jobs/{id}/result HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {shop}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        idle.push(stream);
    }
    // Small results are not held up, and the large one can be read again when their time is over.
    let upper = gateway.submit("upper", &shop, &json!({"text": "x"})).await?;
    gateway.ended(&upper, &shop).await?;
    eventually(PATIENCE, async || {
        let (status, result) = gateway.get(&format!("/jobs/{id}/result"), &shop, &[]).await?;
        ensure!(
            status == StatusCode::OK && result.as_str().is_some_and(|text| text.len() == 4_000_000),
            "{status}"
        );
        Ok(())
    })
    .await?;
    ensure!(gateway.resident_kib()? < 128 * 1024, "{} KiB", gateway.resident_kib()?);
    drop(idle);
    Ok(())
}

/// The response to a request whose body does not come.
async fn without_body(address: &str, head: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let head =
        format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 60000\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await?;
    let mut response = [0; 1024];
    let length = stream.read(&mut response).await?;
    Ok(String::from_utf8_lossy(&response[..length]).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_identified_before_their_bodies_are_read() -> Result<()> {
    let world = World::start().await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &[]).await?;
    let callers = format!("127.0.0.1:{}", gateway.port());
    for path in [
        "/v1/same/upper",
        "/v1/same/upper/chat/completions",
        "/queues/same/upper/dlq/drop",
    ] {
        let refused = without_body(&callers, &format!("POST {path}")).await?;
        ensure!(refused.starts_with("HTTP/1.1 401"), "{path}: {refused}");
    }
    let absent = without_body(&callers, "POST /absent").await?;
    ensure!(absent.starts_with("HTTP/1.1 404"), "{absent}");
    let sidecars = gateway.progress_url();
    let sidecars = sidecars.trim_start_matches("http://");
    let path = format!("/envelopes/{}/progress", "0".repeat(32));
    let unknown = without_body(sidecars, &format!("POST {path}")).await?;
    ensure!(unknown.starts_with("HTTP/1.1 404"), "{unknown}");
    Ok(())
}
