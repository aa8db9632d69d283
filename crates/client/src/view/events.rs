//! `kubeairunway events`: Events of an object and of the objects created for it, oldest first. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Resource;

use crate::text;
use crate::view::tree::Node;

/// Events about these objects (`Kind/name`), oldest first.
pub fn about(all: Vec<Event>, objects: &[String]) -> Vec<Event> {
    let mut found: Vec<Event> = all
        .into_iter()
        .filter(|event| objects.contains(&object(event)))
        .collect();
    found.sort_by_key(last_seen);
    found
}

/// All objects of a tree, as `Kind/name`.
pub fn objects(node: &Node) -> Vec<String> {
    let own = format!("{}/{}", node.kind, node.name);
    std::iter::once(own)
        .chain(node.children.iter().flat_map(objects))
        .collect()
}

/// Table of Events.
pub fn table(events: &[Event], now: Timestamp, wide: bool) -> String {
    let mut header = vec!["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if wide {
        header.extend(["COUNT", "FROM"]);
    }
    let mut table = text::table(&header);
    for event in events {
        let text = |text: &Option<String>| text::cell(text.as_deref().unwrap_or("-"));
        let age = last_seen(event).map_or_else(|| "-".to_owned(), |when| text::since(when, now));
        let mut row = vec![
            age,
            text(&event.type_),
            text(&event.reason),
            object(event),
            text(&event.message),
        ];
        if wide {
            let source = event.source.as_ref().and_then(|s| s.component.clone());
            row.push(count(event).to_string());
            row.push(text(
                &event.reporting_component.clone().filter(|c| !c.is_empty()).or(source),
            ));
        }
        table.add_row(row);
    }
    text::aligned(&table)
}

/// Object of an Event, as `Kind/name`.
pub fn object(event: &Event) -> String {
    let about = &event.involved_object;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&about.kind), text(&about.name))
}

fn count(event: &Event) -> i32 {
    let series = event.series.as_ref().and_then(|s| s.count);
    series.or(event.count).unwrap_or(1)
}

/// Whether an Event is about an object and not about a deleted predecessor of its name. Events need not name a uid.
pub fn is_about(event: &Event, object: &impl Resource) -> bool {
    let uid = event.involved_object.uid.as_deref().filter(|uid| !uid.is_empty());
    uid.is_none_or(|uid| object.meta().uid.as_deref() == Some(uid))
}

/// Time of the last occurrence.
pub fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|s| s.last_observed_time.as_ref())
        .map(|t| t.0);
    let at = event.event_time.as_ref().map(|t| t.0);
    let times = [
        &event.last_timestamp,
        &event.first_timestamp,
        &event.metadata.creation_timestamp,
    ];
    let others = times.into_iter().flatten().map(|t| t.0);
    series.into_iter().chain(at).chain(others).max()
}
