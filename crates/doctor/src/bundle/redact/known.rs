//! Values that were found to be secret, and where else they occur.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{REDACTED, shapes};

/// Shorter values would make holes in every text.
const SHORTEST: usize = 6;
/// Values that are remembered at most, and public texts, in bytes: more are redacted only where they are.
const MOST: usize = 512 << 10;

/// Remembered values.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Secrets without doubt.
    certain: BTreeSet<String>,
    /// Values of environment variables, which may be harmless.
    values: BTreeSet<String>,
    /// Names and the like: everybody sees them.
    public: BTreeSet<String>,
    value_bytes: usize,
    public_bytes: usize,
    is_sealed: bool,
    finder: Option<AhoCorasick>,
}

impl Known {
    /// Remembers a value, each line of it, and the password in it if it is a URL.
    pub(super) fn remember(&mut self, value: &str, certain: bool) {
        if self.is_sealed() || value.contains(REDACTED) {
            return;
        }
        self.insert(value.trim(), certain);
        // Lines of a document are no values.
        if value.contains('\n') && super::document(value).is_none() {
            value.lines().for_each(|line| self.insert(line.trim(), certain));
        }
        if let Some((user, password)) = shapes::login(value) {
            self.insert(password.unwrap_or(user), true);
        }
    }

    fn insert(&mut self, value: &str, certain: bool) {
        if value.len() < SHORTEST || self.value_bytes > MOST || value.bytes().all(|byte| byte == value.as_bytes()[0]) {
            return;
        }
        let decoded = super::encoded::percent_decoded(value);
        for value in [Some(value.to_owned()), decoded].into_iter().flatten() {
            self.value_bytes += value.len();
            if certain {
                self.certain.insert(value);
            } else {
                self.values.insert(value);
            }
        }
    }

    /// Notes a text that everybody sees.
    pub(super) fn is_public(&mut self, text: &str) {
        if !self.is_sealed() && self.public_bytes <= MOST && !self.public.contains(text) {
            self.public_bytes += text.len();
            self.public.insert(text.to_owned());
        }
    }

    /// Ends the first pass: from now on what is known is replaced.
    pub(super) fn seal(&mut self) {
        self.is_sealed = true;
        // A password may be a word that is also a name, but not a part of one.
        let public = self.public.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let certain = self.certain.iter().filter(|value| !self.public.contains(*value));
        let values = self.values.iter().filter(|value| !public.contains(value.as_str()));
        let patterns: BTreeSet<String> = certain.chain(values).flat_map(|value| forms(value)).collect();
        self.finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns)
            .ok();
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Whether these bytes contain a known value.
    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        self.finder.as_ref().is_some_and(|finder| finder.is_match(bytes))
    }

    /// Redacts known values.
    pub(super) fn replace(&self, text: &str, removed: &mut usize) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut end = 0;
        for found in self.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            replaced.push_str(&text[end..found.start()]);
            replaced.push_str(REDACTED);
            end = found.end();
            *removed += 1;
        }
        replaced.push_str(&text[end..]);
        replaced
    }
}

/// A value as it is, and as it is written between the quotes of JSON and of Rust.
fn forms(value: &str) -> [String; 3] {
    let json = serde_json::Value::from(value).to_string();
    let debug = format!("{value:?}");
    [value.to_owned(), between_quotes(&json), between_quotes(&debug)]
}

fn between_quotes(text: &str) -> String {
    text[1..text.len() - 1].to_owned()
}
