//! The built router holds 10,000 requests to a sleeping model in bounded memory, and answers all of them.

mod support;

use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use runway_testbed::{PATIENCE, eventually, free_port};
use serde_json::json;
use support::{CHAT, KEY, ROUTER, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const HELD: usize = 10_000;
/// Memory for all of them, beyond that of the router at rest: without optimization, each has about 25 KiB.
const MEMORY_KIB: usize = HELD * 32;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    /// Resident memory, in KiB.
    fn memory(&self) -> Result<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.context("no VmRSS")?.parse().map_err(Into::into)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_held_requests_have_bounded_memory_and_are_answered() -> Result<()> {
    let world = World::start().await?;
    world.model("a", "one", "llama", 0).await?;
    let (port, admin) = (free_port()?, free_port()?);
    let kubeconfig = world.cluster.kubeconfig(ROUTER, &[])?;
    let router = Command::new(env!("CARGO_BIN_EXE_kubeairunway-gateway"))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--address=127.0.0.1:{port}"))
        .arg(format!("--admin-address=127.0.0.1:{admin}"))
        .arg(format!("--keys-dir={}", world.keys.path().display()))
        .arg(format!("--largest-requests-of-caller={HELD}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let router = Killed(router);
    eventually(PATIENCE, async || {
        let ready = ask(admin, "GET /readyz HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await?;
        ensure!(ready.starts_with("HTTP/1.1 200"), "{ready}");
        Ok(())
    })
    .await?;
    let before = router.memory()?;
    let body = json!({ "model": "llama", "messages": [{ "role": "user", "content": "Hello" }] }).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: router\r\nauthorization: Bearer {KEY}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let begun = (0..HELD).map(|_| async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(request.as_bytes()).await?;
        anyhow::Ok(stream)
    });
    let mut held: Vec<TcpStream> = futures::stream::iter(begun).buffered(100).try_collect().await?;
    let metrics = "GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    eventually(PATIENCE, async || {
        let metrics = ask(admin, metrics).await?;
        let held = format!("kubeairunway_gateway_held_requests {HELD}");
        ensure!(metrics.contains(&held), "{metrics}");
        Ok(())
    })
    .await?;
    let taken = router.memory()?.saturating_sub(before);
    println!("{HELD} held requests: {taken} KiB beyond {before} KiB at rest");
    ensure!(taken < MEMORY_KIB, "{taken} KiB");

    let generation = world.models("a").get("one").await?.metadata.generation;
    let failed = json!({ "phase": "Failed", "message": "no GPU", "observedGeneration": generation });
    world.status("a", "one", failed).await?;
    let answers = held.iter_mut().map(async |stream| {
        let mut answer = vec![0; 1024];
        let length = stream.read(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        ensure!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("no GPU"),
            "{answer}"
        );
        Ok(())
    });
    try_join_all(answers).await?;
    Ok(())
}

async fn ask(port: u16, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
