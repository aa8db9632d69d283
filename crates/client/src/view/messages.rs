//! Numbers of messages, dead letters and jobs, as asya-gateway reports them. Pure.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::text;

/// Numbers of messages of an actor. `None` is a number that the broker does not report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// Namespace of the actor.
    pub namespace: String,
    /// Name of the actor.
    pub actor: String,
    /// Name of its queue.
    pub queue: String,
    /// Messages that wait for a consumer.
    pub waiting: u64,
    /// Messages that consumers have and have not acknowledged.
    pub running: Option<u64>,
    /// Consumers of the queue.
    pub consumers: Option<u64>,
    /// Messages in the dead-letter queue.
    pub dead: Option<u64>,
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |number: Option<u64>| number.map_or_else(|| "an unknown number".to_owned(), |n| n.to_string());
        let (running, dead) = (known(self.running), known(self.dead));
        write!(f, "{} waiting, {running} running, {dead} failed", self.waiting)
    }
}

/// Dead letters of an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetters {
    /// Dead letters in the queue.
    pub count: u64,
    /// The first of them.
    pub items: Vec<DeadLetter>,
}

/// Dead letter in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Id; `None` if the gateway does not read a message of this size.
    pub id: Option<String>,
    /// Reason of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the broker's decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Bytes of the message.
    pub bytes: u64,
}

/// Result of a request that redrives or deletes dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Processed {
    /// Dead letters before.
    pub count: u64,
    /// Dead letters that were processed.
    pub processed: u64,
    /// Ids that were not found.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl Processed {
    /// Dead letters that were not processed.
    pub fn left(&self) -> u64 {
        self.count.saturating_sub(self.processed)
    }
}

/// A job.
#[derive(Debug, Deserialize)]
pub struct Job {
    /// Id.
    pub id: String,
    /// `pending`, `running`, `succeeded`, `failed` or `cancelled`.
    pub status: String,
    /// Result, as the actor wrote it; `None` also if it is null.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    /// Error envelope.
    #[serde(default)]
    pub error: Value,
}

impl Job {
    /// Whether there is nothing to wait for.
    pub fn is_final(&self) -> bool {
        !matches!(self.status.as_str(), "pending" | "running")
    }

    /// Whether it has a result, and all its items have.
    pub fn has_succeeded(&self) -> bool {
        self.status == "succeeded"
    }

    /// The failure as one line.
    pub fn failure(&self) -> String {
        let code = self.error["error"].as_str().unwrap_or("failed");
        match self.error["details"]["message"].as_str() {
            Some(message) => text::cell(&format!("{code}: {message}")),
            None => text::cell(code),
        }
    }
}

/// Table of numbers.
pub fn numbers(all: &[Numbers]) -> String {
    let mut table = text::table(&["NAME", "WAITING", "RUNNING", "DEAD", "CONSUMERS"]);
    for numbers in all {
        table.add_row([
            text::cell(&numbers.actor),
            numbers.waiting.to_string(),
            number(numbers.running),
            number(numbers.dead),
            number(numbers.consumers),
        ]);
    }
    text::aligned(&table)
}

/// Table of dead letters.
pub fn dead_letters(all: &[DeadLetter], now: Timestamp) -> String {
    let mut table = text::table(&["ID", "REASON", "AGE", "BYTES"]);
    for letter in all {
        let text = |text: &Option<String>| text::cell(text.as_deref().unwrap_or("-"));
        let age = letter
            .since
            .map_or_else(|| "-".to_owned(), |since| text::since(since, now));
        table.add_row([text(&letter.id), text(&letter.reason), age, letter.bytes.to_string()]);
    }
    text::aligned(&table)
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_numbers_are_not_zero() {
        let all: Vec<Numbers> = serde_json::from_value(json!([
            {"namespace": "a", "actor": "embed", "queue": "asya-a_embed", "waiting": 12, "running": 3, "consumers": 1, "dead": 0},
            {"namespace": "a", "actor": "sqs", "queue": "asya-a_sqs", "waiting": 0, "running": 0, "consumers": null, "dead": null},
        ]))
        .unwrap();
        let expected = "NAME   WAITING  RUNNING  DEAD  CONSUMERS\nembed  12       3        0     1\nsqs    0        0        -     -\n";
        assert_eq!(numbers(&all), expected);
        assert_eq!(all[0].to_string(), "12 waiting, 3 running, 0 failed");
        assert_eq!(all[1].to_string(), "0 waiting, 0 running, an unknown number failed");
    }

    #[test]
    fn dead_letters_cannot_write_to_the_terminal() {
        let all: Vec<DeadLetter> = serde_json::from_value(json!([
            {"id": "m1", "reason": "delivery_limit", "since": "2026-01-01T00:00:00Z", "bytes": 20},
            {"id": "evil\u{1b}[2J", "bytes": 1},
            {"id": null, "bytes": 9_000_000},
        ]))
        .unwrap();
        let shown = dead_letters(&all, "2026-01-01T00:01:00Z".parse().unwrap());
        let expected = "ID        REASON          AGE  BYTES
m1        delivery_limit  60s  20
evil\u{fffd}[2J  -               -    1
-         -               -    9000000
";
        assert_eq!(shown, expected);
    }
}
