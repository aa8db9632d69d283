//! `kubeairunway support-bundle`: what somebody needs who is to help, in one archive, without secrets.
//!
//! | module | what |
//! |---|---|
//! | [`redact`] | what is taken out: pure |

pub mod redact;

use std::collections::BTreeMap;
use std::io;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};
use runway_api::Namespace;
use serde_json::Value;

use crate::check::observe::{Scope, observe};
use crate::check::report::{self, Format};
use crate::check::{self, Observed};
use crate::cluster::Cluster;
use crate::manifests::NAMESPACE;
use crate::text::{self, Look};
use runway_operator::telemetry::chain;

/// Lines of each log: the last ones.
const LOG_LINES: i64 = 2000;
/// Events of each namespace at most.
const EVENTS: u32 = 1000;

/// What is never taken.
const NEVER: [&str; 5] = [
    "Secrets and ConfigMaps: they are not read",
    "the kubeconfig",
    "logs of models, actors and Llama Stack servers: they may hold what users wrote",
    "values behind names that promise a secret, tokens, keys, who logs in to a URL and what is asked behind it: (redacted)",
    "managedFields, and annotations that repeat a whole object",
];

/// The files of an archive.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Path and content.
    pub files: BTreeMap<String, String>,
    /// What could not be read, for people.
    pub missing: Vec<String>,
}

/// Reads what belongs into an archive, of one namespace or of all.
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
    let observed = Box::pin(observe(cluster, &scope)).await;
    let mut bundle = Bundle::default();
    for (kind, why) in &observed.facts.unread {
        bundle.missing.push(redact::text(&format!("{kind}: {why:?}")));
    }
    bundle.objects(&observed)?;
    bundle.check(&observed)?;
    if observed.answers().is_ok() {
        bundle.events(cluster, namespace.as_ref()).await?;
        bundle.logs(cluster, observed.pods().unwrap_or_default()).await;
    }
    bundle.versions(&observed, look_at);
    Ok(bundle)
}

impl Bundle {
    /// The objects, a file for each kind: `kubeairunway check -f` takes them as the cluster.
    fn objects(&mut self, observed: &Observed) -> Result<(), text::Error> {
        let mut kinds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for mut object in observed.documents() {
            redact::object(&mut object);
            let kind = object["kind"].as_str().unwrap_or("Unknown").to_owned();
            kinds.entry(kind).or_default().push(object);
        }
        for (kind, objects) in kinds {
            let text = text::documents(&objects, text::Format::Yaml)?;
            self.files.insert(format!("objects/{kind}.yaml"), text);
        }
        Ok(())
    }

    fn check(&mut self, observed: &Observed) -> Result<(), text::Error> {
        let judged = check::judge(observed, false);
        for (name, format) in [("check.txt", Format::Wide), ("check.json", Format::Json)] {
            let said = report::write(&judged, format, Look::default())?;
            let said = match format {
                // Line by line, it would lose its quotes.
                Format::Json => {
                    let mut parsed: Value = serde_json::from_str(&said)?;
                    redact::object(&mut parsed);
                    serde_json::to_string_pretty(&parsed)?
                }
                _ => redact::text(&said),
            };
            self.files.insert(name.to_owned(), said);
        }
        Ok(())
    }

    async fn events(&mut self, cluster: &Cluster, namespace: Option<&Namespace>) -> Result<(), text::Error> {
        let everywhere = Api::all(cluster.client());
        let places: Vec<(&str, Api<Event>)> = match namespace {
            Some(namespace) => vec![
                (namespace.as_str(), Api::namespaced(cluster.client(), namespace)),
                (NAMESPACE, Api::namespaced(cluster.client(), NAMESPACE)),
            ],
            None => vec![("all namespaces", everywhere)],
        };
        let mut all = Vec::new();
        for (place, api) in places {
            match api.list(&ListParams::default().limit(EVENTS)).await {
                Ok(found) => all.extend(found.items),
                Err(error) => self
                    .missing
                    .push(redact::text(&format!("Events of {place}: {}", chain(&error)))),
            }
        }
        let mut values = all.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        values.iter_mut().for_each(redact::object);
        let text = text::documents(&values, text::Format::Yaml)?;
        self.files.insert("events.yaml".to_owned(), text);
        Ok(())
    }

    /// Logs of our controllers, also of the run before.
    async fn logs(&mut self, cluster: &Cluster, pods: &[Pod]) {
        let api: Api<Pod> = Api::namespaced(cluster.client(), NAMESPACE);
        for pod in pods.iter().filter(|pod| pod.namespace().as_deref() == Some(NAMESPACE)) {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            for container in containers {
                let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
                let status = statuses.and_then(|all| all.iter().find(|c| c.name == container.name));
                let restarted = status.is_some_and(|c| c.restart_count > 0);
                for previous in [false, true].into_iter().filter(|previous| !previous || restarted) {
                    let parameters = LogParams {
                        container: Some(container.name.clone()),
                        previous,
                        tail_lines: Some(LOG_LINES),
                        timestamps: true,
                        ..LogParams::default()
                    };
                    let name = format!(
                        "logs/{}_{}{}.log",
                        pod.name_any(),
                        container.name,
                        if previous { ".previous" } else { "" }
                    );
                    match api.logs(&pod.name_any(), &parameters).await {
                        Ok(said) => {
                            self.files.insert(name, redact::text(&said));
                        }
                        Err(error) => self.missing.push(redact::text(&format!("{name}: {}", chain(&error)))),
                    }
                }
            }
        }
    }

    fn versions(&mut self, observed: &Observed, look_at: Timestamp) {
        let text = format!(
            "made {look_at}\nkubeairunway {}\nKubernetes {}\n\n{}",
            env!("CARGO_PKG_VERSION"),
            observed.facts.version.as_deref().unwrap_or("does not answer"),
            self.summary()
        );
        self.files.insert("README.txt".to_owned(), text);
    }

    /// What was taken and what was left out, for people.
    pub fn summary(&self) -> String {
        let mut lines = vec!["taken:".to_owned()];
        lines.extend(
            self.files
                .iter()
                .map(|(path, content)| format!("  {path} ({} bytes)", content.len())),
        );
        lines.push("left out:".to_owned());
        lines.extend(NEVER.iter().map(|what| format!("  {what}")));
        if !self.missing.is_empty() {
            lines.push("could not be read:".to_owned());
            lines.extend(self.missing.iter().map(|what| format!("  {}", text::cell(what))));
        }
        text::lines(lines.into_iter())
    }

    /// The archive, as .tar.gz; all files in one folder.
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
