//! `kubeairunway support-bundle`: diagnostics in one archive, without secrets.
//!
//! | module | content |
//! |---|---|
//! | [`redact`] | removes secrets: pure |

pub mod redact;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};
use runway_api::Namespace;
use runway_client::cluster::Cluster;
use runway_client::text::{self, Look};
use runway_manifests::NAMESPACE;
use serde_json::Value;

use crate::check::observe::{Scope, observe};
use crate::check::report::{self, Format};
use crate::check::{self, Observed};
use runway_operator::telemetry::chain;

/// Lines of each log: the last ones.
const LOG_LINES: i64 = 2000;
/// Bytes of each log.
const LOG_BYTES: usize = 1 << 20;
/// Logs at most.
const LOGS: usize = 64;
/// Timeout of a request for Events or logs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Events of each namespace at most.
const EVENTS: u32 = 1000;
/// Objects of each kind at most.
const OBJECTS: usize = 2000;

/// Data that an archive never contains.
const NEVER: [&str; 6] = [
    "Secrets and ConfigMaps: never read",
    "the kubeconfig",
    "logs of models, actors and Llama Stack servers: they may contain user input",
    "values of environment variables, wherever they occur: replaced by (redacted)",
    "values of names and flags that indicate a secret, tokens, keys, credentials and queries of URLs, also if encoded: replaced by (redacted)",
    "managedFields, and annotations that contain a whole object",
];

/// The files of an archive.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Path and content.
    pub files: BTreeMap<String, String>,
    /// Lookups that failed, as messages for the user.
    pub missing: Vec<String>,
}

/// Objects and logs as read, before redaction.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Objects that `check` reads.
    pub observed: Observed,
    /// Events.
    pub events: Vec<Value>,
    /// Logs by the paths of their files.
    pub logs: BTreeMap<String, String>,
    /// Lookups that failed, as messages for the user.
    pub missing: Vec<String>,
}

/// Reads what belongs into an archive, of one namespace or of all.
///
/// # Errors
/// When what was read cannot be written as YAML or JSON.
pub async fn collect(
    cluster: &Cluster,
    namespace: Option<Namespace>,
    look_at: Timestamp,
) -> Result<Bundle, text::Error> {
    let scope = Scope {
        namespace: namespace.clone(),
        before: false,
        authority: false,
    };
    let mut collected = Collected {
        observed: Box::pin(observe(cluster, &scope)).await,
        ..Collected::default()
    };
    if collected.observed.answers().is_ok() {
        collected.events(cluster, namespace.as_ref()).await?;
        collected.logs(cluster).await;
    }
    Bundle::new(collected, look_at)
}

impl Collected {
    async fn events(&mut self, cluster: &Cluster, namespace: Option<&Namespace>) -> Result<(), text::Error> {
        let everywhere = Api::all(cluster.client());
        let places: Vec<(&str, Api<Event>)> = match namespace {
            Some(namespace) => vec![
                (namespace.as_str(), Api::namespaced(cluster.client(), namespace)),
                (NAMESPACE, Api::namespaced(cluster.client(), NAMESPACE)),
            ],
            None => vec![("all namespaces", everywhere)],
        };
        for (place, api) in places {
            match in_time(api.list(&ListParams::default().limit(EVENTS))).await {
                Ok(found) => {
                    for event in found.items {
                        self.events.push(serde_json::to_value(event)?);
                    }
                }
                Err(why) => self.missing.push(format!("Events of {place}: {why}")),
            }
        }
        Ok(())
    }

    /// Logs of our controllers, also of the run before.
    async fn logs(&mut self, cluster: &Cluster) {
        let api: Api<Pod> = Api::namespaced(cluster.client(), NAMESPACE);
        let pods = self.observed.pods().unwrap_or_default().iter();
        let ours = pods.filter(|pod| pod.namespace().as_deref() == Some(NAMESPACE));
        let mut wanted: Vec<Log> = ours.flat_map(logs_of).collect();
        for log in wanted.drain(LOGS.min(wanted.len())..) {
            self.missing.push(format!("{}: more than {LOGS} logs", log.path()));
        }
        let read = join_all(wanted.iter().map(|log| in_time(api.logs(&log.pod, &log.parameters)))).await;
        for (log, read) in wanted.iter().zip(read) {
            match read {
                Ok(said) => {
                    self.logs.insert(log.path(), whole_lines(said));
                }
                Err(why) => self.missing.push(format!("{}: {why}", log.path())),
            }
        }
    }
}

async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|error| chain(&error)),
        Err(_) => Err(format!("no response within {} seconds", PATIENCE.as_secs())),
    }
}

/// A container log to read.
struct Log {
    pod: String,
    parameters: LogParams,
}

impl Log {
    fn path(&self) -> String {
        let container = self.parameters.container.as_deref().unwrap_or_default();
        let previous = if self.parameters.previous { ".previous" } else { "" };
        format!("logs/{}_{container}{previous}.log", self.pod)
    }
}

