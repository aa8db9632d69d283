//! Many requests that a router holds at once.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{KEY, Router};
use crate::engine::CHAT;
use crate::{PATIENCE, eventually};

/// Connections that are opened at once.
const AT_ONCE: usize = 100;

/// Requests that are held. They are as small as a client can make them, so that the memory of the router is measured, and not
/// that of its clients.
pub struct Held(Vec<TcpStream>);

impl Held {
    /// Sends so many requests to a model that sleeps, and waits until the router holds all of them.
    pub async fn begin(router: &Router, model: &str, count: usize) -> Result<Self> {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] }).to_string();
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: router\r\nauthorization: Bearer {KEY}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let begun = (0..count).map(|_| async {
            let mut stream = TcpStream::connect(router.address).await?;
            stream.write_all(request.as_bytes()).await?;
            anyhow::Ok(stream)
        });
        let held = futures::stream::iter(begun).buffered(AT_ONCE).try_collect().await?;
        eventually(PATIENCE, async || {
            let metrics = router.metrics().await?;
            let held = format!("kubeairunway_gateway_held_requests {count}");
            ensure!(metrics.contains(&held), "{metrics}");
            Ok(())
        })
        .await?;
        Ok(Self(held))
    }

    /// Checks that each is answered with this status and a text that has these words.
    pub async fn all_are_answered(mut self, status: u16, words: &str) -> Result<()> {
        let answers = self.0.iter_mut().map(async |stream| {
            let mut answer = vec![0; 1024];
            let length = stream.read(&mut answer).await?;
            let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
            let begins = answer.starts_with(&format!("HTTP/1.1 {status} "));
            ensure!(begins && answer.contains(words), "{answer}");
            Ok(())
        });
        try_join_all(answers).await?;
        Ok(())
    }
}
