//! Changes that the controllers would make upstream for a ModelDeployment, field by field, by dry run as the user.

use askama::Template;
use axum::response::Response;
use runway_client::change::{self, Action, Field};
use runway_client::diff;
use runway_operator::clock;
use runway_operator::telemetry::chain;

use super::deployment::{Head, find};
use crate::guard::{Asker, Of};
use crate::page::{self, Shell};
use crate::refusal;

/// An object, and what would become of it.
struct Item {
    mood: &'static str,
    action: &'static str,
    place: String,
    fields: Vec<Field>,
    /// The whole of it, if it is not there yet.
    yaml: String,
}

#[derive(Template)]
#[template(path = "diff.html")]
struct Page {
    shell: Shell,
    head: Head,
    items: Vec<Item>,
    deletes: Vec<String>,
    notes: Vec<String>,
    /// Error.
    trouble: String,
}

impl Page {
    fn is_quiet(&self) -> bool {
        self.trouble.is_empty() && self.deletes.is_empty() && self.items.iter().all(|i| i.action == "unchanged")
    }
}

/// The page.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    let (view, now) = (&session.view, clock::now());
    let cluster = view.cluster();
    let mut page = Page {
        shell: Shell::new(&session, "deployments", format!("{name}, changes")),
        head: Head::new(&md, "diff", now),
        items: Vec::new(),
        deletes: Vec::new(),
        notes: Vec::new(),
        trouble: String::new(),
    };
    match diff::of_live(&cluster, md.as_ref().clone(), now).await {
        Ok(diff) => {
            page.items = diff.changes.into_iter().map(item).collect();
            page.deletes = diff.deletes;
            page.notes = diff.notes;
        }
        Err(error) => page.trouble = chain(&error),
    }
    refusal::html(&page)
}

fn item(change: change::Change) -> Item {
    let place = change::place(&change.object);
    let (mood, action, fields, yaml) = match change.action {
        Action::Create => ("open", "would be created", Vec::new(), page::yaml(&change.object)),
        Action::Change(fields) => ("open", "would change", fields, String::new()),
        Action::Unchanged => ("good", "unchanged", Vec::new(), String::new()),
    };
    Item {
        mood,
        action,
        place,
        fields,
        yaml,
    }
}
