//! Use of a ModelDeployment: requests, tokens per second and KV cache of its engines, read with the session's credential.

use askama::Template;
use axum::response::Response;
use runway_client::engines::Usage;
use runway_client::{top, usage};
use runway_operator::clock;

use super::deployment::{Head, find};
use crate::guard::{Asker, Of};
use crate::page::Shell;
use crate::refusal;

/// Row of the table: the values of an engine.
struct Row {
    name: String,
    cells: [String; 5],
}

#[derive(Template)]
#[template(path = "usage.html")]
struct Page {
    shell: Shell,
    head: Head,
    rows: Vec<Row>,
    problems: Vec<String>,
    seconds: u64,
}

/// The page.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    let cluster = session.lens.cluster();
    let read = usage::of(&cluster, std::slice::from_ref(md.as_ref()), usage::INTERVAL).await;
    let mut page = Page {
        shell: Shell::new(&session, "deployments", format!("{name}, usage")),
        head: Head::new(&md, "usage", clock::now()),
        rows: Vec::new(),
        problems: Vec::new(),
        seconds: usage::INTERVAL.as_secs(),
    };
    for model in read {
        let row = |name: String, usage: Option<&Usage>| Row {
            name,
            cells: top::cells(usage),
        };
        if model.pods.len() > 1 {
            page.rows.push(row("All pods".to_owned(), model.usage.as_ref()));
        }
        let pods = model.pods.into_iter();
        page.rows.extend(pods.map(|pod| row(pod.pod, pod.usage.as_ref())));
        page.problems.extend(model.problems);
    }
    refusal::html(&page)
}
