//! `get --watch`: the list, then a line for each object that changes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{TryStreamExt, pin_mut};
use kube::ResourceExt;
use kube::api::{ListParams, WatchEvent};
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use runway_api::{ModelDeployment, Namespace};
use runway_client::cluster::{Cluster, RowObject, labelled};
use runway_client::documents::typed;
use runway_client::get;
use runway_client::target::Kind;
use runway_operator::client::ClientArgs;
use serde_json::{Value, json};

use super::Error;
use super::look::{GetArgs, requested};
use crate::answer::{self, Answer};
use crate::terminal::print;

/// Time between a failed request and the next one.
const RETRY: Duration = Duration::from_secs(1);

/// Namespace and name.
type Key = (Option<String>, String);

/// Prints the objects, and each that changes, until it is interrupted or stdout is closed.
///
/// # Errors
/// The cluster cannot be reached, or rejects the request.
pub async fn watch(args: &GetArgs, client: &ClientArgs) -> Result<Answer, answer::Error> {
    let requested = &requested(args.what.as_ref(), args.name.as_ref())?;
    let cluster = Cluster::connect_to_follow(client).await.map_err(Error::from)?;
    let here = args.place.namespace.as_ref().unwrap_or(&cluster.namespace);
    let namespace = Some(here).filter(|_| !args.all_namespaces && requested.kind.is_namespaced());
    let labels = args.selector.as_deref();
    let fields = requested.name.as_ref().map(|name| format!("metadata.name={name}"));
    if requested.kind != Kind::ModelDeployment && (args.output.is_none() || args.is_wide()) {
        let selected = ListParams {
            field_selector: fields,
            ..labelled(labels)
        };
        return table_of_server(args, &cluster, requested.kind, namespace, &selected).await;
    }
    // A watch retries after every error; the list reports what may not be read.
    let list = cluster.selected(requested.kind, namespace, labels).await;
    list.map_err(Error::from)?;
    let config = watcher::Config {
        label_selector: labels.map(str::to_owned),
        field_selector: fields,
        ..watcher::Config::default()
    };
    let events = watcher(cluster.api(requested.kind, namespace), config);
    pin_mut!(events);
    let mut seen = BTreeMap::<Key, DynamicObject>::new();
    let mut started = false;
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(Answer::default()),
            // The next call lists again.
            Err(_) => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let (changed, gone) = match event {
            Event::Init => continue,
            Event::InitApply(object) if !started => {
                seen.insert(key(&object), object);
                continue;
            }
            Event::InitDone if started => continue,
            Event::InitDone => {
                started = true;
                (None, false)
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let before = seen.insert(key(&object), object.clone());
                if before.is_some_and(|before| before.resource_version() == object.resource_version()) {
                    continue;
                }
                (Some(object), false)
            }
            Event::Delete(object) => (Some(object), true),
        };
        let text = match (&args.output, &changed) {
            (Some(output), Some(object)) if !args.is_wide() => output
                .written(requested.kind, std::slice::from_ref(object), true)
                .map_err(answer::Error::from)?,
            (Some(output), None) if !args.is_wide() => {
                let all: Vec<DynamicObject> = seen.values().cloned().collect();
                output.written(requested.kind, &all, requested.name.is_some())?
            }
            _ => {
                let rows = deployments(args, &seen, namespace.is_none());
                match &changed {
                    None => rows.1.concat(),
                    Some(object) => line_of(&rows, &key(object)),
                }
            }
        };
        if let (Some(object), true) = (&changed, gone) {
            seen.remove(&key(object));
        }
        if !print(text.as_bytes()) {
            return Ok(Answer::default());
        }
    }
}

fn key(object: &DynamicObject) -> Key {
    (object.namespace(), object.name_any())
}

/// Objects, and the lines of their table with the header.
type Rows = (Vec<Key>, Vec<String>);