/// Logs of a pod: of each container, and of its run before if it was restarted.
fn logs_of(pod: &Pod) -> Vec<Log> {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let restarted: Vec<&str> = statuses
        .filter(|status| status.restart_count > 0)
        .map(|status| status.name.as_str())
        .collect();
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let runs = containers.flat_map(|container| {
        let runs = if restarted.contains(&container.name.as_str()) {
            2
        } else {
            1
        };
        [false, true]
            .into_iter()
            .take(runs)
            .map(move |previous| (container, previous))
    });
    let log = |(container, previous): (&k8s_openapi::api::core::v1::Container, bool)| Log {
        pod: pod.name_any(),
        parameters: LogParams {
            container: Some(container.name.clone()),
            previous,
            tail_lines: Some(LOG_LINES),
            limit_bytes: i64::try_from(LOG_BYTES).ok(),
            timestamps: true,
            ..LogParams::default()
        },
    };
    runs.map(log).collect()
}

/// Removes the truncated last line of a log, because a secret that is cut in half is not detected.
fn whole_lines(mut log: String) -> String {
    if log.len() >= LOG_BYTES {
        log.truncate(log.rfind('\n').map_or(0, |end| end + 1));
    }
    log
}

impl Bundle {
    /// The files, without secrets.
    ///
    /// # Errors
    /// When a document cannot be written as YAML or JSON.
    pub fn new(collected: Collected, look_at: Timestamp) -> Result<Self, text::Error> {
        let Collected {
            observed,
            mut events,
            mut logs,
            missing,
        } = collected;
        let mut bundle = Self {
            missing,
            ..Self::default()
        };
        for (kind, why) in &observed.facts.unread {
            bundle.missing.push(format!("{kind}: {why}"));
        }
        let mut objects = bundle.objects(&observed);
        let judged = check::judge(&observed, false);
        let mut page = report::write(&judged, Format::Wide, Look::default())?;
        // Line by line, it would lose its quotes.
        let mut parsed: Value = serde_json::from_str(&report::write(&judged, Format::Json, Look::default())?)?;

        let documents = objects.values_mut().flatten().chain(&mut events).chain([&mut parsed]);
        let texts = logs.values_mut().chain(&mut bundle.missing).chain([&mut page]);
        redact::all(documents, texts);

        for (kind, objects) in &objects {
            let path = format!("objects/{kind}.yaml");
            bundle.files.insert(path, text::documents(objects, text::Format::Yaml)?);
        }
        if observed.answers().is_ok() {
            let events = text::documents(&events, text::Format::Yaml)?;
            bundle.files.insert("events.yaml".to_owned(), events);
        }
        bundle.files.insert("check.txt".to_owned(), page);
        bundle
            .files
            .insert("check.json".to_owned(), serde_json::to_string_pretty(&parsed)?);
        bundle.files.append(&mut logs);
        bundle.versions(&observed, look_at);
        Ok(bundle)
    }

    /// The objects by kind: `kubeairunway check -f` takes them as the cluster.
    fn objects(&mut self, observed: &Observed) -> BTreeMap<String, Vec<Value>> {
        let mut kinds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for object in observed.documents() {
            let kind = object["kind"].as_str().unwrap_or("Unknown").to_owned();
            kinds.entry(kind).or_default().push(object);
        }
        for (kind, objects) in &mut kinds {
            if objects.len() > OBJECTS {
                self.missing
                    .push(format!("{kind}: only the first {OBJECTS} of {}", objects.len()));
                objects.truncate(OBJECTS);
            }
        }
        kinds
    }

    fn versions(&mut self, observed: &Observed, look_at: Timestamp) {
        let text = format!(
            "created {look_at}\nkubeairunway {}\nKubernetes {}\n\n{}",
            env!("CARGO_PKG_VERSION"),
            observed.facts.version.as_deref().unwrap_or("no response"),
            self.summary()
        );
        self.files.insert("README.txt".to_owned(), text);
    }

    /// Summary of the content for the user: included and excluded data.
    pub fn summary(&self) -> String {
        let mut lines = vec!["taken:".to_owned()];
        lines.extend(
            self.files
                .iter()
                .map(|(path, content)| format!("  {path} ({} bytes)", content.len())),
        );
        lines.push("not included:".to_owned());
        lines.extend(NEVER.iter().map(|what| format!("  {what}")));
        if !self.missing.is_empty() {
            lines.push("could not be read:".to_owned());
            lines.extend(self.missing.iter().map(|what| format!("  {}", text::cell(what))));
        }
        text::lines(lines.into_iter())
    }

    /// The archive, as .tar.gz; all files in one folder.
    ///
    /// # Errors
    /// Compression fails.
    pub fn archive(&self, folder: &str, made: Timestamp) -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (path, content) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(u64::try_from(made.as_second()).unwrap_or_default());
            archive.append_data(&mut header, format!("{folder}/{path}"), content.as_bytes())?;
        }
        archive.into_inner()?.finish()
    }
}
