//! `get --watch`: the list, then a line for each object that changes.

use std::collections::BTreeMap;

use futures::{TryStreamExt, pin_mut};
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use runway_api::{ModelDeployment, Namespace};
use runway_client::cluster::{Cluster, RowObject};
use runway_client::documents::typed;
use runway_client::get;
use runway_client::target::Kind;
use runway_operator::client::ClientArgs;
use serde_json::{Value, json};

use super::Error;
use super::look::{GetArgs, Requested, requested};
use crate::answer::{self, Answer};
use crate::terminal::print;

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
    // A watch retries after every error; the list reports what may not be read.
    let list = cluster.selected(requested.kind, namespace, labels).await;
    list.map_err(Error::from)?;
    let config = watcher::Config {
        label_selector: labels.map(str::to_owned),
        field_selector: requested.name.as_ref().map(|name| format!("metadata.name={name}")),
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
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
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
                let (keys, lines) = match requested.kind {
                    Kind::ModelDeployment => deployments(args, &seen, namespace.is_none()),
                    _ => of_server(args, requested, &cluster, namespace).await?,
                };
                match &changed {
                    None => lines.concat(),
                    Some(object) => {
                        let at = keys.iter().position(|known| *known == key(object));
                        // The header is first.
                        at.and_then(|at| lines.get(at + 1).cloned()).unwrap_or_default()
                    }
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

/// The server itself makes the tables of other kinds.
async fn of_server(
    args: &GetArgs,
    requested: &Requested,
    cluster: &Cluster,
    namespace: Option<&Namespace>,
) -> Result<Rows, Error> {
    let table = cluster
        .table(
            requested.kind,
            namespace,
            None,
            args.selector.as_deref(),
            RowObject::Metadata,
        )
        .await?;
    let key = |row: &Value| {
        let text = |name: &str| row["object"]["metadata"][name].as_str().map(str::to_owned);
        (text("namespace"), text("name").unwrap_or_default())
    };
    let keys = table["rows"].as_array().map(|rows| rows.iter().map(key).collect());
    let everywhere = namespace.is_none() && requested.kind.is_namespaced();
    Ok((
        keys.unwrap_or_default(),
        lines(&get::server_table(&table, args.is_wide(), everywhere)),
    ))
}

fn lines(table: &str) -> Vec<String> {
    table.lines().map(|line| format!("{line}\n")).collect()
}