fn deployments(args: &GetArgs, seen: &BTreeMap<Key, DynamicObject>, namespaces: bool) -> Rows {
    let read = |(key, object): (&Key, &DynamicObject)| Some((key.clone(), typed(&json!(object)).ok()?));
    let (keys, all): (Vec<Key>, Vec<ModelDeployment>) = seen.iter().filter_map(read).unzip();
    if all.is_empty() {
        return Rows::default();
    }
    let wide = args.is_wide();
    (
        keys,
        lines(&get::table(&all, args.place.now(), get::Options { wide, namespaces })),
    )
}

/// Line of an object, without the header.
fn line_of((keys, lines): &Rows, key: &Key) -> String {
    let at = keys.iter().position(|known| known == key);
    at.and_then(|at| lines.get(at + 1).cloned()).unwrap_or_default()
}

/// Tables of other kinds, which the server makes: the list, then the row in each event of a watch. The list is repeated when a watch ends.
async fn table_of_server(
    args: &GetArgs,
    cluster: &Cluster,
    kind: Kind,
    namespace: Option<&Namespace>,
    selected: &ListParams,
) -> Result<Answer, answer::Error> {
    let mut seen = None::<ServerTable>;
    loop {
        let list = cluster.table(kind, namespace, None, selected, RowObject::Metadata);
        let listed = match (list.await, &seen) {
            (Ok(listed), _) => listed,
            (Err(error), None) => return Err(Error::from(error).into()),
            (Err(_), Some(_)) => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let mut table = ServerTable {
            columns: listed["columnDefinitions"].clone(),
            rows: ServerTable::rows(&listed).collect(),
            wide: args.is_wide(),
            namespaces: namespace.is_none() && kind.is_namespaced(),
        };
        let text = match &seen {
            None => table.lines().1.concat(),
            Some(before) => table.lines_since(before),
        };
        if !print(text.as_bytes()) {
            return Ok(Answer::default());
        }
        let version = listed["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if let Ok(events) = cluster.table_events(kind, namespace, selected, version).await {
            pin_mut!(events);
            while let Ok(Some(event)) = events.try_next().await {
                let (changed, gone) = match event {
                    WatchEvent::Added(changed) | WatchEvent::Modified(changed) => (changed, false),
                    WatchEvent::Deleted(changed) => (changed, true),
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(_) => break,
                };
                for (key, row) in ServerTable::rows(&changed) {
                    table.rows.insert(key.clone(), row);
                    let line = line_of(&table.lines(), &key);
                    if gone {
                        table.rows.remove(&key);
                    }
                    if !print(line.as_bytes()) {
                        return Ok(Answer::default());
                    }
                }
            }
        }
        seen = Some(table);
        tokio::time::sleep(RETRY).await;
    }
}

/// Table that the server makes of a kind, by the columns of its CRD.
struct ServerTable {
    columns: Value,
    rows: BTreeMap<Key, Value>,
    wide: bool,
    /// Whether there is a column of namespaces.
    namespaces: bool,
}

impl ServerTable {
    /// Rows of a response.
    fn rows(response: &Value) -> impl Iterator<Item = (Key, Value)> {
        let rows = response["rows"].as_array().into_iter().flatten();
        rows.map(|row| {
            let text = |name: &str| row["object"]["metadata"][name].as_str().map(str::to_owned);
            ((text("namespace"), text("name").unwrap_or_default()), row.clone())
        })
    }

    fn lines(&self) -> Rows {
        let (keys, rows): (Vec<Key>, Vec<&Value>) = self.rows.iter().map(|(key, row)| (key.clone(), row)).unzip();
        let table = json!({ "columnDefinitions": self.columns, "rows": rows });
        (keys, lines(&get::server_table(&table, self.wide, self.namespaces)))
    }

    /// Lines of the objects that differ from an earlier table.
    fn lines_since(&self, before: &Self) -> String {
        let version = |row: &Value| row["object"]["metadata"]["resourceVersion"].clone();
        let known = |key: &Key| before.rows.get(key).map(version);
        let changed = self.rows.iter().filter(|(key, row)| known(key) != Some(version(row)));
        let lines = self.lines();
        changed.map(|(key, _)| line_of(&lines, key)).collect()
    }
}

fn lines(table: &str) -> Vec<String> {
    table.lines().map(|line| format!("{line}\n")).collect()
}
