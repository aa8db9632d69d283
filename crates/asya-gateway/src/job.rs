//! Jobs: the state of each, and its representation in the API. Pure.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longest suffix of a child's id.
const LONGEST_SUFFIX: usize = 60;

/// Id of a job: 128 random bits, so that it cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u128);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A message of a job: the job's own id, or with a suffix that of a child, which a fan-out creates (`ID-1`, `ID-1-2`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The job.
    pub job: Id,
    /// Suffix of a child; empty for the job itself.
    pub suffix: String,
}

impl Item {
    /// The job itself.
    pub fn of(job: Id) -> Self {
        Self {
            job,
            suffix: String::new(),
        }
    }

    /// Parses an id. `None` if no job can have it.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, suffix) = text.split_once('-').unwrap_or((text, ""));
        let is_id = id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let is_suffix = suffix.len() <= LONGEST_SUFFIX && suffix.split('-').all(is_number);
        if !is_id || text.contains('-') && !is_suffix {
            return None;
        }
        let job = Id(u128::from_str_radix(id, 16).ok()?);
        Some(Self {
            job,
            suffix: suffix.to_owned(),
        })
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, suffix } = self;
        match suffix.as_str() {
            "" => write!(f, "{job}"),
            suffix => write!(f, "{job}-{suffix}"),
        }
    }
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its result.
    Pending,
    /// The routes of all items have ended with results.
    Succeeded,
    /// The route of an item has ended with an error, or the deadline has passed.
    Failed,
    /// The caller no longer wants the result.
    Cancelled,
}

/// A job, as it is stored. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Namespace of the actors.
    pub namespace: String,
    /// Names of the actors, in order.
    pub route: Vec<String>,
    /// User who submitted it.
    pub user: String,
    /// Unique id of this user, if the cluster has one.
    pub uid: String,
    /// Time of the submission.
    pub created: i64,
    /// Time after which the actors give up.
    pub deadline: i64,
    /// State.
    pub state: State,
    /// Time of the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<i64>,
    /// URL that gets the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// Failed attempts to call it.
    #[serde(default)]
    pub attempts: u32,
    /// Bytes of its results.
    #[serde(default)]
    pub bytes: u64,
    /// Number of children with a result.
    #[serde(default)]
    pub children: u32,
    /// Number of items that are known: the job itself and the children of items with a result.
    #[serde(default = "one")]
    pub items: u32,
    /// Number of items that failed.
    #[serde(default)]
    pub failures: u32,
    /// Idempotency key of the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

fn one() -> u32 {
    1
}

#[cfg(test)]
impl Job {
    /// A pending job with this deadline.
    pub(crate) fn example(deadline: i64) -> Self {
        Self {
            namespace: "team".to_owned(),
            route: vec!["a".to_owned()],
            user: "ada".to_owned(),
            uid: String::new(),
            created: 0,
            deadline,
            state: State::Pending,
            finished: None,
            callback: None,
            attempts: 0,
            bytes: 0,
            children: 0,
            items: 1,
            failures: 0,
            key: None,
        }
    }
}

/// Idempotency key of a submission: a repeated submission gets the same job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The key with its user: keys of different users never meet.
    pub name: String,
    /// Hash of the request. Another request with the same key is refused.
    pub request: String,
    /// Whether the broker has confirmed the message. If not, no client has a response for the job.
    pub is_sent: bool,
}

/// Progress of a job, as sidecars report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Index of the actor that has the message.
    pub current: u16,
    /// Number of actors of the route.
    pub of: u16,
    /// Activity of the actor.
    pub step: Step,
}

/// Step of a message at an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The sidecar has received it.
    Received,
    /// The handler is called.
    Processing,
    /// The handler has answered.
    Completed,
}

impl Progress {
    /// Percentage of the route, as the public Asya computes it.
    pub fn percent(self) -> u8 {
        let weight = match self.step {
            Step::Received => 10,
            Step::Processing => 50,
            Step::Completed => 100,
        };
        let whole = (u32::from(self.current) * 100 + weight) / u32::from(self.of.max(1));
        u8::try_from(whole.min(100)).unwrap_or(100)
    }
}

