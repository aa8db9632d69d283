//! A small client for Amazon SQS and servers with the same protocol: signed AWS JSON 1.0 over HTTP. It replaces the AWS SDK, which
//! takes longer to compile than the whole workspace.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | signing and sending of requests, and parsing of errors |
//! | this one | operations |

pub mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use wire::Wire;
pub use wire::{Credentials, Error};

/// Largest number of attributes of a message.
const MOST_ATTRIBUTES: usize = 10;
/// Attribute of a message: how often it was received.
const RECEIVED: &str = "ApproximateReceiveCount";
/// Attribute of a message that SQS moved to a dead-letter queue: the queue that it comes from.
const SOURCE: &str = "DeadLetterQueueSourceArn";
/// Attributes of a queue that count its messages: visible, in flight, and delayed.
const COUNTS: [&str; 3] = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
];

/// Numbers of messages of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that can be received.
    pub visible: u64,
    /// Received messages that are neither deleted nor visible again.
    pub hidden: u64,
    /// Messages that cannot be received yet.
    pub delayed: u64,
}

impl Counts {
    fn sum(self) -> u64 {
        self.visible.saturating_add(self.hidden).saturating_add(self.delayed)
    }
}

/// Location of queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// AWS region.
    pub region: String,
    /// URL of another server than AWS, such as `http://localhost:9324`.
    pub endpoint: Option<String>,
    /// Source of the credentials.
    pub credentials: Credentials,
}

/// Client with a connection pool. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    wire: Wire,
}

/// Received message. It becomes visible again after its visibility timeout, unless it is deleted.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Message {
    /// Receipt handle, for deletion.
    pub receipt_handle: String,
    /// Text of the message.
    pub body: String,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    #[serde(default, rename = "MessageAttributes")]
    text: BTreeMap<String, Attribute>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Attribute {
    string_value: Option<String>,
}

impl Message {
    /// Number of deliveries, including this one.
    pub fn deliveries(&self) -> Option<u32> {
        self.attributes.get(RECEIVED)?.parse().ok()
    }

    /// Whether SQS moved it to a dead-letter queue.
    pub fn is_from_redrive_policy(&self) -> bool {
        self.attributes.contains_key(SOURCE)
    }

    /// Attributes of type String.
    pub fn headers(&self) -> Vec<(String, String)> {
        let text = |(name, attribute): (&String, &Attribute)| Some((name.clone(), attribute.string_value.clone()?));
        self.text.iter().filter_map(text).collect()
    }
}

