//! Events as notes.

use runway_operator::plan::Note;

/// An Event that a controller would record, as one line.
pub(super) fn event(note: &Note) -> String {
    let kind = if note.warning { "Warning" } else { "Normal" };
    format!("event {kind} {}: {}", note.reason, note.message)
}
