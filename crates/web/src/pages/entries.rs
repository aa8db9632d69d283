//! Conditions and Events as entries of a list.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runway_api::condition::{self, Conditions};

use crate::moment::Moment;
use crate::said::Once;

/// Something that happened.
pub struct Entry {
    /// Time.
    pub when: Moment,
    /// CSS class.
    pub mood: &'static str,
    /// Title.
    pub what: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Number of occurrences.
    pub count: i32,
}

/// The condition that the status message of an actor or distribution is about, if it does not serve.
pub fn amiss(conditions: &[Condition]) -> Option<&Condition> {
    let stalled = conditions.when_true(condition::STALLED);
    stalled.or_else(|| conditions.when_false(condition::READY))
}

/// An Event as an entry, with its time. `None` if it has none.
pub fn of_event(event: &Event, once: &mut Once, now: Timestamp) -> Option<(Timestamp, Entry)> {
    let when = runway_client::events::last_seen(event)?;
    let warning = event.type_.as_deref() == Some("Warning");
    let entry = Entry {
        when: Moment::new(when, now),
        mood: if warning { "bad" } else { "none" },
        what: "Event".to_owned(),
        reason: event.reason.clone().unwrap_or_default(),
        message: once.text(event.message.as_deref().unwrap_or_default()),
        count: event.series.as_ref().and_then(|s| s.count).or(event.count).unwrap_or(1),
    };
    Some((when, entry))
}

/// A condition as an entry, without a message that the page has shown.
pub fn of_condition_once(c: &Condition, once: &mut Once, now: Timestamp) -> Entry {
    let entry = of_condition(c, now);
    let message = match once.text(&entry.message) {
        shown if shown.is_empty() && !entry.message.is_empty() => "see above".to_owned(),
        message => message,
    };
    Entry { message, ..entry }
}

/// A condition as an entry.
pub fn of_condition(c: &Condition, now: Timestamp) -> Entry {
    let mood = match c.status.as_str() {
        "True" if c.type_ == condition::STALLED => "bad",
        "Unknown" => "none",
        _ if condition::is_amiss(c) => "open",
        _ => "good",
    };
    Entry {
        when: Moment::new(c.last_transition_time.0, now),
        mood,
        what: if c.status == "True" {
            c.type_.clone()
        } else {
            format!("not {}", c.type_)
        },
        reason: c.reason.clone(),
        message: c.message.clone(),
        count: 1,
    }
}
