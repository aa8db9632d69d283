//! The objects that belong to an object, as boxes, with the Events and the last lines of the log of a chosen pod.

use askama::Template;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::LogParams;
use runway_api::{Name, Namespace};
use runway_client::events::{is_about, last_seen};
use runway_client::pods;
use runway_client::tree::{Node, Tree};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use serde::Deserialize;

use super::entries::{Entry, of_event};
use crate::said::Once;
use crate::session_view::SessionView;

/// Lines of a log that are shown.
const LINES: i64 = 100;
/// Events that are shown.
const MAX_EVENTS: usize = 20;

/// Selected pod.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Selected {
    /// Name of the pod; empty for none.
    #[serde(default)]
    pod: String,
}

/// Objects of a page.
pub struct Objects {
    /// The chain.
    pub tree: Tree,
    /// The chain as HTML.
    pub boxes: String,
    /// The chosen pod.
    pub chosen: Option<Chosen>,
}

/// A chosen pod.
pub struct Chosen {
    /// Name.
    pub name: String,
    /// Container whose log is shown.
    pub container: String,
    /// Events, the newest first.
    pub events: Vec<Entry>,
    /// End of the log.
    pub log: String,
    /// Lookups that failed.
    pub missing: Vec<String>,
}

/// An object with those below it.
#[derive(Template)]
#[template(path = "boxes.html")]
struct Boxes<'a> {
    nodes: &'a [Node],
    chosen: &'a str,
}

impl Boxes<'_> {
    fn has_chosen(&self, node: &Node) -> bool {
        node.name == self.chosen
    }

    fn below(&self, node: &Node) -> String {
        if node.children.is_empty() {
            return String::new();
        }
        let below = Boxes {
            nodes: &node.children,
            chosen: self.chosen,
        };
        below.render().unwrap_or_default()
    }
}

/// The objects of a page, with a chosen pod if it is one of them. Texts that the page has shown are omitted.
pub async fn of(view: &SessionView, mut tree: Tree, selected: &Selected, once: &mut Once) -> Objects {
    silence(&mut tree.root, once);
    let chosen = match selected.pod.parse::<Name>() {
        Ok(pod) if holds(&tree.root, &pod) => match tree.namespace.parse() {
            Ok(namespace) => Some(chosen(view, &namespace, pod).await),
            Err(_) => None,
        },
        _ => None,
    };
    let boxes = Boxes {
        nodes: std::slice::from_ref(&tree.root),
        chosen: chosen.as_ref().map_or("", |chosen| &chosen.name),
    };
    Objects {
        boxes: boxes.render().unwrap_or_default(),
        tree,
        chosen,
    }
}

fn silence(node: &mut Node, once: &mut Once) {
    if once.is_repeated(&node.text) {
        node.text.clear();
    }
    for child in &mut node.children {
        silence(child, once);
    }
}

fn holds(node: &Node, pod: &Name) -> bool {
    (node.kind == "Pod" && node.name == pod.as_str()) || node.children.iter().any(|child| holds(child, pod))
}

async fn chosen(view: &SessionView, namespace: &Namespace, pod: Name) -> Chosen {
    let mut found = Chosen {
        name: pod.to_string(),
        container: String::new(),
        events: Vec::new(),
        log: String::new(),
        missing: Vec::new(),
    };
    let api: Api<Pod> = Api::namespaced(view.client(), namespace);
    let object = match api.get(&pod).await {
        Ok(object) => object,
        Err(error) => {
            found.missing.push(format!("Pod/{pod}: {}", chain(&error)));
            return found;
        }
    };
    let cluster = view.cluster();
    let container = pods::containers(&object, None, false)
        .ok()
        .and_then(|all| all.into_iter().next());
    found.container = container.clone().unwrap_or_default();
    let params = LogParams {
        container,
        tail_lines: Some(LINES),
        ..LogParams::default()
    };
    let (events, log) = tokio::join!(cluster.events("Pod", namespace, &pod), api.logs(&pod, &params));
    match events {
        Ok(events) => found.events = entries(events, &object),
        Err(error) => found.missing.push(format!("Events: {}", chain(&error))),
    }
    match log {
        Ok(log) => found.log = log,
        Err(kube::Error::Api(status)) => found.missing.push(format!("log: {}", status.message)),
        Err(error) => found.missing.push(format!("log: {}", chain(&error))),
    }
    found
}

/// Events about a pod and not about a predecessor of its name, the newest first.
fn entries(mut events: Vec<Event>, pod: &Pod) -> Vec<Entry> {
    events.retain(|event| is_about(event, pod));
    events.sort_by_key(|event| std::cmp::Reverse(last_seen(event)));
    let (mut once, now) = (Once::default(), clock::now());
    let entry = |event| of_event(event, &mut once, now).map(|(_, entry)| entry);
    events.iter().filter_map(entry).take(MAX_EVENTS).collect()
}