/// A job, as callers see it.
#[derive(Serialize)]
pub struct View<'a> {
    id: String,
    status: &'static str,
    namespace: &'a str,
    route: &'a [String],
    created: Option<Timestamp>,
    deadline: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<ItemsView>,
}

/// Numbers of a job that was split into items.
#[derive(Serialize)]
struct ItemsView {
    count: u32,
    succeeded: u32,
    failed: u32,
}

#[derive(Serialize)]
struct ProgressView<'a> {
    actor: &'a str,
    step: Step,
    percent: u8,
}

/// Results that have arrived for an item.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Whether the item failed.
    pub failed: bool,
    /// Whether the item itself has a result or an error, and not only a child.
    pub is_own: bool,
    /// The payload of its result, unless the store had no room for it.
    pub result: Option<&'a RawValue>,
    /// The payload of its error, or of the error of the whole job.
    pub error: Option<&'a RawValue>,
}

impl<'a> View<'a> {
    /// The view of an item.
    pub fn new(
        item: &Item,
        job: &'a Job,
        progress: Option<Progress>,
        result: Option<Received<'a>>,
        children: Vec<String>,
    ) -> Self {
        let is_child = !item.suffix.is_empty();
        let status = match (job.state, result, progress) {
            (_, Some(received), _) if is_child => {
                if received.failed {
                    "failed"
                } else {
                    "succeeded"
                }
            }
            (State::Cancelled, ..) => "cancelled",
            (State::Succeeded, ..) if !is_child => "succeeded",
            (State::Failed, ..) if !is_child => "failed",
            (State::Pending, _, Some(_)) if !is_child => "running",
            _ => "pending",
        };
        let progress = progress.filter(|_| status == "running").map(|progress| ProgressView {
            actor: job.route.get(usize::from(progress.current)).map_or("", String::as_str),
            step: progress.step,
            percent: progress.percent(),
        });
        Self {
            id: item.to_string(),
            status,
            namespace: &job.namespace,
            route: &job.route,
            created: time(job.created),
            deadline: time(job.deadline),
            finished: job.finished.and_then(time),
            progress,
            result: result.and_then(|received| received.result),
            error: result.and_then(|received| received.error),
            children: (!children.is_empty()).then_some(children),
            items: (job.items > 1 && !is_child).then(|| {
                let own = u32::from(result.is_some_and(|received| received.is_own));
                ItemsView {
                    count: job.items,
                    succeeded: (job.children + own).saturating_sub(job.failures),
                    failed: job.failures,
                }
            }),
        }
    }

    /// Whether there is nothing to wait for.
    pub fn is_final(&self) -> bool {
        !matches!(self.status, "pending" | "running")
    }
}

fn time(milliseconds: i64) -> Option<Timestamp> {
    Timestamp::from_millisecond(milliseconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_jobs_and_children_are_parsed_and_no_other_text() {
        let id = Id(0xab).to_string();
        assert_eq!(id.len(), 32);
        assert_eq!(Item::parse(&id), Some(Item::of(Id(0xab))));
        let child = format!("{id}-1-12");
        let item = Item::parse(&child).unwrap();
        assert_eq!(item.to_string(), child);
        assert_eq!((item.job, item.suffix.as_str()), (Id(0xab), "1-12"));
        for bad in [
            "",
            "x",
            &id[1..],
            &id.to_uppercase(),
            &format!("{id}-"),
            &format!("{id}--1"),
            &format!("{id}-a"),
            &format!("{id}-{}", "1".repeat(61)),
            &format!("+{}", &id[1..]),
        ] {
            assert_eq!(Item::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn progress_grows_along_a_route_and_ends_at_100() {
        let mut last = 0;
        for current in 0..3 {
            for step in [Step::Received, Step::Processing, Step::Completed] {
                let percent = Progress { current, of: 3, step }.percent();
                assert!(percent >= last);
                last = percent;
            }
        }
        assert_eq!(last, 100);
        assert_eq!(
            Progress {
                current: 9,
                of: 0,
                step: Step::Completed
            }
            .percent(),
            100
        );
    }
}