impl Client {
    /// Creates a client, without sending anything.
    ///
    /// # Errors
    /// If the endpoint or the region is invalid.
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        Ok(Self {
            wire: Wire::new(settings)?,
        })
    }

    /// URL of a queue, or `None` if it does not exist.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn queue_url(&self, name: &str) -> Result<Option<String>, Error> {
        match self.wire.ask("GetQueueUrl", &json!({"QueueName": name})).await {
            Ok(answer) => url(&answer).map(Some),
            Err(error) if error.is_no_queue() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a queue and returns its URL. A queue with the same attributes may exist.
    ///
    /// # Errors
    /// If the request fails, or the queue exists with different attributes.
    pub async fn create_queue(
        &self,
        name: &str,
        attributes: &BTreeMap<&str, String>,
        tags: &BTreeMap<String, String>,
    ) -> Result<String, Error> {
        let asked = json!({"QueueName": name, "Attributes": attributes, "tags": tags});
        url(&self.wire.ask("CreateQueue", &asked).await?)
    }

    /// Deletes a queue and its messages.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn delete_queue(&self, url: &str) -> Result<(), Error> {
        self.wire.ask("DeleteQueue", &json!({"QueueUrl": url})).await.map(drop)
    }

    /// ARN of a queue, by which another queue names it for its dead letters.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn queue_arn(&self, url: &str) -> Result<String, Error> {
        let asked = json!({"QueueUrl": url, "AttributeNames": ["QueueArn"]});
        let answer = self.wire.ask("GetQueueAttributes", &asked).await?;
        let arn = answer["Attributes"]["QueueArn"].as_str();
        arn.map(str::to_owned).ok_or_else(|| Error::malformed("no QueueArn"))
    }

    /// Attributes of a queue.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn attributes(&self, url: &str) -> Result<Value, Error> {
        let asked = json!({"QueueUrl": url, "AttributeNames": ["All"]});
        let answer = self.wire.ask("GetQueueAttributes", &asked).await?;
        Ok(answer["Attributes"].clone())
    }

    /// Number of messages in a queue, including those in flight. AWS reports an approximation, which is exact after a minute without
    /// changes.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn count(&self, url: &str) -> Result<u64, Error> {
        Ok(self.counts(url).await?.sum())
    }

    /// Numbers of messages of a queue. AWS reports approximations.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn counts(&self, url: &str) -> Result<Counts, Error> {
        let asked = json!({"QueueUrl": url, "AttributeNames": COUNTS});
        let answer = self.wire.ask("GetQueueAttributes", &asked).await?;
        Ok(counts(&answer))
    }

    /// Sends a message. On success SQS has stored it. Only the first ten `headers` are sent.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn send(&self, url: &str, body: &str, headers: &[(String, String)]) -> Result<(), Error> {
        let attributes: Map<String, Value> = headers
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .take(MOST_ATTRIBUTES)
            .map(|(name, value)| (name.clone(), json!({"DataType": "String", "StringValue": value})))
            .collect();
        let mut asked = json!({"QueueUrl": url, "MessageBody": body});
        if !attributes.is_empty() {
            asked["MessageAttributes"] = attributes.into();
        }
        self.wire.ask("SendMessage", &asked).await.map(drop)
    }

    /// Receives up to `most` messages (at most 10) and hides them for `visibility`. Waits up to `wait` for the first.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn receive(
        &self,
        url: &str,
        most: u8,
        wait: Duration,
        visibility: Duration,
    ) -> Result<Vec<Message>, Error> {
        let asked = json!({
            "QueueUrl": url, "MaxNumberOfMessages": most.clamp(1, 10), "WaitTimeSeconds": wait.as_secs().min(20),
            "VisibilityTimeout": visibility.as_secs(),
            "MessageSystemAttributeNames": [RECEIVED, SOURCE], "AttributeNames": [RECEIVED, SOURCE],
            "MessageAttributeNames": ["All"],
        });
        let answer = self.wire.ask_and_wait("ReceiveMessage", &asked, wait).await?;
        messages(answer)
    }

    /// Deletes a received message.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn delete(&self, url: &str, receipt: &str) -> Result<(), Error> {
        let asked = json!({"QueueUrl": url, "ReceiptHandle": receipt});
        self.wire.ask("DeleteMessage", &asked).await.map(drop)
    }

    /// Hides a received message for this time from now on; 0 returns it to the queue.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn hide(&self, url: &str, receipt: &str, visibility: Duration) -> Result<(), Error> {
        let asked = json!({"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": visibility.as_secs()});
        self.wire.ask("ChangeMessageVisibility", &asked).await.map(drop)
    }
}

/// Parses a response as messages, numbers of messages and URL of a queue. For the fuzz targets.
///
/// # Errors
/// The response reports an error, or its body is not one of SQS.
#[doc(hidden)]
pub fn read_answer(response: &http::Response<bytes::Bytes>) -> Result<(Vec<Message>, Counts, Option<String>), Error> {
    let answer = wire::understood(response)?;
    let (counts, url) = (counts(&answer), url(&answer).ok());
    messages(answer).map(|messages| (messages, counts, url))
}

fn messages(answer: Value) -> Result<Vec<Message>, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        #[serde(default)]
        messages: Vec<Message>,
    }
    let answer: Answer = serde_json::from_value(answer).map_err(Error::malformed)?;
    Ok(answer.messages)
}

fn counts(answer: &Value) -> Counts {
    let count = |name: &str| answer["Attributes"][name].as_str()?.parse().ok();
    let [visible, hidden, delayed] = COUNTS.map(|name| count(name).unwrap_or_default());
    Counts {
        visible,
        hidden,
        delayed,
    }
}

fn url(answer: &Value) -> Result<String, Error> {
    let url = answer["QueueUrl"].as_str();
    url.map(str::to_owned)
        .ok_or_else(|| Error::malformed("QueueUrl is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_count_does_not_overflow() {
        let counted = |visible: &str, hidden: &str| {
            counts(&json!({"Attributes": {COUNTS[0]: visible, COUNTS[1]: hidden, "Other": "5"}})).sum()
        };
        assert_eq!(counted("2", "3"), 5);
        assert_eq!(counted("2", "many"), 2);
        assert_eq!(counted("2", "18446744073709551615"), u64::MAX);
    }
}
