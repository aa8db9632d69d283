//! Requests to the API server per client: counts that prove silence, or name the busiest client.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde::Deserialize;

use crate::{PATIENCE, SELF};

/// The audit log of a control plane.
pub struct Audit {
    log: PathBuf,
    client: Client,
    barriers: AtomicU64,
}

/// A moment in the audit log.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    offset: u64,
    received: Timestamp,
}

/// One request, as the API server saw it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The certificate's common name, or the service account.
    pub user: String,
    /// The user that the client impersonates; empty if it does not.
    pub impersonated: String,
    /// As in RBAC: get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// The API group; empty for the core group and for paths that are no resource.
    pub group: String,
    /// The plural; empty for paths that are no resource.
    pub resource: String,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects and for requests over all namespaces.
    pub namespace: String,
    /// Empty for lists and watches.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// When the answer was complete; for a watch that still runs, when it began.
    pub completed: Timestamp,
    /// User agent of the client.
    pub user_agent: String,
    /// Whether the request changed nothing.
    pub dry_run: bool,
}

/// Cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// get, list
    Read,
    /// create, update, patch, delete, deletecollection
    Write,
    /// Counted once, however long it lives.
    Watch,
}

/// Requests by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// get, list
    pub read: usize,
    /// create, update, patch, delete, deletecollection
    pub write: usize,
    /// Watches begun.
    pub watch: usize,
}

impl Audit {
    pub(crate) fn new(log: PathBuf, client: Client) -> Self {
        Self {
            log,
            client,
            barriers: AtomicU64::new(0),
        }
    }

    /// This moment, to count from.
    pub async fn mark(&self) -> Result<Mark> {
        let offset = self
            .log
            .metadata()
            .context("the API server has written no audit log yet")?
            .len();
        let received = self.barrier(offset).await?;
        Ok(Mark { offset, received })
    }

    /// The requests that reached the server after `mark` and before this call, in the order of their log entries.
    /// Requests of the test bed itself are skipped.
    pub async fn since(&self, mark: Mark) -> Result<Vec<Request>> {
        let until = self.barrier(self.log.metadata()?.len()).await?;
        // An entry is written just after its answer is sent, so one of a request before ours may still be on its way.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let events = self.read(mark.offset)?.into_iter();
        Ok(requests(events.filter(|e| {
            e.received > mark.received && e.received < until && e.user.username != SELF
        })))
    }

    /// Sends a request that no other client sends, and waits for its entry. Returns the time on the server.
    async fn barrier(&self, offset: u64) -> Result<Timestamp> {
        let number = self.barriers.fetch_add(1, Ordering::Relaxed);
        let name = format!("audit-barrier-{}-{number}", std::process::id());
        Api::<ConfigMap>::namespaced(self.client.clone(), "default")
            .get_opt(&name)
            .await?;

        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let events = self.read(offset)?;
            if let Some(event) = events
                .iter()
                .find(|e| e.object.as_ref().is_some_and(|object| object.name == name))
            {
                return Ok(event.received);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!(
            "the audit log {} does not show a request made {PATIENCE:?} ago: is the API server's disk full?",
            self.log.display()
        )
    }

    fn read(&self, offset: u64) -> Result<Vec<Event>> {
        let mut text = Vec::new();
        let mut file = File::open(&self.log)?;
        // From one byte before: if it ends a line, the next one is whole.
        file.seek(SeekFrom::Start(offset.saturating_sub(1)))?;
        file.read_to_end(&mut text)?;
        whole_lines(&text, offset == 0)
            .map(|line| serde_json::from_slice(line).context("a line of the audit log is not an event"))
            .collect()
    }
}

/// The API server writes while we read and measure: the last line may not be whole yet, and where the log ended at an earlier
/// look a line may have been under way.
fn whole_lines(text: &[u8], from_its_start: bool) -> impl Iterator<Item = &[u8]> {
    let mut lines = text.split_inclusive(|byte| *byte == b'\n');
    if !from_its_start {
        lines.next();
    }
    lines.filter_map(|line| line.strip_suffix(b"\n"))
}

impl Request {
    /// Cost of the request.
    pub fn class(&self) -> Class {
        match self.verb.as_str() {
            "watch" => Class::Watch,
            "get" | "list" | "head" | "options" => Class::Read,
            _ => Class::Write,
        }
    }
}

impl Count {
    /// All of them.
    pub fn total(self) -> usize {
        self.read + self.write + self.watch
    }

