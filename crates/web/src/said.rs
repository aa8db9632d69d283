//! A message of a status as data: reason, meaning, cause, details and remedy. A page shows each text once.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runway_api::reason::Explained;

/// Longest cause, in bytes. The rest of a message is folded.
const MAX_CAUSE: usize = 180;
/// Remedies that are not an action.
const NO_ACTION: [&str; 2] = ["Nothing", "Wait"];
/// Shortest text that is omitted from a longer one, in bytes.
const MIN_REPEATED: usize = 20;

/// A message of a status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Said {
    /// Reason, as in the condition; may be empty.
    pub reason: String,
    /// Meaning of the reason; empty if the reason is unknown.
    pub meaning: &'static str,
    /// First part of the message, short enough for a list.
    pub cause: String,
    /// Rest of the message.
    pub details: String,
    /// Remedy; empty if there is none.
    pub remedy: &'static str,
}

impl Said {
    /// A text without a reason.
    pub fn plain(text: &str) -> Self {
        let (cause, details) = split(text.trim());
        Self {
            cause: cause.to_owned(),
            details: details.to_owned(),
            ..Self::default()
        }
    }

    /// A text, with the reason of a condition and its explanation in the table of its kind.
    pub fn new(text: &str, condition: Option<&Condition>, table: &[&[Explained]]) -> Self {
        let Some(condition) = condition else {
            return Self::plain(text);
        };
        let rows = || {
            table
                .iter()
                .copied()
                .flatten()
                .filter(|row| row.reason == condition.reason)
        };
        let row = rows()
            .find(|row| row.condition == condition.type_)
            .or_else(|| rows().next());
        let remedy = row.map_or("", |row| row.remedy);
        Self {
            reason: condition.reason.clone(),
            meaning: row.map_or("", |row| row.meaning),
            remedy: if NO_ACTION.contains(&remedy) { "" } else { remedy },
            ..Self::plain(text)
        }
    }

    /// The remedy in parts, each with whether it is code.
    pub fn remedy(&self) -> impl Iterator<Item = (bool, &'static str)> {
        self.remedy.split('`').enumerate().map(|(n, part)| (n % 2 == 1, part))
    }
}

/// The first clause or clauses of a text, and the rest.
fn split(text: &str) -> (&str, &str) {
    let line = text.lines().next().unwrap_or_default();
    if text.len() <= MAX_CAUSE && line.len() == text.len() {
        return (text, "");
    }
    let head = &line[..line.floor_char_boundary(MAX_CAUSE)];
    if head.len() == line.len() {
        return (line, text[line.len()..].trim_start());
    }
    let clause = [". ", "; ", ": "].iter().filter_map(|end| head.rfind(end)).max();
    let end = clause
        .map(|at| at + 1)
        .or_else(|| head.rfind(' '))
        .unwrap_or(head.len());
    (text[..end].trim_end_matches([':', ';', ' ']), text[end..].trim_start())
}

/// Texts that a page has shown.
#[derive(Clone, Debug, Default)]
pub struct Once(Vec<String>);

impl Once {
    /// Whether a text is new on the page. It is not if a shown text contains it.
    pub fn is_new(&mut self, text: &str) -> bool {
        let new = !text.is_empty() && !self.0.iter().any(|shown| shown.contains(text));
        if new {
            self.0.push(text.to_owned());
        }
        new
    }

    /// Whether a text is long enough to be noticed and is not new.
    pub fn is_repeated(&mut self, text: &str) -> bool {
        text.len() >= MIN_REPEATED && !self.is_new(text)
    }

    /// The text if it is new, without a part that is not, and otherwise nothing.
    pub fn text(&mut self, text: &str) -> String {
        let shown = self.0.iter().filter(|shown| shown.len() >= MIN_REPEATED);
        let longest = shown
            .filter(|shown| text.contains(shown.as_str()))
            .max_by_key(|shown| shown.len());
        let rest = longest.map_or_else(|| text.to_owned(), |shown| text.replace(shown, "…"));
        if !self.is_new(text) || rest == "…" {
            String::new()
        } else {
            rest
        }
    }
}

#[cfg(test)]
mod tests {
    use runway_api::condition::{READY, STALLED, no, settle, yes};
    use runway_api::{CoreReason, reason};

    use super::*;

    #[test]
    fn long_messages_are_split_after_a_clause() {
        let pull = format!(
            "container 'model': ErrImagePull: failed to pull the image: {}",
            "x".repeat(400)
        );
        let said = Said::plain(&pull);
        assert_eq!(said.cause, "container 'model': ErrImagePull: failed to pull the image");
        assert_eq!(said.details, "x".repeat(400));
        assert_eq!(Said::plain("short: text.").cause, "short: text.");
        let lines = Said::plain("first\nsecond");
        assert_eq!((lines.cause.as_str(), lines.details.as_str()), ("first", "second"));
        let word = "é".repeat(300);
        let said = Said::plain(&word);
        assert_eq!(format!("{}{}", said.cause, said.details), word);
    }

    #[test]
    fn reasons_are_explained_and_nothing_is_not_a_remedy() {
        let at = "2026-11-21T10:00:00Z".parse().unwrap();
        let drafts = vec![
            no(READY, CoreReason::ProviderUnavailable, "a"),
            yes(STALLED, "Unheard", "b"),
        ];
        let conditions = settle(drafts, &[], None, at);
        let [known, unknown] = conditions.as_slice() else {
            panic!("{conditions:?}")
        };
        let said = Said::new("text", Some(known), reason::MODEL_DEPLOYMENT);
        assert_eq!(said.remedy, "Start the provider's controller");
        assert!(
            said.meaning
                .starts_with("The selected provider's controller does not report")
        );
        assert_eq!(Said::new("text", Some(unknown), reason::MODEL_DEPLOYMENT).meaning, "");
        let all = reason::MODEL_DEPLOYMENT.iter().copied().flatten();
        for row in all.filter(|row| NO_ACTION.contains(&row.remedy)) {
            let fine = settle(vec![yes(row.condition, row.reason, "")], &[], None, at);
            let said = Said::new("", fine.first(), reason::MODEL_DEPLOYMENT);
            assert_eq!(said.remedy, "", "{row:?}");
        }
    }

    #[test]
    fn texts_are_shown_once() {
        let mut once = Once::default();
        assert!(once.is_new("the pull failed: timeout"));
        assert!(!once.is_new("timeout") && !once.is_new(""));
        assert_eq!(once.text("another"), "another");
        assert_eq!(
            once.text("Provider in error state: the pull failed: timeout"),
            "Provider in error state: …"
        );
    }
}
