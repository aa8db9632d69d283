//! Conversations: each turn repeats all turns before it, so that an engine that has seen them need not read them again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use futures::future::join_all;
use runway_testbed::traffic::{Answer, Connection};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::load::timed;
use super::running::Target;
use crate::measure::as_number;

/// Bytes of the first text of a conversation, and of each that follows. A byte is a token of the test bed's model.
const FIRST: usize = 1500;
const NEXT: usize = 500;
/// Tokens of an answer.
const ANSWER: usize = 4;

/// Seeded conversations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trace {
    /// Texts of the user, by conversation and turn.
    texts: Vec<Vec<String>>,
    /// Conversation of each request, in the order in which clients send them.
    order: Vec<usize>,
}

/// Figures of conversations.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// Times to the whole answer, in milliseconds.
    pub(super) times: Vec<f64>,
    /// Tokens of all prompts, and those that engines did not read again.
    pub(super) prompt: usize,
    pub(super) cached: usize,
    pub(super) failed: usize,
}

impl Trace {
    /// A conversation that depends on these numbers only.
    pub(super) fn new(seed: u64, conversations: usize, turns: usize) -> Self {
        let mut random = Random(seed);
        let texts = (0..conversations)
            .map(|_| {
                let lengths = std::iter::once(FIRST).chain(std::iter::repeat(NEXT));
                lengths.take(turns).map(|length| random.text(length)).collect()
            })
            .collect();
        let mut order: Vec<usize> = (0..conversations * turns)
            .map(|number| number % conversations)
            .collect();
        for end in (1..order.len()).rev() {
            order.swap(end, random.below(end + 1));
        }
        Self { texts, order }
    }

    /// Sends all turns by so many clients, each to the target of its conversation and number. A turn waits for the answer to the
    /// one before it.
    pub(super) async fn play(&self, clients: usize, target: impl Fn(usize, usize) -> Target) -> Played {
        let next = AtomicUsize::new(0);
        let conversations: Vec<_> = self
            .texts
            .iter()
            .map(|texts| Mutex::new(Conversation::new(texts)))
            .collect();
        let clients = (0..clients).map(async |_| {
            let (mut played, mut connections) = (Played::default(), HashMap::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(&conversation) = self.order.get(number) else {
                    break played;
                };
                let target = target(conversation, number);
                let mut turn = conversations[conversation].lock().await;
                match turn.next(&target, &mut connections).await {
                    Ok((time, answer)) => played.answered(time, &answer),
                    Err(_) => played.failed += 1,
                }
            }
        });
        let mut all = Played::default();
        for played in join_all(clients).await {
            all.add(played);
        }
        all
    }
}

/// A conversation so far.
struct Conversation<'a> {
    texts: std::slice::Iter<'a, String>,
    messages: Vec<Value>,
}

impl<'a> Conversation<'a> {
    fn new(texts: &'a [String]) -> Self {
        Self {
            texts: texts.iter(),
            messages: Vec::new(),
        }
    }

    /// The next turn: its time and its answer.
    async fn next(
        &mut self,
        target: &Target,
        connections: &mut HashMap<SocketAddr, Connection>,
    ) -> Result<(f64, Answer)> {
        let text = self.texts.next().context("the conversation has ended")?;
        self.messages.push(json!({ "role": "user", "content": text }));
        let body = json!({ "model": target.model, "messages": self.messages, "max_tokens": ANSWER });
        let mut connection = match connections.remove(&target.address) {
            Some(connection) => connection,
            None => Connection::open(target.address).await?,
        };
        let (time, answer) = timed(target, &mut connection, &body).await?;
        if !answer.closes() {
            connections.insert(target.address, connection);
        }
        let content = &answer.json()["choices"][0]["message"]["content"];
        self.messages.push(json!({ "role": "assistant", "content": content }));
        Ok((time, answer))
    }
}

impl Played {
    fn answered(&mut self, time: f64, answer: &Answer) {
        self.times.push(time);
        let (prompt, cached) = tokens(&answer.json());
        self.prompt += prompt;
        self.cached += cached;
    }

    pub(super) fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.failed += other.failed;
    }

    /// Tokens of prompts that engines did not read again, in percent.
    pub(super) fn hit_rate(&self) -> f64 {
        100.0 * as_number(self.cached) / as_number(self.prompt.max(1))
    }
}

/// Tokens of a prompt, and those of them that were in the cache of the engine.
fn tokens(answer: &Value) -> (usize, usize) {
    let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    let usage = &answer["usage"];
    (
        number(&usage["prompt_tokens"]).unwrap_or_default(),
        number(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or_default(),
    )
}

/// Numbers of a seed: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or_default()
    }

    /// Words of letters, of this many bytes.
    fn text(&mut self, length: usize) -> String {
        let mut text = String::with_capacity(length + 16);
        while text.len() < length {
            let word = format!("{:x} ", self.next() >> (8 * self.below(6)));
            text.push_str(&word);
        }
        text.truncate(length);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_makes_the_same_conversations() {
        let trace = Trace::new(1, 6, 4);
        assert_eq!(trace, Trace::new(1, 6, 4));
        assert_ne!(trace, Trace::new(2, 6, 4));
        for conversation in 0..6 {
            let requests = trace.order.iter().filter(|of| **of == conversation);
            assert_eq!(requests.count(), 4);
            let lengths: Vec<_> = trace.texts[conversation].iter().map(String::len).collect();
            assert_eq!(lengths, [FIRST, NEXT, NEXT, NEXT]);
        }
        let in_order: Vec<usize> = (0..24).map(|number| number % 6).collect();
        assert_ne!(trace.order, in_order, "conversations are interleaved");
    }

    #[test]
    fn hit_rate_is_the_cached_part_of_all_prompts() {
        let mut played = Played::default();
        assert!(played.hit_rate().abs() < f64::EPSILON);
        for (prompt, cached) in [(100, 0), (300, 100)] {
            let usage = json!({ "prompt_tokens": prompt, "prompt_tokens_details": { "cached_tokens": cached } });
            let (prompt, cached) = tokens(&json!({ "usage": usage }));
            played.add(Played {
                prompt,
                cached,
                ..Played::default()
            });
        }
        assert!((played.hit_rate() - 25.0).abs() < f64::EPSILON);
        assert_eq!(tokens(&json!({ "usage": { "prompt_tokens": 7 } })), (7, 0));
    }
}