    /// Counts these requests.
    pub fn of<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Self {
        requests.into_iter().fold(Self::default(), |mut count, request| {
            count.add(request);
            count
        })
    }

    fn add(&mut self, request: &Request) {
        match request.class() {
            Class::Read => self.read += 1,
            Class::Write => self.write += 1,
            Class::Watch => self.watch += 1,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} reads, {} writes, {} watches", self.read, self.write, self.watch)
    }
}

/// Counts by any key.
pub fn count_by<K: Ord>(requests: &[Request], key: impl Fn(&Request) -> K) -> BTreeMap<K, Count> {
    requests.iter().fold(BTreeMap::new(), |mut counts, request| {
        counts.entry(key(request)).or_default().add(request);
        counts
    })
}

/// Counts by user.
pub fn by_user(requests: &[Request]) -> BTreeMap<String, Count> {
    count_by(requests, |request| request.user.clone())
}

/// Counts by resource: `pods`, `workspaces.kaito.sh`, `workspaces.kaito.sh/status`.
pub fn by_resource(requests: &[Request]) -> BTreeMap<String, Count> {
    count_by(requests, |r| {
        let group = if r.group.is_empty() {
            String::new()
        } else {
            format!(".{}", r.group)
        };
        let subresource = if r.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", r.subresource)
        };
        format!("{}{group}{subresource}", r.resource)
    })
}

/// Counts by namespace and name; lists and watches are under an empty name.
pub fn by_object(requests: &[Request]) -> BTreeMap<(String, String), Count> {
    count_by(requests, |request| (request.namespace.clone(), request.name.clone()))
}

/// The requests of one user.
pub fn of_user(requests: &[Request], user: &str) -> Vec<Request> {
    requests
        .iter()
        .filter(|request| request.user == user)
        .cloned()
        .collect()
}

/// One request has one entry, and a watch a second one at its end; both have the same id.
fn requests(events: impl Iterator<Item = Event>) -> Vec<Request> {
    let mut position = HashMap::new();
    let mut requests: Vec<Request> = Vec::new();
    for event in events {
        let at = *position.entry(event.id.clone()).or_insert(requests.len());
        if at == requests.len() {
            requests.push(event.into());
        } else {
            requests[at] = event.into();
        }
    }
    requests
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    id: String,
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    #[serde(default, rename = "requestURI")]
    uri: String,
    #[serde(rename = "objectRef")]
    object: Option<Object>,
    response_status: Option<Status>,
    #[serde(rename = "requestReceivedTimestamp")]
    received: Timestamp,
    #[serde(rename = "stageTimestamp")]
    stage: Timestamp,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl From<Event> for Request {
    fn from(event: Event) -> Self {
        let object = event.object.unwrap_or_default();
        Self {
            user: event.user.username,
            impersonated: event.impersonated_user.map(|user| user.username).unwrap_or_default(),
            verb: event.verb,
            group: object.api_group,
            resource: object.resource,
            subresource: object.subresource,
            namespace: object.namespace,
            name: object.name,
            code: event.response_status.map_or(0, |status| status.code),
            completed: event.stage,
            user_agent: event.user_agent,
            dry_run: event.uri.contains("dryRun="),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(text: &str, offset: usize) -> Vec<&str> {
        let text = &text.as_bytes()[offset.saturating_sub(1)..];
        whole_lines(text, offset == 0)
            .map(|line| str::from_utf8(line).unwrap())
            .collect()
    }

    #[test]
    fn only_whole_lines_are_read() {
        let log = "one\ntwo\nthr";
        assert_eq!(read_from(log, 0), ["one", "two"]);
        assert_eq!(read_from(log, 4), ["two"], "a line that begins at the mark is after it");
        for within in [1, 2, 3] {
            assert_eq!(
                read_from(log, within),
                ["two"],
                "a line under way at the mark is before it"
            );
        }
        assert_eq!(read_from(log, 10), [""; 0]);
        assert_eq!(read_from("", 0), [""; 0]);
    }
}
