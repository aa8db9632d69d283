//! A small client of Amazon SQS, and of servers that speak its protocol: AWS JSON 1.0 over HTTP, signed. The whole SDK would take
//! longer to compile than everything of ours.
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | requests: signed, sent, and their errors understood |
//! | here | what can be asked for |

pub mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use wire::Wire;
pub use wire::{Credentials, Error};

/// Most attributes of a message.
const MOST_ATTRIBUTES: usize = 10;
/// Attributes of a queue that count its messages: those that wait, are worked on, or are delayed.
const COUNTS: [&str; 3] = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
];

/// Where queues are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// AWS region.
    pub region: String,
    /// Another server than AWS, such as `http://localhost:9324`.
    pub endpoint: Option<String>,
    /// Who we are.
    pub credentials: Credentials,
}

/// A client. Cheap to clone; its connections are kept.
#[derive(Clone, Debug)]
pub struct Client {
    wire: Wire,
}

/// A message that was taken from a queue. It is there again after its visibility timeout, unless it is deleted.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Message {
    /// What it is deleted by.
    pub receipt_handle: String,
    /// Its text.
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
    /// How often it was given out, this time included.
    pub fn deliveries(&self) -> Option<u32> {
        self.attributes.get("ApproximateReceiveCount")?.parse().ok()
    }

    /// Its attributes that are text.
    pub fn headers(&self) -> Vec<(String, String)> {
        let text = |(name, attribute): (&String, &Attribute)| Some((name.clone(), attribute.string_value.clone()?));
        self.text.iter().filter_map(text).collect()
    }
}

impl Client {
    /// A client. Nothing is sent yet.
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        Ok(Self {
            wire: Wire::new(settings)?,
        })
    }

    /// The URL of a queue; nothing if it does not exist.
    pub async fn queue_url(&self, name: &str) -> Result<Option<String>, Error> {
        match self.wire.ask("GetQueueUrl", &json!({"QueueName": name})).await {
            Ok(answer) => url(&answer).map(Some),
            Err(error) if error.is_no_queue() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a queue and returns its URL. One that exists with the same attributes is fine.
    pub async fn create_queue(
        &self,
        name: &str,
        attributes: &BTreeMap<&str, String>,
        tags: &BTreeMap<String, String>,
    ) -> Result<String, Error> {
        let asked = json!({"QueueName": name, "Attributes": attributes, "tags": tags});
        url(&self.wire.ask("CreateQueue", &asked).await?)
    }

    /// Deletes a queue, whatever is in it.
    pub async fn delete_queue(&self, url: &str) -> Result<(), Error> {
        self.wire.ask("DeleteQueue", &json!({"QueueUrl": url})).await.map(drop)
    }

    /// How many messages a queue holds, those that are being worked on included. AWS counts approximately, but what has been at
    /// rest for a minute is counted right.
    pub async fn count(&self, url: &str) -> Result<u64, Error> {
        let asked = json!({"QueueUrl": url, "AttributeNames": COUNTS});
        let answer = self.wire.ask("GetQueueAttributes", &asked).await?;
        Ok(count(&answer))
    }

    /// Sends a message; done means that SQS keeps it. Of `headers` the first ten go along.
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

    /// Takes up to `most` messages (at most 10), for which nobody else gets them for `visibility`; waits up to `wait` for the first.
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
            "MessageSystemAttributeNames": ["ApproximateReceiveCount"], "AttributeNames": ["ApproximateReceiveCount"],
            "MessageAttributeNames": ["All"],
        });
        let answer = self.wire.ask_and_wait("ReceiveMessage", &asked, wait).await?;
        messages(answer)
    }

    /// The message is done with.
    pub async fn delete(&self, url: &str, receipt: &str) -> Result<(), Error> {
        let asked = json!({"QueueUrl": url, "ReceiptHandle": receipt});
        self.wire.ask("DeleteMessage", &asked).await.map(drop)
    }

    /// Nobody else gets the message for so long from now on; 0 gives it back.
    pub async fn hide(&self, url: &str, receipt: &str, visibility: Duration) -> Result<(), Error> {
        let asked = json!({"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": visibility.as_secs()});
        self.wire.ask("ChangeMessageVisibility", &asked).await.map(drop)
    }
}

/// Everything that is read from answers: messages, the count of messages, and the URL of a queue. For the fuzz targets.
#[doc(hidden)]
pub fn read_answer(response: &http::Response<bytes::Bytes>) -> Result<(Vec<Message>, u64, Option<String>), Error> {
    let answer = wire::understood(response)?;
    let (count, url) = (count(&answer), url(&answer).ok());
    messages(answer).map(|messages| (messages, count, url))
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

fn count(answer: &Value) -> u64 {
    let count = |name: &&str| answer["Attributes"][*name].as_str()?.parse::<u64>().ok();
    COUNTS.iter().filter_map(count).fold(0, u64::saturating_add)
}

fn url(answer: &Value) -> Result<String, Error> {
    let url = answer["QueueUrl"].as_str();
    url.map(str::to_owned)
        .ok_or_else(|| Error::malformed("there is no QueueUrl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(waiting: &str, hidden: &str) -> u64 {
        count(&json!({"Attributes": {COUNTS[0]: waiting, COUNTS[1]: hidden, "Other": "5"}}))
    }

    #[test]
    fn messages_are_counted_and_the_count_does_not_overflow() {
        assert_eq!(counted("2", "3"), 5);
        assert_eq!(counted("2", "many"), 2);
        assert_eq!(counted("2", "18446744073709551615"), u64::MAX);
    }
}
