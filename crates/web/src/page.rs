//! The frame of every page, and the parts that many have.

use runway_api::{Phase, Tone};
use runway_client::text::{self, Format};
use runway_operator::clock;
use serde::Serialize;

use crate::health::Connection;
use crate::refusal::asset_path;
use crate::seen::{Seen, Trouble};
use crate::sessions::Session;

/// The frame of a page.
pub struct Shell {
    /// Title.
    pub title: String,
    /// Section of the console.
    pub part: &'static str,
    /// Query of `/live` that selects the changes of this page.
    pub live: String,
    /// Name of the user; empty without a session.
    pub user: String,
    /// At which cluster.
    pub cluster: String,
    /// Context of the kubeconfig; empty if there is none.
    pub context: String,
    /// For forms.
    pub csrf: String,
    /// Said above everything else.
    pub notices: Vec<Notice>,
}

/// Something to know about the page.
pub struct Notice {
    /// CSS class: `bad` or `open`.
    pub mood: &'static str,
    /// Text.
    pub text: String,
}

impl Shell {
    /// Frame of a page for a session.
    pub fn new(session: &Session, part: &'static str, title: impl Into<String>) -> Self {
        let view = &session.view;
        let mut notices = Vec::new();
        if let Connection::Down(since, why) = &*view.connection().borrow() {
            let text = format!(
                "The cluster has not responded for {}: this page shows the last known state. Retrying every second. ({why})",
                text::since(*since, clock::now())
            );
            notices.push(Notice { mood: "bad", text });
        }
        Self {
            title: title.into(),
            part,
            live: String::new(),
            user: view.user.clone(),
            cluster: view.url.trim_end_matches('/').to_owned(),
            context: view.context.clone(),
            csrf: session.csrf.clone(),
            notices,
        }
    }

    /// Reloads the page when these kinds change.
    #[must_use]
    pub fn live(mut self, kinds: &str) -> Self {
        self.live = format!("kinds={kinds}");
        self
    }

    /// Reloads the page when these kinds change, the first only for one object.
    #[must_use]
    pub fn live_of(mut self, kinds: &str, namespace: &str, name: &str) -> Self {
        self.live = format!("kinds={kinds}&namespace={namespace}&name={name}");
        self
    }

    /// Says why a kind is not shown, or not all of it.
    pub fn note<K>(&mut self, what: &str, seen: &Seen<K>) {
        let notice = match (&seen.trouble, &seen.only_in) {
            (Some(Trouble::Forbidden(_)), _) => Some((
                "open",
                format!("You may not list {what}: ask an administrator for this permission. All other data is shown."),
            )),
            (Some(Trouble::NotInstalled(_)), _) => Some((
                "open",
                format!("The cluster does not serve {what}: this part of the control plane is not installed."),
            )),
            (Some(Trouble::SignedOut(why)), _) => Some((
                "bad",
                format!("The cluster rejects your credentials: sign in again. ({why})"),
            )),
            (Some(Trouble::Away(why)), _) => {
                let reported = self.notices.iter().any(|n| n.mood == "bad");
                (!reported).then(|| ("bad", format!("Cannot read {what} from the cluster: {why}")))
            }
            (Some(Trouble::TooMuch), _) => Some((
                "bad",
                format!("Too many {what} for this console: use `kubeairunway get`."),
            )),
            (None, Some(namespaces)) => Some((
                "open",
                format!(
                    "You may list {what} only in these namespaces: {}.",
                    namespaces.join(", ")
                ),
            )),
            (None, None) => None,
        };
        self.notices.extend(notice.map(|(mood, text)| Notice { mood, text }));
    }

    /// The address of a file of ours.
    pub fn asset(&self, name: &str) -> String {
        asset_path(name)
    }

    /// For the navigation.
    pub fn current(&self, part: &str) -> bool {
        self.part == part
    }
}

/// An object as it is written on a page.
pub fn yaml(object: &impl Serialize) -> String {
    text::documents(&[object], Format::Yaml).unwrap_or_else(|e| e.to_string())
}

/// CSS class of a phase.
pub fn mood(phase: Option<Phase>) -> &'static str {
    class(phase.map_or(Tone::Unknown, Phase::tone))
}

/// CSS class of a tone: `good`, `open`, `bad` or `none`.
pub fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Current => "good",
        Tone::InProgress => "open",
        Tone::Failed => "bad",
        Tone::Terminating | Tone::Paused | Tone::Unknown => "none",
    }
}

/// Sort key of a CSS class: failures first.
pub fn urgency(class: &str) -> usize {
    let order = ["bad", "none", "open", "good"];
    order.iter().position(|known| *known == class).unwrap_or(order.len())
}
